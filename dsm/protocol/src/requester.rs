//! The requester's part: asking for a page and putting it into place.
//!
//! ```text
//!   --fault--> Get out --Data or Grant--> counting acknowledgements --all--> map
//!                                                        \--(table page)--> Offer out
//!                                             --all Ready--> map, Go, Confirm
//! ```
//!
//! Acknowledgements may come before the data they belong to. Those of an upgrade say how many there
//! will be, and stand for the grant. Only tables are confirmed: an ordinary page counts as this slice's
//! from the moment its home has served the request.

use crate::entry::target;
use crate::error::ProtocolError;
use crate::node::Node;
use crate::outstanding_requests::{Demand, OutstandingRequest};
use crate::pages::PageCopy;
use crate::planted::PlantedBug;
use crate::store::PageStore;
use crate::tables::Replicate;
use wire::{Access, Gfn, Held, Message, RUN_MAX, SliceId, Table};

impl Node {
    pub(crate) fn fault(&mut self, gfn: Gfn, want: Access, store: &mut impl PageStore) {
        let copy = self.pages.copy(gfn);
        if copy.access() >= want {
            self.stats.faults_local += 1;
            store.map(gfn, copy.access());
            return;
        }
        let now = self.now;
        if let Some(wait) = self.outstanding.get_mut(gfn) {
            // A writer that waits for a read maps it read-only and faults again.
            if matches!(wait.demand, Demand::Ahead { .. }) {
                wait.demand = Demand::Awaited(now);
            }
            return;
        }
        if copy == PageCopy::Forming {
            let waiting = self.forming.entry(gfn).or_insert(want);
            *waiting = want.max(*waiting);
            return;
        }
        match (want, copy) {
            (Access::Write, PageCopy::Shared) => self.stats.faults_upgrade += 1,
            (Access::Write, _) => self.stats.faults_write += 1,
            _ => self.stats.faults_read += 1,
        }
        self.ask(gfn, want, store);
    }

    /// Asks for pages that nobody waits for yet, neighbours of one home by one message. A page that is
    /// here already, in whatever way, is left alone, and so is a table: whether it becomes a replica
    /// is for a walk to decide.
    pub(crate) fn prefetch(&mut self, first: Gfn, pages: u16, want: Access) {
        let mut run: Option<(SliceId, Gfn, u16)> = None;
        for gfn in (0..u64::from(pages)).map_while(|n| first.0.checked_add(n)).map(Gfn) {
            let home = self.home(gfn).filter(|_| self.may_prefetch(gfn));
            match (&mut run, home) {
                (Some((of, _, pages)), Some(home)) if *of == home && *pages < RUN_MAX => {
                    *pages += 1;
                }
                (_, home) => {
                    self.ask_run(run.take(), want);
                    run = home.map(|home| (home, gfn, 1));
                }
            }
            if home.is_some() {
                self.stats.prefetches += 1;
                self.await_page(gfn, want, Demand::Ahead { kept: false });
                if let Some(wait) = self.outstanding.get_mut(gfn) {
                    wait.in_run = true;
                }
            }
        }
        self.ask_run(run, want);
    }

    fn may_prefetch(&self, gfn: Gfn) -> bool {
        self.pages.copy(gfn) == PageCopy::Invalid
            && !self.home_moves.is_away(gfn)
            && !self.outstanding.contains(gfn)
            && self.tables.table(gfn).is_none()
    }

    /// Asks to write a page that can be read here, before anybody does. It has a hold window when it comes: without one it
    /// is taken away again before it is used (docs/decisions/0016-correlation-prefetch.md). Any other page, and a table, is
    /// left alone.
    pub(crate) fn upgrade_ahead(&mut self, gfn: Gfn) {
        let is_upgrade = self.pages.copy(gfn) == PageCopy::Shared
            && !self.outstanding.contains(gfn)
            && self.tables.table(gfn).is_none();
        if is_upgrade {
            self.stats.prefetches += 1;
            self.await_page(gfn, Access::Write, Demand::Ahead { kept: true });
            self.post_to_home(gfn, Message::Get { gfn, want: Access::Write, table: None });
        }
    }

    fn ask_run(&mut self, run: Option<(SliceId, Gfn, u16)>, want: Access) {
        match run {
            Some((home, gfn, 1)) => self.post(home, Message::Get { gfn, want, table: None }),
            Some((home, gfn, pages)) => self.post(home, Message::GetRun { gfn, pages, want }),
            None => {}
        }
    }

    fn ask(&mut self, gfn: Gfn, want: Access, store: &impl PageStore) {
        let table = self.tables.table(gfn);
        let table =
            table.filter(|table| self.may_replicate() && self.is_rooted(gfn, *table, store));
        self.await_page(gfn, want, Demand::Awaited(self.now));
        self.post_to_home(gfn, Message::Get { gfn, want, table });
    }

    pub(crate) fn await_page(&mut self, gfn: Gfn, want: Access, demand: Demand) {
        let wait = OutstandingRequest {
            want,
            demand,
            in_run: false,
            since: self.now,
            held_us: 0,
            granted: None,
            acks: 0,
            table: None,
            confirms: false,
            offers: None,
        };
        self.outstanding.insert(gfn, wait);
    }

    fn may_replicate(&self) -> bool {
        self.config.replicate != Replicate::Nothing && self.config.slices.len() > 1
    }

    /// False while all tables that point to this one are still becoming replicas. Another slice may not have been offered
    /// them: it would get this table as one without a parent, end it, and be told too little of who makes replicas of
    /// what is below.
    fn is_rooted(&self, gfn: Gfn, table: Table, store: &impl PageStore) -> bool {
        let parents = self.tables.above(table.level);
        let is_used = |parent: &Gfn| self.pages.copy(*parent) == PageCopy::Replica;
        self.planted(PlantedBug::ReplicaBeforeParent)
            || parents.iter().all(is_used)
            || self.tables.is_root(gfn)
            || parents.iter().filter(|parent| is_used(parent)).any(|parent| {
                let mut points = false;
                store.twin_entries(*parent, &mut |_, value| points |= target(value) == Some(gfn));
                points
            })
    }

    pub(crate) fn granted(
        &mut self,
        from: SliceId,
        gfn: Gfn,
        acks: u16,
        table: Option<Table>,
        store: &mut impl PageStore,
    ) -> Result<(), ProtocolError> {
        if self.pages.copy(gfn).access() == Access::None {
            return Err(self.error(from, "Grant", gfn, "there is no copy to write"));
        }
        self.arrived(from, "Grant", gfn, Access::Write, acks, table)?;
        self.try_complete(gfn, store);
        Ok(())
    }

    pub(crate) fn data(
        &mut self,
        from: SliceId,
        gfn: Gfn,
        access: Access,
        acks: u16,
        table: Option<Table>,
        store: &mut impl PageStore,
    ) -> Result<(), ProtocolError> {
        if access == Access::None {
            return Err(self.error(from, "Data", gfn, "it gives no access"));
        }
        if table.is_some() && access != Access::Write {
            return Err(self.error(from, "Data", gfn, "a table comes for writing"));
        }
        if self.pages.copy(gfn) != PageCopy::Invalid {
            return Err(self.error(from, "Data", gfn, "there is a copy already"));
        }
        self.arrived(from, "Data", gfn, access, acks, table)?;
        store.fill(gfn);
        if from != self.config.local {
            self.stats.page_came(from);
        }
        self.try_complete(gfn, store);
        Ok(())
    }

    fn arrived(
        &mut self,
        from: SliceId,
        what: &'static str,
        gfn: Gfn,
        access: Access,
        acks: u16,
        table: Option<Table>,
    ) -> Result<(), ProtocolError> {
        let error = self.error(from, what, gfn, "it was not asked for");
        let wait =
            self.outstanding.get_mut(gfn).filter(|wait| wait.granted.is_none()).ok_or(error)?;
        wait.granted = Some((access, acks));
        (wait.table, wait.confirms) = (table, table.is_some());
        Ok(())
    }

    pub(crate) fn acked(
        &mut self,
        from: SliceId,
        gfn: Gfn,
        upgrade: u16,
        store: &mut impl PageStore,
    ) -> Result<(), ProtocolError> {
        let error = self.error(from, "Acked", gfn, "nothing was invalidated for this slice");
        let upgrades = upgrade == 0 || self.pages.copy(gfn) == PageCopy::Shared;
        let wait = self.outstanding.get_mut(gfn).filter(|_| upgrades).ok_or(error)?;
        wait.acks = wait.acks.saturating_add(1);
        if upgrade > 0 {
            wait.granted = Some((Access::Write, upgrade));
        }
        self.try_complete(gfn, store);
        Ok(())
    }

    fn try_complete(&mut self, gfn: Gfn, store: &mut impl PageStore) {
        let Some(wait) = self.outstanding.get(gfn) else { return };
        let Some((access, acks)) = wait.granted else { return };
        if wait.acks < acks && !self.planted(PlantedBug::GrantEarly) {
            return;
        }
        match wait.table {
            Some(table) if wait.offers.is_none() && self.tables.is_wanted(gfn, table) => {
                self.offer(gfn, table, store);
            }
            Some(_) if wait.offers.is_some() => {}
            // No table, or none any more: whoever gave the page first told us that it was taken
            // out of its parent.
            _ => self.complete(gfn, access, store),
        }
    }

    fn complete(&mut self, gfn: Gfn, access: Access, store: &mut impl PageStore) {
        let copy = if access == Access::Write { PageCopy::Exclusive } else { PageCopy::Shared };
        self.pages.set_copy(gfn, copy);
        store.map(gfn, access);
        if self.finish_wait(gfn) {
            // Only a table is confirmed, and it came for writing.
            self.post_to_home(gfn, Message::Confirm { gfn, held: Held::Exclusive, asked: false });
        }
        self.satisfy_pins(gfn, store);
        self.retry_recall(gfn, store);
    }

    /// Ends a wait: counts it if anybody waits for the page, and opens the hold window then. Tells whether the home
    /// wants to know.
    fn finish_wait(&mut self, gfn: Gfn) -> bool {
        let Some(wait) = self.outstanding.remove(gfn) else { return false };
        let held = u64::from(wait.held_us).saturating_mul(1000);
        let travelled = self.now.saturating_sub(wait.since);
        if let Demand::Awaited(since) = wait.demand {
            let waited = self.now.saturating_sub(since);
            self.stats.waited_ns += waited;
            self.stats.held_ns += held.min(waited);
        }
        if wait.demand != (Demand::Ahead { kept: false }) {
            self.hold.measured(travelled.saturating_sub(held));
            self.hold_page(gfn, travelled, held);
        }
        wait.confirms
    }

    pub(crate) fn note_held(&mut self, gfn: Gfn, held_us: u32) {
        if let Some(wait) = self.outstanding.get_mut(gfn) {
            wait.held_us = wait.held_us.max(held_us);
        }
    }

    /// The page is ours alone: make it a replica everywhere.
    fn offer(&mut self, gfn: Gfn, table: Table, store: &mut impl PageStore) {
        // A copy that is here already stays read-only until everyone is ready.
        store.snapshot(gfn, table);
        self.tables.insert(gfn, table, store);
        let others = self.others_count();
        self.outstanding.get_mut(gfn).expect("completed by the caller").offers = Some(others);
        self.stats.replicas.conversions += 1;
        self.post_to_others(&Message::Offer { gfn, table });
    }

    pub(crate) fn offered(
        &mut self,
        from: SliceId,
        gfn: Gfn,
        table: Table,
        store: &mut impl PageStore,
    ) -> Result<(), ProtocolError> {
        if self.pages.copy(gfn) != PageCopy::Invalid {
            return Err(self.error(from, "Offer", gfn, "there is a copy already"));
        }
        store.fill(gfn);
        self.stats.page_came(from);
        store.snapshot(gfn, table);
        self.tables.insert(gfn, table, store);
        self.pages.set_copy(gfn, PageCopy::Forming);
        self.post(from, Message::Ready { gfn });
        Ok(())
    }

    pub(crate) fn ready(
        &mut self,
        from: SliceId,
        gfn: Gfn,
        store: &mut impl PageStore,
    ) -> Result<(), ProtocolError> {
        let error = self.error(from, "Ready", gfn, "no replica was offered");
        let wait = self.outstanding.get_mut(gfn).ok_or_else(|| error.clone())?;
        let left = wait.offers.as_mut().filter(|left| **left > 0).ok_or(error)?;
        *left -= 1;
        if *left > 0 {
            return Ok(());
        }
        if wait.table.is_some_and(|table| self.tables.is_wanted(gfn, table)) {
            self.post_to_others(&Message::Go { gfn });
            self.use_replica(gfn, store);
            self.post_to_home(gfn, Message::Confirm { gfn, held: Held::Replica, asked: false });
        } else {
            self.end_offer(gfn, store);
        }
        Ok(())
    }

    /// The page was taken out of its parent while it was offered, and may be data by now. Nobody
    /// has used the replica: it is dropped everywhere, and this slice has an ordinary page. A slice
    /// that took it out after its `Ready` has the replica in its own flush and ends it itself.
    fn end_offer(&mut self, gfn: Gfn, store: &mut impl PageStore) {
        self.tables.remove(gfn, store);
        store.forget(gfn);
        let others = self.others_count();
        let wait = self.outstanding.get_mut(gfn).expect("the caller has it");
        (wait.table, wait.offers, wait.acks) = (None, None, 0);
        wait.granted = Some((Access::Write, others));
        self.offer_over(gfn);
        let requester = self.config.local;
        self.post_to_others(&Message::Invalidate { gfn, requester, upgrade: 0 });
    }

    /// An offered replica that nobody used is dropped.
    pub(crate) fn offer_ended(&mut self, from: SliceId, gfn: Gfn, store: &mut impl PageStore) {
        store.unmap(gfn);
        self.tables.remove(gfn, store);
        store.forget(gfn);
        self.pages.set_copy(gfn, PageCopy::Invalid);
        self.post(from, Message::Acked { gfn, upgrade: 0, held_us: 0 });
        self.offer_over(gfn);
        if let Some(want) = self.forming.remove(&gfn) {
            self.fault(gfn, want, store);
        }
    }

    pub(crate) fn go(
        &mut self,
        from: SliceId,
        gfn: Gfn,
        store: &mut impl PageStore,
    ) -> Result<(), ProtocolError> {
        if self.pages.copy(gfn) != PageCopy::Forming {
            return Err(self.error(from, "Go", gfn, "no replica was offered"));
        }
        self.use_replica(gfn, store);
        self.retry_recall(gfn, store);
        Ok(())
    }

    fn use_replica(&mut self, gfn: Gfn, store: &mut impl PageStore) {
        self.pages.set_copy(gfn, PageCopy::Replica);
        store.map(gfn, Access::Write);
        self.forming.remove(&gfn);
        if let Some(wait) = self.outstanding.remove(gfn).filter(|wait| wait.offers.is_none()) {
            self.overtaken.insert(gfn, wait);
        }
        self.held.remove(gfn);
        self.satisfy_pins(gfn, store);
    }

    /// A replica goes; does the request that it answered count again?
    pub(crate) fn resume_overtaken(&mut self, gfn: Gfn, dropped: bool) {
        if let Some(mut wait) = self.overtaken.remove(&gfn).filter(|_| !dropped) {
            wait.since = self.now;
            if matches!(wait.demand, Demand::Awaited(_)) {
                wait.demand = Demand::Awaited(self.now);
            }
            self.outstanding.insert(gfn, wait);
        }
    }

    /// A replica goes, and this slice has the page: its request is answered. Tells whether that may still be on
    /// its way.
    pub(crate) fn drop_overtaken(&mut self, gfn: Gfn) -> bool {
        self.overtaken.remove(&gfn).is_some_and(|wait| wait.in_run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, HoldPolicy, HomeRange, HomeTable, Input, NoPages};
    use wire::Epoch;

    const HOME: SliceId = SliceId(0);
    const TRANSFER_NS: u64 = 100_000;

    /// A slice that can read all pages, each of which has come after [`TRANSFER_NS`].
    struct Reader(Node, u64);

    impl Reader {
        fn new(pages: u64) -> Self {
            let homes = HomeTable::new(vec![HomeRange { frames: 0..pages, home: HOME }]).unwrap();
            let config = Config::new(SliceId(1), vec![HOME, SliceId(1)], homes, Epoch(1));
            let node = Node::new(Config { hold: HoldPolicy::default(), ..config });
            let mut reader = Self(node, 0);
            for gfn in (0..pages).map(Gfn) {
                reader.give(0, Input::Fault { gfn, want: Access::Read });
                let access = Access::Read;
                let data = Message::Data { gfn, access, acks: 0, held_us: 0, table: None };
                reader.came(TRANSFER_NS, data);
            }
            reader
        }

        fn give(&mut self, later_ns: u64, input: Input) {
            self.1 += later_ns;
            self.0.step(self.1, input, &mut NoPages, &mut Vec::new()).unwrap();
        }

        fn came(&mut self, later_ns: u64, message: Message) {
            self.give(later_ns, Input::Message { from: HOME, epoch: Epoch(1), message });
        }

        fn granted(&mut self, later_ns: u64, gfn: Gfn) {
            self.came(later_ns, Message::Grant { gfn, acks: 0, table: None });
        }
    }

    #[test]
    fn upgrades_asked_for_ahead_are_kept_and_are_no_waits() {
        let mut reader = Reader::new(64);
        let before = reader.0.stats();

        (0..64).for_each(|gfn| reader.give(0, Input::UpgradeAhead { gfn: Gfn(gfn) }));
        // Each queues behind those before it.
        (0..64).for_each(|gfn| reader.granted(TRANSFER_NS, Gfn(gfn)));

        let after = reader.0.stats();
        assert_eq!(after.waited_ns, before.waited_ns);
        assert_eq!((after.faults_upgrade, after.prefetches), (0, before.prefetches + 64));
        assert_eq!(reader.0.access(Gfn(63)), Access::Write);
        assert!(reader.0.held.get(Gfn(63)).is_some());
    }

    #[test]
    fn page_asked_for_ahead_is_waited_for_from_when_it_is_touched() {
        let mut reader = Reader::new(1);
        let before = reader.0.stats().waited_ns;

        reader.give(0, Input::UpgradeAhead { gfn: Gfn(0) });
        reader.give(50 * TRANSFER_NS, Input::Fault { gfn: Gfn(0), want: Access::Write });
        reader.granted(TRANSFER_NS, Gfn(0));

        assert_eq!(reader.0.stats().waited_ns - before, TRANSFER_NS);
    }

    #[test]
    fn only_pages_that_can_be_read_are_upgraded_ahead() {
        let mut reader = Reader::new(2);
        reader.give(0, Input::Fault { gfn: Gfn(0), want: Access::Write });
        let asked = reader.0.stats().messages_out;
        reader.give(0, Input::UpgradeAhead { gfn: Gfn(0) });
        assert_eq!(reader.0.stats().messages_out, asked);
        reader.granted(TRANSFER_NS, Gfn(0));
        reader.give(0, Input::UpgradeAhead { gfn: Gfn(0) });
        // Its hold window is over.
        let recall = Message::Invalidate { gfn: Gfn(1), requester: HOME, upgrade: 0 };
        reader.came(1_000_000_000, recall);
        assert_eq!(reader.0.access(Gfn(1)), Access::None);
        let acknowledged = reader.0.stats().messages_out;
        reader.give(0, Input::UpgradeAhead { gfn: Gfn(1) });

        assert_eq!((acknowledged, reader.0.stats().messages_out), (asked + 1, asked + 1));
    }
}
