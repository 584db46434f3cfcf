//! Another slice begins to share memory. The VMM has seen to it that all engines rest with nothing on its way between them
//! (a cut), and that each of their transports reaches the newcomer.
//!
//! ```text
//!   each engine that is there: Handle::add_peer, may_join_with --all agree--> Handle::join_with --> Handle::go_on
//!                                |      \--one refuses--> remove_peer, go_on: nothing has changed
//!                                |--the same form from each
//!                                v
//!   the newcomer:            Engine::join, with memory without contents, home of nothing
//! ```
//!
//! Until then frames of that slice would break the protocol, and its loss is that of a bystander. The newcomer's engine
//! starts within the same cut. An engine that was alone watches guest memory again.

use super::command::Command;
use super::config::EngineConfig;
use super::event_loop::Engine;
use super::handle::Handle;
use super::join::JoinError;
use crate::error::EngineError;
use crossbeam_channel::{Sender, bounded};
use dsm_protocol::saved::NodeState;
use migrate::Invalid;
use std::thread::JoinHandle;
use std::time::Duration;
use transport::PeerLink;
use wire::SliceId;

impl Handle {
    /// Takes what leads to one peer more into the transport. It is a bystander until it joins.
    ///
    /// # Errors
    /// The transport does not take it; an engine that does not answer within `limit`.
    pub fn add_peer(&self, link: PeerLink, limit: Duration) -> Result<(), JoinError> {
        let (reply, answer) = bounded(1);
        self.post(Command::AddPeer { link, reply });
        answer.recv_timeout(limit).unwrap_or(Err(JoinError::NoAnswer))
    }

    /// Ends the connections to a peer that has not joined. Nobody is told of its loss. Nothing of it comes any more behind this, unless
    /// the engine does not answer within `limit`.
    pub fn remove_peer(&self, slice: SliceId, limit: Duration) {
        let (reply, answer) = bounded(1);
        self.post(Command::RemovePeer { slice, reply });
        // An engine that hangs ends the VM.
        let _ = answer.recv_timeout(limit);
    }

    /// Whether a slice can join, as far as this engine knows. It must be at rest. Nothing changes. Gives the form that the
    /// newcomer begins with ([`Engine::join`]), before or after the others take it in: all give the same.
    ///
    /// # Errors
    /// Why not; an engine that does not answer within `limit`.
    pub fn may_join_with(&self, slice: SliceId, limit: Duration) -> Result<NodeState, JoinError> {
        let (reply, answer) = bounded(1);
        self.post(Command::MayJoinWith { slice, reply });
        answer.recv_timeout(limit).unwrap_or(Err(JoinError::NoAnswer))
    }

    /// A slice joins. All engines that are there have been asked by [`Self::may_join_with`], and none has gone on since.
    /// Gives the form once more.
    ///
    /// # Errors
    /// As for [`Self::may_join_with`], and nothing has changed then. After [`JoinError::NoAnswer`] it may happen later:
    /// the VM cannot go on.
    pub fn join_with(&self, slice: SliceId, limit: Duration) -> Result<NodeState, JoinError> {
        let (reply, answer) = bounded(1);
        self.post(Command::JoinWith { slice, reply });
        answer.recv_timeout(limit).unwrap_or(Err(JoinError::NoAnswer))
    }
}

impl Engine {
    /// Starts the engine of a slice that joins, from the form that the others gave ([`Handle::join_with`]). They go on
    /// when it is there. Its memory is new, and home of nothing; the homes and the epoch of its configuration are those
    /// of the form.
    ///
    /// # Errors
    /// As for [`Self::restore`], and for another epoch.
    pub fn join(
        config: EngineConfig,
        form: &NodeState,
    ) -> Result<(Handle, JoinHandle<()>), EngineError> {
        // A later one would do for a saved node, but the others do not change theirs.
        let same = form.epoch == config.node.epoch;
        Invalid::unless(same, "epoch", "the others are in another one")?;
        Self::restore(config, form)
    }

    pub(super) fn add_peer(&mut self, link: PeerLink) -> Result<(), JoinError> {
        let peer = link.peer();
        // A number is given out once, but to one that has never joined.
        self.departed.retain(|gone| *gone != peer);
        self.outbound
            .transport
            .add_peer(link)
            .map_err(|error| JoinError::NoLink { peer, why: error.to_string() })
    }

    pub(super) fn remove_peer(&mut self, slice: SliceId, reply: &Sender<()>) {
        if !self.node.is_member(slice) {
            self.forget_connections(slice);
        }
        let _ = reply.send(());
    }

    pub(crate) fn may_join_with(&mut self, slice: SliceId) -> Result<NodeState, JoinError> {
        if !self.node.is_resting() {
            return Err(JoinError::Runs);
        }
        if let Some(unrest) = self.unrest() {
            return Err(JoinError::NotAtRest(unrest));
        }
        // They would go on behind the rest, as if the slice were not there.
        if !self.home_moves.is_empty() {
            return Err(JoinError::HomesMove);
        }
        if self.shares_nothing_with(slice) {
            return Err(JoinError::DevicesOnly);
        }
        Ok(self.node.may_join_with(slice, &self.store.with_body(None))?)
    }

    /// Takes a slice in. The outer error ends the VM.
    pub(crate) fn join_with(
        &mut self,
        slice: SliceId,
    ) -> Result<Result<NodeState, JoinError>, EngineError> {
        if let Err(refusal) = self.may_join_with(slice) {
            return Ok(Err(refusal));
        }
        self.store.begin_watch()?;
        let form = match self.node.join_with(slice, &mut self.store.with_body(None)) {
            Ok(form) => form,
            Err(refusal) => return Ok(Err(refusal.into())),
        };
        self.store.take_failure().map_or(Ok(()), Err)?;
        self.departed.retain(|gone| *gone != slice);
        self.outbound.add_remote_writer(slice);
        Ok(Ok(form))
    }
}
