//! `./x soak lost`: slices of a supervised VM are killed, or stopped and have to go on later, while its guest runs its tests.
//!
//! ```text
//!   supervisors on all hosts ─> VM runs ─> a checkpoint ─> a slice is lost ─> back by itself: runs, and the guest says something
//!                                 ^                                               │ what was stopped goes on, and must end
//!                                 └───────────────────────────────────────────────┘
//!   the guest powers off ─> all tests good, no kernel warning
//! ```
//! The last host is a spare. The guest's disk is a qcow2 file that all hosts see: its blocks have to be what the guest's memory says, whatever the VM goes on
//! from and whoever writes late.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use lab::{Command, Event, Host, HostNumber, Lab, RemoteProcess, Stream};

use crate::soak::leftovers::left_processes;
use crate::soak::migrate::TESTS;
use crate::soak::moments::random;
use crate::soak::moves::quantile;
use crate::soak::rig::{Hosts, Rig, RigOptions, exit};
use crate::vm::VmOptions;
use crate::vm::console::Console;
use crate::vm::judge::Outcome;
use crate::vm::output::Output;
use crate::vm::saves;
use crate::vm::scenario::{Scenario, finish, listens_at};

/// A VM goes on from what it was at most so long ago.
const POLICY: &str = "restart=every:10,keep:2";
/// What the VM may take beyond its lease to run again, once its loss is noticed.
const BACK_LIMIT: Duration = Duration::from_secs(10);
/// After that it is not waited for any more.
const PATIENCE: Duration = Duration::from_secs(180);
/// Latest moment of a loss after a checkpoint.
const MOMENT_MS: u64 = 8000;
/// Lease of a bootstrap, unless its options say another one.
const LEASE: Duration = Duration::from_millis(3000);
const POLL: Duration = Duration::from_millis(100);
/// What the guest says of its disk at the end.
const DISK_TEST: &str = "disk-versions";
/// For a process that goes on to find that it was given up, and end.
const END_LIMIT: &str = "60";
const SIGTERM: i32 = 15;
/// A companion that waits has fewer threads, and a slice has more.
const THREADS: usize = 7;

/// What `./x soak lost` takes.
#[derive(Args, Debug)]
pub struct LostOptions {
    #[command(flatten)]
    vm: VmOptions,
    /// How many slices are lost
    #[arg(long = "rounds", default_value_t = 20)]
    times: usize,
    /// Seed that moments and slices are drawn from; a random one unless given
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    rig: RigOptions,
}

/// What happens to a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Kill {
        slice: usize,
    },
    /// The companion stands still, and goes on when the VM runs elsewhere.
    Stop,
}

/// Draws what happens.
struct Plan(fastrand::Rng);

impl Plan {
    fn draw(&mut self) -> (Harm, Duration) {
        let harm = match self.0.u32(0..3) {
            0 => Harm::Stop,
            slice => Harm::Kill { slice: usize::from(slice == 1) },
        };
        (harm, Duration::from_millis(self.0.u64(0..MOMENT_MS)))
    }
}

/// Loses slices as often as wanted, and judges.
///
/// # Errors
/// Something that is needed is missing, or somebody interrupts; what goes wrong with a VM is no error.
pub fn run(options: &LostOptions) -> Result<ExitCode> {
    let mut vm = options.vm.clone();
    vm.tests.get_or_insert_with(|| TESTS.to_owned());
    let rig = Rig::new(&vm, options.rig, |layout| {
        ensure!(layout.slices() == 2, "--layout {layout}: this is about two slices and a spare");
        Ok(())
    })?;
    let seed = options.seed.unwrap_or_else(|| random(u64::MAX));
    rig.say(&format!("seed {seed}"));
    let mut plan = Plan(fastrand::Rng::with_seed(seed));
    let mut hosts = Hosts::new(|| rig.some_hosts(&vm, rig.layout.slices() + 1));
    let (mut times, mut vms, mut bad) = (Vec::new(), 0, 0);
    // One that is bad may lose none.
    while times.len() < options.times && bad < options.times {
        let tried = hosts.attempt(|lab| {
            let of = &mut Life { rig: &rig, lab, plan: &mut plan, times: &mut times };
            let result = of.run(&vm, options.times);
            rig.check()?;
            Ok(result)
        })?;
        vms += 1;
        match tried {
            Ok(said) => rig.say(&format!("VM {vms}: good: {said}")),
            Err(error) => {
                bad += 1;
                rig.say(&format!("VM {vms}: BAD: {error:#}"));
            }
        }
    }
    drop(hosts);
    let time = |hundredths| quantile(&times, hundredths).unwrap_or(f64::NAN);
    let limit = (lease(&vm) + BACK_LIMIT).as_secs_f64();
    let late = times.iter().filter(|time| **time > limit).count();
    println!(
        "{vms} VMs, {bad} of them bad; {} losses, the VM ran again after they were noticed: p50 {:.1} s, longest {:.1} s, {late} of them later than \
         {limit:.1} s",
        times.len(),
        time(50),
        time(100),
    );
    Ok(exit(bad == 0 && late == 0 && !times.is_empty()))
}

/// The lease of the VM.
fn lease(vm: &VmOptions) -> Duration {
    let given = vm.bootstrap.iter().skip_while(|word| *word != "--lease").nth(1);
    given.and_then(|word| word.parse().ok()).map_or(LEASE, Duration::from_millis)
}

/// A VM from its start to its end.
struct Life<'a> {
    rig: &'a Rig,
    lab: &'a Lab,
    plan: &'a mut Plan,
    /// Seconds from when each loss was noticed until the VM ran again.
    times: &'a mut Vec<f64>,
}

/// What is seen of a supervised VM.
struct Seen {
    supervisor: RemoteProcess,
    lines: Console,
    output: Arc<Output>,
    host: HostNumber,
    loud: bool,
}

/// What has just been seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Nothing,
    /// The guest has written something.
    Sign,
    Runs,
    Saved,
    /// One of its processes has ended.
    Ended,
    Begins,
    Over,
}

impl Seen {
    fn next(&mut self, rig: &Rig) -> Result<News> {
        rig.check()?;
        match self.supervisor.next_event(POLL) {
            Some(Event::Output(Stream::Out, bytes)) => {
                self.output.serial(self.host, &bytes);
                Ok(News::Sign)
            }
            Some(Event::Output(Stream::Error, bytes)) => {
                self.output.bootstrap(self.host, &bytes);
                let mut news = News::Nothing;
                for line in self.lines.take(&bytes) {
                    if line.contains("supervisor: ") && !self.loud {
                        rig.say(&line);
                    }
                    news = of_line(&line).unwrap_or(news);
                }
                Ok(news)
            }
            Some(Event::Exit(_) | Event::Lost(_)) => Ok(News::Over),
            None => Ok(if self.supervisor.is_over() { News::Over } else { News::Nothing }),
        }
    }

    /// Waits for this, or the end; whether it came.
    fn wait(&mut self, rig: &Rig, wanted: News, limit: Duration) -> Result<bool> {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            match self.next(rig)? {
                news if news == wanted => return Ok(true),
                News::Over => return Ok(false),
                News::Begins if wanted == News::Saved => {
                    bail!("it was started again, and nobody has harmed it")
                }
                _ => {}
            }
        }
        bail!("{wanted:?} does not come within {limit:?}");
    }
}

/// What a line of the supervisor says.
fn of_line(line: &str) -> Option<News> {
    let (_, said) = line.split_once("supervisor: ")?;
    if said == "the VM runs" {
        Some(News::Runs)
    } else if said.starts_with("the VM has ended (") {
        Some(News::Ended)
    } else if said.starts_with("the VM goes on from ") || said.starts_with("the VM begins") {
        Some(News::Begins)
    } else if said.starts_with("checkpoint ") && said.ends_with(" is there") {
        Some(News::Saved)
    } else {
        None
    }
}

impl Life<'_> {
    fn run(&mut self, vm: &VmOptions, wanted: usize) -> Result<String> {
        saves::prepare(self.lab)?;
        let mut vm = vm.clone();
        vm.keep_checkpoints(self.lab)?;
        let folder = saves::inside(self.lab, "")?.trim_end_matches('/').to_owned();
        let spare = self.lab.host(HostNumber::new(self.rig.layout.slices() + 1)?)?;
        let reserve = listens_at(&spare);
        // A spare is at hand, so the host of a slice that is lost is not waited for as long as elsewhere.
        let words =
            ["--on-lost", POLICY, "--spare", &reserve, "--checkpoints", &folder, "--patience", "2"];
        vm.supervise = Some(words.map(str::to_owned).to_vec());
        vm.bootstrap.extend(["--disk".to_owned(), saves::make_empty_disk(self.lab)?]);
        vm.cmdline = format!("tessera.versions=1 {}", vm.cmdline);
        let scenario = self.rig.scenario(&vm, self.lab);
        let output = self.rig.output();
        let mut companions = scenario.start_companions_heard_by(&output)?;
        companions.push(scenario.start_companion_on(&spare, Vec::new(), &output)?);
        let start = Instant::now();
        let (lines, host) = (Console::default(), HostNumber::new(1)?);
        let supervisor = scenario.start_bootstrap()?;
        let mut seen =
            Seen { supervisor, lines, output: Arc::clone(&output), host, loud: scenario.loud };
        let lived = self.live(&scenario, &mut seen, wanted);
        let seconds = start.elapsed().as_secs_f64();
        let (exit, mut problems) = (seen.supervisor.wait(Duration::ZERO), Vec::new());
        drop(seen);
        let losses = lived?;
        // They wait for the next VM.
        companions.iter().try_for_each(|companion| companion.signal(SIGTERM))?;
        finish(companions, false, &mut problems);
        problems.extend(left_processes(&scenario)?);
        let report = scenario.read_report(&mut problems)?;
        let (guest, tail) = (output.guest(), output.tail());
        let boot_seconds = None;
        let mut outcome =
            Outcome { guest, exit, report, boot_seconds, seconds, emptied: 0, problems, tail };
        outcome.judge((usize::MAX, self.rig.layout.all()), vm.strict());
        outcome.judge_kernel();
        let disk = outcome.guest.tests.get(DISK_TEST).map(|(_, said)| said.clone());
        let disk = disk.context("the guest says nothing of its disk");
        ensure!(outcome.problems.is_empty(), "{}; {:?}", outcome.problems.join("; "), outcome.tail);
        saves::clear(self.lab)?;
        saves::clear_disk(self.lab)?;
        Ok(format!("{losses} losses, {} tests, disk {}", outcome.guest.tests.len(), disk?))
    }

    /// Loses slices until that is enough or the guest has powered off; how many.
    fn live(&mut self, scenario: &Scenario<'_>, seen: &mut Seen, wanted: usize) -> Result<usize> {
        let limit = Duration::from_secs(scenario.options.timeout());
        let mut losses = 0;
        ensure!(seen.wait(self.rig, News::Runs, limit)?, "the VM does not begin");
        while self.times.len() < wanted {
            let (harm, moment) = self.plan.draw();
            if !seen.wait(self.rig, News::Saved, limit)? {
                return Ok(losses);
            }
            let until = Instant::now() + moment;
            while Instant::now() < until {
                if seen.next(self.rig)? == News::Over {
                    return Ok(losses);
                }
            }
            let Some(after) = self.lose(scenario, seen, harm)? else { return Ok(losses) };
            losses += 1;
            self.times.push(after.as_secs_f64());
        }
        // What is left of the tests.
        while seen.next(self.rig)? != News::Over {}
        Ok(losses)
    }

    /// Loses a slice, and waits until the VM runs again; nothing if its guest has powered off just then.
    fn lose(
        &self,
        scenario: &Scenario<'_>,
        seen: &mut Seen,
        harm: Harm,
    ) -> Result<Option<Duration>> {
        let (slice, signal) = match harm {
            Harm::Kill { slice } => (slice, "KILL"),
            Harm::Stop => (1, "STOP"),
        };
        // The companion may be on the spare by now.
        let hosts = [slice, 2 * slice].map(|number| HostNumber::new(number + 1));
        let mut found = None;
        for number in hosts {
            let host = self.lab.host(number?)?;
            if let Some(process) = slice_of(&host, &scenario.control(host.number()))? {
                found = Some((host, process));
                break;
            }
        }
        let Some((host, process)) = found else {
            // Its process has just ended.
            while seen.next(self.rig)? != News::Over {}
            return Ok(None);
        };
        told(&host, &["kill", &format!("-{signal}"), &process])?;
        let lost = Instant::now();
        self.rig.say(&format!("slice {slice} on host {}: SIG{signal}", host.number()));
        if !seen.wait(self.rig, News::Ended, PATIENCE)? {
            return Ok(None);
        }
        // Of a slice that stands still only its silence tells.
        let noticed = lost.elapsed();
        if !seen.wait(self.rig, News::Begins, PATIENCE)? {
            return Ok(None);
        }
        seen.output.killed();
        let (mut runs, mut sign, mut saved) = (None, None, false);
        // A test may say nothing for minutes. A checkpoint is a sign of life as well: its vCPUs have come to rest.
        while runs.is_none() || (sign.is_none() && !saved) {
            match seen.next(self.rig)? {
                News::Runs => drop(runs.get_or_insert_with(|| lost.elapsed())),
                News::Sign => drop(sign.get_or_insert_with(|| lost.elapsed())),
                News::Begins => {
                    // It was not back.
                    (runs, sign, saved) = (None, None, false);
                    self.rig.say("it was started once more");
                }
                News::Ended => {}
                News::Over => break,
                News::Saved => saved = true,
                News::Nothing => {}
            }
            ensure!(lost.elapsed() < PATIENCE, "the VM is not back after {PATIENCE:?}");
        }
        let seconds = |time: Option<Duration>| {
            time.map_or_else(
                || "(not yet)".to_owned(),
                |time| format!("{:.1} s", time.as_secs_f64()),
            )
        };
        self.rig.say(&format!(
            "noticed after {}, the VM runs after {}, the guest says something after {}",
            seconds(Some(noticed)),
            seconds(runs),
            seconds(sign)
        ));
        if harm == Harm::Stop {
            told(&host, &["kill", "-CONT", &process])?;
            let gone = format!("while kill -0 {process} 2>/dev/null; do sleep 0.2; done");
            let ended = told(&host, &["timeout", END_LIMIT, "sh", "-c", &gone]);
            ended.context("a slice that was stopped goes on and does not end")?;
        }
        let runs = runs.context("the VM ended before it ran again")?;
        Ok(Some(runs.saturating_sub(noticed)))
    }
}

/// The process of a slice on a host that has a VM, not of its supervisor.
fn slice_of(host: &Host<'_>, control: &str) -> Result<Option<String>> {
    let pattern = format!("^tessera (bootstrap|companion) .*{control}");
    let (status, lines) = host.run(&Command::new(["pgrep", "-f", &pattern]), PATIENCE)?;
    if !status.success() {
        return Ok(None);
    }
    let Some(process) = lines.first().map(|line| line.text.trim().to_owned()) else {
        return Ok(None);
    };
    // A companion that waits has no VM; one that has one does not listen.
    let threads = Command::new(["ls", &format!("/proc/{process}/task")]);
    let (_, threads) = host.run(&threads, PATIENCE)?;
    Ok((threads.len() > THREADS).then_some(process))
}

fn told(host: &Host<'_>, words: &[&str]) -> Result<()> {
    let (status, _) = host.run(&Command::new(words.iter().copied()), PATIENCE)?;
    ensure!(status.success(), "{} ended with {status}", words.join(" "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_supervisor_are_told_apart() {
        let news = |said: &str| of_line(&format!("tessera: supervisor: {said}"));
        assert_eq!(news("the VM runs"), Some(News::Runs));
        assert_eq!(news("the VM has ended (status 5); it is"), Some(News::Ended));
        assert_eq!(news("the VM has ended"), None);
        assert_eq!(news("the VM begins: slice 0 here"), Some(News::Begins));
        assert_eq!(news("the VM goes on from /a/b: slice 0 here"), Some(News::Begins));
        assert_eq!(news("checkpoint /a/b is there"), Some(News::Saved));
        assert_eq!(news("no checkpoint /a/b: full"), None);
        assert_eq!(of_line("tessera: the VM runs"), None);
    }

    #[test]
    fn all_harms_come_and_a_seed_repeats_them() {
        let draw = |seed| {
            let mut plan = Plan(fastrand::Rng::with_seed(seed));
            (0..50).map(|_| plan.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(3), draw(3));
        for harm in [Harm::Stop, Harm::Kill { slice: 0 }, Harm::Kill { slice: 1 }] {
            assert!(draw(3).iter().any(|(drawn, _)| *drawn == harm), "{harm:?}");
        }
    }
}
