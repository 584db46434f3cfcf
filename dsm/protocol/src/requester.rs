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
use crate::outstanding_requests::OutstandingRequest;
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
        if let Some(wait) = self.outstanding.get_mut(gfn) {
            // A writer that waits for a read maps it read-only and faults again.
            wait.prefetched = false;
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
                self.await_page(gfn, want, true);
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
        self.await_page(gfn, want, false);
        self.post_to_home(gfn, Message::Get { gfn, want, table });
    }

    pub(crate) fn await_page(&mut self, gfn: Gfn, want: Access, prefetched: bool) {
        let wait = OutstandingRequest {
            want,
            prefetched,
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

    /// Ends a wait: measures it and opens the hold window, if anybody waits for the page. Tells whether the
    /// home wants to know.
    fn finish_wait(&mut self, gfn: Gfn) -> bool {
        let Some(wait) = self.outstanding.remove(gfn) else { return false };
        if wait.prefetched {
            return wait.confirms;
        }
        let held = u64::from(wait.held_us).saturating_mul(1000);
        let waited = self.now.saturating_sub(wait.since);
        self.stats.waited_ns += waited;
        self.stats.held_ns += held.min(waited);
        self.hold.measured(waited.saturating_sub(held));
        self.hold_page(gfn, waited, held);
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
            self.outstanding.insert(gfn, wait);
        }
    }

    /// A replica goes, and this slice has the page: its request is answered. Tells whether that may still be on
    /// its way.
    pub(crate) fn drop_overtaken(&mut self, gfn: Gfn) -> bool {
        self.overtaken.remove(&gfn).is_some_and(|wait| wait.in_run)
    }
}
