//! An engine that goes on from a saved node, with memory that has its contents already. Only tests and simulators do so: a VM goes on from a
//! checkpoint with new engines (decision 55).
//!
//! ```text
//!   new memory --caller: GuestRam::write, each page that the node has--> filled
//!     --Engine::restore: checked, twins made, what is not here taken away--> runs --vCPUs start
//! ```

use super::clock::Clock;
use super::config::EngineConfig;
use super::event_loop::Engine;
use super::handle::Handle;
use crate::error::EngineError;
use dsm_protocol::saved::NodeState;
use dsm_protocol::{Config, Gfn, HomeRange, Node};
use std::ops::Range;
use std::thread::JoinHandle;
use std::time::Instant;

impl Engine {
    /// Starts an engine that goes on where another was saved ([`Handle::save`]).
    ///
    /// The caller has seen to these:
    /// * The forms of all slices have passed [`dsm_protocol::saved::check_all`] together. One form alone cannot tell
    ///   that it fits the others.
    /// * The memory is new: it had no engine, and nobody has touched the guest's mapping.
    /// * Each page that the form says this slice has (shared, exclusive, or a replica) has its contents, by
    ///   [`GuestRam::write`](crate::GuestRam::write). Pages of zeros may be left out. What other pages contain does not
    ///   matter: nobody sees it.
    /// * No vCPU of any slice runs before all engines are there.
    ///
    /// # Errors
    /// As for [`Self::start`]; a form that contradicts itself, or is of another slice, of other members, homes, vCPUs or
    /// tables, or of a later epoch; replicas that are not in memory as they were saved. The memory is of no use then.
    pub fn restore(
        config: EngineConfig,
        saved: &NodeState,
    ) -> Result<(Handle, JoinHandle<()>), EngineError> {
        let (core, node) = (config.core, config.node.clone());
        let (handle, mut engine) = Self::assemble(config, Clock::Host(Instant::now()))?;
        engine.take_up(node, saved)?;
        Ok((handle, engine.spawn(core)?))
    }

    /// Puts an engine that has not begun where another was saved.
    pub(crate) fn take_up(&mut self, config: Config, saved: &NodeState) -> Result<(), EngineError> {
        let local = config.local;
        let (own, others): (Vec<_>, Vec<_>) =
            config.homes.ranges().iter().cloned().partition(|range| range.home == local);
        let frames = |ranges: Vec<HomeRange>| -> Vec<Range<u64>> {
            ranges.into_iter().map(|range| range.frames).collect()
        };
        // It checks the form first: all its frames have memory, because those of the homes do.
        self.node = Node::restored(config, saved, &mut self.store.with_body(None))?;
        for root in &saved.roots {
            self.classifier.set_root(root.vcpu, root.page);
        }
        let Self { node, store, .. } = self;
        store.restore(&frames(own), &frames(others), &|gfn: Gfn| node.access(gfn))?;
        // As after the last other slice has left.
        if node.is_alone() { store.end_watch() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
