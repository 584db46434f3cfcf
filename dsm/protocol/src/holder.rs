//! The holder's part: giving a page up when its home asks.
//!
//! ```text
//!   held --Fetch keep read--> protect, send        (stays Shared)
//!   held --Fetch keep none--> unmap, send          (Invalid)
//!   held --Invalidate-------> unmap, acknowledge   (Invalid)
//!   replica --Leave---------> unmap, compare, send the last changes (Invalid)
//! ```
//!
//! The home counts a requester as holder before it has the page. So a recall may come before what it
//! is about: it waits until the page is here. A page in its hold window, or pinned by the VMM, is given
//! up later as well. A receiver never blocks: recalls of a page wait in `deferred`, in the home's
//! order, and other messages go on.
//!
//! A recall is early if this slice has no copy but has a request outstanding. If this slice has a copy to read and has
//! asked to write, a recall is early only if it takes this slice for the owner, and so are all behind it. Any other
//! recall is for the copy that is here. What is on its way then comes from a slice that waits for this one.

use crate::effect::Effect;
use crate::error::ProtocolError;
use crate::node::Node;
use crate::pages::PageCopy;
use crate::pins::Pins;
use crate::planted::PlantedBug;
use crate::recalls::{Deferred, Recall};
use crate::releases::Outgoing;
use crate::store::PageStore;
use std::collections::VecDeque;
use wire::{Access, Gfn, Message, SliceId};

/// What keeps a recall from being carried out.
enum Obstacle {
    Event,
    Until(u64),
}

impl Obstacle {
    fn due(&self) -> Option<u64> {
        match self {
            Self::Event => None,
            Self::Until(time) => Some(*time),
        }
    }
}

impl Node {
    pub(crate) fn recalled(
        &mut self,
        from: SliceId,
        mut recall: Deferred,
        store: &mut impl PageStore,
    ) -> Result<(), ProtocolError> {
        let gfn = recall.gfn;
        let by_converter =
            matches!(recall.recall, Recall::Invalidate { requester, .. } if requester == from);
        if by_converter && self.pages.copy(gfn) == PageCopy::Forming {
            self.offer_ended(from, gfn, store);
            return Ok(());
        }
        if from != self.home_of(gfn) {
            return Err(self.error(from, recall.what(), gfn, "only the home recalls a page"));
        }
        if let Some(queue) = self.deferred.queue(gfn) {
            // Every slice may have asked for it once, and once more for writing.
            if queue.len() >= 4 * self.config.slices.len() {
                return Err(self.error(from, recall.what(), gfn, "too many recalls are waiting"));
            }
            self.stats.deferrals += 1;
            recall.since = Some(self.now);
            queue.push_back(recall);
            return Ok(());
        }
        match self.obstacle(&recall) {
            None => self.carry_out(recall, store),
            Some(obstacle) => {
                (recall.since, recall.due) = (Some(self.now), obstacle.due());
                self.stats.deferrals += 1;
                self.note_contents(gfn, store);
                self.deferred.insert(gfn, VecDeque::from([recall]));
                Ok(())
            }
        }
    }

    fn obstacle(&self, recall: &Deferred) -> Option<Obstacle> {
        let gfn = recall.gfn;
        let copy = self.pages.copy(gfn);
        let early = match copy {
            PageCopy::Invalid => true,
            PageCopy::Shared => {
                recall.is_for_owner() && !self.planted(PlantedBug::EarlyRecallTaken)
            }
            // The converter's Go is on its way: the home cannot ask before it was sent.
            PageCopy::Forming => return Some(Obstacle::Event),
            PageCopy::Exclusive | PageCopy::Replica => false,
        };
        if early && self.outstanding.contains(gfn) {
            return Some(Obstacle::Event);
        }
        if copy == PageCopy::Shared && recall.takes_nothing() {
            return None;
        }
        if self.pins.get(&gfn).is_some_and(|pins| pins.held > 0) {
            return Some(Obstacle::Event);
        }
        let until = self.held.get(gfn).map(|held| held.until).filter(|until| *until > self.now);
        until.map(Obstacle::Until)
    }

    /// Carries a recall out that nothing is in the way of.
    fn carry_out(
        &mut self,
        recall: Deferred,
        store: &mut impl PageStore,
    ) -> Result<(), ProtocolError> {
        let gfn = recall.gfn;
        let fits = match (recall.recall, self.pages.copy(gfn)) {
            // Nobody asks a holder to keep write access.
            (Recall::Fetch { keep: Access::Write, .. }, _) => false,
            (
                Recall::Fetch { keep: Access::None | Access::Read, .. } | Recall::Invalidate { .. },
                PageCopy::Shared | PageCopy::Exclusive,
            )
            | (Recall::Leave { .. }, PageCopy::Replica) => true,
            (
                Recall::Fetch { keep: Access::None | Access::Read, .. } | Recall::Invalidate { .. },
                PageCopy::Invalid | PageCopy::Forming | PageCopy::Replica,
            )
            | (
                Recall::Leave { .. },
                PageCopy::Invalid | PageCopy::Shared | PageCopy::Exclusive | PageCopy::Forming,
            ) => false,
        };
        if !fits {
            let home = self.home_of(gfn);
            return Err(self.error(home, recall.what(), gfn, "the page is not held like that"));
        }
        if self.pages.copy(gfn) == PageCopy::Exclusive || !recall.takes_nothing() {
            self.held.remove(gfn);
        }
        let held_ns = recall.since.map_or(0, |since| self.now.saturating_sub(since));
        let held_us = u32::try_from(held_ns / 1000).unwrap_or(u32::MAX);
        match recall.recall {
            Recall::Fetch { requester, keep, acks, table, .. } => {
                let access = self.give(gfn, keep, store);
                let data = Message::Data { gfn, access, acks, held_us, table };
                self.release(Outgoing::Message(requester, data));
            }
            Recall::Invalidate { requester, upgrade } => {
                store.unmap(gfn);
                self.pages.set_copy(gfn, PageCopy::Invalid);
                self.stats.invalidations += 1;
                let acked = Message::Acked { gfn, upgrade, held_us };
                self.release(Outgoing::Message(requester, acked));
            }
            Recall::Leave { heir, dropped } => self.leave(gfn, heir, dropped, store),
        }
        Ok(())
    }

    /// Keeps what may be kept and tells what the requester gets.
    fn give(&mut self, gfn: Gfn, keep: Access, store: &mut impl PageStore) -> Access {
        if keep == Access::Read {
            if self.pages.copy(gfn) == PageCopy::Exclusive {
                store.protect(gfn);
            }
            self.pages.set_copy(gfn, PageCopy::Shared);
            Access::Read
        } else {
            store.unmap(gfn);
            self.pages.set_copy(gfn, PageCopy::Invalid);
            Access::Write
        }
    }

    /// Looks again at the recalls that wait for this page.
    pub(crate) fn retry_recall(&mut self, gfn: Gfn, store: &mut impl PageStore) {
        let Some(mut queue) = self.deferred.remove(gfn) else { return };
        while let Some(mut recall) = queue.pop_front() {
            if let Some(obstacle) = self.obstacle(&recall) {
                recall.due = obstacle.due();
                queue.push_front(recall);
                self.deferred.insert(gfn, queue);
                self.note_contents(gfn, store);
                return;
            }
            if let Err(error) = self.carry_out(recall, store) {
                self.broken.get_or_insert(error);
            }
        }
    }

    /// Carries out every recall whose hold window is over.
    pub(crate) fn carry_out_due(&mut self, store: &mut impl PageStore) {
        for gfn in self.deferred.due(self.now) {
            match self.go_on_holding(gfn, store) {
                Some(until) => self.deferred.put_off(gfn, until),
                None => self.retry_recall(gfn, store),
            }
        }
        self.held.expire(self.now);
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
