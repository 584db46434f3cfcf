//! `./x demo`: an unmodified Debian kernel as one VM over several hosts.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;

use crate::interrupt::Interrupted;
use crate::progress::Progress;
use crate::scenario::{self, Scenario};
use crate::summary;
use crate::vm_options::{Interrupts, VmOptions};

#[derive(Args, Debug)]
pub(crate) struct DemoOptions {
    #[command(flatten)]
    vm: VmOptions,
    /// Where interrupts are handled; tessera's own choice unless given
    #[arg(long, value_enum)]
    interrupts: Option<Interrupts>,
    /// Write the result as JSON into this file
    #[arg(long)]
    report: Option<PathBuf>,
    /// Leave the hosts up until ctrl-c
    #[arg(long)]
    keep: bool,
}

pub(crate) fn run(options: &DemoOptions) -> Result<ExitCode> {
    let progress = Arc::new(Progress::new());
    let interrupted = Interrupted::listen()?;
    let layout = options.vm.layout()?;
    progress.say(&format!("substrate: {}; layout {layout}", lab::substrate()));
    let prepared = scenario::prepare(&options.vm, &progress)?;
    let lab = scenario::hosts(&options.vm, &layout, &progress)?;
    let scenario = Scenario {
        options: &options.vm,
        layout: &layout,
        prepared: &prepared,
        lab: &lab,
        interrupts: options.interrupts,
        progress: &progress,
        interrupted: &interrupted,
        loud: true,
    };
    let outcome = scenario.run()?;
    println!("\n{}", summary::table(&scenario, &outcome));
    if let Some(path) = &options.report {
        let report = serde_json::to_vec_pretty(&summary::json(&scenario, &outcome))?;
        fs::write(path, report).with_context(|| format!("write {}", path.display()))?;
        progress.say(&format!("report: {}", path.display()));
    }
    if options.keep {
        progress.say("hosts stay up until ctrl-c");
        while !interrupted.is_set() {
            thread::sleep(Duration::from_millis(200));
        }
    }
    drop(lab);
    let passed = outcome.problems.is_empty();
    progress.say(if passed { "demo passed" } else { "demo FAILED" });
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
