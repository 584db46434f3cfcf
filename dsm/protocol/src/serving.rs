//! Pages whose home is busy, and the requests that wait for them there.

use std::collections::VecDeque;
use wire::{Access, SliceId, Table};

/// A request at its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    Get { from: SliceId, want: Access, table: Option<Table> },
    Demote { from: SliceId },
}

/// A page whose home is busy: it becomes a replica, or ends as one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Serving {
    /// Who must confirm.
    pub(crate) requester: SliceId,
    /// True while replicas are given up.
    pub(crate) demoting: bool,
    pub(crate) queue: VecDeque<Request>,
}
