//! What the soaks that break something do alike: a layout that fits, programs, hosts that stay as long as all goes well, and one end.
//!
//! ```text
//!   Rig::new ─> Hosts ─> attempt ┬─ good: the same hosts ──┐
//!                  ^             └─ bad: others ───────────┤
//!                  +─────────────── the next try ──────────+─> exit
//! ```

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, ensure};
use clap::Args;
use lab::distro::System;
use lab::{Disk, Lab};

use crate::interrupt::Interrupted;
use crate::progress::Progress;
use crate::vm::joined::Joined;
use crate::vm::layout::Layout;
use crate::vm::output::Output;
use crate::vm::prepare::{self, Prepared};
use crate::vm::scenario::Scenario;
use crate::vm::{Interrupts, VmOptions};

/// What can be told about each VM of a soak.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct RigOptions {
    /// Where interrupts are handled; tessera's own choice unless given
    #[arg(long, value_enum)]
    pub(crate) interrupts: Option<Interrupts>,
    /// Print what the hosts print
    #[arg(long)]
    pub(crate) loud: bool,
}

/// What a soak has from its start to its end.
#[derive(Debug)]
pub(crate) struct Rig {
    progress: Arc<Progress>,
    interrupted: Interrupted,
    pub(crate) layout: Layout,
    prepared: Prepared,
    options: RigOptions,
    joined: Joined,
}

impl Rig {
    /// Takes over ctrl-c and builds what a VM needs. `fits` looks at the layout before anything is built.
    pub(crate) fn new(
        vm: &VmOptions,
        options: RigOptions,
        fits: impl FnOnce(&Layout) -> Result<()>,
    ) -> Result<Self> {
        Self::prepared(vm, options, fits, prepare::prepare)
    }

    /// The same for a whole system in place of the guest's tests.
    pub(crate) fn with_distro(
        vm: &VmOptions,
        options: RigOptions,
        fits: impl FnOnce(&Layout) -> Result<()>,
    ) -> Result<Self> {
        Self::prepared(vm, options, fits, |vm, progress| {
            prepare::prepare_distro(System::Base, vm, progress)
        })
    }

    fn prepared(
        vm: &VmOptions,
        options: RigOptions,
        fits: impl FnOnce(&Layout) -> Result<()>,
        prepare: impl FnOnce(&VmOptions, &Progress) -> Result<Prepared>,
    ) -> Result<Self> {
        let (progress, interrupted) = (Arc::new(Progress::new()), Interrupted::listen()?);
        let layout = vm.layout()?;
        fits(&layout)?;
        let prepared = prepare(vm, &progress)?;
        Ok(Self { progress, interrupted, layout, prepared, options, joined: Joined::default() })
    }

    pub(crate) fn say(&self, line: &str) {
        self.progress.say(line);
    }

    /// Fails when somebody wants the end.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(!self.interrupted.is_set(), "interrupted");
        Ok(())
    }

    /// The system whose disk a guest may have beside its own.
    pub(crate) fn distro(&self) -> Result<lab::distro::Distro> {
        lab::distro::distro(System::Base, &|line| self.say(line))
    }

    /// New hosts with these disks.
    pub(crate) fn hosts(&self, vm: &VmOptions, disks: Vec<Disk>) -> Result<Lab> {
        prepare::hosts_with_disks(vm, &self.layout, disks, &self.progress)
    }

    /// Collects what the slices of a VM write.
    pub(crate) fn output(&self) -> Arc<Output> {
        Arc::new(Output::new(&self.progress, self.options.loud))
    }

    /// So many new hosts, whatever the layout.
    pub(crate) fn some_hosts(&self, vm: &VmOptions, count: usize) -> Result<Lab> {
        prepare::hosts(vm, &Layout::even(count)?, &self.progress)
    }

    /// A VM over these hosts.
    pub(crate) fn scenario<'a>(&'a self, vm: &'a VmOptions, lab: &'a Lab) -> Scenario<'a> {
        Scenario {
            options: vm,
            layout: &self.layout,
            prepared: &self.prepared,
            lab,
            interrupts: self.options.interrupts,
            progress: &self.progress,
            interrupted: &self.interrupted,
            loud: self.options.loud,
            joined: &self.joined,
        }
    }
}

/// Hosts stay up from try to try. After a bad one they start afresh.
#[derive(Debug)]
pub(crate) struct Hosts<L, F> {
    make: F,
    kept: Option<L>,
}

impl<L, F: Fn() -> Result<L>> Hosts<L, F> {
    pub(crate) fn new(make: F) -> Self {
        Self { make, kept: None }
    }

    /// One try. An error of the work itself ends the soak; the result inside is what came of the try.
    pub(crate) fn attempt<T>(
        &mut self,
        work: impl FnOnce(&L) -> Result<Result<T>>,
    ) -> Result<Result<T>> {
        let hosts = self.kept.take().map_or_else(&self.make, Ok)?;
        let result = work(&hosts)?;
        self.kept = result.is_ok().then_some(hosts);
        Ok(result)
    }
}

/// The end of a soak.
pub(crate) fn exit(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;
    use std::cell::Cell;

    #[test]
    fn hosts_stay_until_a_try_is_bad() {
        let made = Cell::new(0);
        let mut hosts = Hosts::new(|| {
            made.set(made.get() + 1);
            Ok(made.get())
        });
        let mut numbers = Vec::new();
        for good in [true, true, false, true] {
            let result = hosts.attempt(|number| {
                numbers.push(*number);
                Ok(if good { Ok(()) } else { Err(anyhow::anyhow!("bad")) })
            });
            assert_eq!(result.unwrap().is_ok(), good);
        }
        assert_eq!(numbers, [1, 1, 1, 2]);
    }

    #[test]
    fn soak_ends_when_hosts_cannot_be_had_or_the_work_fails() {
        let mut none = Hosts::new(|| -> Result<u32> { bail!("no hosts") });
        assert!(none.attempt(|_| Ok(Ok(()))).is_err());
        let mut some = Hosts::new(|| Ok(1));
        assert!(some.attempt(|_| -> Result<Result<()>> { bail!("no disk") }).is_err());
    }
}
