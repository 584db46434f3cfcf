//! The engine at rest, and its node saved.
//!
//! ```text
//!   vCPUs stopped --Handle::rest--> nothing is begun, one flush --nothing under way--> at rest --Handle::save--> NodeState
//!        ^                               \--limit--> the cause; goes on                  |
//!        +---------------------------------Handle::go_on--------------------------------+
//! ```
//! An engine at rest still serves what other slices ask, for they come to rest at different times. Whether all are at rest
//! is what the forms of all tell together ([`dsm_protocol::saved::check_all`]); one that came too early is saved again.

use super::command::Command;
use super::event_loop::Engine;
use super::handle::Handle;
use super::rest::{Rest, RestError, Unrest};
use crate::error::EngineError;
use crossbeam_channel::{Sender, bounded};
use dsm_protocol::Input;
use dsm_protocol::saved::{Channel, NodeState};
use std::time::Duration;

/// An engine answers within the limit; its answer may take a moment longer.
const ANSWER: Duration = Duration::from_secs(1);

impl Handle {
    /// Brings the engine to rest. All vCPUs of this slice must have stopped before.
    ///
    /// # Errors
    /// Something is still under way after `limit`, and the engine goes on; or it does not answer.
    pub fn rest(&self, limit: Duration) -> Result<(), RestError> {
        let (reply, answer) = bounded(1);
        self.post(Command::Rest { limit, reply });
        answer.recv_timeout(limit + ANSWER).unwrap_or_else(|_| {
            // It may still take the request, and nobody would end that rest.
            self.go_on();
            Err(RestError::NoAnswer)
        })
    }

    /// How many messages went to each other slice and came from it. The engine must be at rest. Unlike [`Self::save`] this
    /// takes no longer for more memory, and the lease goes on meanwhile.
    ///
    /// # Errors
    /// Something is under way, or the engine does not answer within `limit`.
    pub fn count(&self, limit: Duration) -> Result<Vec<Channel>, RestError> {
        let (reply, answer) = bounded(1);
        self.post(Command::Count { reply });
        answer.recv_timeout(limit).unwrap_or(Err(RestError::NoAnswer))
    }

    /// The form of this slice's node. The engine must be at rest.
    ///
    /// # Errors
    /// Something is under way, or the engine does not answer within `limit`.
    pub fn save(&self, limit: Duration) -> Result<NodeState, RestError> {
        let (reply, answer) = bounded(1);
        self.post(Command::Save { reply });
        answer.recv_timeout(limit).unwrap_or(Err(RestError::NoAnswer))
    }

    /// Ends a rest, before vCPUs run again.
    pub fn go_on(&self) {
        self.post(Command::GoOn);
    }
}

impl Engine {
    /// Begins a rest.
    pub(super) fn begin_rest(
        &mut self,
        limit: Duration,
        reply: Sender<Result<(), RestError>>,
    ) -> Result<(), EngineError> {
        if self.rest.is_some() {
            let _ = reply.send(Err(RestError::Twice));
            return Ok(());
        }
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let (token, until_ns) = (self.token(), self.now().saturating_add(limit_ns));
        self.rest = Some(Rest { token, flushed: false, limit, until_ns, reply });
        self.node.set_resting(true);
        self.step(Input::Release { tokens: token..token + 1 })
    }

    /// A release may go: perhaps it is the flush of a rest.
    pub(super) fn note_flushed(&mut self, token: u64) {
        if let Some(rest) = self.rest.as_mut().filter(|rest| rest.token == token) {
            rest.flushed = true;
        }
    }

    /// Tells whoever asked for a rest that it has come, or that its time is over.
    pub(super) fn look_at_rest(&mut self) {
        let now = self.now();
        let unrest = self.unrest();
        let over = |rest: &mut Rest| unrest.is_none() || now >= rest.until_ns;
        let Some(rest) = self.rest.take_if(over) else { return };
        let result = match unrest {
            None => Ok(()),
            Some(unrest) => {
                self.node.set_resting(false);
                Err(RestError::Late { limit: rest.limit, unrest })
            }
        };
        // Whoever asked may have given up.
        let _ = rest.reply.send(result);
    }

    pub(super) fn end_rest(&mut self) -> Result<(), EngineError> {
        self.rest = None;
        self.node.set_resting(false);
        self.fetch_on()
    }

    /// What is under way here.
    pub(super) fn unrest(&self) -> Option<Unrest> {
        if self.rest.as_ref().is_some_and(|rest| !rest.flushed) {
            return Some(Unrest::Flush);
        }
        let counts = [
            (self.copies.len(), Unrest::Copies as fn(usize) -> Unrest),
            (self.releases.len(), Unrest::Releases),
            (self.outbound.backlog.len(), Unrest::Frames),
        ];
        let waiting = counts.into_iter().find(|(count, _)| *count > 0);
        let waiting = waiting.map(|(count, unrest)| unrest(count));
        let chunks = self.store.chunk_fetches.is_in_flight().then_some(Unrest::Chunks);
        let protocol = || self.node.in_flight().map(Unrest::Protocol);
        waiting.or(chunks).or_else(protocol)
    }

    pub(crate) fn count(&self) -> Result<Vec<Channel>, RestError> {
        match self.unrest() {
            Some(unrest) => Err(RestError::NotAtRest(unrest)),
            None => Ok(self.node.counts()),
        }
    }

    pub(crate) fn save(&mut self) -> Result<NodeState, RestError> {
        if let Some(unrest) = self.unrest() {
            return Err(RestError::NotAtRest(unrest));
        }
        let store = self.store.with_body(None);
        let state = self.node.save(&store);
        state.map_err(|why| RestError::NotAtRest(Unrest::Protocol(why)))
    }
}
