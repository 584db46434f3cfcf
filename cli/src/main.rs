//! `tessera`: starts slices of a distributed virtual machine, and looks into them.
//!
//! Exit status: 0 the guest powered off, 2 refused before anything started, 3 the guest asked for
//! a reset, 4 the guest's kernel panicked, 5 a slice is lost, 6 a slice cannot go on, 7 time limit,
//! 8 stopped by a signal without the guest. A companion's is 0 once the bootstrap says that the VM is over.
//! The environment variable `TESSERA_LOG` sets the log level (error, warn, info, debug, trace).

#![forbid(unsafe_code)]

mod bootstrap;
mod companion;
mod counters;
mod devices;
mod local;
mod log;
mod signals;
mod slice_key;
mod slices;
mod trace;
mod tune;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use std::io::{IsTerminal, Write, stderr};
use std::process::ExitCode;
use tracing::Level;
use vmm::crash::end_on_panic;
use vmm::slice::{Ending, STATUS_REFUSED, SliceError};

/// One virtual machine out of fragments of several hosts.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one, for as long as the process lives")]
enum Role {
    /// Start a VM: plan it, bring its companions together, boot the guest.
    Bootstrap(bootstrap::Arguments),
    /// Give vCPUs and memory of this host to a VM that another host starts.
    Companion(companion::Arguments),
    /// Show the pages of a running slice that travel most, and the guest's code that waits for them.
    Trace(trace::Arguments),
    /// Print what a running slice's memory engine has counted, as JSON.
    Counters(counters::Arguments),
    /// Change settings of running slices
    Tune(tune::Arguments),
    /// Write the key of one slice, for a companion that is not to know the secret.
    SliceKey(slice_key::Arguments),
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
    let level = std::env::var("TESSERA_LOG").ok().and_then(|level| level.parse().ok());
    tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(Level::INFO))
        .with_writer(log::writer)
        // It would print them, and panic where that fails.
        .log_internal_errors(false)
        .with_ansi(stderr().is_terminal())
        .with_target(false)
        .init();
    let result = match arguments.role {
        Role::Bootstrap(arguments) => bootstrap::run(arguments).map(Some),
        Role::Companion(arguments) => companion::run(&arguments).map(Some),
        Role::Trace(arguments) => trace::run(&arguments).map(|()| None),
        Role::Counters(arguments) => counters::run(&arguments).map(|()| None),
        Role::Tune(arguments) => tune::run(&arguments).map(|()| None),
        Role::SliceKey(arguments) => slice_key::run(&arguments).map(|()| None),
    };
    match result {
        Ok(Some(ending)) => finish(&ending),
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            // A name of a file, or a peer, may bring line breaks along.
            log::say(&joined(&format!("{error:#}")));
            let status = error.downcast_ref::<SliceError>().map(SliceError::status);
            ExitCode::from(status.unwrap_or(STATUS_REFUSED))
        }
    }
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
    log::say(line.strip_prefix("error: ").unwrap_or(&line));
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
