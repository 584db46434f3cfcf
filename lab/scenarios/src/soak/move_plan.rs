//! What a soak does to the parts of a VM, drawn from a seed. Pure.

use std::time::Duration;

use crate::vm::relocate::Places;

/// Longest rest after a move, in milliseconds. Some are shorter than what a move stirs up.
const REST_MS: u64 = 1500;
/// Longest pause, in milliseconds.
const PAUSE_MS: u64 = 1000;
/// One in so many moves is followed by a pause.
const PAUSES: u64 = 8;
/// One in so many steps drains a slice, one spreads, one consolidates.
const RELOCATIONS: u64 = 10;

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// A vCPU goes to a slice where it is not.
    Move { vcpu: usize, to: usize },
    /// A slice is emptied and stays.
    Drain(usize),
    /// vCPUs are spread evenly.
    Spread,
    /// All slices are emptied that are not needed.
    Consolidate,
}

/// One thing to do, and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) act: Act,
    pub(super) pause: Option<Duration>,
    pub(super) rest: Duration,
}

/// Draws steps.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    random: fastrand::Rng,
    /// Slices of the VM.
    members: Vec<usize>,
    /// Slice of each vCPU.
    pub(super) places: Vec<usize>,
    /// Whether there is more than moves of single vCPUs.
    pub(super) relocates: bool,
    /// A slice that cannot be drained: its host has devices.
    pub(super) bound: Option<usize>,
}

impl Plan {
    /// For a VM with so many vCPUs on each slice. Moves only.
    pub(super) fn new(seed: u64, vcpus: impl Iterator<Item = u32>) -> Self {
        let (mut members, mut places) = (Vec::new(), Vec::new());
        for (slice, count) in vcpus.enumerate() {
            places.extend((0..count).map(|_| slice));
            members.push(slice);
        }
        let random = fastrand::Rng::with_seed(seed);
        Self { random, members, places, relocates: false, bound: None }
    }

    /// Takes over where everything is.
    pub(super) fn learn(&mut self, slices: &[Places]) {
        self.members = slices.iter().map(|slice| slice.slice).collect();
        for slice in slices {
            for &vcpu in &slice.vcpus {
                if let Some(place) = self.places.get_mut(vcpu) {
                    *place = slice.slice;
                }
            }
        }
    }

    /// What to do next; none in a VM of one slice.
    pub(super) fn draw(&mut self) -> Option<Step> {
        if self.members.len() < 2 {
            return None;
        }
        let act = self.act();
        let pause = (self.random.u64(0..PAUSES) == 0)
            .then(|| Duration::from_millis(self.random.u64(0..PAUSE_MS)));
        // Half of the rests are short: the next move comes upon what the last one has stirred up.
        let longest = if self.random.bool() { REST_MS } else { REST_MS / 20 };
        Some(Step { act, pause, rest: Duration::from_millis(self.random.u64(0..longest)) })
    }

    fn act(&mut self) -> Act {
        let relocation = if self.relocates { self.random.u64(0..RELOCATIONS) } else { RELOCATIONS };
        match relocation {
            0 => Act::Drain(self.leaver()),
            1 => Act::Spread,
            2 => Act::Consolidate,
            _ => {
                let vcpu = self.random.usize(0..self.places.len());
                let others = self.members.iter().filter(|slice| **slice != self.places[vcpu]);
                let others: Vec<_> = others.copied().collect();
                Act::Move { vcpu, to: others[self.random.usize(0..others.len())] }
            }
        }
    }

    /// A slice to drain, of a VM of several: any whose host has no devices.
    pub(super) fn leaver(&mut self) -> usize {
        let free = self.members.iter().copied().filter(|slice| Some(*slice) != self.bound);
        let free: Vec<_> = free.collect();
        free[self.random.usize(0..free.len())]
    }

    /// Whether a slice is a member of the VM.
    pub(super) fn has(&self, slice: usize) -> bool {
        self.members.contains(&slice)
    }

    /// Whether a slice is to leave in the end, and after how many of so many tests: in half of all VMs, late.
    pub(super) fn leave_after(&mut self, tests: usize) -> Option<usize> {
        let tests = tests.max(1);
        self.random.bool().then(|| self.random.usize(tests / 2..tests))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn drawn(seed: u64, relocates: bool) -> Vec<Step> {
        let mut plan = Plan::new(seed, [2, 1, 0].into_iter());
        assert_eq!((&plan.members[..], &plan.places[..]), (&[0, 1, 2][..], &[0, 0, 1][..]));
        plan.relocates = relocates;
        let steps = (0..300).map(|_| {
            let step = plan.draw().unwrap();
            if let Act::Move { vcpu, to } = step.act {
                assert_ne!(plan.places[vcpu], to);
                plan.places[vcpu] = to;
            }
            step
        });
        steps.collect()
    }

    #[test]
    fn moves_go_elsewhere_to_each_slice_and_repeat_with_the_seed() {
        let steps = drawn(7, false);
        for vcpu in 0..3 {
            for to in 0..3 {
                assert!(steps.iter().any(|step| step.act == Act::Move { vcpu, to }));
            }
        }
        assert!(steps.iter().all(|step| matches!(step.act, Act::Move { .. })));
        assert!(steps.iter().any(|step| step.pause.is_some()));
        assert_eq!(steps, drawn(7, false));
        assert_ne!(steps, drawn(8, false));
    }

    #[test]
    fn each_slice_is_drained() {
        let steps = drawn(7, true);
        let has = |act| steps.iter().any(|step| step.act == act);
        for act in [Act::Drain(0), Act::Drain(1), Act::Drain(2), Act::Spread, Act::Consolidate] {
            assert!(has(act), "{act:?}");
        }
        assert_eq!(steps, drawn(7, true));
    }

    #[test]
    fn slice_with_devices_is_never_drained() {
        for bound in 0..3 {
            let mut plan = Plan::new(7, [1, 1, 1].into_iter());
            plan.bound = Some(bound);
            let drawn: BTreeSet<_> = (0..100).map(|_| plan.leaver()).collect();
            assert_eq!(drawn, (0..3).filter(|slice| *slice != bound).collect());
        }
    }

    #[test]
    fn slice_that_has_left_is_given_nothing_and_one_slice_has_no_choice() {
        let of = |slice, vcpus| Places { slice, vcpus, memory_mib: 0 };
        let mut plan = Plan::new(1, [1, 1, 1].into_iter());
        plan.relocates = true;
        plan.learn(&[of(0, vec![0, 1]), of(2, vec![2])]);
        assert_eq!(plan.places, [0, 0, 2]);
        for _ in 0..200 {
            match plan.draw().unwrap().act {
                Act::Move { vcpu, to } => assert_eq!(to, 2 - plan.places[vcpu]),
                Act::Drain(slice) => assert!([0, 2].contains(&slice)),
                Act::Spread | Act::Consolidate => {}
            }
        }
        plan.learn(&[of(0, vec![0, 1, 2])]);
        assert_eq!(plan.draw(), None);
    }

    #[test]
    fn slice_leaves_late_and_in_some_vms_only() {
        let after: Vec<_> =
            (0..40).map(|seed| Plan::new(seed, [1].into_iter()).leave_after(11)).collect();
        assert!(after.contains(&None) && after.iter().flatten().count() > 5);
        assert!(after.iter().flatten().all(|after| (5..11).contains(after)));
        let of_none = Plan::new(1, [1].into_iter()).leave_after(0);
        assert!(of_none.is_none_or(|after| after == 0));
    }
}
