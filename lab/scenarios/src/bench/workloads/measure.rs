//! One turn of a mode: a boot, and all workloads in it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lab::distro::HOST_ADDRESS;
use lab::{HostNumber, Lab, RemoteProcess};

use super::page::Php;
use super::plan::{BOOTS, DOWNLOADS, HELPER, Mode, Sized, Work, Workload, quoted, with_work};
use crate::bench::rig::{Counters, Figures, Rig, TASK_SECONDS, count, order, web_server};
use crate::distro::guest::Guest;
use crate::distro::visit;
use crate::vm::VmOptions;
use crate::vm::distro::TAP;
use crate::vm::prepare::Prepared;
use crate::vm::relocate::Said;
use crate::vm::scenario::Scenario;

/// Of a workload, or what is done before it. The guest itself ends a line a little sooner: what is left of one would run beside the next.
const LIMIT: Duration = Duration::from_secs(3600);
const LINE_LIMIT: Duration = Duration::from_secs(3000);
/// The guest boots on the first host, which takes a quarter of the time. Its second vCPU goes to the other one when the system is up.
const AT_HOME: [&str; 2] = [BORROW, "after:86400"];
const BORROW: &str = "--borrow";
/// Most work of a task whose time is measured.
const WORK_MAX: u64 = 1 << 31;

/// All turns on the same hosts.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) rig: &'a Rig,
    pub(crate) options: &'a VmOptions,
    pub(crate) prepared: &'a Prepared,
    pub(crate) lab: &'a Lab,
    /// The program with the kernels and functions.
    pub(crate) helper: &'a Path,
    pub(crate) workloads: &'a [Workload],
    /// Of each workload: guest seconds, faults, seconds that vCPUs waited.
    pub(crate) figures: Figures<usize, Mode>,
    /// Measured once, so that pages have the same work in each VM.
    pub(crate) php: Option<Php>,
    /// Of tasks, by the line of one alone; for the same reason.
    pub(crate) work: BTreeMap<&'static str, u64>,
    /// Seconds of the guests' clock for each second.
    pub(crate) clock: f64,
    pub(crate) problems: Vec<String>,
}

impl Bench<'_> {
    /// All rounds, until a VM fails. A workload that fails is a problem, and the next one is run.
    pub(crate) fn measure(&mut self, rounds: usize) -> Result<()> {
        let rig = self.rig;
        let _server = self.downloads()?;
        rig.turns(rounds, &BOOTS, &mut |round, mode| {
            self.one(mode, round).with_context(|| format!("{mode}, round {}", round + 1))
        })
    }

    /// A web server on the first host, beyond the guest's network device.
    fn downloads(&self) -> Result<RemoteProcess> {
        let host = self.lab.host(HostNumber::new(1)?)?;
        host.tap(TAP, HOST_ADDRESS)?;
        let address = format!("{}:{DOWNLOADS}", HOST_ADDRESS.split('/').next().unwrap_or(""));
        let program = self.lab.own_program()?;
        let program = program.to_str().context("a path that is not UTF-8")?;
        web_server(&host, program, &address)
    }

    /// Boots a VM and runs all workloads in it.
    fn one(&mut self, mode: Mode, round: usize) -> Result<()> {
        let layout = mode.layout()?;
        let mut options = self.options.clone();
        options.offer_all(&layout);
        // Who says when vCPUs are borrowed has it so.
        let is_said = options.bootstrap.iter().any(|word| word.starts_with(BORROW));
        let goes = mode == Mode::Aggregate && !is_said;
        if goes {
            options.bootstrap.extend(AT_HOME.map(str::to_owned));
        }
        let scenario = self.rig.scenario(&options, &layout, self.prepared, self.lab);
        self.clock = scenario.guest_clock()?;
        let distro = self.prepared.distro.as_ref().context("the system that was just built")?;
        let mut ran = 0;
        let shown = visit::visit(&scenario, distro, &mut |guest, slices| {
            guest.check_system()?;
            guest.put(self.helper, HELPER)?;
            if goes {
                let said = scenario.ask_vm(&["move", "1", "1"])?;
                ensure!(matches!(said, Said::Took(_)), "vCPU 1 does not go to slice 1: {said:?}");
            }
            for at in 0..self.workloads.len() {
                for mode in order(mode.in_boot(&self.workloads[at]), round) {
                    self.rig.check()?;
                    slices.alive()?;
                    self.workload(guest, &scenario, (at, mode, round));
                }
                ran += 1;
            }
            Ok(())
        })?;
        ensure!(ran == self.workloads.len(), "{}", shown.problems.join("; "));
        // How it powered off says nothing of what was measured.
        let problem = |problem| format!("{mode}, round {}: {problem}", round + 1);
        self.problems.extend(shown.problems.into_iter().map(problem));
        Ok(())
    }

    fn workload(
        &mut self,
        guest: &Guest<'_>,
        scenario: &Scenario<'_>,
        (at, mode, round): (usize, Mode, usize),
    ) {
        let workload = self.workloads[at];
        let run = |line: &str| {
            if line.is_empty() { Ok(String::new()) } else { guest.ssh_within(line, LIMIT) }
        };
        let before = run(&mode.line(workload.before)).context("before it");
        let timed = before.and_then(|_| self.timed(guest, scenario, (workload.work, mode)));
        // What was started is stopped also if it fails.
        let after = run(workload.after).context("behind it");
        let told = match timed.and_then(|timed| after.map(|_| timed)) {
            Ok((seconds, counted)) => {
                let waited = count(counted.waited_us) / 1e6 * self.clock;
                self.figures.add(at, mode, round, vec![seconds, count(counted.faults), waited]);
                format!("{seconds:.3} guest s, {} faults, {waited:.3} waited", counted.faults)
            }
            Err(error) => {
                let why = format!("{} on {mode}: {error:#}", workload.shown);
                self.problems.push(why.clone());
                why
            }
        };
        self.rig.say(&format!("round {}, {mode}: {}: {told}", round + 1, workload.shown));
    }

    /// Guest seconds of a workload, and what slices counted meanwhile.
    fn timed(
        &mut self,
        guest: &Guest<'_>,
        scenario: &Scenario<'_>,
        (work, mode): (Work, Mode),
    ) -> Result<(f64, Counters)> {
        if matches!(work, Work::Page { .. }) && self.php.is_none() {
            // Between hosts it would be measured with its faults.
            ensure!(mode == Mode::Overcommit, "what a page costs was not measured with one CPU");
            self.php = Some(Php::measure(guest)?);
        }
        if let Work::Sized(sized) = work
            && !self.work.contains_key(sized.alone)
        {
            ensure!(mode == Mode::Overcommit, "what a task does was not measured with one CPU");
            self.work.insert(sized.alone, self.work_of(guest, sized)?);
        }
        let before = Counters::of(scenario)?;
        let seconds = match work {
            Work::Line(line) => self.line(guest, mode, line)?,
            Work::Sized(sized) => {
                let work = *self.work.get(sized.alone).context("measured above")?;
                self.line(guest, mode, &with_work(sized.line, work))?
            }
            Work::Page { milliseconds, requests } => {
                let work = f64::from(milliseconds) / 1e3 / self.clock;
                let php = self.php.context("measured above")?;
                php.requests(guest, work, requests)? * self.clock
            }
        };
        Ok((seconds, Counters::of(scenario)?.since(before)))
    }

    /// Guest seconds of a shell line.
    fn line(&self, guest: &Guest<'_>, mode: Mode, line: &str) -> Result<f64> {
        let line = timed_line(line, LINE_LIMIT.mul_f64(self.clock));
        seconds_of(&guest.ssh_within(&mode.line(&line), LIMIT)?)
    }

    /// The work with which a task takes [`TASK_SECONDS`]: twice as much each time, until what it takes tells enough.
    fn work_of(&self, guest: &Guest<'_>, Sized { alone, short, .. }: Sized) -> Result<u64> {
        let seconds = |work| self.line(guest, Mode::Overcommit, &with_work(alone, work));
        // The program is in memory then.
        seconds(1)?;
        let (least, mut work) = (seconds(1)?, short);
        while work < WORK_MAX {
            let computed = seconds(1 + work)? - least;
            if computed >= TASK_SECONDS / 4.0 {
                let wanted = (count(work) * TASK_SECONDS / computed).clamp(1.0, 1e12);
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "clamped"
                )]
                let wanted = wanted.round() as u64;
                self.rig.say(&format!("{alone}: {wanted} of work take {TASK_SECONDS} guest s"));
                return Ok(wanted);
            }
            work *= 2;
        }
        bail!("`{alone}` takes no time with {WORK_MAX} of work")
    }
}

/// Times a shell line by the guest's clock, and ends it and all that it has started when the time is over.
fn timed_line(line: &str, limit: Duration) -> String {
    let (line, limit) = (quoted(line), limit.as_secs_f64());
    format!(
        "set -e; a=$(date +%s%N); timeout -k 1 {limit:.3} sh -c {line} >/dev/null; b=$(date +%s%N); echo ns=$((b - a))"
    )
}

/// What such a line says.
fn seconds_of(said: &str) -> Result<f64> {
    let word = said.lines().find_map(|line| line.strip_prefix("ns="));
    let nanoseconds = word.and_then(|word| word.parse::<f64>().ok());
    match nanoseconds {
        Some(nanoseconds) if nanoseconds > 0.0 => Ok(nanoseconds / 1e9),
        _ => bail!("no time: {}", said.trim()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command as Process;

    #[test]
    fn line_is_timed_and_its_output_left_out() {
        let run = |line: &str| {
            let line = timed_line(line, Duration::from_secs(20));
            let output = Process::new("sh").args(["-c", &line]).output().unwrap();
            (output.status.success(), String::from_utf8(output.stdout).unwrap())
        };
        let (good, said) = run("echo loud");
        assert!(good && seconds_of(&said).unwrap() > 0.0, "{said}");
        assert!(!said.contains("loud"));
        assert!(!run("false").0);
        assert!(run("test 'a b' = \"a b\"").0);
        assert!(seconds_of("ns=0").is_err() && seconds_of("").is_err());
    }
}
