//! What a mesh ends in: a transport on the carrier that its slices agreed on.

use crate::config::CarrierKind;
use crate::traits::Transport;
use std::fmt;

/// A transport between hosts, and what carries it.
pub struct MeshTransport {
    /// What carries the frames.
    pub kind: CarrierKind,
    /// The transport.
    pub transport: Box<dyn Transport>,
}

impl MeshTransport {
    pub(super) fn new(kind: CarrierKind, transport: impl Transport + 'static) -> Self {
        Self { kind, transport: Box::new(transport) }
    }
}

impl fmt::Debug for MeshTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeshTransport").field("kind", &self.kind).finish_non_exhaustive()
    }
}
