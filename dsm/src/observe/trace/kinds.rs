//! Kinds of events that are counted.

use dsm_protocol::Access;

/// What a vCPU needed that had to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// To read a page that was not here.
    Read,
    /// To write a page that was not here.
    Write,
    /// To write a page that could be read here.
    Upgrade,
}

impl FaultKind {
    pub(crate) fn of(held: Access, want: Access) -> Self {
        match (held, want) {
            (Access::Read, _) => Self::Upgrade,
            (_, Access::Write) => Self::Write,
            _ => Self::Read,
        }
    }
}

/// How a page travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    /// Somebody waits for it, or may.
    Alone,
    /// With its neighbours, before anybody touched it. It is counted if it is known: of a scan none is, and
    /// each would take the place of a page that matters, at a cost like that of its transfer.
    InRun,
}
