//! `./x soak vcpus`: a guest gets a vCPU more and gives it back, again and again, on both slices.
//!
//! ```text
//!   absent ─(moves, every other time)─> cpus 3 ─> the guest runs a program on it ─(moves)─> cpus 2 ─> gone in the guest ─┐
//!      ^─────────────────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::soak::rig::{Rig, RigOptions, exit};
use crate::vm::guest_console::GuestReport;
use crate::vm::scenario::Scenario;
use crate::vm::{Interrupts, VmOptions};

const LAYOUT: &str = "1+1";
/// The vCPU that comes and goes: on slice 0 at first.
const VCPU: &str = "2";
/// For the guest to start, and to do its part of one step on emulated hosts.
const PATIENCE: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(100);

/// What `./x soak vcpus` takes.
#[derive(Args, Debug)]
pub struct VcpusOptions {
    #[command(flatten)]
    vm: VmOptions,
    /// How often the vCPU comes and goes, with each interrupt back end
    #[arg(long, default_value_t = 5)]
    times: usize,
    #[command(flatten)]
    rig: RigOptions,
}

/// Has it come and go as often as wanted, and judges.
///
/// # Errors
/// Something that is needed is missing, or somebody interrupts; what goes wrong with a VM is no error.
pub fn run(options: &VcpusOptions) -> Result<ExitCode> {
    let mut vm = options.vm.clone();
    vm.layout.get_or_insert(LAYOUT.parse()?);
    vm.spare = 1;
    vm.cmdline = format!("tessera.vcpus={} {}", options.times, vm.cmdline);
    let rig = Rig::new(&vm, options.rig, |layout| {
        ensure!(layout.to_string() == LAYOUT, "--layout {layout}: this is about {LAYOUT}");
        Ok(())
    })?;
    vm.offer_all(&rig.layout);
    let lab = rig.hosts(&vm, Vec::new())?;
    let mut good = true;
    for back_end in [Interrupts::Ghost, Interrupts::Userspace] {
        if options.rig.interrupts.is_some_and(|only| only != back_end) {
            continue;
        }
        let scenario = Scenario { interrupts: Some(back_end), ..rig.scenario(&vm, &lab) };
        let problems = one(&scenario, options.times)?;
        rig.check()?;
        let result = if problems.is_empty() { "good" } else { "BAD" };
        println!("{}: {result}: a vCPU came and went {} times", back_end.name(), options.times);
        problems.iter().for_each(|problem| println!("problem: {problem}"));
        good &= problems.is_empty();
    }
    drop(lab);
    Ok(exit(good))
}

/// What is seen of the guest meanwhile.
#[derive(Debug, Default)]
struct Seen {
    started: AtomicBool,
    /// Result lines: one when the guest has used the vCPU, one when it has seen it go.
    results: AtomicUsize,
    over: AtomicBool,
}

/// One VM; all that is wrong with it.
fn one(scenario: &Scenario<'_>, times: usize) -> Result<Vec<String>> {
    let output = scenario.output(scenario.loud);
    let companions = scenario.start_companions_heard_by(&output)?;
    let seen = Seen::default();
    let (outcome, asked) = thread::scope(|scope| {
        let asking = scope.spawn(|| {
            (0..times).try_for_each(|at| {
                cycle(scenario, &seen, at).with_context(|| format!("time {}", at + 1))
            })
        });
        let outcome = scenario.run_beside((&companions, &output), &mut |guest| {
            seen.started.store(guest.cpus_online.is_some(), Ordering::SeqCst);
            seen.results.store(guest.tests.len(), Ordering::SeqCst);
        });
        seen.over.store(true, Ordering::SeqCst);
        let asked = asking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (outcome, asked)
    });
    let mut outcome = scenario.end(outcome?, companions)?;
    outcome.judge_kernel();
    let mut problems = outcome.problems;
    problems.extend(asked.err().map(|error| format!("{error:#}")));
    problems.extend((0..times).filter_map(|at| misplaced(&outcome.guest, at)));
    if !problems.is_empty() {
        problems.extend(outcome.tail);
    }
    Ok(problems)
}

/// The vCPU comes and goes once.
fn cycle(scenario: &Scenario<'_>, seen: &Seen, at: usize) -> Result<()> {
    seen.wait(|| seen.started.load(Ordering::SeqCst) && seen.has(2 * at))?;
    // It goes to the other slice while the guest does not know it, and back while the guest uses it, or not at all.
    let moves = moves(at);
    if moves {
        scenario.ask_vm(&["move", VCPU, "1"])?;
    }
    present(scenario, 3)?;
    seen.wait(|| seen.has(2 * at + 1))?;
    if moves {
        scenario.ask_vm(&["move", VCPU, "0"])?;
    }
    present(scenario, 2)?;
    seen.wait(|| seen.has(2 * at + 2))?;
    scenario.progress.say(&format!("vCPU {VCPU} came and went, {}", at + 1));
    Ok(())
}

fn moves(at: usize) -> bool {
    at % 2 == 1
}

/// What is wrong with the node at which the guest has found the vCPU: that of the slice where it was then.
fn misplaced(guest: &GuestReport, at: usize) -> Option<String> {
    let (name, wanted) = (format!("vcpus-comes-{}", at + 1), usize::from(moves(at)));
    let (_, detail) = guest.tests.get(&name)?;
    let is_there = detail.split(' ').any(|word| *word == format!("node={wanted}"));
    (!is_there).then(|| format!("{name}: {detail}, but it was on slice {wanted}"))
}

/// Has the guest have so many vCPUs.
fn present(scenario: &Scenario<'_>, count: usize) -> Result<()> {
    let has = scenario.ask_cpus(count)?;
    let wanted: Vec<usize> = (0..count).collect();
    ensure!(has == wanted, "{count} vCPUs were asked for, the guest has {has:?}");
    Ok(())
}

impl Seen {
    fn has(&self, results: usize) -> bool {
        self.results.load(Ordering::SeqCst) >= results
    }

    fn wait(&self, ready: impl Fn() -> bool) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !ready() {
            ensure!(Instant::now() < end, "the guest does nothing for {} s", PATIENCE.as_secs());
            if self.over.load(Ordering::SeqCst) {
                bail!("the VM is over");
            }
            thread::sleep(POLL);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vcpu_is_found_where_it_was() {
        let mut guest = GuestReport::default();
        for line in ["TEST vcpus-comes-1 pass cpu=2 node=0", "TEST vcpus-comes-2 pass cpu=2 node=0"]
        {
            assert!(guest.take(line));
        }
        assert_eq!(misplaced(&guest, 0), None);
        assert!(misplaced(&guest, 1).unwrap().contains("slice 1"));
    }
}
