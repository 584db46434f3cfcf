//! Another slice shares memory no longer. The VMM has seen to it that the slice is home of nothing, has no vCPU and no
//! queue, and that all engines rest with nothing on its way between them (a cut).
//!
//! ```text
//!   each engine that stays: Handle::may_part_with --all agree--> Handle::part_with --> Handle::go_on
//!                                          \--one refuses--> Handle::go_on, nothing has changed
//! ```
//!
//! From then on frames of that slice are not looked at, and its loss is told to nobody. The engine of the slice that
//! leaves is not asked; it is stopped. An engine that is left alone watches nothing of guest memory any more.

use super::command::Command;
use super::event_loop::Engine;
use super::handle::Handle;
use super::leave::LeaveError;
use crate::error::EngineError;
use crossbeam_channel::bounded;
use std::time::Duration;
use wire::SliceId;

impl Handle {
    /// Whether a slice can leave, as far as this engine knows. It must be at rest. Nothing changes.
    ///
    /// # Errors
    /// Why not; an engine that does not answer within `limit`.
    pub fn may_part_with(&self, slice: SliceId, limit: Duration) -> Result<(), LeaveError> {
        let (reply, answer) = bounded(1);
        self.post(Command::MayPartWith { slice, reply });
        answer.recv_timeout(limit).unwrap_or(Err(LeaveError::NoAnswer))
    }

    /// A slice leaves. All engines that stay have been asked by [`Self::may_part_with`], and none has gone on since.
    ///
    /// With the last other slice this engine ends the watch over guest memory, which takes it longer for more memory
    /// (decision 42). It goes on to speak to other slices meanwhile.
    ///
    /// # Errors
    /// As for [`Self::may_part_with`], and nothing has changed then. After [`LeaveError::NoAnswer`] it may happen later:
    /// the VM cannot go on.
    pub fn part_with(&self, slice: SliceId, limit: Duration) -> Result<(), LeaveError> {
        let (reply, answer) = bounded(1);
        self.post(Command::PartWith { slice, reply });
        answer.recv_timeout(limit).unwrap_or(Err(LeaveError::NoAnswer))
    }
}

impl Engine {
    pub(crate) fn may_part_with(&self, slice: SliceId) -> Result<(), LeaveError> {
        if !self.node.is_resting() {
            return Err(LeaveError::Runs);
        }
        if let Some(unrest) = self.unrest() {
            return Err(LeaveError::NotAtRest(unrest));
        }
        // They would go on behind the rest, with a slice that is not there.
        if !self.home_moves.is_empty() {
            return Err(LeaveError::HomesMove);
        }
        if self.shares_nothing_with(slice) {
            return Ok(());
        }
        Ok(self.node.may_part_with(slice)?)
    }

    /// One of the two has devices only: no memory goes between them, and homes are not told of.
    pub(super) fn shares_nothing_with(&self, slice: SliceId) -> bool {
        let local = self.outbound.transport.local();
        [local, slice].iter().any(|one| self.bystanders.contains(one))
    }

    /// Parts with a slice. The outer error ends the VM.
    pub(crate) fn part_with(
        &mut self,
        slice: SliceId,
    ) -> Result<Result<(), LeaveError>, EngineError> {
        if let Err(refusal) = self.may_part_with(slice) {
            return Ok(Err(refusal));
        }
        let shared = !self.shares_nothing_with(slice);
        if shared && let Err(refusal) = self.node.part_with(slice, &mut self.store.with_body(None))
        {
            return Ok(Err(refusal.into()));
        }
        self.departed.push(slice);
        self.outbound.remote_writers.retain(|writer| *writer != slice);
        if shared && self.node.is_alone() {
            self.watch_no_more()?;
        }
        Ok(Ok(()))
    }

    /// Ends the watch over all memory, and speaks to other slices all the while: one that is left may have devices, and the one that
    /// leaves waits to be dismissed.
    fn watch_no_more(&mut self) -> Result<(), EngineError> {
        for frames in self.store.begin_to_end_watch()? {
            self.store.end_watch_over(&frames)?;
            self.take_frames()?;
            self.stopping |= !self.stopping && !self.uplink.looked();
            if self.stopping {
                return Ok(());
            }
        }
        self.store.watch_has_ended();
        Ok(())
    }
}
