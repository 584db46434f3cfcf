//! Homes of frames move as the placement says: chunk by chunk, one after another.
//!
//! ```text
//!   Handle::move_home --> first chunk --Input::MoveHome--> its home, and all others (dsm_protocol)
//!       Uplink::home_moved on each slice <--Effect::HomeMoved--/
//!                         \--> next chunk ... --> all are there: answer
//!
//!   Handle::pull_home --> pages of a chunk that the other slice has, asked for as a writer would --> next chunk ... --> answer
//! ```
//!
//! One slice moves homes, that of the placement's owner. A new home pulls for itself. Neither begins anything while the
//! engine rests.

use super::command::Command;
use super::event_loop::Engine;
use super::handle::Handle;
use super::homes::{HomeMove, HomeMoveError, Pull};
use crate::error::EngineError;
use crate::memory::ChunkId;
use crossbeam_channel::bounded;
use dsm_protocol::{Access, Epoch, Gfn, Input, Node, SliceId};
use std::ops::Range;
use std::time::Duration;

/// Pulled pages that are on their way, beside those of chunk fetches. A page that a vCPU waits for comes behind them.
const PULLED_MAX: usize = 64;
/// Of these, asked for at once.
const PULLED_AT_ONCE: u64 = 16;
/// An engine answers within the limit; its answer may take a moment longer.
const ANSWER: Duration = Duration::from_secs(1);

impl Handle {
    /// Has frames have another home, from the placement of this epoch on. Only one slice of a VM may do this, the owner
    /// of the placement. Each slice hears of each chunk by [`Uplink::home_moved`](crate::Uplink::home_moved).
    ///
    /// # Errors
    /// A range without memory; a slice that shares none; an engine that has not moved all within `limit`.
    pub fn move_home(
        &self,
        frames: Range<u64>,
        to: SliceId,
        placement: Epoch,
        limit: Duration,
    ) -> Result<(), HomeMoveError> {
        let (reply, answer) = bounded(1);
        self.post(Command::MoveHome(HomeMove { frames, to, placement, reply }));
        answer.recv_timeout(limit).unwrap_or_else(|error| Err(late(error.is_timeout())))
    }

    /// Brings pages of these frames here that another slice has, as far as this slice is their home. Pages that it asks
    /// for meanwhile go to it. Replicas of page tables stay.
    ///
    /// # Errors
    /// The pages have not come within `limit`, or the engine does not answer.
    pub fn pull_home(
        &self,
        frames: Range<u64>,
        from: SliceId,
        limit: Duration,
    ) -> Result<(), HomeMoveError> {
        let (reply, answer) = bounded(1);
        self.post(Command::PullHome(Pull { frames, from, fetched: None, reply }));
        answer.recv_timeout(limit + ANSWER).unwrap_or_else(|error| Err(late(error.is_timeout())))
    }
}

fn late(timeout: bool) -> HomeMoveError {
    if timeout { HomeMoveError::Late } else { HomeMoveError::NoAnswer }
}

impl Engine {
    /// Begins to move homes, as soon as those that were asked for before are there.
    pub(super) fn begin_home_move(&mut self, home_move: HomeMove) -> Result<(), EngineError> {
        let HomeMove { frames, to, .. } = &home_move;
        let refusal = match self.node.homes().first_hole(frames) {
            Some(frame) => Some(HomeMoveError::NoMemory(frame)),
            None if !self.node.is_member(*to) => Some(HomeMoveError::NotAMember(*to)),
            None => None,
        };
        if let Some(refusal) = refusal {
            // Whoever asked may have given up.
            let _ = home_move.reply.send(Err(refusal));
            return Ok(());
        }
        self.home_moves.moves.push_back(home_move);
        self.move_homes()
    }

    pub(super) fn begin_pull(&mut self, pull: Pull) -> Result<(), EngineError> {
        self.home_moves.pulls.push_back(pull);
        self.pull_on()
    }

    /// This slice asks another home about these frames from now on.
    pub(super) fn home_moved(&mut self, frames: Range<u64>) -> Result<(), EngineError> {
        self.home_moves.heard += 1;
        if self.home_moves.moving.as_ref() == Some(&frames) {
            self.home_moves.moving = None;
        }
        self.uplink.home_moved(frames);
        self.move_homes()
    }

    /// Moves the home of the next chunk.
    pub(super) fn move_homes(&mut self) -> Result<(), EngineError> {
        while self.home_moves.moving.is_none() && !self.node.is_resting() {
            let Some(next) = self.home_moves.moves.front_mut() else { return Ok(()) };
            let (to, placement) = (next.to, next.placement);
            let Some(piece) = next_piece(&self.node, &mut next.frames, to) else {
                let done = self.home_moves.moves.pop_front();
                let _ = done.map(|done| done.reply.send(Ok(())));
                continue;
            };
            let pages = u16::try_from(piece.end - piece.start).expect("a chunk at most");
            let gfn = Gfn(piece.start);
            self.home_moves.moving = Some(piece);
            self.step(Input::MoveHome { gfn, pages, to, placement })?;
        }
        Ok(())
    }

    /// Asks for more pages that are to come to their home.
    pub(super) fn pull_on(&mut self) -> Result<(), EngineError> {
        let node = &self.node;
        self.home_moves.pulled.retain(|gfn| node.is_waiting(*gfn));
        while self.home_moves.pulled.len() < PULLED_MAX && !self.node.is_resting() {
            let Some(pull) = self.home_moves.pulls.front_mut() else { return Ok(()) };
            let (from, start) = (pull.from, pull.frames.start);
            if pull.frames.is_empty() {
                if !self.home_moves.pulled.is_empty() {
                    return Ok(());
                }
                let done = self.home_moves.pulls.pop_front();
                let _ = done.map(|done| done.reply.send(Ok(())));
                continue;
            }
            let end = pull.frames.end.min(start + PULLED_AT_ONCE);
            if self.fetches_chunk(start)? {
                return Ok(());
            }
            if let Some(pull) = self.home_moves.pulls.front_mut() {
                pull.frames.start = end;
            }
            let pages = u16::try_from(end - start).expect("a few");
            self.step(Input::Pull { gfn: Gfn(start), pages, from })?;
            let waiting = (start..end).map(Gfn).filter(|gfn| self.node.is_waiting(*gfn));
            self.home_moves.pulled.extend(waiting);
        }
        Ok(())
    }

    /// Fetches a chunk as a whole of which the other slice has all pages and this one none: it becomes private here. True
    /// while it comes. What has not come then is pulled page by page.
    fn fetches_chunk(&mut self, start: u64) -> Result<bool, EngineError> {
        let Some(pull) = self.home_moves.pulls.front_mut() else { return Ok(false) };
        let (chunk, from) = (ChunkId::of(Gfn(start)), pull.from);
        if pull.fetched == Some(chunk) {
            return Ok(self.store.chunk_fetches.is_coming(chunk));
        }
        let (node, store) = (&self.node, &self.store);
        let is_far = |gfn| {
            node.is_held_at(gfn, from)
                && node.access(gfn) == Access::None
                && !node.is_waiting(gfn)
                && node.table(gfn).is_none()
        };
        let is_whole = chunk.frames().start == start && chunk.frames().end <= pull.frames.end;
        if !is_whole || !store.chunks.may_grant(chunk) || !chunk.frames().map(Gfn).all(is_far) {
            return Ok(false);
        }
        pull.fetched = Some(chunk);
        self.begin_chunk(chunk, Access::Write)?;
        self.fetch_on()?;
        Ok(self.store.chunk_fetches.is_coming(chunk))
    }
}

/// Takes the next frames of one chunk and one home that are not where they are to be.
fn next_piece(node: &Node, frames: &mut Range<u64>, to: SliceId) -> Option<Range<u64>> {
    while !frames.is_empty() {
        let home = node.home(Gfn(frames.start));
        let chunk = ChunkId::of(Gfn(frames.start)).frames();
        let same = (frames.start..frames.end.min(chunk.end))
            .take_while(|frame| node.home(Gfn(*frame)) == home);
        let end = frames.start + u64::try_from(same.count()).expect("a chunk at most");
        let piece = frames.start..end;
        frames.start = end;
        if home != Some(to) {
            return Some(piece);
        }
    }
    None
}
