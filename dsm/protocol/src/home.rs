//! The home's part: it puts the requests for a page into an order and tells the holders.
//!
//! ```text
//!   idle --Get--------------> Fetch, Invalidate, Grant out; the requester counts as holder --> idle
//!   idle --Get of a table---> busy (the same out) --Confirm--> idle, or the next request
//!   idle, replicated --Demote--> busy (Leave out) --Confirm--> idle, or the next request
//! ```
//!
//! The directory says who will have the page once all that is on its way has arrived. A holder that is
//! asked for a page which it does not have yet keeps the request until it has it (`holder`). So each
//! page goes from one requester to the next in the home's order, and nobody confirms ordinary pages.
//! Replicas concern everyone: while a page becomes one, or ends as one, the home is busy and requests
//! wait in a queue.
//!
//! [`crate::home_move`] gives pages another home.

use crate::error::ProtocolError;
use crate::node::Node;
use crate::outstanding_requests::Demand;
use crate::pages::{Holders, PageCopy};
use crate::planted::PlantedBug;
use crate::serving::{Request, Serving};
use crate::store::PageStore;
use std::collections::VecDeque;
use wire::{Access, Asked, Gfn, Held, Message, SliceId, Table};

impl Node {
    pub(crate) fn home_get(
        &mut self,
        from: SliceId,
        gfn: Gfn,
        want: Access,
        table: Option<Table>,
        store: &impl PageStore,
    ) -> Result<(), ProtocolError> {
        let Some(holders) = self.pages.holders(gfn) else {
            return Err(self.error(from, "Get", gfn, "this slice is not its home"));
        };
        if want == Access::None {
            return Err(self.error(from, "Get", gfn, "it asks for no access"));
        }
        let may_replicate = !self.banned.contains(&gfn) && !self.home_moves.is_leaving(gfn);
        let untouched = self.pages.copy(gfn) == PageCopy::Exclusive && store.is_untouched(gfn);
        let want = if untouched { Access::Write } else { want };
        if self.home_moves.is_closed(gfn) {
            return self.queue_for_next_home(
                from,
                gfn,
                Asked::Get { want, table, late_run: false },
            );
        }
        let table = table.filter(|_| may_replicate);
        let request = Request::Get { from, want, table };
        if let Some(serving) = self.serving.get_mut(&gfn) {
            // A slice has one request per page on its way, and one left over from before a
            // conversion at most.
            if serving.queue.len() >= 4 * self.config.slices.len() {
                return Err(self.error(from, "Get", gfn, "the queue at home is full"));
            }
            serving.queue.push_back(request);
            return Ok(());
        }
        if holders.is_replicated() {
            // Sent before the replica arrived there; the replica answers it.
            self.pages.set_holders(gfn, holders.with_dropped(from));
            return Ok(());
        }
        self.serve(gfn, request, VecDeque::new());
        Ok(())
    }

    /// As a `Get` for each page of a run. Pages to read are granted exclusively where that does no harm. Pages that the
    /// sender has got as the heir of a table meanwhile are passed over.
    pub(crate) fn home_get_run(
        &mut self,
        from: SliceId,
        first: Gfn,
        pages: u16,
        want: Access,
        store: &impl PageStore,
    ) -> Result<(), ProtocolError> {
        let end = first.0.checked_add(u64::from(pages));
        let end = end.ok_or_else(|| self.error(from, "GetRun", first, "no memory there"))?;
        if want == Access::None {
            return Err(self.error(from, "GetRun", first, "it asks for no access"));
        }
        let may_grant = want == Access::Read && self.config.mechanisms.exclusive_grants;
        for gfn in (first.0..end).map(Gfn) {
            if self.late_runs.remove(&(from, gfn)) {
                continue;
            }
            let is_late = self.home(gfn).is_some() && self.home_moves.is_former(gfn);
            if is_late && self.pages.holders(gfn).is_none() {
                self.pass_on(from, gfn, Asked::Get { want, table: None, late_run: true })?;
                continue;
            }
            match self.exclusive_grant_holders(gfn, from).filter(|_| may_grant) {
                Some(holders) => self.exclusive_grant(gfn, holders, from),
                None => self.home_get(from, gfn, want, None, store)?,
            }
        }
        Ok(())
    }

    /// The holders of a page that may be granted exclusively: one slice has had it for writing ever since it was shared
    /// last. A table is left where it is walked.
    fn exclusive_grant_holders(&self, gfn: Gfn, to: SliceId) -> Option<Holders> {
        let holders = self.pages.holders(gfn)?;
        let busy = self.serving.contains_key(&gfn)
            || self.tables.table(gfn).is_some()
            || self.home_moves.is_closed(gfn);
        (holders.is_written() && !holders.contains(to) && !busy).then_some(holders)
    }

    /// Exclusive-on-read grant: a slice that reads a run of pages gets them as if it wanted to write, for pages that may
    /// be written are far cheaper to map. If another slice reads the page next, both share it.
    fn exclusive_grant(&mut self, gfn: Gfn, holders: Holders, to: SliceId) {
        self.hand_over(gfn, holders, to, None);
        self.pages.set_holders(gfn, holders.with_exclusive_grant(to));
    }

    /// Serves an ordinary request; nothing is left to be waited for.
    fn serve_get(&mut self, gfn: Gfn, from: SliceId, want: Access) {
        let holders = self.pages.holders(gfn).expect("this slice is home");
        if want == Access::Write || holders.contains(from) {
            self.hand_over(gfn, holders, from, None);
            self.pages.set_holders(gfn, holders.with_owner(from));
        } else {
            let holders = self.with_home_copy(gfn, holders, from);
            self.fetch(gfn, self.source(holders), from, Access::Read, 0, None);
            self.pages.set_holders(gfn, holders.with_reader(from));
        }
    }

    /// Has everyone give the page up in favour of one slice. For an ordinary page, acknowledgements of an upgrade stand
    /// for the grant. For a table they cannot, because the grant says what to do with it.
    fn hand_over(&mut self, gfn: Gfn, holders: Holders, to: SliceId, table: Option<Table>) {
        if holders.contains(to) {
            let acks = self.invalidate_others(gfn, holders, to, None, table.is_none());
            if acks == 0 || table.is_some() {
                self.post(to, Message::Grant { gfn, acks, table });
            }
        } else {
            let source = self.source(holders);
            let acks = self.invalidate_others(gfn, holders, to, Some(source), false);
            self.fetch(gfn, source, to, Access::None, acks, table);
        }
    }

    /// Has this home read a widely shared page before another reader gets it.
    fn with_home_copy(&mut self, gfn: Gfn, holders: Holders, reader: SliceId) -> Holders {
        let local = self.config.local;
        let absent = self.pages.copy(gfn) == PageCopy::Invalid && !self.outstanding.contains(gfn);
        let is_wanted = self.config.mechanisms.home_copies && holders.is_widely_shared();
        if !is_wanted || holders.contains(local) || reader == local || !absent {
            return holders;
        }
        self.stats.prefetches += 1;
        self.await_page(gfn, Access::Read, Demand::Ahead { kept: false });
        self.fetch(gfn, self.source(holders), local, Access::Read, 0, None);
        if self.planted(PlantedBug::HomeCopyForgotten) {
            return holders;
        }
        let holders = holders.with_reader(local);
        self.pages.set_holders(gfn, holders);
        holders
    }

    /// The requester makes replicas of the page; until it confirms, others wait.
    fn serve_conversion(
        &mut self,
        gfn: Gfn,
        from: SliceId,
        table: Table,
        queue: VecDeque<Request>,
    ) {
        let holders = self.pages.holders(gfn).expect("this slice is home");
        self.serving.insert(gfn, Serving { requester: from, demoting: false, queue });
        self.hand_over(gfn, holders, from, Some(table));
        if self.planted(PlantedBug::SkipConfirm)
            && let Some(serving) = self.serving.remove(&gfn)
        {
            self.pages.set_holders(gfn, Holders::exclusive(serving.requester));
            self.serve_next(gfn, serving.queue);
        }
    }

    fn fetch(
        &mut self,
        gfn: Gfn,
        source: SliceId,
        requester: SliceId,
        keep: Access,
        acks: u16,
        table: Option<Table>,
    ) {
        let owner = self.pages.holders(gfn).is_some_and(Holders::is_exclusive);
        self.post(source, Message::Fetch { gfn, requester, keep, acks, owner, table });
    }

    /// Who sends the page: this slice if it can, for that saves a message; else any holder.
    fn source(&self, holders: Holders) -> SliceId {
        let local = self.config.local;
        if holders.contains(local) {
            return local;
        }
        holders.iter().next().expect("a page that is not replicated has a holder")
    }

    /// Invalidates all holders but two, in parallel. Returns how many will acknowledge. In an upgrade
    /// their acknowledgements say how many they are, and save the grant.
    fn invalidate_others(
        &mut self,
        gfn: Gfn,
        holders: Holders,
        requester: SliceId,
        source: Option<SliceId>,
        upgrade: bool,
    ) -> u16 {
        let targets = holders.iter().filter(|slice| *slice != requester && Some(*slice) != source);
        let lost = usize::from(self.planted(PlantedBug::DropInvalidation));
        let targets: Vec<SliceId> = targets.skip(lost).collect();
        let acks = u16::try_from(targets.len()).expect("at most 64 slices");
        let upgrade = if upgrade { acks } else { 0 };
        for target in targets {
            self.post(target, Message::Invalidate { gfn, requester, upgrade });
        }
        acks
    }

    pub(crate) fn home_confirm(
        &mut self,
        from: SliceId,
        gfn: Gfn,
        held: Held,
        asked: bool,
    ) -> Result<(), ProtocolError> {
        let Some(serving) = self.serving.get(&gfn) else {
            return Err(self.error(from, "Confirm", gfn, "no request is being served"));
        };
        if serving.requester != from {
            return Err(self.error(from, "Confirm", gfn, "another slice is being served"));
        }
        // A conversion ends as an ordinary write if the page was taken out of the tables meanwhile.
        let holders = match held {
            Held::Exclusive => Holders::exclusive(from),
            Held::Replica if !serving.demoting => Holders::replicated(),
            _ => return Err(self.error(from, "Confirm", gfn, "it is not what was granted")),
        };
        let serving = self.serving.remove(&gfn).expect("just seen");
        let was_dropped = self.pages.holders(gfn).is_some_and(|before| before.contains(from));
        self.pages.set_holders(gfn, holders);
        if serving.demoting {
            for slice in self.config.slices.clone() {
                if slice != from {
                    self.post(slice, Message::Demoted { gfn });
                }
            }
        }
        let mut queue = serving.queue;
        if held == Held::Replica {
            // Everyone has the page now; only wishes to end that are left.
            let mut holders = Holders::replicated();
            queue.retain(|request| match request {
                Request::Get { from, .. } => {
                    holders = holders.with_dropped(*from);
                    false
                }
                Request::Demote { .. } => true,
            });
            self.pages.set_holders(gfn, holders);
        } else if serving.demoting {
            // The heir asked before the page became a replica; it has it.
            let waiting = queue.len();
            queue
                .retain(|request| !matches!(request, Request::Get { from: by, .. } if *by == from));
            let is_late = asked && !was_dropped && queue.len() == waiting;
            if is_late && !self.planted(PlantedBug::LateRunServed) {
                self.late_runs.insert((from, gfn));
            }
        }
        self.serve_next(gfn, queue);
        self.close_home();
        Ok(())
    }

    fn serve_next(&mut self, gfn: Gfn, mut queue: VecDeque<Request>) {
        while let Some(request) = queue.pop_front() {
            match self.serve(gfn, request, queue) {
                Some(rest) => queue = rest,
                None => return,
            }
        }
    }

    /// Serves one request. Gives the queue of the others back unless the home is busy now.
    fn serve(
        &mut self,
        gfn: Gfn,
        request: Request,
        queue: VecDeque<Request>,
    ) -> Option<VecDeque<Request>> {
        match request {
            Request::Get { from, want, table: None } => self.serve_get(gfn, from, want),
            // It waited here, and no replica may be begun any more.
            Request::Get { from, want, .. } if self.home_moves.is_leaving(gfn) => {
                self.serve_get(gfn, from, want);
            }
            Request::Get { from, table: Some(table), .. } => {
                self.serve_conversion(gfn, from, table, queue);
                return None;
            }
            Request::Demote { from } => {
                let holders = self.pages.holders(gfn).expect("this slice is home");
                if holders.is_replicated() {
                    self.serve_demote(gfn, from, queue);
                    return None;
                }
            }
        }
        Some(queue)
    }

    pub(crate) fn home_demote(
        &mut self,
        from: SliceId,
        gfn: Gfn,
        conflict: bool,
    ) -> Result<(), ProtocolError> {
        let Some(holders) = self.pages.holders(gfn) else {
            return Err(self.error(from, "Demote", gfn, "this slice is not its home"));
        };
        if conflict {
            self.banned.insert(gfn);
        }
        if self.home_moves.is_closed(gfn) {
            return self.queue_for_next_home(from, gfn, Asked::Demote);
        }
        match self.serving.get_mut(&gfn) {
            Some(serving) if !serving.demoting => {
                // Every slice may ask once for each time that the page was a replica.
                if serving.queue.len() >= 4 * self.config.slices.len() {
                    return Err(self.error(from, "Demote", gfn, "the queue at home is full"));
                }
                serving.queue.push_back(Request::Demote { from });
            }
            None if holders.is_replicated() => self.serve_demote(gfn, from, VecDeque::new()),
            // The page has left the class or is leaving it; all are told.
            _ => {}
        }
        Ok(())
    }

    fn serve_demote(&mut self, gfn: Gfn, heir: SliceId, queue: VecDeque<Request>) {
        let serving = Serving { requester: heir, demoting: true, queue };
        self.serving.insert(gfn, serving);
        let holders = self.pages.holders(gfn).expect("this slice is home");
        for slice in self.config.slices.clone() {
            if slice != heir {
                let dropped = holders.contains(slice);
                self.post(slice, Message::Leave { gfn, heir, dropped });
            }
        }
    }
}
