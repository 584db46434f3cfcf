//! EP: it only computes.

use super::random::Random;
use super::{SEED_OF_DIGEST, mix, word};
use crate::job::{Job, Memory, PAGE_WORDS, index, now};
use crate::share::barrier;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Pairs of a batch of EP.
pub const BATCH: u64 = 1 << 16;
/// Square annuli that the deviates are counted in.
const ANNULI: usize = 10;
/// Words of a batch's result: annuli, both sums, room.
const RESULT: usize = 16;

/// What EP finds: deviates by annulus, and the sums of both coordinates.
#[derive(Default)]
struct Deviates {
    annuli: [u64; ANNULI],
    x: f64,
    y: f64,
}

impl Deviates {
    fn of_batch(random: &mut Random) -> Self {
        let mut found = Self::default();
        for _ in 0..BATCH {
            let (x, y) = (2.0 * random.next() - 1.0, 2.0 * random.next() - 1.0);
            let t = x * x + y * y;
            if t <= 1.0 && t > 0.0 {
                let factor = libm::sqrt(-2.0 * libm::log(t) / t);
                let (x, y) = (x * factor, y * factor);
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "0 to 8"
                )]
                let annulus = libm::fmax(libm::fabs(x), libm::fabs(y)) as usize;
                found.annuli[annulus.min(ANNULI - 1)] += 1;
                found.x += x;
                found.y += y;
            }
        }
        found
    }

    fn words(&self) -> impl Iterator<Item = u64> {
        self.annuli.into_iter().chain([self.x.to_bits(), self.y.to_bits()])
    }

    fn add(&mut self, words: &[AtomicU64]) {
        for (annulus, word) in self.annuli.iter_mut().zip(words) {
            *annulus += word.load(Relaxed);
        }
        self.x += f64::from_bits(words[ANNULI].load(Relaxed));
        self.y += f64::from_bits(words[ANNULI + 1].load(Relaxed));
    }
}

/// EP: Gaussian deviates from `rounds` batches of [`BATCH`] uniform pairs. Afterwards `count` is how
/// many pairs lay in the circle and `sum` a digest of counts and sums, of all processors' batches.
pub fn ep(job: &mut Job, memory: &Memory) {
    let (batches, all) = (index(job.rounds), index(job.all).max(1));
    let pages = (batches.div_ceil(all) * RESULT).div_ceil(PAGE_WORDS);
    let Some(results) = memory.words().get(PAGE_WORDS..(1 + all * pages) * PAGE_WORDS) else {
        return;
    };
    let start = now();
    let of = |own: usize| &results[own * pages * PAGE_WORDS..];
    let own = job.part(batches);
    let mut random = Random::of(job, word(own.start) * BATCH * 2);
    for (_, slot) in own.zip(of(index(job.own)).chunks_exact(RESULT)) {
        for (word, value) in slot.iter().zip(Deviates::of_batch(&mut random).words()) {
            word.store(value, Relaxed);
        }
    }
    if !barrier(job, memory) {
        return;
    }
    let mut found = Deviates::default();
    for own in 0..all {
        let theirs = Job { own: word(own), ..*job }.part(batches);
        for (_, slot) in theirs.zip(of(own).chunks_exact(RESULT)) {
            found.add(slot);
        }
    }
    job.elapsed = now().wrapping_sub(start);
    job.count = found.annuli.iter().sum();
    job.sum = found.words().fold(SEED_OF_DIGEST, mix);
}
