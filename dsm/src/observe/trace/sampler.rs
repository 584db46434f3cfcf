//! Which faults are worth asking a vCPU about: each n-th, with n such that there are few a second.
//!
//! Taking the first fault after a pause would sample what guests do after pauses. So faults are
//! counted, and n follows their rate:
//!
//! ```text
//!   n-th fault --sooner than SPACE after the last sample--> n doubles, no sample
//!        |-------later than 4 x SPACE---------------------> n halves, sample
//!        +-------else-------------------------------------> sample
//! ```

/// Least time between two samples. A sample costs a vCPU its exit, some system calls, its way back and
/// its fault again: 0.2 ms where exits are dear. 10 a second are 0.2 %.
const SPACE_NS: u64 = 100_000_000;
/// The most faults between two samples.
const EVERY_MAX: u32 = 1 << 20;

/// Counts faults.
#[derive(Debug)]
pub(super) struct Sampler {
    every: u32,
    left: u32,
    last_ns: Option<u64>,
}

impl Default for Sampler {
    fn default() -> Self {
        Self { every: 1, left: 1, last_ns: None }
    }
}

impl Sampler {
    /// Counts one; true when it is to be sampled.
    pub(super) fn counts(&mut self, now_ns: u64) -> bool {
        self.left -= 1;
        if self.left > 0 {
            return false;
        }
        let since = self.last_ns.map_or(u64::MAX, |last| now_ns.saturating_sub(last));
        let sampled = since >= SPACE_NS;
        if !sampled {
            self.every = (self.every * 2).min(EVERY_MAX);
        } else if since > 4 * SPACE_NS {
            self.every = (self.every / 2).max(1);
        }
        self.left = self.every;
        if sampled {
            self.last_ns = Some(now_ns);
        }
        sampled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Samples of faults so many nanoseconds apart, until a time.
    fn samples(sampler: &mut Sampler, from_ns: u64, to_ns: u64, apart_ns: u64) -> u64 {
        let (mut samples, mut now) = (0, from_ns);
        while now < to_ns {
            samples += u64::from(sampler.counts(now));
            now += apart_ns;
        }
        samples
    }

    #[test]
    fn rare_faults_are_all_sampled() {
        assert_eq!(samples(&mut Sampler::default(), 0, 10_000_000_000, 100_000_000), 100);
    }

    #[test]
    fn sampler_follows_the_rate_both_ways() {
        let mut sampler = Sampler::default();
        const SECOND: u64 = 1_000_000_000;
        let busy = samples(&mut sampler, 0, 10 * SECOND, 50_000);
        assert!((20..=100).contains(&busy), "{busy} samples in 10 s at 20000 faults a second");
        let calm = samples(&mut sampler, 10 * SECOND, 110 * SECOND, SECOND / 100);
        assert!((150..=1000).contains(&calm), "{calm} samples in 100 s at 100 faults a second");
    }

    proptest! {
        #[test]
        fn samples_are_never_closer_than_their_space(steps in prop::collection::vec(0u64..40_000_000, 1..500)) {
            let (mut sampler, mut now, mut last) = (Sampler::default(), 0, None);
            for step in steps {
                now += step;
                if sampler.counts(now) {
                    prop_assert!(last.is_none_or(|last| now - last >= SPACE_NS));
                    last = Some(now);
                }
            }
        }
    }
}
