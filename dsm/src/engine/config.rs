//! What an engine is made of.

use super::uplink::Uplink;
use crate::memory::GuestRam;
use crate::observe::Tracing;
use dsm_protocol::Config;
use std::sync::Arc;
use std::time::Duration;
use transport::Transport;
use wire::SliceId;

/// What an engine is made of.
pub struct EngineConfig {
    /// The core that the engine's thread runs on, if it is not to be left to the scheduler. On the core
    /// of its vCPU, a fault wakes it without an interrupt to another core.
    pub core: Option<usize>,
    /// The protocol's configuration, with the optional mechanisms of the whole engine.
    pub node: Config,
    /// Guest memory, already laid out.
    pub ram: Arc<GuestRam>,
    /// Slices that are no members of the protocol: memory goes on without them.
    pub bystanders: Vec<SliceId>,
    /// The connection to the other slices.
    pub transport: Box<dyn Transport>,
    /// The VMM.
    pub uplink: Box<dyn Uplink>,
    /// Whoever waits for longer than this waits in vain: several leases.
    pub wait_limit: Duration,
    /// Which pages are traced from the start; see [`Handle::set_trace`](crate::Handle::set_trace).
    pub trace: Tracing,
}

impl std::fmt::Debug for EngineConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineConfig").field("node", &self.node).finish_non_exhaustive()
    }
}
