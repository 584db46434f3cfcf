//! `./x bench ablation --lab`: what mechanisms of the memory engine are worth to a guest.
//!
//! ```text
//!   each round, each mechanism:   with ─> without (or the other way round), a boot of Debian each
//!   each boot:                    first answer of nginx ─> a pipe between the two vCPUs ─> fork and exec on each
//! ```
//! One vCPU on each of two hosts. `tessera --without NAME` leaves a mechanism out on both. Times are the guest's own but
//! for the boot. Gains are ratios of a pair, without by with: above 1 the mechanism helps.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::distro::System;
use lab::{Command, HostNumber, Lab};
use outcome::{Outcome, Row};

use crate::bench::BenchOptions;
use crate::bench::rig::{self, Figures, Rig};
use crate::distro::guest::Guest;
use crate::distro::visit;
use crate::vm::prepare::{self, Prepared};
use crate::vm::{VmOptions, distro};

const NAME: &str = "ablation-lab";
/// Those that a guest may notice, unless the options say.
const MECHANISMS: [&str; 9] = [
    "runs",
    "correlation",
    "write-prediction",
    "worker-probes",
    "busy-windows",
    "brief-windows",
    "exclusive-grants",
    "private-again",
    "polling",
];
/// A boot of Debian on emulated hosts.
const TIMEOUT: u64 = 3600;
const ROUNDS: u16 = 3;
const QUICK_ROUNDS: u16 = 1;
/// What is measured in each boot.
const LOADS: [&str; 4] = ["boot, s", "pipe, ms", "fork+exec local, ms", "fork+exec remote, ms"];
/// Of a pipe, and of programs on one vCPU.
const TURNS: u32 = 100;
const PROGRAMS: u32 = 20;
const OLD_LOGINS: &str = "rm -f /tmp/tessera-ssh-*";
const LIMIT: Duration = Duration::from_secs(60);
/// With the mechanism, and without.
const WAYS: [bool; 2] = [true, false];

/// All boots, in turns on the same hosts.
struct Bench<'a> {
    rig: &'a Rig,
    options: &'a VmOptions,
    prepared: &'a Prepared,
    lab: &'a Lab,
    mechanisms: Vec<String>,
    /// Times by mechanism and way, a column for each load.
    times: Figures<usize, bool>,
}

/// Measures and tells.
///
/// # Errors
/// The options do not fit, something that is needed is missing, or nothing could be measured.
pub fn run(options: &BenchOptions) -> Result<ExitCode> {
    let mut vm = rig::vm_options(NAME, &[], &options.rest)?;
    vm.timeout.get_or_insert(TIMEOUT);
    let layout = vm.layout()?;
    ensure!(
        layout.to_string() == rig::LAYOUT,
        "--layout {layout}: this bench is about {}",
        rig::LAYOUT
    );
    let rounds = options.rounds.unwrap_or(if options.quick { QUICK_ROUNDS } else { ROUNDS });
    let mut mechanisms = options.only.clone();
    if mechanisms.is_empty() {
        mechanisms = MECHANISMS.map(str::to_owned).to_vec();
    }
    let rig = Rig::new()?;
    let prepared = prepare::prepare_distro(System::Base, &vm, &rig.progress)?;
    let system = prepared.distro.as_ref().context("the system that was just built")?;
    let disks = distro::disks(system, false)?;
    let lab = prepare::hosts_with_disks(&vm, &layout, disks, &rig.progress)?;
    let (outcome, end) = rig.on(lab, |lab| {
        let (options, prepared, times) = (&vm, &prepared, Figures::new());
        let mut bench = Bench { rig: &rig, options, prepared, lab, mechanisms, times };
        let end = bench.measure(usize::from(rounds));
        (bench.outcome(), end)
    });
    rig::tell(&outcome, &[], end)
}

impl Bench<'_> {
    fn measure(&mut self, rounds: usize) -> Result<()> {
        let rig = self.rig;
        for round in 0..rounds {
            for at in 0..self.mechanisms.len() {
                let name = self.mechanisms[at].clone();
                for with in rig::order(&WAYS, round + at) {
                    rig.check()?;
                    let how = if with { "with" } else { "without" };
                    let times = self
                        .boot((!with).then_some(name.as_str()))
                        .with_context(|| format!("{how} {name}, round {}", round + 1))?;
                    rig.say(&format!("{how} {name}: {LOADS:?} {times:.1?}"));
                    self.times.add(at, with, round, times);
                }
            }
        }
        Ok(())
    }

    /// Boots the guest, perhaps without a mechanism, and times the loads.
    fn boot(&self, without: Option<&str>) -> Result<Vec<f64>> {
        let mut options = self.options.clone();
        let words = without.into_iter().flat_map(|name| ["--without".to_owned(), name.to_owned()]);
        for words_of in [&mut options.bootstrap, &mut options.companion] {
            words_of.extend(words.clone());
        }
        let layout = options.layout()?;
        let scenario = self.rig.scenario(&options, &layout, self.prepared, self.lab);
        let distro = self.prepared.distro.as_ref().context("a system to boot")?;
        // A login of the guest before may be left.
        let first = self.lab.host(HostNumber::new(1)?)?;
        first.output(&Command::new(["sh", "-c", OLD_LOGINS]), LIMIT)?;
        let mut times = Vec::new();
        let shown = visit::visit(&scenario, distro, &mut |guest, _| {
            times = loads(guest)?;
            Ok(())
        })?;
        ensure!(shown.problems.is_empty(), "{}", shown.problems.join("; "));
        times.insert(0, shown.answer_seconds.context("an answer of the guest")?);
        Ok(times)
    }

    fn outcome(&self) -> Outcome {
        let mut outcome = Outcome::new(NAME);
        outcome.conditions.notes.push(format!(
            "Debian with a vCPU on each of two hosts ({}), boots with and without each mechanism in turns; {TURNS} round trips \
             of a pipe, {PROGRAMS} programs; guest milliseconds for each, the boot in seconds of this machine; gain: without / \
             with, median of pairs",
            self.lab.substrate()
        ));
        outcome.rows = rows(&self.times, &self.mechanisms);
        outcome.shown = "gain".to_owned();
        outcome
    }
}

fn rows(times: &Figures<usize, bool>, mechanisms: &[String]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (at, mechanism) in mechanisms.iter().enumerate() {
        for (column, load) in LOADS.iter().enumerate() {
            let figures = [
                ("with", times.median(at, true, column)),
                ("without", times.median(at, false, column)),
                ("gain", times.ratio(at, false, true, column)),
            ];
            let figures: Vec<_> = figures
                .into_iter()
                .filter_map(|(name, figure)| Some((name.to_owned(), figure?)))
                .collect();
            if !figures.is_empty() {
                rows.push(Row { name: format!("{mechanism}: {load}"), figures });
            }
        }
    }
    rows
}

/// Milliseconds of the guest: a round trip of a pipe between its vCPUs, and a program on each.
fn loads(guest: &Guest<'_>) -> Result<Vec<f64>> {
    let pipe = format!(
        "d=$(mktemp -d); cd $d; mkfifo a b; \
         taskset -c 0 sh -c 'while read x; do echo $x; done <a >b' & \
         taskset -c 1 sh -c 'exec 3>a 4<b; s=$(date +%s%N); i=0; \
         while [ $i -lt {TURNS} ]; do echo x >&3; read y <&4; i=$((i+1)); done; e=$(date +%s%N); echo $((e-s))'; \
         wait; rm -r $d"
    );
    let programs = |cpu: u32| {
        format!(
            "taskset -c {cpu} sh -c 's=$(date +%s%N); i=0; while [ $i -lt {PROGRAMS} ]; do /bin/true; i=$((i+1)); done; \
             e=$(date +%s%N); echo $((e-s))'"
        )
    };
    [(pipe, TURNS), (programs(0), PROGRAMS), (programs(1), PROGRAMS)]
        .into_iter()
        .map(|(line, count)| each_ms(&guest.ssh(&line)?, count))
        .collect()
}

/// Milliseconds for each, of so many nanoseconds for all.
fn each_ms(said: &str, count: u32) -> Result<f64> {
    let all: f64 = said.trim().parse().with_context(|| format!("no time: {said}"))?;
    ensure!(all > 0.0, "it took no time: {said}");
    Ok(all / 1e6 / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gain_is_of_pairs_and_what_is_missing_is_left_out() {
        let mut times = Figures::new();
        for (round, slow) in [(0, 1.0), (1, 10.0), (2, 1.0)] {
            times.add(0, true, round, vec![10.0 * slow, 2.0, 3.0, 4.0]);
            times.add(0, false, round, vec![20.0 * slow, 2.0, 3.0, 8.0]);
        }
        let rows = rows(&times, &["runs".to_owned(), "polling".to_owned()]);
        let gains: Vec<_> = rows.iter().map(|row| row.figures[2].1).collect();
        assert_eq!(gains, [2.0, 1.0, 1.0, 2.0]);
        assert_eq!(rows[0].name, "runs: boot, s");
    }

    #[test]
    fn times_are_read_and_others_refused() {
        assert_eq!(each_ms("200000000\n", 100).unwrap(), 2.0);
        assert!(each_ms("", 1).is_err() && each_ms("0", 1).is_err());
    }
}
