//! Checkpoints of a VM, what becomes of it then, and where it goes on, drawn from a seed. Pure.

use std::time::Duration;

use anyhow::Result;

use crate::vm::layout::Layout;

/// Longest times that a VM runs before its checkpoint, in milliseconds, drawn from too: tests on one emulated host take ten
/// seconds, a boot and tests on several take a minute.
const WAIT_MS: [u64; 3] = [3000, 10_000, 40_000];
/// Longest time that it runs on after it.
const RUN_ON_MS: u64 = 10_000;
/// Checkpoints before one at most.
const BEFORE_MAX: u32 = 3;
/// Writing takes so long, until it is known better.
const WRITING_MS: u64 = 3000;

/// What becomes of a VM with a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// It ends with it.
    End,
    /// It runs on for so long; then all of its processes are killed.
    RunOn(Duration),
    /// The process of this slice is killed so long after the checkpoint was asked for.
    Kill { slice: usize, after: Duration },
    /// Processes kill themselves where the writing has come so far: the bootstrap's, or those of the companions.
    KillAt { bootstrap: bool, point: &'static str },
}

/// Where the writing of a part can be interrupted.
const PART_POINTS: [&str; 4] = ["part-created", "chunk-written", "index-written", "part-synced"];
/// Where that of a manifest can, which the bootstrap writes. After the last one the checkpoint is whole.
const MANIFEST_POINTS: [&str; 3] = ["manifest-written", "manifest-synced", RENAMED];
/// The one after which it is whole.
pub(super) const RENAMED: &str = "renamed";

/// One checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// How long the VM runs before.
    pub(super) wait: Duration,
    /// Checkpoints that are written before it, the first one full; this one is an increment then.
    pub(super) before: u32,
    pub(super) compressed: bool,
    /// The guest stands still while it is written.
    pub(super) stop: bool,
    pub(super) act: Act,
}

/// Draws steps and layouts.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    random: fastrand::Rng,
    vcpus: u32,
    hosts: usize,
    writing_ms: u64,
}

impl Plan {
    /// For a VM with so many vCPUs, in a lab with so many hosts.
    pub(super) fn new(seed: u64, vcpus: u32, hosts: usize) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { random, vcpus, hosts, writing_ms: WRITING_MS }
    }

    /// Takes over how long it took to write a checkpoint.
    pub(super) fn learn(&mut self, written: Duration) {
        self.writing_ms = u64::try_from(written.as_millis()).unwrap_or(WRITING_MS);
    }

    /// What to do with a VM of so many slices.
    pub(super) fn draw(&mut self, slices: usize) -> Step {
        let random = &mut self.random;
        let act = match random.u32(0..4) {
            0 => Act::End,
            1 => Act::RunOn(Duration::from_millis(random.u64(0..RUN_ON_MS))),
            2 => {
                let bootstrap = slices == 1 || random.bool();
                let own = if bootstrap { &MANIFEST_POINTS[..] } else { &[] };
                let all = PART_POINTS.iter().chain(own);
                let number = random.usize(0..PART_POINTS.len() + own.len());
                let point = all.copied().nth(number).unwrap_or(RENAMED);
                Act::KillAt { bootstrap, point }
            }
            _ => Act::Kill {
                slice: random.usize(0..slices),
                // Some come just after it is written.
                after: Duration::from_millis(random.u64(0..self.writing_ms * 5 / 4 + 1)),
            },
        };
        let longest = WAIT_MS[random.usize(0..WAIT_MS.len())];
        let wait = Duration::from_millis(random.u64(0..longest));
        // The first checkpoint that comes to the point is the last.
        let most = if matches!(act, Act::KillAt { .. }) { 0 } else { BEFORE_MAX };
        let before = random.u32(0..=most) * random.u32(0..2);
        Step { wait, before, compressed: random.bool(), stop: random.u32(0..4) == 0, act }
    }

    /// Whether the guest's clock catches up with the time that the VM was away.
    pub(super) fn catches_up(&mut self) -> bool {
        self.random.u32(0..4) == 0
    }

    /// Where a VM goes on: the first slice has a vCPU, the others are anywhere.
    ///
    /// # Errors
    /// The VM has no vCPU.
    pub(super) fn layout(&mut self) -> Result<Layout> {
        let slices = self.random.usize(1..=self.hosts);
        let mut vcpus = vec![0; slices];
        vcpus[0] = 1;
        for _ in 1..self.vcpus {
            vcpus[self.random.usize(0..slices)] += 1;
        }
        Layout::of(vcpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_kinds_of_steps_and_layouts_come_and_a_seed_repeats_them() {
        let draw = |seed| {
            let mut plan = Plan::new(seed, 2, 3);
            let one = |_| (plan.draw(2), plan.layout().unwrap());
            (0..400).map(one).collect::<Vec<_>>()
        };
        let steps = draw(7);
        assert_eq!(steps, draw(7));
        assert_ne!(steps, draw(8));
        let is = |of: fn(&Act) -> bool| steps.iter().any(|(step, _)| of(&step.act));
        let each = |of: fn(&Step) -> bool| steps.iter().any(|(step, _)| of(step));
        assert!(each(|step| step.stop) && each(|step| !step.stop));
        assert!(each(|step| step.before == 0) && each(|step| step.before > 1));
        for point in PART_POINTS.iter().chain(&MANIFEST_POINTS) {
            let at =
                |step: &Step| matches!(step.act, Act::KillAt { point: of, .. } if of == *point);
            assert!(steps.iter().any(|(step, _)| at(step)), "{point}");
        }
        let of_companions = |act: &Act| matches!(act, Act::KillAt { bootstrap: false, .. });
        assert!(is(of_companions));
        assert!(is(|act| *act == Act::End) && is(|act| matches!(act, Act::RunOn(_))));
        assert!([0, 1].iter().all(|of| {
            steps
                .iter()
                .any(|(step, _)| matches!(step.act, Act::Kill { slice, .. } if slice == *of))
        }));
        let layouts: BTreeSet<_> = steps.iter().map(|(_, layout)| layout.to_string()).collect();
        let all = ["1+0+1", "1+1", "1+1+0", "2", "2+0", "2+0+0"];
        assert_eq!(layouts.iter().collect::<Vec<_>>(), all);
    }

    #[test]
    fn kill_comes_while_it_is_written_or_just_after() {
        let mut plan = Plan::new(1, 2, 3);
        plan.learn(Duration::from_millis(8));
        let kills = (0..2000).filter_map(|_| match plan.draw(1).act {
            Act::Kill { after, .. } => Some(after.as_millis()),
            _ => None,
        });
        let kills: BTreeSet<_> = kills.collect();
        assert_eq!(kills.first().zip(kills.last()), Some((&0, &10)));
    }
}
