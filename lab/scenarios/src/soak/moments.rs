//! Random moments.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// A number below a bound, different each time. The standard library seeds its hashers at random.
pub(crate) fn random(bound: u64) -> u64 {
    RandomState::new().hash_one(0) % bound.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_below_their_bound() {
        assert!((0..100).all(|_| random(3) < 3));
        assert_eq!((random(1), random(0)), (0, 0));
    }
}
