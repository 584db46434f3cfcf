//! When homes of frames move, and what.

use crate::simulator::random::Random;
use crossbeam_channel::Receiver;
use dsm::HomeMoveError;

/// The longest time between two moves.
pub(super) const BETWEEN_NS: u64 = 300_000_000;
/// How soon to look again whether a move is over.
pub(super) const LOOK_NS: u64 = 100_000;

/// When and what moves. It draws from a generator of its own: a run without moves is the same as ever.
#[derive(Debug)]
pub(super) struct Moves {
    pub(super) random: Random,
    pub(super) placement: u32,
    pub(super) answer: Option<Receiver<Result<(), HomeMoveError>>>,
    /// How many there were.
    pub(super) count: u64,
}

impl Moves {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Random::new(seed.rotate_left(16)), placement: 1, answer: None, count: 0 }
    }
}
