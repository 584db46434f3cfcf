//! The generator of the NAS benchmarks.

use crate::job::Job;

/// 5^13, the multiplier of the generator; its modulus is 2^46.
const MULTIPLIER: u64 = 1_220_703_125;
const MODULUS_BITS: u32 = 46;
const MASK: u64 = (1 << MODULUS_BITS) - 1;
const SEED: u64 = 271_828_183;

/// A linear congruential generator of numbers between 0 and 1.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// The job's generator after so many numbers. Jobs differ by `word`.
    pub(super) fn of(job: &Job, numbers: u64) -> Self {
        let (mut state, mut power, mut left) = (SEED + 2 * job.word, MULTIPLIER, numbers);
        while left > 0 {
            if left & 1 == 1 {
                state = state.wrapping_mul(power) & MASK;
            }
            power = power.wrapping_mul(power) & MASK;
            left >>= 1;
        }
        Self(state)
    }

    pub(super) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(MULTIPLIER) & MASK;
        #[expect(clippy::cast_precision_loss, reason = "46 bits are exact")]
        let value = self.0 as f64;
        const MODULUS: f64 = (1u64 << MODULUS_BITS) as f64;
        value / MODULUS
    }
}
