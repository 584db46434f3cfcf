//! Two kernels of the NAS parallel benchmarks (NAS Technical Report RNR-94-007), written anew: EP, which
//! only computes, and IS, which sorts integers and only touches memory. Serial, one per processor.

use crate::job::{Job, Memory, now};
use core::sync::atomic::Ordering::Relaxed;

/// 5^13, the multiplier of the generator; its modulus is 2^46.
const MULTIPLIER: u64 = 1_220_703_125;
const MODULUS_BITS: u32 = 46;
const SEED: u64 = 271_828_183;
/// IS: keys are below this.
const KEYS: usize = 1 << 16;

/// The generator of the NAS benchmarks.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        const MASK: u64 = (1 << MODULUS_BITS) - 1;
        self.0 = self.0.wrapping_mul(MULTIPLIER) & MASK;
        #[expect(clippy::cast_precision_loss, reason = "46 bits are exact")]
        let value = self.0 as f64;
        const MODULUS: f64 = (1u64 << MODULUS_BITS) as f64;
        value / MODULUS
    }
}

/// EP: Gaussian deviates from `rounds` pairs of uniform ones; `count` is how many pairs lay in the circle,
/// `sum` how many deviates lay in the innermost of the square annuli.
pub fn ep(job: &mut Job, _: &Memory) {
    let start = now();
    let mut random = Random(SEED + 2 * job.own);
    for _ in 0..job.rounds {
        let (x, y) = (2.0 * random.next() - 1.0, 2.0 * random.next() - 1.0);
        let t = x * x + y * y;
        if t <= 1.0 && t > 0.0 {
            let factor = libm::sqrt(-2.0 * libm::log(t) / t);
            let largest = libm::fmax(libm::fabs(x * factor), libm::fabs(y * factor));
            job.sum += u64::from(largest < 1.0);
            job.count += 1;
        }
    }
    job.elapsed = now().wrapping_sub(start);
}

/// IS: ranks the keys that fill the memory, but for the counters at its end, `rounds` times. `count` is the
/// number of keys ranked, `sum` the number of neighbours out of order after the last round: 0.
pub fn is(job: &mut Job, memory: &Memory) {
    let words = memory.words();
    let Some(keys) = words.len().checked_sub(KEYS).map(|count| count / 2) else { return };
    let (keys, rest) = words.split_at(keys);
    let (sorted, counters) = rest.split_at(rest.len() - KEYS);
    let mut random = Random(SEED + 2 * job.own);
    for key in keys {
        let four = random.next() + random.next() + random.next() + random.next();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to KEYS")]
        let value = (four * KEYS as f64 / 4.0) as u64;
        key.store(value, Relaxed);
    }
    let start = now();
    let at = |key: u64| usize::try_from(key).unwrap_or(0) % KEYS;
    for _ in 0..job.rounds {
        for counter in counters {
            counter.store(0, Relaxed);
        }
        for key in keys {
            let counter = &counters[at(key.load(Relaxed))];
            counter.store(counter.load(Relaxed) + 1, Relaxed);
        }
        let mut before = 0;
        for counter in counters {
            let here = counter.load(Relaxed);
            counter.store(before, Relaxed);
            before += here;
        }
        for key in keys {
            let value = key.load(Relaxed);
            let counter = &counters[at(value)];
            let rank = counter.load(Relaxed);
            counter.store(rank + 1, Relaxed);
            if let Some(place) = usize::try_from(rank).ok().and_then(|rank| sorted.get(rank)) {
                place.store(value, Relaxed);
            }
        }
        job.count += u64::try_from(keys.len()).unwrap_or(0);
    }
    job.elapsed = now().wrapping_sub(start);
    let pairs = sorted[..keys.len()].windows(2);
    job.sum = pairs.map(|pair| u64::from(pair[0].load(Relaxed) > pair[1].load(Relaxed))).sum();
}

#[cfg(test)]
mod tests {
    extern crate std;
    use crate::{Job, Kind, run};
    use std::vec;

    #[expect(unsafe_code, reason = "a job names its memory by address")]
    fn run_on(memory: &[u64], job: Job) -> Job {
        // UNSAFETY: the memory outlives the call.
        let address = memory.as_ptr().expose_provenance().next_multiple_of(4096);
        let room = memory.len() - (address - memory.as_ptr().addr()) / 8;
        let mut job = Job {
            memory: u64::try_from(address).unwrap(),
            pages: u64::try_from(room / 512).unwrap(),
            ..job
        };
        // SAFETY: the pages are inside the vector, which nobody else uses.
        unsafe { run(&mut job) };
        job
    }

    #[test]
    fn ep_finds_as_many_pairs_as_the_circle_holds() {
        let job =
            run_on(&[0; 1024], Job { kind: Kind::Ep as u64, rounds: 100_000, ..Job::default() });
        // A quarter of pi, and of the deviates two thirds squared within one standard deviation.
        assert!((78_000..79_100).contains(&job.count), "{}", job.count);
        assert!((45 * job.count..49 * job.count).contains(&(100 * job.sum)), "{}", job.sum);
    }

    #[test]
    fn is_leaves_no_neighbours_out_of_order() {
        let memory = vec![0; 1 << 18];
        let job = run_on(&memory, Job { kind: Kind::Is as u64, rounds: 2, ..Job::default() });
        assert_eq!(job.sum, 0);
        assert!(job.count > 150_000 && memory.iter().any(|word| *word > 1000));
    }
}
