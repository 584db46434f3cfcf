//! The home's part: one request per page at a time, the rest in a queue.
//!
//! ```text
//!   idle --Get--> busy (Fetch, Invalidate, Grant out) --Confirm--> idle, or the next request
//!   idle, replicated --Demote--> busy (Leave out) --Confirm--> idle, or the next request
//! ```
//!
//! Because a page stays busy until its requester confirms, no two transfers of one page are ever
//! on their way together, and nothing here depends on the order of messages from different slices.

use crate::node::{Node, ProtocolError};
use crate::pages::Holders;
use std::collections::VecDeque;
use wire::{Access, Gfn, Held, Message, SliceId, Table};

/// A request at its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    Get { from: SliceId, want: Access, table: Option<Table> },
    Demote { from: SliceId },
}

/// A page whose home is busy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Serving {
    /// Who must confirm.
    requester: SliceId,
    /// What the request may end in.
    outcome: Held,
    /// True while replicas are given up.
    demoting: bool,
    queue: VecDeque<Request>,
}

impl Node {
    pub(crate) fn home_get(
        &mut self,
        from: SliceId,
        gfn: Gfn,
        want: Access,
        table: Option<Table>,
    ) -> Result<(), ProtocolError> {
        let Some(holders) = self.pages.holders(gfn) else {
            return Err(self.error(from, "Get", gfn, "this slice is not its home"));
        };
        if want == Access::None {
            return Err(self.error(from, "Get", gfn, "it asks for no access"));
        }
        let table = table.filter(|_| !self.banned.contains(&gfn));
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
        self.serve_get(gfn, from, want, table, VecDeque::new());
        Ok(())
    }

    fn serve_get(
        &mut self,
        gfn: Gfn,
        from: SliceId,
        want: Access,
        table: Option<Table>,
        queue: VecDeque<Request>,
    ) {
        let holders = self.pages.holders(gfn).expect("this slice is home");
        let write = want == Access::Write || table.is_some() || holders.contains(from);
        let outcome = match (write, table) {
            (_, Some(_)) => Held::Replica,
            (true, None) => Held::Exclusive,
            (false, None) => Held::Shared,
        };
        let serving = Serving { requester: from, outcome, demoting: false, queue };
        self.serving.insert(gfn, serving);
        if holders.contains(from) {
            let acks = self.invalidate_others(gfn, holders, from, None);
            self.post(from, Message::Grant { gfn, acks, table });
        } else {
            let source = self.source(holders);
            let (keep, acks) = if write {
                (Access::None, self.invalidate_others(gfn, holders, from, Some(source)))
            } else {
                (Access::Read, 0)
            };
            self.post(source, Message::Fetch { gfn, requester: from, keep, acks, table });
        }
    }

    /// Who sends the page: this slice if it can, for that saves a message; else any holder.
    fn source(&self, holders: Holders) -> SliceId {
        let local = self.config.local;
        if holders.contains(local) {
            return local;
        }
        holders.iter().next().expect("a page that is not replicated has a holder")
    }

    /// Invalidates all holders but two, in parallel. Returns how many will acknowledge.
    fn invalidate_others(
        &mut self,
        gfn: Gfn,
        holders: Holders,
        requester: SliceId,
        source: Option<SliceId>,
    ) -> u16 {
        let targets = holders.iter().filter(|slice| *slice != requester && Some(*slice) != source);
        let targets: Vec<SliceId> = targets.skip(self.invalidations_lost()).collect();
        for target in &targets {
            self.post(*target, Message::Invalidate { gfn, requester });
        }
        u16::try_from(targets.len()).expect("at most 64 slices")
    }

    pub(crate) fn home_confirm(
        &mut self,
        from: SliceId,
        gfn: Gfn,
        held: Held,
    ) -> Result<(), ProtocolError> {
        let Some(serving) = self.serving.get(&gfn) else {
            return Err(self.error(from, "Confirm", gfn, "no request is being served"));
        };
        if serving.requester != from {
            return Err(self.error(from, "Confirm", gfn, "another slice is being served"));
        }
        // A conversion ends as an ordinary write if the page was taken out of the tables meanwhile.
        let given_up = serving.outcome == Held::Replica && held == Held::Exclusive;
        if serving.outcome != held && !given_up {
            return Err(self.error(from, "Confirm", gfn, "the outcome is not what was granted"));
        }
        let serving = self.serving.remove(&gfn).expect("just seen");
        self.pages.confirmed(gfn, from, held);
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
            queue
                .retain(|request| !matches!(request, Request::Get { from: by, .. } if *by == from));
        }
        self.serve_next(gfn, queue);
        Ok(())
    }

    fn serve_next(&mut self, gfn: Gfn, mut queue: VecDeque<Request>) {
        while let Some(request) = queue.pop_front() {
            match request {
                Request::Get { from, want, table } => {
                    self.serve_get(gfn, from, want, table, queue);
                    return;
                }
                Request::Demote { from } => {
                    let holders = self.pages.holders(gfn).expect("this slice is home");
                    if holders.is_replicated() {
                        self.serve_demote(gfn, from, queue);
                        return;
                    }
                }
            }
        }
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
        match self.serving.get_mut(&gfn) {
            Some(serving) if serving.outcome == Held::Replica => {
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
        let serving = Serving { requester: heir, outcome: Held::Exclusive, demoting: true, queue };
        self.serving.insert(gfn, serving);
        let holders = self.pages.holders(gfn).expect("this slice is home");
        for slice in self.config.slices.clone() {
            if slice != heir {
                let dropped = holders.contains(slice);
                self.post(slice, Message::Leave { gfn, heir, dropped });
            }
        }
    }

    #[cfg(feature = "planted-bugs")]
    fn invalidations_lost(&self) -> usize {
        usize::from(self.planted(crate::PlantedBug::DropInvalidation))
    }
    #[cfg(not(feature = "planted-bugs"))]
    fn invalidations_lost(&self) -> usize {
        0
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn skip_confirm(&mut self, gfn: Gfn) {
        if self.planted(crate::PlantedBug::SkipConfirm)
            && let Some(serving) = self.serving.remove(&gfn)
        {
            self.pages.confirmed(gfn, serving.requester, serving.outcome);
            self.serve_next(gfn, serving.queue);
        }
    }
}
