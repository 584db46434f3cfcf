//! `./x soak checkpoint`: a VM whose guest runs its tests is written down at random moments, and goes on from what was written
//! on other slices.
//!
//! ```text
//!   boot ─> life: runs, checkpoint ─┬─ ends with it ───────────────────────┐
//!    ^       ^                      ├─ runs on, and is killed ─────────────┼─ whole ─> the newest ──┐
//!    │       │                      └─ a slice is killed meanwhile, or ────┤                        │
//!    │       │                         kills itself at a named point       │                        │
//!    │       │                                                             └─ half: refused         │
//!    │       └── on 1 to 3 slices, from the newest that is whole <───────────────┴──────────────────┘
//!    └────────── if there is none yet
//!   the guest powers off ─> all tests good, no kernel warning
//! ```

mod life;
mod plan;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Args;
use lab::Lab;

use crate::soak::leftovers::left_processes;
use crate::soak::migrate::TESTS;
use crate::soak::moments::random;
use crate::soak::moves::quantile;
use crate::soak::rig::{Hosts, Rig, RigOptions, exit};
use crate::vm::judge::Outcome;
use crate::vm::output::Output;
use crate::vm::saves::{self, Written};
use crate::vm::scenario::Scenario;
use crate::vm::{Interrupts, VmOptions};
use life::{Life, is_whole, live, name_before};
use plan::{Act, Plan, RENAMED, Step};

/// Checkpoints, unless told.
const TIMES: usize = 20;
/// Hosts at least: a VM goes on on up to so many.
const HOSTS: usize = 3;
/// Memory of the VM in MiB: it can be shared out evenly over 1 to 4 slices.
const MEMORY_MIB: u32 = 528;
/// After so many lives in a row a VM runs to its end.
const LIVES_MAX: usize = 8;

/// What `./x soak checkpoint` takes.
#[derive(Args, Debug)]
pub struct CheckpointOptions {
    #[command(flatten)]
    vm: VmOptions,
    /// Checkpoints, half-written ones too; 20 unless given
    #[arg(long, conflicts_with = "minutes")]
    times: Option<usize>,
    /// So many minutes instead
    #[arg(long)]
    minutes: Option<u64>,
    /// Seed that moments, kills and layouts are drawn from; a random one unless given
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    rig: RigOptions,
}

/// What came of it.
#[derive(Debug, Default)]
struct Told {
    written: Vec<Written>,
    /// Lives that began with a checkpoint, by the number of slices.
    restores: [usize; 8],
    /// Whole ones that are increments.
    increments: usize,
    /// Half-written ones.
    half: usize,
    /// Where processes have killed themselves.
    at: BTreeSet<&'static str>,
    /// Whole ones of which nobody was told, because a slice was killed just then.
    untold: usize,
}

impl Told {
    fn count(&self) -> usize {
        self.written.len() + self.half + self.untold
    }

    fn line(&self) -> String {
        let times: Vec<_> = self.written.iter().map(|one| one.paused_milliseconds).collect();
        let time = |hundredths| quantile(&times, hundredths).unwrap_or(f64::NAN);
        let mib = |one: &Written| one.bytes >> 20;
        let restores = self.restores.iter().enumerate().filter(|(_, count)| **count > 0);
        let restores: Vec<_> =
            restores.map(|(slices, count)| format!("{count} on {slices}")).collect();
        format!(
            "{} checkpoints, {} increments; the guest stood still p50 {:.0} ms, longest {:.0} ms, up to {} MiB; {} more half-written, all \
             refused; {} whole, and nobody was told; killed at {}; restores by number of slices: {}",
            self.written.len(),
            self.increments,
            time(50),
            time(100),
            self.written.iter().map(mib).max().unwrap_or(0),
            self.half,
            self.untold,
            if self.at.is_empty() { "no named point".to_owned() } else { join(&self.at) },
            if restores.is_empty() { "none".to_owned() } else { restores.join(", ") }
        )
    }
}

fn join(words: &BTreeSet<&str>) -> String {
    words.iter().copied().collect::<Vec<_>>().join(", ")
}

/// Writes and goes on as often as wanted, and judges.
///
/// # Errors
/// Something that is needed is missing, or somebody interrupts; what goes wrong with a VM is no error.
pub fn run(options: &CheckpointOptions) -> Result<ExitCode> {
    let mut vm = options.vm.clone();
    vm.tests.get_or_insert_with(|| TESTS.to_owned());
    vm.default_memory(MEMORY_MIB);
    let rig = Rig::new(&vm, options.rig, |_| Ok(()))?;
    let seed = options.seed.unwrap_or_else(|| random(u64::MAX));
    rig.say(&format!("seed {seed}"));
    let end = options.minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let times = options.times.unwrap_or(TIMES);
    let count = rig.layout.slices().max(HOSTS);
    let mut hosts = Hosts::new(|| rig.some_hosts(&vm, count));
    let (mut told, mut vms, mut bad) = (Told::default(), 0, 0);
    let is_enough =
        |told: &Told| end.map_or_else(|| told.count() >= times, |end| Instant::now() >= end);
    while !is_enough(&told) {
        let back_end = if vms % 2 == 0 { Interrupts::Ghost } else { Interrupts::Userspace };
        let back_end = options.rig.interrupts.unwrap_or(back_end);
        let name = format!("{} VM {vms} of seed {seed}", back_end.name());
        let tried = hosts.attempt(|lab| {
            let plan = Plan::new(seed.wrapping_add(vms), rig.layout.all(), count);
            let mut of = Vm { rig: &rig, vm: &vm, lab, back_end, plan, told: &mut told };
            let result = of.run(&is_enough);
            rig.check()?;
            result
        })?;
        match tried {
            Ok(said) => rig.say(&format!("{name}: good: {said}")),
            Err(error) => {
                bad += 1;
                rig.say(&format!("{name}: BAD: {error:#}"));
            }
        }
        vms += 1;
    }
    println!("{vms} VMs, {bad} of them bad; {}", told.line());
    Ok(exit(bad == 0 && !told.written.is_empty()))
}

/// One VM with all of its lives.
struct Vm<'a> {
    rig: &'a Rig,
    vm: &'a VmOptions,
    lab: &'a Lab,
    back_end: Interrupts,
    plan: Plan,
    told: &'a mut Told,
}

impl Vm<'_> {
    fn run(&mut self, is_enough: &dyn Fn(&Told) -> bool) -> Result<Result<String>> {
        saves::prepare(self.lab)?;
        let mut output = self.rig.output();
        let mut layout = self.rig.layout.clone();
        let mut newest: Option<String> = None;
        for life in 0.. {
            if newest.is_none() {
                output = self.rig.output();
                layout = self.rig.layout.clone();
            }
            let mut vm = self.vm.clone();
            vm.keep_checkpoints(self.lab)?;
            if let Some(name) = &newest {
                vm.restore = Some(saves::inside(self.lab, name)?);
                let clock = if self.plan.catches_up() { "catch-up" } else { "keep" };
                vm.bootstrap.extend(["--clock", clock].map(str::to_owned));
                self.told.restores[layout.slices()] += 1;
            }
            let goes_on = life < LIVES_MAX && !is_enough(self.told);
            let step = goes_on.then(|| self.plan.draw(layout.slices()));
            if let Some(Step { act: Act::KillAt { bootstrap, point }, .. }) = step {
                let words = if bootstrap { &mut vm.bootstrap } else { &mut vm.companion };
                words.extend(["--test-kill", point].map(str::to_owned));
            }
            let scenario = Scenario {
                layout: &layout,
                interrupts: Some(self.back_end),
                ..self.rig.scenario(&vm, self.lab)
            };
            let name = format!("save-{life}");
            let from = newest.as_deref().unwrap_or("boot");
            self.rig.say(&format!("life {life}, layout {layout}, from {from}: {step:?}"));
            let ended = live(&scenario, &output, (&name, step))?;
            self.rig.check()?;
            match self.after(&scenario, &output, ended, (&name, step))? {
                Next::Over(result) => {
                    saves::clear(self.lab)?;
                    return Ok(result.map(|said| format!("{} lives; {said}", life + 1)));
                }
                Next::Whole => {
                    newest = Some(name.clone());
                    saves::keep_only(self.lab, &name)?;
                }
                Next::Half(before) => {
                    self.told.half += 1;
                    if saves::is_begun(self.lab, &name)? {
                        saves::remove(self.lab, &name)?;
                    }
                    if let Some(last) = before {
                        newest = Some(last);
                        saves::keep_only(self.lab, &name)?;
                    }
                }
            }
            layout = self.plan.layout()?;
        }
        unreachable!("a VM runs to its end after some lives")
    }

    /// What follows from how a life has ended.
    fn after(
        &mut self,
        scenario: &Scenario<'_>,
        output: &Arc<Output>,
        life: Life,
        (name, step): (&str, Option<Step>),
    ) -> Result<Next> {
        let Life { outcome, before, said, mut problems } = life;
        let last = before.len().checked_sub(1).map(|number| name_before(name, number));
        self.told.increments += before.len().saturating_sub(1);
        self.told.written.extend(before);
        let failed = output.guest().failed().join(", ");
        if !failed.is_empty() {
            problems.push(format!("tests failed: {failed}"));
        }
        problems.extend(left_processes(scenario)?);
        let ended = outcome.exit.as_ref().is_ok_and(|exit| exit.success());
        let is_told = matches!(said, Some(Ok(_)));
        if let Some(Ok(written)) = said {
            self.rig.say(&format!("{name}: {written:?}"));
            self.plan.learn(Duration::from_secs_f64(written.milliseconds / 1000.0));
            self.told.written.push(written);
        }
        let saved = matches!(said, Some(Ok(_))) && step.is_some_and(|step| step.act == Act::End);
        if ended && !saved {
            return Ok(Next::Over(self.judge(scenario, output, outcome, problems)?));
        }
        if !problems.is_empty() || step.is_none() || (saved && !ended) || said.is_none() {
            problems.push(format!("the VM ended with {:?}", outcome.exit));
            problems.extend(output.tail());
            return Ok(Next::Over(Err(anyhow!(problems.join("; ")))));
        }
        let whole = is_whole(scenario, name)?;
        if let (Some(Step { act: Act::KillAt { point, .. }, .. }), false) = (step, is_told) {
            self.told.at.insert(point);
            if whole != (point == RENAMED) {
                let what = if whole { "a" } else { "no" };
                return Ok(Next::Over(Err(anyhow!(
                    "{what} checkpoint was left by a kill at {point}"
                ))));
            }
        }
        if whole && !is_told {
            self.told.untold += 1;
            self.rig.say(&format!("{name} is whole, and nobody was told"));
        }
        self.told.increments += usize::from(whole && last.is_some());
        Ok(if whole { Next::Whole } else { Next::Half(last) })
    }

    /// What the tests say, or all that is wrong.
    fn judge(
        &self,
        scenario: &Scenario<'_>,
        output: &Output,
        mut outcome: Outcome,
        problems: Vec<String>,
    ) -> Result<Result<String>> {
        outcome.problems.extend(problems);
        outcome.guest = output.guest();
        outcome.report = scenario.read_report(&mut outcome.problems)?;
        // What faults the lives before had nobody knows: shares of this one's say nothing.
        outcome.judge((usize::MAX, self.rig.layout.all()), self.vm.strict());
        outcome.judge_kernel();
        let mut problems = outcome.problems;
        if problems.is_empty() {
            return Ok(Ok(format!("{} tests", outcome.guest.tests.len())));
        }
        problems.extend(output.tail());
        Ok(Err(anyhow!(problems.join("; "))))
    }
}

/// What follows a life.
enum Next {
    /// The VM is over, well or not.
    Over(Result<String>),
    /// It goes on from what was written.
    Whole,
    /// It goes on from what was written before: from this one of the same life, if there is one.
    Half(Option<String>),
}
