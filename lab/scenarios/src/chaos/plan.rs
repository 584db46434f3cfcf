//! What happens in each round of `soak chaos`, drawn from a seed.

use std::time::Duration;

/// What happens to a VM of two slices. The victim is a slice, its host, or its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Harm {
    /// SIGKILL.
    Kill,
    /// SIGSTOP for less than the lease.
    Pause,
    /// SIGSTOP until long after the lease.
    Freeze,
    /// The link is cut for less than the lease.
    Blink,
    /// The link is cut for good.
    Cut,
    /// The victim is heard no more, but hears.
    Mute,
    /// Every frame of the victim's host is late for a while.
    Delay,
    /// The file system with the raw disk's image is full.
    FullDisk,
    /// Nobody reads the ordinary console for a while.
    StalledConsole,
    /// The victim's time stamp counter is somewhat fast, from the start.
    ClockDrift,
    /// It is so fast that nothing can be done about it.
    ClockRunAway,
}

impl Harm {
    pub(crate) const ALL: [Self; 11] = [
        Self::Kill,
        Self::Pause,
        Self::Freeze,
        Self::Blink,
        Self::Cut,
        Self::Mute,
        Self::Delay,
        Self::FullDisk,
        Self::StalledConsole,
        Self::ClockDrift,
        Self::ClockRunAway,
    ];

    /// True when the VM must survive it.
    pub(crate) fn is_survived(self) -> bool {
        match self {
            Self::Pause
            | Self::Blink
            | Self::Delay
            | Self::FullDisk
            | Self::StalledConsole
            | Self::ClockDrift => true,
            Self::Kill | Self::Freeze | Self::Cut | Self::Mute | Self::ClockRunAway => false,
        }
    }
}

impl Harm {
    /// How fast the victim's counter is, in parts per million.
    pub(crate) fn ppm(self) -> Option<u32> {
        match self {
            // Three times of what the worst crystals are wrong.
            Self::ClockDrift => Some(300),
            // 10 ms between two measurements.
            Self::ClockRunAway => Some(50_000),
            _ => None,
        }
    }
}

/// One round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    pub(crate) harm: Harm,
    /// The slice that it happens to: 0 or 1.
    pub(crate) victim: usize,
    /// The slice with the disks and the network.
    pub(crate) owner: usize,
    /// From the writers' start to the harm.
    pub(crate) after: Duration,
}

impl Round {
    /// Round `number` of a seed. Each harm comes once in as many rounds as there are harms, in an order that
    /// the seed decides.
    pub(crate) fn draw(seed: u64, number: u64) -> Self {
        let count = Harm::ALL.len() as u64;
        let (cycle, place) = (number / count, number % count);
        let mut order = Harm::ALL;
        fastrand::Rng::with_seed(mix(seed, cycle, 0)).shuffle(&mut order);
        let mut own = fastrand::Rng::with_seed(mix(seed, cycle, place + 1));
        let harm = order[usize::try_from(place).unwrap_or(0)];
        let latest = if harm == Harm::FullDisk { 1000 } else { 15_000 };
        let after = Duration::from_millis(own.u64(0..latest));
        let victim = own.usize(0..2);
        // What the operator is told of a full disk is read where the VM was started.
        let owner = if harm == Harm::FullDisk { 0 } else { own.usize(0..2) };
        Self { harm, victim, owner, after }
    }
}

/// Neighbouring numbers give seeds that have nothing in common.
fn mix(seed: u64, cycle: u64, place: u64) -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed);
    let base = rng.u64(..);
    base ^ cycle.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place.wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_harm_comes_once_in_a_cycle_and_each_slice_is_a_victim() {
        for seed in 0..50 {
            let count = Harm::ALL.len() as u64;
            for cycle in 0..3 {
                let rounds = (0..count).map(|place| Round::draw(seed, cycle * count + place));
                let harms: HashSet<_> = rounds.map(|round| round.harm).collect();
                assert_eq!(harms.len(), Harm::ALL.len());
            }
            let victims = (0..60).map(|number| Round::draw(seed, number).victim);
            assert_eq!(victims.collect::<HashSet<_>>().len(), 2);
            let owners = (0..60).map(|number| Round::draw(seed, number).owner);
            assert_eq!(owners.collect::<HashSet<_>>().len(), 2);
        }
    }

    #[test]
    fn seeds_differ_and_repeat() {
        let rounds = |seed| (0..20).map(|number| Round::draw(seed, number)).collect::<Vec<_>>();
        assert_eq!(rounds(7), rounds(7));
        assert_ne!(rounds(7), rounds(8));
    }
}
