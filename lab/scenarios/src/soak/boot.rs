//! `./x soak boot`: boots of a VM and its tests, again and again, on each interrupt back end.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use lab::Lab;
use serde_json::{Value, json};

use crate::interrupt::Interrupted;
use crate::progress::Progress;
use crate::vm::fault_classes::Classes;
use crate::vm::guest_console::Verdict;
use crate::vm::joined::Joined;
use crate::vm::judge::Outcome;
use crate::vm::layout::Layout;
use crate::vm::prepare::{self, Prepared};
use crate::vm::scenario::Scenario;
use crate::vm::summary;
use crate::vm::{Interrupts, VmOptions};

/// What a boot runs unless told: where a broken memory, a lost interrupt or a crooked clock shows.
const BOOT_TESTS: &str = "litmus-sb,litmus-mp,litmus-lb,litmus-2w,count,clock-tsc";

/// Words of the tests' result lines and what they count.
const ITERATIONS: [(&str, &str); 3] = [
    ("n=", "litmus iterations"),
    ("total=", "increments of a shared counter"),
    ("trips=", "clock readings handed between CPUs"),
];

/// What `./x soak boot` takes.
#[derive(Args, Clone, Debug)]
pub struct BootOptions {
    #[command(flatten)]
    vm: VmOptions,
    /// Boots on each back end
    #[arg(long, default_value_t = 10)]
    runs: u32,
    /// Only this back end
    #[arg(long, value_enum)]
    interrupts: Option<Interrupts>,
    /// Write all results as JSON into this file
    #[arg(long)]
    report: Option<PathBuf>,
    /// Print what the hosts print
    #[arg(long)]
    loud: bool,
}

/// Boots as often as wanted.
///
/// # Errors
/// Something that is needed is missing; a bad boot is no error.
pub fn run(options: &BootOptions) -> Result<ExitCode> {
    Soak::new(options)?.boot()
}

struct Soak {
    options: BootOptions,
    progress: Arc<Progress>,
    interrupted: Interrupted,
    layout: Layout,
    prepared: Prepared,
    lab: Option<Lab>,
    results: Vec<Value>,
    /// Iterations of the tests that passed, by what their result lines call them.
    iterations: BTreeMap<&'static str, u64>,
}

impl Soak {
    fn new(options: &BootOptions) -> Result<Self> {
        let mut options = options.clone();
        options.vm.tests.get_or_insert_with(|| BOOT_TESTS.to_owned());
        let progress = Arc::new(Progress::new());
        let layout = options.vm.layout()?;
        progress.say(&format!("substrate: {}; layout {layout}", lab::substrate()));
        Ok(Self {
            prepared: prepare::prepare(&options.vm, &progress)?,
            options,
            interrupted: Interrupted::listen()?,
            layout,
            lab: None,
            results: Vec::new(),
            iterations: BTreeMap::new(),
            progress,
        })
    }

    fn boot(mut self) -> Result<ExitCode> {
        let both = [Interrupts::Ghost, Interrupts::Userspace];
        let only = self.options.interrupts;
        let back_ends = both.iter().filter(|&&back_end| only.is_none_or(|o| o == back_end));
        let mut good = Vec::new();
        for &back_end in back_ends {
            let mut passed = 0;
            for number in 1..=self.options.runs {
                let ok = self.one(back_end, number)?;
                passed += u32::from(ok);
            }
            good.push((back_end, passed));
        }
        self.lab = None;
        if let Some(path) = &self.options.report {
            let report = serde_json::to_vec_pretty(&json!({ "runs": self.results }))?;
            fs::write(path, report).with_context(|| format!("write {}", path.display()))?;
        }
        for (what, count) in &self.iterations {
            println!("{what}: {count} in all");
        }
        let mut all = true;
        for (back_end, passed) in good {
            println!("{}: {passed} of {} boots passed", back_end.name(), self.options.runs);
            all &= passed == self.options.runs;
        }
        Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// One boot. Hosts stay up from run to run; after a bad one they start afresh.
    fn one(&mut self, back_end: Interrupts, number: u32) -> Result<bool> {
        let lab = match self.lab.take() {
            Some(lab) => lab,
            None => prepare::hosts(&self.options.vm, &self.layout, &self.progress)?,
        };
        let scenario = Scenario {
            options: &self.options.vm,
            layout: &self.layout,
            prepared: &self.prepared,
            lab: &lab,
            interrupts: Some(back_end),
            progress: &self.progress,
            interrupted: &self.interrupted,
            loud: self.options.loud,
            joined: Joined::nobody(),
        };
        let run = format!("{} run {number} of {}", back_end.name(), self.options.runs);
        let result = scenario.run();
        if self.interrupted.is_set() {
            bail!("interrupted");
        }
        match result {
            Ok(outcome) => {
                self.results.push(summary::json(&scenario, &outcome));
                self.tell(&run, &outcome);
                self.count(&outcome);
                let passed = outcome.problems.is_empty();
                if passed {
                    self.lab = Some(lab);
                }
                Ok(passed)
            }
            Err(error) => {
                self.progress.say(&format!("{run}: FAILED: {error:#}"));
                self.results.push(json!({
                    "interrupts": back_end.name(),
                    "passed": false,
                    "problems": [format!("{error:#}")],
                }));
                Ok(false)
            }
        }
    }

    /// Adds what the passed tests say that they did.
    fn count(&mut self, outcome: &Outcome) {
        let passed = outcome.guest.tests.values().filter(|(verdict, _)| *verdict == Verdict::Pass);
        for word in passed.flat_map(|(_, detail)| detail.split(' ')) {
            for (key, what) in ITERATIONS {
                let number = word.strip_prefix(key).and_then(|text| text.parse::<u64>().ok());
                *self.iterations.entry(what).or_default() += number.unwrap_or(0);
            }
        }
    }

    fn tell(&self, run: &str, outcome: &Outcome) {
        let (boot, all) = (outcome.boot_seconds.unwrap_or(f64::NAN), outcome.seconds);
        let tests = outcome.guest.tests.len();
        if outcome.problems.is_empty() {
            let classes = outcome.report.as_ref().and_then(Classes::of);
            let classes = classes.map_or_else(String::new, Classes::line);
            self.progress.say(&format!(
                "{run}: passed, boot {boot:.1} s, {tests} tests, {all:.1} s; {}",
                classes.trim()
            ));
            return;
        }
        self.progress.say(&format!("{run}: FAILED: {}", outcome.problems.join("; ")));
        if !self.options.loud {
            for line in &outcome.tail {
                println!("    {line}");
            }
        }
    }
}
