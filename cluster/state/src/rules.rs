//! The rules between objects, as functions of what is known.
//!
//! | rule | function |
//! |---|---|
//! | only a child of the current assignment follows it, under no older term | [`may_follow`] |
//! | a new leader waits for a lease before it calls a host lost | [`is_lost`] |

use thiserror::Error;

use crate::assignment::Assignment;
use crate::numbers::{Generation, Term};

/// Why an assignment does not follow.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotNext {
    /// It is another VM's.
    #[error("it is of another VM")]
    OtherVm,
    /// Its parent is not the current one.
    #[error("it follows {parent:?}, and the current one is {current:?}")]
    Parent {
        /// What it follows.
        parent: Option<Generation>,
        /// What there is.
        current: Option<Generation>,
    },
    /// A leader that is deposed has decided it.
    #[error("term {found} after {current}")]
    Term {
        /// Of the assignment.
        found: Term,
        /// Of the current one.
        current: Term,
    },
    /// The VM's data plane would go back.
    #[error("its epoch is smaller")]
    Epoch,
}

/// Whether an assignment may become the current one.
///
/// # Errors
/// Where it may not.
pub fn may_follow(current: Option<&Assignment>, next: &Assignment) -> Result<(), NotNext> {
    let generation = current.map(|current| current.generation);
    if next.parent != generation {
        return Err(NotNext::Parent { parent: next.parent, current: generation });
    }
    let Some(current) = current else { return Ok(()) };
    if current.vm != next.vm {
        return Err(NotNext::OtherVm);
    }
    if next.term < current.term {
        return Err(NotNext::Term { found: next.term, current: current.term });
    }
    if next.epoch < current.epoch { Err(NotNext::Epoch) } else { Ok(()) }
}

/// Whether a leader may call a host lost: nothing has been heard for a lease, nor since this leader began to listen. In one unit of one clock.
#[must_use]
pub fn is_lost(now: u64, heard: Option<u64>, leads_since: u64, lease: u64) -> bool {
    let last = heard.unwrap_or(0).max(leads_since);
    now.saturating_sub(last) > lease
}
