//! `./x soak migrate`: vCPUs of a VM over several hosts move at random, slices are drained, and vCPUs are spread again, while
//! its guest runs its tests, or is a Debian system under load. In some VMs a slice leaves in the end.
//!
//! ```text
//!   tests:  hosts ─> VM boots ─> tests, power off ─> judged ─┐      Debian: boot, load and clocks begin ─> no request failed
//!             ^        moves all the time, late ones         │                     moves meanwhile          the clock never
//!             │        without a slice that has left,        │                     a slice leaves           went back ─> told
//!             │        or with another one in its place      │
//!             └── not enough moves yet ──────────────────────┴─> told
//! ```

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::{Args, ValueEnum};
use guest_tests::kernel_log::complaint;

use crate::distro::guest::Guest;
use crate::distro::visit;
use crate::soak::clocks;
use crate::soak::load::Load;
use crate::soak::moments::random;
use crate::soak::moves::{During, LEAVE_LIMIT, Mover, Moves};
use crate::soak::rig::{Hosts, Rig, RigOptions, exit};
use crate::vm::judge::Outcome;
use crate::vm::layout::Layout;
use crate::vm::scenario::Scenario;
use crate::vm::{Interrupts, VmOptions, distro};

/// Moves of each back end, unless told.
const TIMES: usize = 100;
/// A boot of Debian on emulated hosts, and some moves.
const TIMEOUT: u64 = 7200;
/// On emulated hosts it boots several times as fast as with a vCPU on each. Moves spread the vCPUs then.
const DEBIAN_LAYOUT: &str = "2+0";
/// What the guest runs: all but its socket, which these VMs do not have.
pub(super) const TESTS: &str =
    "litmus,count,clock,tlb,futex,pipe,signal,fork-exec,map-stress,memory,hotplug";

/// What runs in the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum System {
    /// The guest's tests, in one VM after the other; they put CPUs down and up as well
    Tests,
    /// A Debian system that serves web pages
    Debian,
}

/// What `./x soak migrate` takes.
#[derive(Args, Debug)]
pub struct MigrateOptions {
    #[command(flatten)]
    vm: VmOptions,
    /// Moves with each interrupt back end; 100 unless given
    #[arg(long, conflicts_with = "minutes")]
    times: Option<usize>,
    /// So many minutes with each interrupt back end instead
    #[arg(long)]
    minutes: Option<u64>,
    /// Seed that vCPUs, slices and moments are drawn from; a random one unless given
    #[arg(long)]
    seed: Option<u64>,
    /// In each VM with tests, have a companion's slice leave half-way, and another one join in its place; the bootstrap's slice
    /// is not drained
    #[arg(long)]
    join: bool,
    /// What runs in the VM
    #[arg(long, value_enum, default_value_t = System::Tests)]
    system: System,
    #[command(flatten)]
    rig: RigOptions,
}

/// When it is enough.
#[derive(Clone, Copy, Debug)]
enum Aim {
    Times(usize),
    Until(Instant),
}

impl Aim {
    fn is_reached(self, moves: usize) -> bool {
        match self {
            Self::Times(times) => moves >= times,
            Self::Until(end) => Instant::now() >= end,
        }
    }
}

/// Moves as long as wanted, and judges.
///
/// # Errors
/// Something that is needed is missing, or somebody interrupts; what goes wrong with a VM is no error.
pub fn run(options: &MigrateOptions) -> Result<ExitCode> {
    let mut vm = options.vm.clone();
    let fits = |layout: &Layout| {
        ensure!(layout.slices() >= 2, "--layout {layout}: one slice has nowhere to move a vCPU");
        Ok(())
    };
    let rig = match options.system {
        System::Tests => {
            vm.tests.get_or_insert_with(|| TESTS.to_owned());
            Rig::new(&vm, options.rig, fits)?
        }
        System::Debian => {
            if vm.hosts.is_none() {
                vm.layout.get_or_insert(DEBIAN_LAYOUT.parse()?);
            }
            vm.timeout.get_or_insert(TIMEOUT);
            Rig::with_distro(&vm, options.rig, fits)?
        }
    };
    vm.offer_all(&rig.layout);
    let seed = options.seed.unwrap_or_else(|| random(u64::MAX));
    rig.say(&format!("seed {seed}"));
    // The slice on the host with the devices cannot be drained: now this is the bootstrap's, now another.
    vm.reversed = options.system == System::Debian && seed % 2 == 1;
    let mut good = true;
    for back_end in [Interrupts::Ghost, Interrupts::Userspace] {
        if options.rig.interrupts.is_some_and(|only| only != back_end) {
            continue;
        }
        let minutes = options.minutes.map(|m| Instant::now() + Duration::from_secs(60 * m));
        let times = Aim::Times(options.times.unwrap_or(TIMES));
        let aim = minutes.map_or(times, Aim::Until);
        let run = Run { rig: &rig, vm: &vm, back_end, aim, seed, join: options.join };
        let Told { moves, problems, more } = match options.system {
            System::Tests => run.tests()?,
            System::Debian => run.debian()?,
        };
        println!("{}: {more}; {moves}", back_end.name());
        for problem in &problems {
            println!("problem: {problem}");
        }
        good &= problems.is_empty() && !moves.times.is_empty();
    }
    Ok(exit(good))
}

/// One back end.
struct Run<'a> {
    rig: &'a Rig,
    vm: &'a VmOptions,
    back_end: Interrupts,
    aim: Aim,
    seed: u64,
    join: bool,
}

/// What came of it.
#[derive(Default)]
struct Told {
    moves: Moves,
    problems: Vec<String>,
    more: String,
}

impl Run<'_> {
    fn scenario<'a>(&'a self, lab: &'a lab::Lab) -> Scenario<'a> {
        Scenario { interrupts: Some(self.back_end), ..self.rig.scenario(self.vm, lab) }
    }

    /// VMs with the guest's tests, one after the other.
    fn tests(&self) -> Result<Told> {
        let mut hosts = Hosts::new(|| self.rig.hosts(self.vm, Vec::new()));
        let (mut told, mut vms) = (Told::default(), 0);
        // Of the last VM; a word may stand for several tests.
        let mut tests = self.vm.tests.as_deref().unwrap_or_default().split(',').count();
        while !self.aim.is_reached(told.moves.count()) {
            let name = format!("{} VM {vms} of seed {}", self.back_end.name(), self.seed);
            let tried = hosts.attempt(|lab| {
                let scenario = self.scenario(lab);
                let how = (self.seed.wrapping_add(vms), self.join);
                let (moves, result) = tests_of_one(&scenario, how, &mut tests)?;
                self.rig.say(&format!("{name}: {moves}"));
                told.moves.add(moves);
                Ok(result)
            })?;
            self.rig.check()?;
            match tried {
                Ok(said) => self.rig.say(&format!("{name}: good: {said}")),
                Err(error) => {
                    self.rig.say(&format!("{name}: BAD: {error:#}"));
                    told.problems.push(format!("{name}: {error:#}"));
                }
            }
            vms += 1;
        }
        told.more = format!("{vms} VMs");
        Ok(told)
    }

    /// A Debian system.
    fn debian(&self) -> Result<Told> {
        let system = self.rig.distro()?;
        let lab = self.rig.hosts(self.vm, distro::disks(&system, false)?)?;
        let scenario = self.scenario(&lab);
        let bound = scenario.with_devices()?.0;
        let mut mover = Mover::new(&scenario, self.seed).with_relocations().with_bound(bound);
        let mut more = String::new();
        let shown = visit::visit(&scenario, &system, &mut |guest, slices| {
            clocks::start(guest)?;
            let mut requests = 0;
            while !self.aim.is_reached(mover.moves.count()) {
                requests += under_load(&scenario, guest, &mut mover)?;
                scenario.progress.say(&format!("{requests} requests; {}", mover.moves));
            }
            if mover.may_leave() {
                let load = Load::start(&scenario, guest)?;
                mover.leave(|_, slice| slices.left(slice, LEAVE_LIMIT))?;
                requests += load.end()?;
                requests += under_load(&scenario, guest, &mut mover)?;
            }
            more = format!(
                "{requests} requests, none failed; {} readings of the clock",
                clocks::end(guest)?
            );
            check_kernel(guest)?;
            guest.check_objects()?;
            guest.check_cpus()
        })?;
        self.rig.check()?;
        let problems = [mover.problems, shown.problems].concat();
        Ok(Told { moves: mover.moves, problems, more })
    }
}

/// Boots a VM, moves its parts until it is over, and judges its tests, of which there may be more than so many.
fn tests_of_one(
    scenario: &Scenario<'_>,
    (seed, join): (u64, bool),
    tests: &mut usize,
) -> Result<(Moves, Result<String>)> {
    let output = scenario.output(scenario.loud);
    scenario.joined.clear();
    let mut companions = scenario.start_companions_heard_by(&output)?;
    let mover = Mover::new(scenario, seed).with_relocations();
    let mut mover = mover.with_leaver(&companions, *tests).with_newcomer(&output);
    if join {
        mover = mover.with_bound(0).with_leave_after(*tests / 2);
    }
    let during = During::default();
    let (outcome, moved) = thread::scope(|scope| {
        let moving = scope.spawn(|| mover.beside(&during));
        let outcome = scenario.run_beside((&companions, &output), &mut |guest| {
            during.tests.store(guest.tests.len(), Ordering::SeqCst);
        });
        during.over.store(true, Ordering::SeqCst);
        let moved = moving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (outcome, moved)
    });
    *tests = during.tests.into_inner().max(*tests);
    let Mover { moves, mut problems, newcomers, .. } = mover;
    companions.extend(newcomers);
    problems.extend(moved.err().map(|error| format!("{error:#}")));
    let outcome = outcome.map(|outcome| Outcome { emptied: moves.emptied(), ..outcome });
    let result = outcome.and_then(|outcome| scenario.end(outcome, companions));
    Ok((moves, result.and_then(|outcome| judge(outcome, problems))))
}

/// What the tests say, or all that is wrong.
fn judge(mut outcome: Outcome, more: Vec<String>) -> Result<String> {
    outcome.judge_kernel();
    let mut problems = outcome.problems;
    problems.extend(more);
    if !problems.is_empty() {
        problems.extend(outcome.tail);
        return Err(anyhow!(problems.join("; ")));
    }
    Ok(format!("{} tests, {:.1} s", outcome.guest.tests.len(), outcome.seconds))
}

/// Moves as long as a load goes on; how many requests it made.
fn under_load(scenario: &Scenario<'_>, guest: &Guest<'_>, mover: &mut Mover<'_>) -> Result<u64> {
    let mut load = Load::start(scenario, guest)?;
    while !load.is_over() {
        ensure!(!scenario.interrupted.is_set(), "interrupted");
        mover.step()?;
    }
    load.end()
}

/// The guest's kernel has nothing to complain of.
pub(crate) fn check_kernel(guest: &Guest<'_>) -> Result<()> {
    // At the end of the log there is no more to read, which is an error to dd.
    let log = guest.ssh("dd if=/dev/kmsg iflag=nonblock bs=8192 2>/dev/null || true");
    let log = log.context("read the guest's kernel log")?;
    ensure!(log.lines().count() > 0, "the guest's kernel log is empty");
    let found: Vec<_> = log.lines().filter_map(complaint).collect();
    ensure!(found.is_empty(), "the guest's kernel says: {}", found.join("; "));
    Ok(())
}
