//! An unmodified Debian kernel as one VM over several hosts, shown to a person.

mod checkpoint;
pub mod cluster;
pub mod consolidate;
mod panels;
pub mod record;
mod svg;
mod vsock_echo;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use lab::Lab;
use lab::distro::System;
use serde_json::Value;

use crate::demo::cluster::Cluster;
use crate::demo::consolidate::Consolidate;
use crate::distro::visit;
use crate::interrupt::Interrupted;
use crate::progress::Progress;
use crate::vm::attend::Attendant;
use crate::vm::joined::Joined;
use crate::vm::layout::Layout;
use crate::vm::prepare::{self, Prepared};
use crate::vm::scenario::Scenario;
use crate::vm::{Interrupts, VmOptions, distro, saves, summary};

/// Whether a VM goes on from an increment.
#[derive(Clone, Copy, Debug)]
pub struct Incremental(pub bool);

/// What is shown, and how.
#[derive(Clone, Debug)]
pub struct Demo {
    /// The VM.
    pub vm: VmOptions,
    /// Where interrupts are handled; tessera's own choice unless given.
    pub interrupts: Option<Interrupts>,
    /// Where the result goes as JSON.
    pub report: Option<PathBuf>,
    /// Leave the hosts up until ctrl-c; with a Debian system the VM too.
    pub keep: bool,
    /// Boot a whole Debian system from a disk instead of the guest's tests.
    pub distro: bool,
    /// Drain this system to one host and spread it again, under load.
    pub consolidate: Option<Consolidate>,
    /// Write this system down, kill it, and have it go on on other hosts; perhaps from an increment.
    pub checkpoint: Option<Incremental>,
    /// Have a cluster start this system over two hosts, and bring it together on one.
    pub cluster: Option<Cluster>,
    /// Keep what that system writes in a qcow2 file in the lab's folder.
    pub keep_disk: bool,
}

impl Demo {
    /// Brings hosts up, runs the VM on them and tells how it went.
    ///
    /// # Errors
    /// Something that is needed is missing, or hosts do not come up; a VM that fails is no error.
    pub fn run(mut self, progress: &Arc<Progress>) -> Result<ExitCode> {
        if self.consolidate.is_some() {
            consolidate::prepare(&mut self.vm)?;
        }
        if self.checkpoint.is_some() {
            checkpoint::prepare(&mut self.vm)?;
        }
        if self.cluster.is_some() {
            cluster::prepare(&mut self.vm);
        }
        if self.distro {
            self.vm.timeout.get_or_insert(distro::TIMEOUT);
        }
        let interrupted = Interrupted::listen()?;
        let layout = self.vm.layout()?;
        progress.say(&format!("substrate: {}; layout {layout}", lab::substrate()));
        let (prepared, lab) = if self.distro {
            let prepared = prepare::prepare_distro(System::Base, &self.vm, progress)?;
            let distro = prepared.distro.as_ref().context("the system that was just built")?;
            // Its disk may be a file.
            let (disks, more) = if self.cluster.is_some() {
                (Vec::new(), cluster::HOSTS)
            } else if self.checkpoint.is_some() {
                (Vec::new(), checkpoint::HOSTS)
            } else {
                (distro::disks(distro, self.keep_disk)?, layout.slices())
            };
            let lab = prepare::hosts_with_disks(&self.vm, &Layout::even(more)?, disks, progress)?;
            (prepared, Arc::new(lab))
        } else {
            let prepared = prepare::prepare(&self.vm, progress)?;
            (prepared, Arc::new(prepare::hosts(&self.vm, &layout, progress)?))
        };
        let attendant = Attendant::of(&lab, &interrupted);
        let name = &self.vm.name;
        progress.say(&format!("look into a host: ./x lab exec --name {name} 1 -- COMMAND"));
        let passed = self.show(&prepared, &lab, progress, &interrupted);
        attendant.end();
        drop(lab);
        let passed = passed?;
        progress.say(if passed { "demo passed" } else { "demo FAILED" });
        Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Runs the VM and shows how it went; true when all was good.
    fn show(
        &self,
        prepared: &Prepared,
        lab: &Lab,
        progress: &Arc<Progress>,
        interrupted: &Interrupted,
    ) -> Result<bool> {
        if let Some(wanted) = &self.cluster {
            let (passed, report) = cluster::run(wanted, prepared, lab, (progress, interrupted))?;
            self.write_report(&report, progress)?;
            return Ok(passed);
        }
        let mut vm = self.vm.clone();
        if let Some(distro) = prepared.distro.as_ref().filter(|_| self.checkpoint.is_some()) {
            progress.say("the disk is copied into a qcow2 file");
            vm.system_disk = Some(saves::make_disk(lab, &distro.image)?);
        }
        if prepared.distro.is_none() && !vm.bootstrap.iter().any(|word| word.starts_with("--vsock"))
        {
            vm.bootstrap.extend(vsock_echo::start(lab)?);
        }
        let scenario = Scenario {
            options: &vm,
            layout: &vm.layout()?,
            prepared,
            lab,
            interrupts: self.interrupts,
            progress,
            interrupted,
            loud: true,
            joined: Joined::nobody(),
        };
        if let (Some(distro), Some(Incremental(incremental))) = (&prepared.distro, self.checkpoint)
        {
            let (passed, report) = checkpoint::run(&scenario, distro, incremental)?;
            self.write_report(&report, progress)?;
            return Ok(passed);
        }
        if let Some(distro) = &prepared.distro {
            let (shown, report) = if let Some(wanted) = &self.consolidate {
                consolidate::run(&scenario, distro, wanted)?
            } else {
                let shown = visit::run(&scenario, distro, self.keep)?;
                let report = shown.json(&scenario);
                (shown, report)
            };
            println!("\n{}", shown.table(&scenario));
            self.write_report(&report, progress)?;
            return Ok(shown.problems.is_empty());
        }
        let outcome = scenario.run()?;
        println!("\n{}", summary::table(&scenario, &outcome));
        self.write_report(&summary::json(&scenario, &outcome), progress)?;
        if self.keep {
            progress.say("hosts stay up until ctrl-c or `./x lab down`");
            while !interrupted.is_set() {
                thread::sleep(Duration::from_millis(200));
            }
        }
        Ok(outcome.problems.is_empty())
    }

    fn write_report(&self, report: &Value, progress: &Progress) -> Result<()> {
        let Some(path) = &self.report else { return Ok(()) };
        let report = serde_json::to_vec_pretty(report).context("format the report")?;
        fs::write(path, report).with_context(|| format!("write {}", path.display()))?;
        progress.say(&format!("report: {}", path.display()));
        Ok(())
    }
}
