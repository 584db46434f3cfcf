//! Frames of other slices, taken from the transport.

use super::event_loop::Engine;
use super::inbox::Inbox;
use super::outbound::Outbound;
use crate::error::EngineError;
use std::thread::Builder;
use transport::{Class, Event};
use wire::SliceId;

/// Transport events handled before faults and commands are looked at again.
const POLL_BUDGET: usize = 64;

impl Engine {
    /// Takes frames in, and hands over to the VMM those that are not about coherence.
    pub(super) fn take_frames(&mut self) -> Result<(), EngineError> {
        let mut result = Ok(());
        let Self { node, store, outbound, uplink, effects, classifier, trace, clock, .. } = self;
        let Outbound { transport, remote_writers, moved, .. } = outbound;
        let mut inbox = Inbox { node, store, classifier, trace, effects, remote_writers, moved };
        let (bystanders, departed) = (&self.bystanders, &self.departed);
        let (mut lost, mut closed) = (Vec::<(SliceId, String)>::new(), Vec::new());
        let (mut fenced, mut urgent) = (false, false);
        let is_urgent = self.wait_policy.is_urgent(clock.now_ns());
        uplink.looks();
        transport.limit_runs(if is_urgent { 1 } else { POLL_BUDGET });
        transport.poll(POLL_BUDGET, &mut |event| {
            match event {
                Event::Head { from: peer, .. }
                | Event::DirectlyReceived { from: peer, .. }
                | Event::Frame { from: peer, .. }
                    if departed.contains(&peer) => {}
                Event::Lost { peer, .. } if departed.contains(&peer) => closed.push(peer),
                // Each loss is told once, so all are taken. A loss behind that of a bystander counts too. A slice that has
                // not joined is one.
                Event::Lost { peer, cause } => {
                    fenced |= inbox.node.is_member(peer) && !bystanders.contains(&peer);
                    lost.push((peer, cause));
                }
                _ if result.is_err() || fenced => {}
                Event::Frame { from, class: class @ (Class::Coherence | Class::Run), bytes } => {
                    urgent |= class == Class::Coherence;
                    result = inbox.take(clock.now_ns(), from, class, bytes);
                }
                Event::Head { bytes, length, direct_receive, .. } => {
                    *direct_receive = inbox.direct_receive(bytes, length);
                }
                Event::DirectlyReceived { from, bytes, length } => {
                    result = inbox.directly_received(clock.now_ns(), from, bytes, length);
                }
                Event::Frame { from, class, bytes } => uplink.frame(from, class, bytes),
            }
        });
        transport.take_heard(&mut |peer, at| uplink.heard(peer, at));
        closed.into_iter().for_each(|peer| self.forget_connections(peer));
        result?;
        if urgent {
            self.wait_policy.note_urgent(self.now());
        }
        self.stopping |= fenced;
        for (peer, cause) in lost {
            self.uplink.lost(peer, cause);
        }
        if self.stopping {
            return Ok(());
        }
        self.store.map_pending()?;
        self.fetch_on()?;
        self.carry_out()
    }

    /// A slice that has left has closed its end too. What is left of the connections may take long to close.
    pub(super) fn forget_connections(&mut self, peer: SliceId) {
        if let Some(former) = self.outbound.transport.remove_peer(peer) {
            let close = Builder::new().name("former-peer".into()).spawn(move || drop(former));
            if let Err(error) = close {
                tracing::debug!("connections of {peer} were closed by the memory engine: {error}");
            }
        }
    }
}
