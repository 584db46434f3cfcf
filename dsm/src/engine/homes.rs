//! Homes of frames that are to move, and pages that are to come to their home: what waits for that, and why it may fail.
//! [`super::home_moves`] does it.

use crate::memory::ChunkId;
use crossbeam_channel::Sender;
use dsm_protocol::{Epoch, Gfn, SliceId};
use std::collections::VecDeque;
use std::ops::Range;
use thiserror::Error;

/// Why homes have not moved, or pages have not come to their home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HomeMoveError {
    /// The next home shares no memory.
    #[error("{0} cannot be a home: it shares no memory")]
    NotAMember(SliceId),
    /// Part of the range has no memory.
    #[error("the home of frame {0:#x} cannot move: there is no memory")]
    NoMemory(u64),
    /// It has taken too long, and goes on.
    #[error("homes are still moving")]
    Late,
    /// The engine has stopped, or did not answer in time.
    #[error("the memory engine does not answer")]
    NoAnswer,
}

/// Frames on the way to another home.
#[derive(Debug)]
pub(crate) struct HomeMove {
    pub(crate) frames: Range<u64>,
    pub(crate) to: SliceId,
    pub(crate) placement: Epoch,
    pub(crate) reply: Sender<Result<(), HomeMoveError>>,
}

/// Frames whose pages come to this slice, their home.
#[derive(Debug)]
pub(crate) struct Pull {
    /// Those that have not been asked for.
    pub(crate) frames: Range<u64>,
    pub(crate) from: SliceId,
    /// The chunk that was fetched as a whole.
    pub(crate) fetched: Option<ChunkId>,
    pub(crate) reply: Sender<Result<(), HomeMoveError>>,
}

/// What an engine does about homes.
#[derive(Debug, Default)]
pub(crate) struct HomeMoves {
    pub(super) moves: VecDeque<HomeMove>,
    /// Frames that move now.
    pub(super) moving: Option<Range<u64>>,
    pub(super) pulls: VecDeque<Pull>,
    /// Pages that were asked for by a pull and have not come.
    pub(super) pulled: Vec<Gfn>,
    /// Moves of which this slice has heard, a chunk or a part of it each.
    pub(super) heard: u64,
}

impl HomeMoves {
    /// True when nothing is to move or to come.
    pub(super) fn is_empty(&self) -> bool {
        self.moves.is_empty() && self.pulls.is_empty()
    }
}
