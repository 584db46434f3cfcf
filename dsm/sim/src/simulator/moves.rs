//! When homes of pages move, and what.

use super::random::Random;
use dsm_protocol::Gfn;

/// The longest time between two moves.
pub(super) const BETWEEN_NS: u64 = 400_000;
/// The most pages of a move.
pub(super) const PAGES: u64 = 40;

/// When and what moves. It draws from a generator of its own: a run without moves is the same as ever.
#[derive(Debug)]
pub(crate) struct Moves {
    pub(super) random: Random,
    pub(super) placement: u32,
    /// The first page of the move that goes on.
    pub(super) moving: Option<Gfn>,
}

impl Moves {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Random::new(seed.rotate_left(16)), placement: 1, moving: None }
    }
}
