//! A rest that was asked for: what it waits for, and until when.

use crossbeam_channel::Sender;
use dsm_protocol::saved::NotAtRest;
use std::fmt;
use std::time::Duration;
use thiserror::Error;

/// What keeps an engine from rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrest {
    /// Something of the protocol.
    Protocol(NotAtRest),
    /// Changes of page tables have not been flushed since the rest was asked for.
    Flush,
    /// The VMM copies to or from guest memory.
    Copies(usize),
    /// Frames of the VMM wait for a flush.
    Releases(usize),
    /// Frames wait for room in the transport.
    Frames(usize),
    /// Pages of a chunk are on their way.
    Chunks,
}

impl fmt::Display for Unrest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol(why) => why.fmt(f),
            Self::Flush => f.write_str("changes of page tables are being flushed"),
            Self::Copies(count) => write!(f, "the VMM copies guest memory, {count} times"),
            Self::Releases(count) => write!(f, "{count} frames wait for changes of page tables"),
            Self::Frames(count) => write!(f, "{count} frames wait for room in the transport"),
            Self::Chunks => f.write_str("a chunk is on its way"),
        }
    }
}

/// Why an engine is not at rest, or its node is not saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RestError {
    /// Something was still under way at the end of the time.
    #[error("the memory engine has not come to rest within {limit:.1?}: {unrest}")]
    Late {
        /// The time.
        limit: Duration,
        /// What was under way.
        unrest: Unrest,
    },
    /// It was asked to save and something was under way.
    #[error("the memory engine is not at rest: {0}")]
    NotAtRest(Unrest),
    /// It was asked to rest once more before it had come to rest.
    #[error("the memory engine is coming to rest already")]
    Twice,
    /// The engine has ended, or does not answer.
    #[error("the memory engine does not answer")]
    NoAnswer,
}

/// A rest that was asked for.
#[derive(Debug)]
pub(super) struct Rest {
    /// The release that flushes.
    pub(super) token: u64,
    pub(super) flushed: bool,
    pub(super) limit: Duration,
    /// The end of the time, in the engine's clock.
    pub(super) until_ns: u64,
    pub(super) reply: Sender<Result<(), RestError>>,
}
