//! `./x demo`: an unmodified Debian kernel as one VM over several hosts.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use lab::{Lab, daemon};
use serde_json::Value;

use crate::interrupt::Interrupted;
use crate::layout::Layout;
use crate::progress::Progress;
use crate::scenario::{self, Prepared, Scenario};
use crate::summary;
use crate::vm_options::{Interrupts, VmOptions};
use crate::vsock_echo;
use crate::{distro_demo, distro_options};

#[derive(Args, Clone, Debug)]
pub(crate) struct DemoOptions {
    #[command(flatten)]
    vm: VmOptions,
    /// Where interrupts are handled; tessera's own choice unless given
    #[arg(long, value_enum)]
    interrupts: Option<Interrupts>,
    /// Write the result as JSON into this file
    #[arg(long)]
    report: Option<PathBuf>,
    /// Leave the hosts up until ctrl-c; with --distro the VM too
    #[arg(long)]
    keep: bool,
    /// Boot a whole Debian system from a disk, with a network, and look at it over HTTP and ssh
    #[arg(long)]
    distro: bool,
    /// With --distro: keep what the guest writes in a qcow2 file in the lab's folder
    #[arg(long, requires = "distro")]
    keep_disk: bool,
}

pub(crate) fn run(options: &DemoOptions) -> Result<ExitCode> {
    let mut options = options.clone();
    if options.distro {
        options.vm.timeout.get_or_insert(distro_options::TIMEOUT);
    }
    let options = &options;
    let progress = Arc::new(Progress::new());
    let interrupted = Interrupted::listen()?;
    let layout = options.vm.layout()?;
    progress.say(&format!("substrate: {}; layout {layout}", lab::substrate()));
    let (prepared, lab) = if options.distro {
        let prepared = scenario::prepare_distro(&options.vm, &progress)?;
        let distro = prepared.distro.as_ref().context("the system that was just built")?;
        let disks = distro_options::disks(distro, options.keep_disk)?;
        let lab = scenario::hosts_with_disks(&options.vm, &layout, disks, &progress)?;
        (prepared, Arc::new(lab))
    } else {
        let prepared = scenario::prepare(&options.vm, &progress)?;
        (prepared, Arc::new(scenario::hosts(&options.vm, &layout, &progress)?))
    };
    let attendant = attend(&lab, &interrupted);
    let name = &options.vm.name;
    progress.say(&format!("look into a host: ./x lab exec --name {name} 1 -- COMMAND"));
    let passed = show(options, &layout, &prepared, &lab, &progress, &interrupted);
    interrupted.flag().store(true, Ordering::SeqCst);
    if let Err(panic) = attendant.join() {
        std::panic::resume_unwind(panic);
    }
    drop(lab);
    let passed = passed?;
    progress.say(if passed { "demo passed" } else { "demo FAILED" });
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn write_report(options: &DemoOptions, report: &Value, progress: &Progress) -> Result<()> {
    let Some(path) = &options.report else { return Ok(()) };
    let report = serde_json::to_vec_pretty(report).context("format the report")?;
    fs::write(path, report).with_context(|| format!("write {}", path.display()))?;
    progress.say(&format!("report: {}", path.display()));
    Ok(())
}

/// Lets `./x lab` use the demo's hosts while they are there; `down` ends the demo like ctrl-c.
pub(crate) fn attend(lab: &Arc<Lab>, interrupted: &Interrupted) -> JoinHandle<()> {
    let (lab, flag) = (Arc::clone(lab), interrupted.flag());
    thread::spawn(move || {
        if let Err(error) = daemon::serve(lab, flag) {
            eprintln!("x: the demo's hosts cannot be looked into: {error:#}");
        }
    })
}

/// Runs the VM and shows how it went; true when all was good.
fn show(
    options: &DemoOptions,
    layout: &Layout,
    prepared: &Prepared,
    lab: &Lab,
    progress: &Arc<Progress>,
    interrupted: &Interrupted,
) -> Result<bool> {
    let mut vm = options.vm.clone();
    if prepared.distro.is_none() && !vm.bootstrap.iter().any(|word| word.starts_with("--vsock")) {
        vm.bootstrap.extend(vsock_echo::start(lab)?);
    }
    let scenario = Scenario {
        options: &vm,
        layout,
        prepared,
        lab,
        interrupts: options.interrupts,
        progress,
        interrupted,
        loud: true,
    };
    if let Some(distro) = &prepared.distro {
        let shown = distro_demo::run(&scenario, distro, options.keep)?;
        println!("\n{}", shown.table(&scenario));
        write_report(options, &shown.json(&scenario), progress)?;
        return Ok(shown.problems.is_empty());
    }
    let outcome = scenario.run()?;
    println!("\n{}", summary::table(&scenario, &outcome));
    write_report(options, &summary::json(&scenario, &outcome), progress)?;
    if options.keep {
        progress.say("hosts stay up until ctrl-c or `./x lab down`");
        while !interrupted.is_set() {
            thread::sleep(Duration::from_millis(200));
        }
    }
    Ok(outcome.problems.is_empty())
}
