//! The holder's part: giving a page up when its home asks.
//!
//! ```text
//!   held --Fetch keep read--> protect, send        (stays Shared)
//!   held --Fetch keep none--> unmap, send          (Invalid)
//!   held --Invalidate-------> unmap, acknowledge   (Invalid)
//!   replica --Leave---------> unmap, compare, send the last changes (Invalid)
//! ```
//!
//! A page in its hold window, or pinned by the VMM, is given up later. A receiver never blocks: the
//! recall waits in `deferred` and other messages go on.

use crate::node::{Effect, Node, Pins, ProtocolError};
use crate::pages::Copy;
use crate::release::Outgoing;
use crate::store::PageStore;
use wire::{Access, Gfn, Message, SliceId, Table};

/// A recall that a holder has not carried out yet. A home asks one thing per page at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Deferred {
    gfn: Gfn,
    recall: Recall,
    /// When to carry it out; `None` waits for an event instead of time.
    pub(crate) due: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Recall {
    Fetch { requester: SliceId, keep: Access, acks: u16, table: Option<Table> },
    Invalidate { requester: SliceId },
    Leave { heir: SliceId, dropped: bool },
}

impl Deferred {
    pub(crate) fn fetch(
        gfn: Gfn,
        requester: SliceId,
        keep: Access,
        acks: u16,
        table: Option<Table>,
    ) -> Self {
        Self { gfn, recall: Recall::Fetch { requester, keep, acks, table }, due: None }
    }
    pub(crate) fn invalidate(gfn: Gfn, requester: SliceId) -> Self {
        Self { gfn, recall: Recall::Invalidate { requester }, due: None }
    }
    pub(crate) fn leave(gfn: Gfn, heir: SliceId, dropped: bool) -> Self {
        Self { gfn, recall: Recall::Leave { heir, dropped }, due: None }
    }
    fn what(&self) -> &'static str {
        match self.recall {
            Recall::Fetch { .. } => "Fetch",
            Recall::Invalidate { .. } => "Invalidate",
            Recall::Leave { .. } => "Leave",
        }
    }
}

impl Node {
    pub(crate) fn recalled(
        &mut self,
        from: SliceId,
        recall: Deferred,
        store: &mut impl PageStore,
    ) -> Result<(), ProtocolError> {
        let gfn = recall.gfn;
        let by_converter =
            matches!(recall.recall, Recall::Invalidate { requester } if requester == from);
        if by_converter && self.pages.copy(gfn) == Copy::Forming {
            self.offer_ended(from, gfn, store);
            return Ok(());
        }
        if from != self.home_of(gfn) {
            return Err(self.error(from, recall.what(), gfn, "only the home recalls a page"));
        }
        if self.deferred.contains_key(&gfn) {
            return Err(self.error(from, recall.what(), gfn, "a recall is waiting already"));
        }
        let fits = match (recall.recall, self.pages.copy(gfn)) {
            (Recall::Fetch { keep: Access::Write, .. }, _) => false,
            (Recall::Fetch { .. }, Copy::Shared | Copy::Exclusive)
            | (Recall::Invalidate { .. }, Copy::Shared | Copy::Exclusive)
            | (Recall::Leave { .. }, Copy::Replica | Copy::Forming) => true,
            _ => false,
        };
        if !fits {
            return Err(self.error(from, recall.what(), gfn, "the page is not held like that"));
        }
        self.try_recall(recall, store);
        Ok(())
    }

    /// Carries the recall out, or keeps it for later.
    fn try_recall(&mut self, mut recall: Deferred, store: &mut impl PageStore) {
        let gfn = recall.gfn;
        let pinned = self.pins.get(&gfn).is_some_and(|pins| pins.held > 0);
        // The converter's Go is on its way: the home cannot ask before it was sent.
        let forming = self.pages.copy(gfn) == Copy::Forming;
        let held_until = self.held_until.get(&gfn).copied().filter(|until| *until > self.now);
        if pinned || forming || held_until.is_some() {
            recall.due = held_until.filter(|_| !pinned && !forming);
            self.stats.deferrals += 1;
            self.deferred.insert(gfn, recall);
            return;
        }
        self.held_until.remove(&gfn);
        match recall.recall {
            Recall::Fetch { requester, keep, acks, table } => {
                self.give(gfn, requester, keep, acks, table, store);
            }
            Recall::Invalidate { requester } => {
                store.unmap(gfn);
                self.pages.set_copy(gfn, Copy::Invalid);
                self.stats.invalidations += 1;
                self.release(Outgoing::Message(requester, Message::Acked { gfn }), store);
            }
            Recall::Leave { heir, dropped } => self.leave(gfn, heir, dropped, store),
        }
    }

    fn give(
        &mut self,
        gfn: Gfn,
        requester: SliceId,
        keep: Access,
        acks: u16,
        table: Option<Table>,
        store: &mut impl PageStore,
    ) {
        let access = if keep == Access::Read {
            if self.pages.copy(gfn) == Copy::Exclusive {
                store.protect(gfn);
            }
            self.pages.set_copy(gfn, Copy::Shared);
            Access::Read
        } else {
            store.unmap(gfn);
            self.pages.set_copy(gfn, Copy::Invalid);
            Access::Write
        };
        let data = Message::Data { gfn, access, acks, table };
        self.release(Outgoing::Message(requester, data), store);
        #[cfg(feature = "planted-bugs")]
        self.skip_confirm(gfn);
    }

    /// Looks again at a recall that waited for this page.
    pub(crate) fn retry_recall(&mut self, gfn: Gfn, store: &mut impl PageStore) {
        if let Some(recall) = self.deferred.remove(&gfn) {
            self.try_recall(recall, store);
        }
    }

    /// Carries out every recall whose hold window is over.
    pub(crate) fn carry_out_due(&mut self, store: &mut impl PageStore) {
        let now = self.now;
        self.held_until.retain(|_, until| *until > now);
        let due: Vec<Gfn> = self
            .deferred
            .values()
            .filter(|deferred| deferred.due.is_some_and(|due| due <= now))
            .map(|deferred| deferred.gfn)
            .collect();
        for gfn in due {
            self.retry_recall(gfn, store);
        }
    }

    pub(crate) fn pin(&mut self, gfn: Gfn, want: Access, token: u64, store: &mut impl PageStore) {
        if self.pages.copy(gfn).access() >= want {
            self.pins.entry(gfn).or_default().held += 1;
            self.effect(Effect::Pinned { token });
            return;
        }
        self.pins.entry(gfn).or_default().waiting.push((want, token));
        self.fault(gfn, want, store);
    }

    pub(crate) fn unpin(&mut self, gfn: Gfn, store: &mut impl PageStore) {
        if let Some(pins) = self.pins.get_mut(&gfn) {
            pins.held = pins.held.saturating_sub(1);
            if *pins == Pins::default() {
                self.pins.remove(&gfn);
            }
        }
        self.retry_recall(gfn, store);
    }

    /// Pins that waited for this page: those that it satisfies now are held, others ask again.
    pub(crate) fn satisfy_pins(&mut self, gfn: Gfn, store: &mut impl PageStore) {
        let Some(pins) = self.pins.get_mut(&gfn) else { return };
        let access = self.pages.copy(gfn).access();
        let waiting = std::mem::take(&mut pins.waiting);
        let (now, later): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(want, _)| *want <= access);
        pins.held += u32::try_from(now.len()).expect("few pins");
        pins.waiting = later;
        let again = pins.waiting.iter().map(|(want, _)| *want).max();
        for (_, token) in now {
            self.effect(Effect::Pinned { token });
        }
        if let Some(want) = again {
            self.fault(gfn, want, store);
        }
    }
}
