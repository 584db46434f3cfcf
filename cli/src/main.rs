//! `tessera`: starts slices of a distributed virtual machine, and looks into them.
//!
//! The end of its help ([`STATUS`]) lists exit statuses and the environment.

#![forbid(unsafe_code)]

mod agent;
mod api;
mod asking;
mod bootstrap;
mod checkpoint;
mod cluster;
mod companion;
mod config;
mod console;
mod counters;
mod devices;
mod later;
mod listening;
mod local;
mod log;
mod names;
mod orchestrator;
mod pace;
mod package_files;
mod reference;
mod report;
mod reset;
mod restore;
mod signals;
mod sim;
mod slice_key;
mod slices;
mod supervise;
mod trace;
mod tune;
mod vm;
mod words;

use anyhow::{Context, Result};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use log::Form;
use std::io::{Write, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use vmm::crash::end_on_panic;
use vmm::slice::{Ending, STATUS_REFUSED, SliceError};
use words::FORM;

/// Ends the help.
const STATUS: &str = "\
Exit status:
  0    the guest powered off; of a slice that does not coordinate the VM: the VM is over, or this
       slice was drained; of other subcommands: done
  1    an agent or orchestrator cannot go on now, and may a while later: an address, a disk
  2    refused before anything started; of other subcommands: not done
  3    the guest asked for a reset
  4    the guest's kernel panicked
  5    a slice is lost
  6    a slice cannot go on
  7    the time limit was reached
  8    stopped before the guest had shut down
  9    a later life of the VM has its disks: it goes on elsewhere

Environment:
  TESSERA_CLUSTER     as --cluster; TESSERA_CLUSTER_CA, _CERTIFICATE and _KEY likewise
  TESSERA_LOG         which lines are logged on standard error: error, warn, info (unless set),
                      debug, trace or off, or such a level for each of several parts of the
                      program: warn,dsm=debug
  TESSERA_LOG_FORMAT  text or json, unless --log-format is given
  TESSERA_NAME        vms/VM/slices/NUMBER: what lines of a slice name it by; its agent sets it";

/// One virtual machine out of fragments of several hosts.
#[derive(Debug, Parser)]
#[command(version, after_help = STATUS)]
struct Arguments {
    /// How lines on standard error look: for people, or an object of JSON each; those of a slice name it and its VM
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "text|json",
        env = FORM,
        hide_env_values = true,
        default_value_t = Form::Text
    )]
    log_format: Form,
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one, for as long as the process lives")]
enum Role {
    /// Start a VM: plan it, connect its companions, boot the guest.
    #[command(after_long_help = bootstrap::EXAMPLE)]
    Bootstrap(bootstrap::Arguments),
    /// Give vCPUs, memory and devices of this host to a VM that another host starts, or has started (tessera vm add).
    #[command(after_long_help = companion::EXAMPLE)]
    Companion(companion::Arguments),
    /// Run a slice, and start it again when its VM is lost: with the bootstrap's slice the VM goes on from a checkpoint by itself.
    Supervise(supervise::Arguments),
    /// Own the slices of this host for an orchestrator, over gRPC. They outlive it.
    #[command(after_long_help = agent::EXAMPLE)]
    Agent(agent::Arguments),
    /// Say where the VMs of a cluster run, and see to it, by the agents of its hosts.
    #[command(after_long_help = orchestrator::EXAMPLE)]
    Orchestrator(orchestrator::Arguments),
    /// List, register, cordon or drain hosts of a cluster.
    Host(cluster::host::Arguments),
    /// Print how a cluster is as a whole.
    Cluster(cluster::status::Arguments),
    /// List what goes on in a cluster, or wait for it.
    Op(cluster::op::Arguments),
    /// Show the pages of a running slice that travel most, and the guest's code that waits for them.
    Trace(trace::Arguments),
    /// Be at a console of a guest (--console socket=PATH) with this terminal. Ctrl-] and then q leaves it.
    Console(console::Arguments),
    /// Print what running slices' memory engines have counted, as JSON, a line for each slice.
    Counters(counters::Arguments),
    /// Change settings of running slices, and print the counters of each.
    Tune(tune::Arguments),
    /// Pause, move, drain, write down or look at a running VM as a whole (--control); or have a cluster run it (--cluster).
    #[command(after_help = vm::who_is_asked())]
    Vm(vm::Arguments),
    /// Write the key of one slice, for a companion that is not to know the secret.
    SliceKey(slice_key::Arguments),
    /// List, show, verify, export or delete checkpoints of VMs. No VM needs to run.
    Checkpoint(checkpoint::Arguments),
    /// Try the scheduler of clusters: weeks of VMs, generated or out of a trace, in minutes. Nothing runs, and no host is needed.
    Sim(sim::Arguments),
    /// Check that saved forms of slices (--test-forms) are a cut of a VM.
    #[command(hide = true)]
    CheckForms {
        /// One of each slice
        #[arg(required = true)]
        forms: Vec<PathBuf>,
    },
    /// Print docs/options.md.
    #[command(hide = true)]
    MarkdownHelp,
    /// Write completions of shells and manuals, for packages.
    #[command(hide = true)]
    PackageFiles {
        /// Where to
        folder: PathBuf,
    },
}

impl Role {
    fn is_slice(&self) -> bool {
        matches!(self, Self::Bootstrap(_) | Self::Companion(_))
    }
}

/// What a subcommand comes to.
enum End {
    Slice(Ending),
    /// The exit status: of the slice that it has supervised, or of a plan.
    Status(u8),
    Done,
}

fn main() -> ExitCode {
    end_on_panic();
    if let Err(error) = log::start() {
        // Nothing runs yet that a reader could stop.
        let _ = writeln!(stderr(), "tessera: start the thread that writes the log: {error}");
        return ExitCode::from(STATUS_REFUSED);
    }
    let status = run();
    log::finish();
    status
}

fn run() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return explain(&error),
    };
    log::choose(arguments.log_format);
    match log::begin(arguments.role.is_slice()).and_then(|()| be(arguments.role)) {
        Ok(End::Slice(ending)) => finish(&ending),
        Ok(End::Status(status)) => ExitCode::from(status),
        Ok(End::Done) => ExitCode::SUCCESS,
        Err(error) => {
            // A name of a file, or a peer, may bring line breaks along.
            log::refuse(&joined(&format!("{error:#}")));
            let status = error.downcast_ref::<SliceError>().map(SliceError::status);
            ExitCode::from(status.unwrap_or(STATUS_REFUSED))
        }
    }
}

fn be(role: Role) -> Result<End> {
    match role {
        Role::Bootstrap(arguments) => bootstrap::run(arguments).map(End::Slice),
        Role::Companion(arguments) => companion::run(&arguments).map(End::Slice),
        Role::Supervise(arguments) => supervise::run(arguments).map(End::Status),
        Role::Agent(arguments) => agent::run(&arguments).map(End::Status),
        Role::Orchestrator(arguments) => orchestrator::run(&arguments).map(End::Status),
        Role::Host(arguments) => cluster::host::run(&arguments).map(|()| End::Done),
        Role::Cluster(arguments) => cluster::status::run(&arguments).map(|()| End::Done),
        Role::Op(arguments) => cluster::op::run(&arguments).map(|()| End::Done),
        Role::Trace(arguments) => trace::run(&arguments).map(|()| End::Done),
        Role::Console(arguments) => console::run(&arguments).map(|()| End::Done),
        Role::Counters(arguments) => counters::run(&arguments).map(|()| End::Done),
        Role::Tune(arguments) => tune::run(&arguments).map(|()| End::Done),
        Role::Vm(arguments) => vm::run(&arguments).map(End::Status),
        Role::SliceKey(arguments) => slice_key::run(&arguments).map(|()| End::Done),
        Role::Checkpoint(arguments) => checkpoint::run(&arguments).map(|()| End::Done),
        Role::Sim(arguments) => sim::run(&arguments).map(|()| End::Done),
        Role::CheckForms { forms } => check_forms(&forms).map(|()| End::Done),
        Role::MarkdownHelp => print_reference().map(|()| End::Done),
        Role::PackageFiles { folder } => {
            package_files::write(Arguments::command(), &folder).map(|()| End::Done)
        }
    }
}

fn check_forms(paths: &[PathBuf]) -> Result<()> {
    let read =
        |path: &PathBuf| std::fs::read(path).with_context(|| format!("read {}", path.display()));
    let forms = paths.iter().map(read).collect::<Result<Vec<_>>>()?;
    vmm::slice::check_forms(&forms).context("check the saved forms")
}

fn print_reference() -> Result<()> {
    let page = reference::markdown(&Arguments::command());
    stdout().write_all(page.as_bytes()).context("print the options")
}

/// Help as it is; a wrong argument on one line, as every refusal.
fn explain(error: &clap::Error) -> ExitCode {
    let help = ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !error.use_stderr() || error.kind() == help {
        // Who closed the output does not want to read it.
        let _ = error.print();
        return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(STATUS_REFUSED));
    }
    // What follows the first paragraph is usage.
    let text = error.to_string();
    let line = joined(text.split("\n\n").next().unwrap_or_default());
    if let Some(form) = words::form() {
        log::choose(form);
    }
    log::refuse(line.strip_prefix("error: ").unwrap_or(&line));
    ExitCode::from(STATUS_REFUSED)
}

/// Text on one line.
fn joined(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

fn finish(ending: &Ending) -> ExitCode {
    log::say(&joined(&ending.describe()));
    ExitCode::from(ending.status())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page is in git, so that it can be read without building anything.
    #[test]
    fn page_of_options_is_what_the_options_say() {
        let page = include_str!("../../docs/options.md");
        let said = reference::markdown(&Arguments::command());

        let mut lines = page.lines().zip(said.lines()).zip(1..);
        let differs = lines.find(|((page, said), _)| page != said);
        assert!(
            page == said,
            "docs/options.md is not what the options say (first difference: {differs:?}): run ./x docs"
        );
    }
}
