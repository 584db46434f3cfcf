//! The hold window: how long a slice keeps a page that it has just received.
//!
//! Without it, two slices that write one page can hand it back and forth without either making
//! progress. It follows the measured time of a fault and never exceeds a cap, because a timer tick
//! touches several shared pages and must not cost more than its period
//! (facts: linux-over-dsm, section 2).

/// Parameters of the hold window. Times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HoldPolicy {
    /// The least window.
    pub min_ns: u64,
    /// The most.
    pub max_ns: u64,
    /// Window as a percentage of the mean fault time.
    pub percent_of_fault: u32,
}

impl HoldPolicy {
    /// No window at all. For models.
    pub const NONE: Self = Self { min_ns: 0, max_ns: 0, percent_of_fault: 0 };
}

impl Default for HoldPolicy {
    fn default() -> Self {
        Self { min_ns: 20_000, max_ns: 2_000_000, percent_of_fault: 150 }
    }
}

/// Mean fault time and the window that follows from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hold {
    policy: HoldPolicy,
    mean_ns: u64,
}

impl Hold {
    pub(crate) fn new(policy: HoldPolicy) -> Self {
        Self { policy, mean_ns: 0 }
    }

    /// Takes one measured fault into the mean (weight 1/16).
    pub(crate) fn measured(&mut self, fault_ns: u64) {
        if self.policy == HoldPolicy::NONE {
            return;
        }
        self.mean_ns = match self.mean_ns {
            0 => fault_ns,
            mean => mean - mean / 16 + fault_ns / 16,
        };
    }

    pub(crate) fn mean_ns(&self) -> u64 {
        self.mean_ns
    }

    /// The window now.
    pub(crate) fn window_ns(&self) -> u64 {
        let follow = self.mean_ns.saturating_mul(u64::from(self.policy.percent_of_fault)) / 100;
        follow.clamp(self.policy.min_ns, self.policy.max_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_follows_the_mean_within_its_bounds() {
        let mut hold = Hold::new(HoldPolicy { min_ns: 10, max_ns: 1000, percent_of_fault: 200 });
        assert_eq!(hold.window_ns(), 10);

        hold.measured(100);
        assert_eq!(hold.window_ns(), 200);

        (0..200).for_each(|_| hold.measured(100_000));
        assert_eq!(hold.window_ns(), 1000);
    }
}
