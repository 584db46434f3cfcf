//! The hold window: how long a slice keeps a page that it has just received.
//!
//! Without it, two slices that write one page can hand it back and forth without either making
//! progress. It follows the measured cost of a transfer (the time of a fault less what holders kept the
//! page), and never exceeds a cap, because a timer tick touches several shared pages and must not cost
//! more than its period (facts: linux-over-dsm, section 2).
//!
//! ```text
//!   page comes --window--> nobody asks: no window any more
//!                      \-> asked: contents changed meanwhile? --no--> given up
//!                             ^            | yes: for a window more, and if they have changed
//!                             +--a while---+ again, the slice is busy with it: until the busy
//!                                            window is over
//! ```
//!
//! While one slice has the page the others wait, so of the time of a busy page a transfer is lost for each
//! window. A window of 100 transfers loses a hundredth. But a slice that does nothing with the page
//! would make the others wait for nothing: so only a page whose contents go on changing is kept longer,
//! twice in a row, and each time for thrice as long as so far. What is kept in vain is thus in proportion to
//! what was not. A page that was busy to the end of its window last time begins with a third of the busy window:
//! each look at a page takes the core away from the guest. One that changed just once last time (a turn that was
//! taken and given on, a lock) begins with a quarter of the ordinary window, and is looked at as often; if that
//! was too short to write it even once, next time is like the first.
//!
//! Where transfers take long now and then, or the looks do, 100 mean transfers are not enough. So slices that
//! are all busy with a page let their windows grow: each keeps it at most twice as long as the last holder did
//! after it had been asked (`held`), and gives way to the others, who kept it for `waited` together:
//!
//! ```text
//!   window = min(2 held, (3 most - waited) / 2, most), but never less than without growth
//! ```
//!
//! With n slices that comes to rest at 3/(n + 1) of the most: two of them have it for `most` each, and a
//! round of however many takes less than thrice that, unless it takes longer without growth. A holder that
//! goes idle gives the page up after a look, and as `held` is short then, the next window is short too.

use crate::mechanisms::Mechanisms;
use thiserror::Error;

/// The longest window that can be asked for, in microseconds.
const WINDOW_MAX_US: u64 = 1_000_000;

/// The bounds of a hold window are the wrong way round, or absurd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a hold window of {min_us} to {max_us} microseconds is impossible")]
pub struct HoldError {
    /// The least, in microseconds.
    pub min_us: u64,
    /// The most.
    pub max_us: u64,
}

/// Parameters of the hold window. Times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HoldPolicy {
    /// The least window.
    pub min_ns: u64,
    /// The most.
    pub max_ns: u64,
    /// Window as a percentage of the mean transfer time.
    pub percent: u32,
    /// The least for a page that this slice goes on writing.
    pub busy_min_ns: u64,
    /// The most.
    pub busy_max_ns: u64,
    /// Window for such a page, as a percentage of the mean transfer time.
    pub busy_percent: u32,
    /// The most for a page that the other slices go on writing too; nothing if it is not more than that.
    pub contended_max_ns: u64,
}

impl HoldPolicy {
    /// No window at all. For models.
    pub const NONE: Self = Self::fixed(0);

    /// One window for all pages.
    #[must_use]
    pub const fn fixed(ns: u64) -> Self {
        Self {
            min_ns: ns,
            max_ns: ns,
            percent: 0,
            busy_min_ns: 0,
            busy_max_ns: 0,
            busy_percent: 0,
            contended_max_ns: 0,
        }
    }

    /// The policy with this least and most window, in microseconds. The windows of busy pages grow with the most.
    ///
    /// # Errors
    /// The least is more than the most, or that is more than a second.
    pub fn between((min_us, max_us): (u64, u64)) -> Result<Self, HoldError> {
        if min_us > max_us || max_us > WINDOW_MAX_US {
            return Err(HoldError { min_us, max_us });
        }
        Ok(Self {
            min_ns: min_us * 1000,
            max_ns: max_us * 1000,
            busy_max_ns: max_us * 10_000,
            contended_max_ns: max_us * 25_000,
            ..Self::default()
        })
    }

    /// With only those windows that these mechanisms have.
    pub(crate) fn limited_to(self, mechanisms: Mechanisms) -> Self {
        let busy = if mechanisms.busy_windows {
            self
        } else {
            Self { busy_min_ns: 0, busy_max_ns: 0, contended_max_ns: 0, ..self }
        };
        if mechanisms.contended_windows { busy } else { Self { contended_max_ns: 0, ..busy } }
    }
}

impl Default for HoldPolicy {
    fn default() -> Self {
        Self {
            min_ns: 20_000,
            max_ns: 2_000_000,
            percent: 150,
            busy_min_ns: 0,
            busy_max_ns: 20_000_000,
            busy_percent: 10_000,
            contended_max_ns: 50_000_000,
        }
    }
}

/// Mean transfer time and the windows that follow from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hold {
    policy: HoldPolicy,
    mean_ns: u64,
}

impl Hold {
    pub(crate) fn new(policy: HoldPolicy) -> Self {
        Self { policy, mean_ns: 0 }
    }

    /// Other parameters. What was measured stays.
    pub(crate) fn set(&mut self, policy: HoldPolicy) {
        self.policy = policy;
    }

    /// Takes one measured transfer into the mean (weight 1/16), as twice the mean at most: that some
    /// transfers take ten times as long, when a host has no time for a slice, says nothing about the others.
    pub(crate) fn measured(&mut self, transfer_ns: u64) {
        if self.policy == HoldPolicy::NONE {
            return;
        }
        self.mean_ns = match self.mean_ns {
            0 => transfer_ns,
            mean => mean - mean / 16 + transfer_ns.min(mean.saturating_mul(2)).div_ceil(16),
        };
    }

    pub(crate) fn mean_ns(&self) -> u64 {
        self.mean_ns
    }

    fn share(&self, percent: u32) -> u64 {
        self.mean_ns.saturating_mul(u64::from(percent)) / 100
    }

    /// The window now.
    pub(crate) fn window_ns(&self) -> u64 {
        self.share(self.policy.percent).clamp(self.policy.min_ns, self.policy.max_ns)
    }

    /// The window of a page that was written once last time.
    pub(crate) fn brief_ns(&self) -> u64 {
        (self.window_ns() / 4).max(self.policy.min_ns)
    }

    /// The window of a page that is written all the time.
    pub(crate) fn busy_ns(&self) -> u64 {
        let HoldPolicy { busy_percent, busy_min_ns, busy_max_ns, .. } = self.policy;
        self.share(busy_percent).clamp(busy_min_ns, busy_max_ns)
    }

    /// The same of a page that a holder kept for `held_ns` after it had been asked, and all holders together
    /// for `waited_ns`.
    pub(crate) fn contended_ns(&self, waited_ns: u64, held_ns: u64) -> u64 {
        let most = self.policy.contended_max_ns;
        let others_left = most.saturating_mul(3).saturating_sub(waited_ns) / 2;
        held_ns.saturating_mul(2).min(others_left).min(most).max(self.busy_ns())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_checked_and_those_of_the_default_give_it() {
        assert_eq!(HoldPolicy::between((20, 2000)), Ok(HoldPolicy::default()));
        assert!(HoldPolicy::between((0, 1_000_000)).is_ok());
        for (min_us, max_us) in [(20, 10), (0, 1_000_001), (u64::MAX, u64::MAX)] {
            assert_eq!(HoldPolicy::between((min_us, max_us)), Err(HoldError { min_us, max_us }));
        }
    }

    #[test]
    fn window_follows_the_mean_within_its_bounds() {
        let policy = HoldPolicy { min_ns: 10, max_ns: 1000, percent: 200, ..HoldPolicy::default() };
        let mut hold = Hold::new(policy);
        assert_eq!(hold.window_ns(), 10);

        hold.measured(100);
        assert_eq!(hold.window_ns(), 200);

        (0..200).for_each(|_| hold.measured(100_000));
        assert_eq!(hold.window_ns(), 1000);
    }

    /// Windows of so many slices that are all busy with a page and take turns, after many turns.
    fn at_rest(slices: usize) -> Vec<u64> {
        const TRANSFER: u64 = 200_000;
        let mut hold = Hold::new(HoldPolicy::default());
        hold.measured(TRANSFER);
        let mut windows = vec![hold.busy_ns(); slices];
        for turn in 0..100 * slices {
            let last = windows[(turn + slices - 1) % slices];
            let others: u64 = windows.iter().sum::<u64>() - windows[turn % slices];
            let transfers = TRANSFER * u64::try_from(slices).unwrap();
            windows[turn % slices] = hold.contended_ns(others + transfers, last);
        }
        windows
    }

    #[test]
    fn contended_windows_grow_and_a_round_stays_bounded() {
        let (least, most) = (20_000_000, HoldPolicy::default().contended_max_ns);
        for slices in 2..=64 {
            let windows = at_rest(usize::try_from(slices).unwrap());
            let share = (3 * most / (slices + 1)).clamp(least, most);
            for window in &windows {
                assert!(window.abs_diff(share) < share / 10, "{slices} slices: {windows:?}");
            }
            assert!(windows.iter().sum::<u64>() <= (3 * most).max(least * slices));
        }
    }

    #[test]
    fn mean_forgets_a_transfer_that_took_long_by_chance() {
        let mut hold = Hold::new(HoldPolicy::default());
        // One in seven waits for a host that is busy with something else.
        (0..700).for_each(|at| hold.measured(if at % 7 == 0 { 2_000_000 } else { 150_000 }));
        assert!(hold.mean_ns() < 200_000, "{}", hold.mean_ns());
        (0..100).for_each(|_| hold.measured(2_000_000));
        assert!(hold.mean_ns() > 1_500_000, "{}", hold.mean_ns());
    }

    #[test]
    fn window_does_not_grow_beside_a_slice_that_is_not_busy() {
        let mut hold = Hold::new(HoldPolicy::default());
        hold.measured(50_000);
        assert_eq!(hold.contended_ns(0, 0), 5_000_000);
        assert_eq!(hold.contended_ns(400_000, 300_000), 5_000_000);
        assert_eq!(hold.contended_ns(10_000_000, 9_000_000), 18_000_000);
        assert_eq!(hold.contended_ns(u64::MAX, u64::MAX), 5_000_000);
        assert_eq!(Hold::new(HoldPolicy::fixed(7)).contended_ns(9_000_000, 9_000_000), 0);
    }
}
