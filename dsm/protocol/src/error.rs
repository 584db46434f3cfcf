//! When the protocol is broken.

use thiserror::Error;
use wire::{Gfn, SliceId};

/// A peer broke the protocol, or this slice did. The VM must stop: going on could corrupt it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
#[error("{from} sent {what} for {gfn}, which does not fit the state here: {state}")]
pub struct ProtocolError {
    /// Who.
    pub from: SliceId,
    /// The kind of message.
    pub what: &'static str,
    /// The page.
    pub gfn: Gfn,
    /// What was found.
    pub state: &'static str,
}
