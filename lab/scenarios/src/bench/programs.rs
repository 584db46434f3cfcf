//! `./x bench programs`: what a guest's ordinary programs, which nobody has bound to a vCPU, gain by a borrowed one.
//!
//! ```text
//!   each round:  one vCPU on one host ─> two hosts, default ─> two hosts, isolate ─> ... (each a boot)
//!   each boot:   start-up ─> task ─> 2 threads ─> 4 processes ─> 12 jobs, 4 at a time ─> 12 jobs one by one
//! ```
//! The guests' test program runs the loads and times them by the guest's clock (`lab/guest-tests/src/programs.rs`).
//! The guests take turns, in another order each round, on the same hosts. A gain is that over one vCPU in the same
//! round; what is told is the median of the rounds.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Parser;
use lab::Lab;
use outcome::{Bar, Conditions, Outcome, Row};

use crate::bench::options::BenchOptions;
use crate::bench::rounds::Rounds;
use crate::interrupt::Interrupted;
use crate::progress::Progress;
use crate::vm::VmOptions;
use crate::vm::attend::Attendant;
use crate::vm::fault_classes::Classes;
use crate::vm::guest_console::{GuestReport, Verdict};
use crate::vm::layout::Layout;
use crate::vm::scenario::{self, Prepared, Scenario};
use crate::workspace;

/// One vCPU on each of two hosts.
const LAYOUT: &str = "1+1";
const NAME: &str = "programs";
/// Loads as the guest calls them, what they are called here, and the least gain by the default preset.
const LOADS: [(&str, &str, Option<f64>); 6] = [
    ("boot", "start-up", None),
    ("task", "one task", None),
    ("threads-2", "2 threads", Some(1.6)),
    ("processes-4", "4 processes", Some(1.6)),
    ("jobs-4", "12 jobs, 4 at a time", None),
    ("jobs-1", "12 jobs, 1 at a time", None),
];

/// Boots of each guest, and rounds of loads in each boot.
#[derive(Clone, Copy, Debug)]
struct Plan {
    boots: usize,
    loads: usize,
    presets: &'static [&'static str],
}

const QUICK: Plan = Plan { boots: 2, loads: 2, presets: &[DEFAULT] };
const FULL: Plan = Plan { boots: 5, loads: 2, presets: &[DEFAULT, "isolate", "none"] };

/// A guest to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Guest {
    name: String,
    /// Whether it borrows a vCPU.
    borrows: bool,
    /// tessera's own unless given.
    preset: Option<String>,
    /// More for tessera.
    bootstrap: Vec<String>,
    /// For its kernel.
    cmdline: String,
}

/// Position of the guest with one vCPU.
const ONE: usize = 0;
/// tessera's own preset.
const DEFAULT: &str = "spread";

fn guests(presets: &[&str], also: &[String]) -> Vec<Guest> {
    let guest = |name: &str, borrows, preset: Option<&str>| Guest {
        name: name.to_owned(),
        borrows,
        preset: preset.map(str::to_owned),
        bootstrap: Vec::new(),
        cmdline: String::new(),
    };
    let mut all = vec![guest("one vCPU", false, None)];
    all.extend(presets.iter().map(|preset| guest(preset, true, Some(preset))));
    for words in also {
        let mut more = guest(&format!("none + {words}"), true, Some("none"));
        let mut words = words.split_whitespace().map(str::to_owned).peekable();
        let mut line = Vec::new();
        while let Some(word) = words.next() {
            if word.starts_with("--") {
                more.bootstrap.push(word);
                more.bootstrap.extend(words.next());
            } else {
                line.push(word);
            }
        }
        more.cmdline = line.join(" ");
        all.push(more);
    }
    all
}

/// Options of the VM, as `./x demo` has them.
#[derive(Parser)]
#[command(no_binary_name = true, args_override_self = true, disable_help_flag = true)]
struct Wanted {
    #[command(flatten)]
    vm: VmOptions,
}

fn options(words: &[String]) -> Result<VmOptions> {
    let own =
        ["--layout", LAYOUT, "--name", "bench-programs", "--tests", "none"].map(str::to_owned);
    let wanted = Wanted::try_parse_from(own.into_iter().chain(words.iter().cloned()));
    let wanted = wanted.map_err(|error| {
        anyhow!("what stands after `--` goes to the VM, as in ./x demo: {error}")
    })?;
    Ok(wanted.vm)
}

/// All guests in turns on the same hosts.
struct Bench<'a> {
    options: &'a VmOptions,
    plan: Plan,
    guests: Vec<Guest>,
    prepared: &'a Prepared,
    lab: &'a Lab,
    progress: &'a Arc<Progress>,
    interrupted: &'a Interrupted,
    /// Seconds by load and guest.
    seconds: Rounds<usize, usize>,
    /// Faults of a whole run, by guest.
    faults: Rounds<(), usize>,
    clock: f64,
}

/// Measures and tells.
///
/// # Errors
/// The options do not fit, something that is needed is missing, or nothing could be measured.
pub fn run(options: &BenchOptions) -> Result<ExitCode> {
    let plan = if options.quick { QUICK } else { FULL };
    let plan = Plan { boots: options.rounds.map_or(plan.boots, usize::from), ..plan };
    ensure!(plan.boots > 0, "--rounds 0: nothing would be measured");
    let presets = if options.no_presets { &[] } else { plan.presets };
    let vm = options_of(options, plan)?;
    let layout = vm.layout()?;
    ensure!(layout.slices() > 1, "--layout {layout}: a guest that borrows has two slices or more");
    let progress = Arc::new(Progress::new());
    let interrupted = Interrupted::listen()?;
    let prepared = scenario::prepare(&vm, &progress)?;
    let lab = Arc::new(scenario::hosts(&vm, &layout, &progress)?);
    let attendant = Attendant::of(&lab, &interrupted);
    let mut bench = Bench {
        options: &vm,
        plan,
        guests: guests(presets, &options.also),
        prepared: &prepared,
        lab: &lab,
        progress: &progress,
        interrupted: &interrupted,
        seconds: Rounds::new(),
        faults: Rounds::new(),
        clock: 1.0,
    };
    let result = bench.measure(&layout);
    let outcome = bench.tell(&layout);
    attendant.end();
    // What was measured before a failure is told too.
    print!("\n{}", outcome.table());
    result?;
    let path = outcome.write(&workspace::target(&workspace::root()?).join("bench"))?;
    println!("written: {} and beside it", path.display());
    Ok(if outcome.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn options_of(bench: &BenchOptions, plan: Plan) -> Result<VmOptions> {
    let mut vm = options(&bench.rest)?;
    ensure!(
        vm.guest_preset.is_none(),
        "--guest-preset: this bench sets it; see --also and --no-presets"
    );
    vm.cmdline = format!("{} tessera.programs={}", vm.cmdline, plan.loads).trim_start().to_owned();
    Ok(vm)
}

impl Bench<'_> {
    fn measure(&mut self, layout: &Layout) -> Result<()> {
        for round in 0..self.plan.boots {
            for turn in 0..self.guests.len() {
                let at = (turn + round) % self.guests.len();
                ensure!(!self.interrupted.is_set(), "interrupted");
                let name = self.guests[at].name.clone();
                self.one(at, round, layout)
                    .with_context(|| format!("{name}, round {}", round + 1))?;
            }
        }
        Ok(())
    }

    /// Boots a guest and takes in what it says.
    fn one(&mut self, at: usize, round: usize, layout: &Layout) -> Result<()> {
        let guest = &self.guests[at];
        let mut options = self.options.clone();
        options.guest_preset.clone_from(&guest.preset);
        options.bootstrap.extend(guest.bootstrap.iter().cloned());
        options.cmdline = format!("{} {}", options.cmdline, guest.cmdline).trim_end().to_owned();
        let alone = Layout::even(1)?;
        let scenario = Scenario {
            options: &options,
            layout: if guest.borrows { layout } else { &alone },
            prepared: self.prepared,
            lab: self.lab,
            interrupts: None,
            progress: self.progress,
            interrupted: self.interrupted,
            loud: false,
        };
        self.clock = scenario.guest_clock()?;
        let outcome = scenario.run()?;
        ensure!(
            outcome.problems.is_empty(),
            "{}\n{}",
            outcome.problems.join("; "),
            outcome.tail.join("\n")
        );
        let faults = outcome.report.as_ref().and_then(Classes::of).map_or(0, Classes::all);
        let faults = f64::from(u32::try_from(faults).unwrap_or(u32::MAX));
        self.faults.add((), at, round, vec![faults]);
        let mut said = Vec::new();
        for (load, (name, shown, _)) in LOADS.iter().enumerate() {
            let found = seconds(&outcome.guest, name)?;
            for (time, in_boot) in found.iter().zip(0..) {
                self.seconds.add(load, at, round * self.plan.loads + in_boot, vec![*time]);
            }
            let found: Vec<_> = found.iter().map(|time| format!("{time:.3}")).collect();
            said.push(format!("{shown} {}", found.join(" ")));
        }
        self.progress.say(&format!(
            "round {} of {}, {}: {} guest seconds; {faults} faults",
            round + 1,
            self.plan.boots,
            guest.name,
            said.join(", ")
        ));
        Ok(())
    }

    fn tell(&self, layout: &Layout) -> Outcome {
        let mut conditions = Conditions::now();
        conditions.notes.push(format!(
            "one vCPU on one host, and layout {layout} ({}); {} boots of each in turns, {} rounds of loads \
             a boot; guest seconds, of which a second of this machine has {}; tessera with {:?}, kernel \
             with {:?}; gains are over one vCPU in the same round; medians",
            self.lab.substrate(),
            self.plan.boots,
            self.plan.loads,
            self.clock,
            self.options.bootstrap.join(" "),
            self.options.cmdline,
        ));
        let (rows, bars) =
            (rows(&self.seconds, &self.faults, &self.guests), bars(&self.seconds, &self.guests));
        Outcome { name: NAME.to_owned(), conditions, rows, bars, shown: "gain".to_owned() }
    }
}

/// Seconds of a load by the guest's clock, one for each round.
fn seconds(guest: &GuestReport, load: &str) -> Result<Vec<f64>> {
    let (verdict, detail) = guest
        .tests
        .get(&format!("programs-{load}"))
        .with_context(|| format!("no time of {load}"))?;
    ensure!(*verdict == Verdict::Pass, "{load}: {detail}");
    let list =
        detail.strip_prefix("ns=").with_context(|| format!("no time of {load}: {detail}"))?;
    list.split(',')
        .map(|word| {
            let nanoseconds: f64 = word.parse().with_context(|| format!("{load}: {detail}"))?;
            ensure!(nanoseconds > 0.0, "{load} took no time: {detail}");
            Ok(nanoseconds / 1e9)
        })
        .collect()
}

/// Rows of each load, one for each guest, and the faults of whole runs.
fn rows(seconds: &Rounds<usize, usize>, faults: &Rounds<(), usize>, guests: &[Guest]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (load, (_, shown, _)) in LOADS.iter().enumerate() {
        for (at, guest) in guests.iter().enumerate() {
            let Some(time) = seconds.median(load, at, 0) else { continue };
            let mut figures = vec![("guest s".to_owned(), time)];
            figures.extend(seconds.ratio(load, ONE, at, 0).map(|gain| ("gain".to_owned(), gain)));
            rows.push(Row { name: format!("{shown}: {}", guest.name), figures });
        }
    }
    for (at, guest) in guests.iter().enumerate().filter(|(_, guest)| guest.borrows) {
        rows.extend(faults.row(format!("whole run: {}", guest.name), (), at, &["faults"]));
    }
    rows
}

fn bars(seconds: &Rounds<usize, usize>, guests: &[Guest]) -> Vec<Bar> {
    let default = guests.iter().position(|guest| guest.name == DEFAULT);
    let bar = |(load, (_, shown, bound)): (usize, &(&str, &str, Option<f64>))| {
        let found = seconds.ratio(load, ONE, default?, 0)?;
        let what = format!("{shown}: gain by the default preset");
        Some(Bar { what, found, bound: (*bound)?, at_most: false })
    };
    LOADS.iter().enumerate().filter_map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_tessera_and_for_the_kernel_are_told_apart() {
        let also = ["skew_tick=1 --node-distance 40 psi=0".to_owned()];
        let all = guests(QUICK.presets, &also);

        assert_eq!((all.len(), all[ONE].borrows, all[1].borrows), (3, false, true));
        assert_eq!(all[1].preset.as_deref(), Some(DEFAULT));
        assert_eq!(all[2].preset.as_deref(), Some("none"));
        assert_eq!(all[2].bootstrap, ["--node-distance", "40"]);
        assert_eq!(all[2].cmdline, "skew_tick=1 psi=0");
        assert_eq!(guests(FULL.presets, &[]).len(), 4);
    }

    #[test]
    fn preset_of_the_vm_is_refused() {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            bench: BenchOptions,
        }
        let options = |words: [&str; 2]| {
            let line = Line::try_parse_from(["bench", "programs", "--"].into_iter().chain(words));
            options_of(&line.unwrap().bench, QUICK)
        };
        assert!(options(["--memory", "768"]).is_ok());
        assert!(options(["--guest-preset", "none"]).is_err());
    }

    #[test]
    fn times_of_the_guest_are_read_and_others_refused() {
        let mut guest = GuestReport::default();
        guest.take("TEST programs-task pass ns=400000000,500000000");
        guest.take("TEST programs-boot fail no clock");
        guest.take("TEST programs-jobs-1 pass ns=0");

        assert_eq!(seconds(&guest, "task").unwrap(), [0.4, 0.5]);
        assert!(seconds(&guest, "boot").unwrap_err().to_string().contains("no clock"));
        assert!(seconds(&guest, "jobs-1").is_err());
        assert!(seconds(&guest, "threads-2").is_err());
    }

    #[test]
    fn bars_are_those_of_threads_and_processes() {
        let mut rounds = Rounds::new();
        for load in 0..LOADS.len() {
            rounds.add(load, ONE, 0, vec![1.7]);
            rounds.add(load, 1, 0, vec![if load == 2 { 1.0 } else { 1.1 }]);
        }

        let held: Vec<_> =
            bars(&rounds, &guests(QUICK.presets, &[])).iter().map(Bar::holds).collect();
        assert_eq!(held, [true, false]);
    }
}
