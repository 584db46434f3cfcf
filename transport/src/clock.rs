//! How far apart two clocks are, from the exchange that took the least time; and this host's own.
//!
//! The peer read its clock somewhere between our two readings. The middle is taken, so the error is
//! at most half of the round trip, and the shortest round trip bounds it best.

use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_BOOTTIME` in nanoseconds, which goes on while this process is stopped and while the host sleeps.
pub(crate) fn boot_time_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(now.tv_sec).saturating_mul(1_000_000_000) + part(now.tv_nsec)
}

/// The clock of a peer against ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockEstimate {
    /// Peer clock minus local clock, in ticks.
    pub offset: i64,
    /// The shortest round trip, in local ticks. The offset is off by at most half of it.
    pub rtt_min: u64,
}

/// Keeps the best of the samples.
#[derive(Debug, Default)]
pub(crate) struct ClockProbe {
    best: Option<ClockEstimate>,
}

impl ClockProbe {
    /// Takes in that the peer's clock said `theirs` between our `before` and `after`.
    pub(crate) fn sample(&mut self, before: u64, theirs: u64, after: u64) {
        let rtt_min = after.wrapping_sub(before);
        let middle = before.wrapping_add(rtt_min / 2);
        let offset = theirs.wrapping_sub(middle).cast_signed();
        if self.best.is_none_or(|best| rtt_min < best.rtt_min) {
            self.best = Some(ClockEstimate { offset, rtt_min });
        }
    }

    pub(crate) fn best(&self) -> Option<ClockEstimate> {
        self.best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shortest_round_trip_wins() {
        let mut probe = ClockProbe::default();
        probe.sample(100, 5_000, 300);
        probe.sample(1_000, 6_010, 1_020);
        probe.sample(2_000, 9_000, 2_500);

        assert_eq!(probe.best(), Some(ClockEstimate { offset: 5_000, rtt_min: 20 }));
    }

    proptest! {
        #[test]
        fn offset_is_off_by_half_a_round_trip_at_most(
            start: u64, offset: i64, out in 0u64..1_000_000, back in 0u64..1_000_000,
        ) {
            let theirs = start.wrapping_add(out).wrapping_add(offset.cast_unsigned());
            let mut probe = ClockProbe::default();
            probe.sample(start, theirs, start.wrapping_add(out + back));

            let best = probe.best().unwrap();
            let error = best.offset.wrapping_sub(offset).unsigned_abs();
            prop_assert!(error <= best.rtt_min / 2 + 1);
        }
    }
}
