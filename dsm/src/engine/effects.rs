//! What a step wants done, in order: messages out, releases, pinned pages.

use super::command::{Receiver, Release};
use super::event_loop::Engine;
use super::outbound::Sending;
use crate::error::EngineError;
use dsm_protocol::{Effect, Message};
use wire::SliceId;

impl Engine {
    /// Carries out what steps have decided.
    pub(super) fn carry_out(&mut self) -> Result<(), EngineError> {
        let corked = self.outbound.begin(&self.effects);
        let result = self.carry_out_effects();
        self.outbound.end(corked);
        result?;
        self.outbound.drain_backlog()
    }

    fn carry_out_effects(&mut self) -> Result<(), EngineError> {
        while !self.effects.is_empty() {
            let mut effects = std::mem::replace(&mut self.effects, std::mem::take(&mut self.spare));
            for effect in effects.drain(..) {
                match effect {
                    Effect::Send { to, message } => self.send_message(to, &message)?,
                    Effect::Released { token } => {
                        self.note_flushed(token);
                        if let Some(release) = self.releases.remove(&token) {
                            self.send_released(release)?;
                        }
                    }
                    Effect::HomeMoved { gfn, pages } => {
                        self.home_moved(gfn.0..gfn.0 + u64::from(pages))?;
                    }
                    Effect::Pinned { token } => {
                        // The VMM may write the page now.
                        self.send_batch()?;
                        self.pinned(token)?;
                    }
                }
            }
            self.spare = effects;
            self.send_batch()?;
        }
        Ok(())
    }

    /// The receiver is settled here and not by who sent the frame. So all frames leave in the order in which this thread
    /// has taken them, also those that a change of places causes.
    fn send_released(&mut self, release: Release) -> Result<(), EngineError> {
        let Release { to, class, frame } = release;
        self.send_batch()?;
        let (to, frame) = match to {
            Receiver::Slice(to) => (to, frame),
            Receiver::SliceOf(vcpu) => match self.uplink.route(vcpu, frame) {
                Some(routed) => routed,
                None => return Ok(()),
            },
        };
        self.outbound.send_joined(to, class, frame)
    }

    fn send_message(&mut self, to: SliceId, message: &Message) -> Result<(), EngineError> {
        let Self { outbound, store, trace, node, .. } = self;
        let mut sending = Sending { ram: &store.ram, trace, epoch: node.epoch() };
        outbound.send_message(to, message, &mut sending)
    }

    fn send_batch(&mut self) -> Result<(), EngineError> {
        self.outbound.send_batch(&self.store.ram, self.node.epoch())
    }
}
