//! The home of pages moves to another slice while vCPUs run.
//!
//! ```text
//!   former home H                       any slice X                     next home N
//!     <--MoveHome(N)-- coordinator
//!   serves all, begins no replica
//!     --(no replica is being made or ended)--
//!   serves nothing, queues
//!     --HomeLeaves---------------------> asks nothing, holds back
//!     --HomeLeaves-----------------------------------------------------> the same
//!     <-HomeAwaited----------------------
//!     <-HomeAwaited-----------------------------------------------------
//!     --HomeRequest of each queued------------------------------------> kept
//!     --HomeEntries---------------------------------------------------> is home
//!                                         <------------------HomeMoved--
//!                                       asks N, first what it held back   serves what was kept
//! ```
//!
//! A home's recalls and grants must reach a slice in the home's order, and N's come on another stream than H's. `HomeLeaves`
//! comes behind H's, and N begins after all have answered it: so H's come before N's. What a slice asked H for came before
//! its answer, and N has it before anything that this slice asks N for. Hence nobody can tell two homes from one slow home.
//!
//! Runs have a stream of their own, so one may come to H when N is home. H passes it on, page by page, for ever.
//!
//! Contents stay where they are. [`Input::Pull`](crate::Input::Pull) brings those that a slice has to their home.

use crate::effect::Effect;
use crate::error::ProtocolError;
use crate::home_moves::{Away, Leaving, PassedOn};
use crate::node::Node;
use crate::outstanding_requests::Demand;
use crate::pages::{Holders, PageCopy};
use crate::planted::PlantedBug;
use crate::store::PageStore;
use std::ops::Range;
use wire::{Access, Asked, DirectoryEntry, Epoch, Gfn, HOME_MOVE_MAX, Message, SliceId};

impl Node {
    /// Asks the home of these pages to give them another home.
    pub(crate) fn ask_home_move(&mut self, gfn: Gfn, pages: u16, to: SliceId, placement: Epoch) {
        if let Some(home) = self.home(gfn) {
            self.post(home, Message::MoveHome { gfn, pages, to, placement });
        }
    }

    /// Pages of one chunk, all of them with this home.
    fn piece(&self, gfn: Gfn, pages: u16, home: SliceId) -> Option<Range<u64>> {
        let end = gfn.0.checked_add(u64::from(pages)).filter(|end| *end > gfn.0)?;
        let chunk = |frame: u64| frame / u64::from(HOME_MOVE_MAX);
        let fits = chunk(gfn.0) == chunk(end - 1);
        let all_there = (gfn.0..end).all(|frame| self.home(Gfn(frame)) == Some(home));
        (fits && all_there).then_some(gfn.0..end)
    }

    pub(crate) fn move_home(
        &mut self,
        from: SliceId,
        gfn: Gfn,
        pages: u16,
        to: SliceId,
        placement: Epoch,
    ) -> Result<(), ProtocolError> {
        let no = |state| Err(self.error(from, "MoveHome", gfn, state));
        let local = self.config.local;
        let Some(frames) = self.piece(gfn, pages, local) else {
            return no("this slice is not home of all these pages, or they are of several chunks");
        };
        if frames.clone().any(|frame| self.home_moves.is_away(Gfn(frame))) {
            return no("their home is on its way");
        }
        if self.home_moves.leaving.is_some() {
            return no("the home of other pages is leaving");
        }
        if to == local || placement < self.home_moves.placement {
            return no("they are there, or the placement is old");
        }
        self.home_moves.placement = placement;
        let leaving = Leaving { frames, to, placement, asking: None, queue: Vec::new() };
        self.home_moves.leaving = Some(leaving);
        self.close_home();
        Ok(())
    }

    /// Stops serving the pages that leave, as soon as none is becoming a replica or ends as one.
    pub(crate) fn close_home(&mut self) {
        let Some(leaving) = &self.home_moves.leaving else { return };
        let (to, placement) = (leaving.to, leaving.placement);
        let (first, end) = (Gfn(leaving.frames.start), Gfn(leaving.frames.end));
        let busy = self.serving.range(first..end).next().is_some();
        if leaving.asking.is_some() || (busy && !self.planted(PlantedBug::HomeLeavesWhileBusy)) {
            return;
        }
        let pages = u16::try_from(end.0 - first.0).expect("a chunk at most");
        let others = self.others();
        if let Some(leaving) = &mut self.home_moves.leaving {
            leaving.asking = Some(mask(&others));
        }
        self.begin_away(first, pages, to);
        self.post_to_others(&Message::HomeLeaves { gfn: first, pages, to, placement });
        if self.planted(PlantedBug::HomeAnswersNotAwaited) {
            self.hand_home_over();
        }
    }

    fn begin_away(&mut self, first: Gfn, pages: u16, to: SliceId) {
        let away = Away { pages, to, held: Vec::new(), incoming: Vec::new() };
        self.home_moves.away.insert(first.0, away);
    }

    pub(crate) fn home_leaves(
        &mut self,
        from: SliceId,
        gfn: Gfn,
        pages: u16,
        to: SliceId,
        placement: Epoch,
    ) -> Result<(), ProtocolError> {
        let no = |state| Err(self.error(from, "HomeLeaves", gfn, state));
        let Some(frames) = self.piece(gfn, pages, from).filter(|_| from != self.config.local)
        else {
            return no("the sender is not home of all these pages, or they are of several chunks");
        };
        if frames.map(Gfn).any(|gfn| self.home_moves.is_away(gfn)) {
            return no("their home is on its way");
        }
        if to == from || placement < self.home_moves.placement {
            return no("they are there, or the placement is old");
        }
        self.home_moves.placement = placement;
        self.begin_away(gfn, pages, to);
        self.post(from, Message::HomeAwaited { gfn });
        Ok(())
    }

    pub(crate) fn home_awaited(&mut self, from: SliceId, gfn: Gfn) -> Result<(), ProtocolError> {
        if self.planted(PlantedBug::HomeAnswersNotAwaited) {
            return Ok(());
        }
        let error = self.error(from, "HomeAwaited", gfn, "it was not told to wait");
        let leaving = self.home_moves.leaving.as_mut();
        let leaving = leaving.filter(|leaving| leaving.frames.start == gfn.0);
        let asking = leaving.and_then(|leaving| leaving.asking.as_mut());
        let asking = asking.filter(|asking| **asking & mask(&[from]) != 0).ok_or(error)?;
        *asking &= !mask(&[from]);
        if *asking == 0 {
            self.hand_home_over();
        }
        Ok(())
    }

    /// Nobody asks this home any more: the next one gets all that it knows.
    fn hand_home_over(&mut self) {
        let Some(Leaving { frames, to, queue, .. }) = self.home_moves.leaving.take() else {
            return;
        };
        if !self.planted(PlantedBug::HomeQueueForgotten) {
            for PassedOn { gfn, requester, asked } in queue {
                self.post(to, Message::HomeRequest { gfn, requester, asked });
            }
        }
        let gfn = Gfn(frames.start);
        let entries = frames.clone().map(|frame| self.take_entry(Gfn(frame))).collect();
        self.pages.remove_home(frames.clone());
        self.home_moves.add_former(gfn);
        self.stats.homes_out += frames.end - frames.start;
        self.post(to, Message::HomeEntries { gfn, entries });
    }

    /// All that this home knows of a page. The directory keeps its part.
    fn take_entry(&mut self, gfn: Gfn) -> DirectoryEntry {
        let holders = self.pages.holders(gfn).expect("this slice is home");
        let slices = self.config.slices.iter();
        let late: Vec<SliceId> =
            slices.copied().filter(|slice| self.late_runs.contains(&(*slice, gfn))).collect();
        for slice in &late {
            self.late_runs.remove(&(*slice, gfn));
        }
        let forgotten = self.planted(PlantedBug::HomeLateRunsForgotten);
        let late_runs = if forgotten { 0 } else { mask(&late) };
        let never_replica = self.banned.remove(&gfn);
        DirectoryEntry { never_replica, late_runs, ..holders.to_entry() }
    }

    pub(crate) fn home_entries(
        &mut self,
        from: SliceId,
        gfn: Gfn,
        entries: &[DirectoryEntry],
        store: &impl PageStore,
    ) -> Result<(), ProtocolError> {
        let no = |state| Err(self.error(from, "HomeEntries", gfn, state));
        let away = self.home_moves.away.get(&gfn.0);
        let away = away.filter(|away| away.to == self.config.local);
        if away.is_none_or(|away| usize::from(away.pages) != entries.len())
            || from != self.home_of(gfn)
        {
            return no("this slice is not the next home of these pages");
        }
        let members = mask(&self.config.slices);
        let holders: Option<Vec<Holders>> =
            entries.iter().map(|entry| Holders::from_entry(*entry, members)).collect();
        let Some(holders) = holders else {
            return no("an entry that no home has");
        };
        self.pages.add_home(gfn.0, &holders);
        for (gfn, entry) in (gfn.0..).map(Gfn).zip(entries) {
            if entry.never_replica {
                self.banned.insert(gfn);
            }
            let slices = self.config.slices.iter();
            let late = slices.filter(|slice| entry.late_runs & mask(&[**slice]) != 0);
            self.late_runs.extend(late.map(|slice| (*slice, gfn)));
        }
        self.stats.homes_in += u64::try_from(entries.len()).unwrap_or(u64::MAX);
        let pages = u16::try_from(entries.len()).expect("a chunk at most");
        self.post_to_others(&Message::HomeMoved { gfn, pages });
        let Some(away) = self.end_away(gfn, pages, self.config.local) else { return Ok(()) };
        for PassedOn { gfn, requester, asked } in away.incoming {
            self.home_request(from, gfn, requester, asked, store)?;
        }
        self.say_held(away.held);
        Ok(())
    }

    pub(crate) fn home_moved(
        &mut self,
        from: SliceId,
        gfn: Gfn,
        pages: u16,
    ) -> Result<(), ProtocolError> {
        let error = self.error(from, "HomeMoved", gfn, "these pages did not move to the sender");
        let away = self.end_away(gfn, pages, from).filter(|_| from != self.config.local);
        self.say_held(away.ok_or(error)?.held);
        Ok(())
    }

    /// The pages have this home from now on.
    fn end_away(&mut self, gfn: Gfn, pages: u16, home: SliceId) -> Option<Away> {
        let away = self.home_moves.away.get(&gfn.0);
        away.filter(|away| away.pages == pages && away.to == home)?;
        let away = self.home_moves.away.remove(&gfn.0)?;
        self.config.homes.rehome(&(gfn.0..gfn.0 + u64::from(pages)), home);
        self.effect(Effect::HomeMoved { gfn, pages });
        Some(away)
    }

    fn say_held(&mut self, held: Vec<Message>) {
        if self.planted(PlantedBug::HomeRequestsDropped) {
            return;
        }
        for message in held {
            let gfn = message.gfn().expect("requests are about pages");
            self.post_to_home(gfn, message);
        }
    }

    /// Says something to the home of a page, as soon as it has one that can be asked.
    pub(crate) fn post_to_home(&mut self, gfn: Gfn, message: Message) {
        let ignored = self.planted(PlantedBug::HomeAskedWhileAway);
        match self.home_moves.away(gfn).filter(|_| !ignored) {
            Some(away) => away.held.push(message),
            None => self.post(self.home_of(gfn), message),
        }
    }

    /// Keeps a request for the next home.
    pub(crate) fn queue_for_next_home(
        &mut self,
        requester: SliceId,
        gfn: Gfn,
        asked: Asked,
    ) -> Result<(), ProtocolError> {
        let error =
            self.error(requester, "a request", gfn, "the queue of a home that moves is full");
        let most = self.requests_max();
        let leaving = self.home_moves.leaving(gfn);
        let leaving = leaving.filter(|leaving| leaving.queue.len() < most).ok_or(error)?;
        leaving.queue.push(PassedOn { gfn, requester, asked });
        Ok(())
    }

    /// More than all slices can ask for about the pages of a chunk.
    fn requests_max(&self) -> usize {
        4 * self.config.slices.len() * usize::from(HOME_MOVE_MAX)
    }

    /// A run has come after its home has moved.
    pub(crate) fn pass_on(
        &mut self,
        requester: SliceId,
        gfn: Gfn,
        asked: Asked,
    ) -> Result<(), ProtocolError> {
        let most = self.requests_max();
        let full = self.home_moves.away(gfn).is_some_and(|away| away.held.len() >= most);
        if full {
            return Err(self.error(requester, "a run", gfn, "too many of them for a moving home"));
        }
        self.stats.home_requests_passed += 1;
        self.post_to_home(gfn, Message::HomeRequest { gfn, requester, asked });
        Ok(())
    }

    /// A former home passes a request on.
    pub(crate) fn home_request(
        &mut self,
        from: SliceId,
        gfn: Gfn,
        requester: SliceId,
        asked: Asked,
        store: &impl PageStore,
    ) -> Result<(), ProtocolError> {
        if self.pages.holders(gfn).is_none() {
            let (local, most) = (self.config.local, self.requests_max());
            if let Some(away) = self.home_moves.away(gfn).filter(|away| away.to == local) {
                let has_room = away.incoming.len() < most;
                if has_room {
                    away.incoming.push(PassedOn { gfn, requester, asked });
                    return Ok(());
                }
                return Err(self.error(from, "HomeRequest", gfn, "too many requests are waiting"));
            }
            if self.home_moves.is_former(gfn) {
                return self.pass_on(requester, gfn, asked);
            }
            return Err(self.error(from, "HomeRequest", gfn, "this slice is not its home"));
        }
        match asked {
            Asked::Get { late_run: true, .. } if self.late_runs.remove(&(requester, gfn)) => Ok(()),
            Asked::Get { want, table, .. } => self.home_get(requester, gfn, want, table, store),
            Asked::Demote => self.home_demote(requester, gfn, false),
        }
    }

    /// Asks for pages of this home that another slice has, as a writer would. Replicas are everyone's, and stay.
    pub(crate) fn pull(&mut self, first: Gfn, pages: u16, from: SliceId) {
        for gfn in (0..u64::from(pages)).map_while(|n| first.0.checked_add(n)).map(Gfn) {
            if self.is_pulled(gfn, from) {
                self.stats.pulled += 1;
                self.await_page(gfn, Access::Write, Demand::Ahead { kept: false });
                self.post_to_home(gfn, Message::Get { gfn, want: Access::Write, table: None });
            }
        }
    }

    /// True if a pull asks for the page.
    #[must_use]
    pub fn is_pulled(&self, gfn: Gfn, from: SliceId) -> bool {
        let copy = self.pages.copy(gfn);
        self.is_held_at(gfn, from)
            && !self.serving.contains_key(&gfn)
            && !self.outstanding.contains(gfn)
            && matches!(copy, PageCopy::Invalid | PageCopy::Shared)
    }

    /// True if this slice is home of the page and another slice has it, or will. Replicas do not count.
    #[must_use]
    pub fn is_held_at(&self, gfn: Gfn, slice: SliceId) -> bool {
        let holders = self.pages.holders(gfn);
        holders.is_some_and(|holders| !holders.is_replicated() && holders.contains(slice))
    }

    /// True if this slice is home of the page: its directory has it.
    #[must_use]
    pub fn is_home(&self, gfn: Gfn) -> bool {
        self.pages.holders(gfn).is_some()
    }

    /// True while the home of the page moves, as far as this slice knows.
    #[must_use]
    pub fn is_home_moving(&self, gfn: Gfn) -> bool {
        self.home_moves.is_leaving(gfn) || self.home_moves.is_away(gfn)
    }
}

/// A bit for each slice.
fn mask(slices: &[SliceId]) -> u64 {
    slices.iter().fold(0, |all, slice| all | 1 << slice.0)
}
