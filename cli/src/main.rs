//! `tessera`: starts slices of a distributed virtual machine.
//!
//! Exit status: 0 the guest powered off, 2 refused before anything started, 3 the guest asked for
//! a reset, 4 the guest's kernel panicked, 5 a slice is lost, 6 a slice cannot go on, 7 time limit.
//! The environment variable `TESSERA_LOG` sets the log level (error, warn, info, debug, trace).

#![forbid(unsafe_code)]

mod bootstrap;
mod companion;
mod slices;

use clap::{Parser, Subcommand};
use std::io::{IsTerminal, stderr};
use std::process::ExitCode;
use tracing::Level;
use vmm::slice::{Ending, STATUS_REFUSED, SliceError};

/// One virtual machine out of fragments of several hosts.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Start a VM: plan it, bring its companions together, boot the guest.
    Bootstrap(bootstrap::Arguments),
    /// Give vCPUs and memory of this host to a VM that another host starts.
    Companion(companion::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let level = std::env::var("TESSERA_LOG").ok().and_then(|level| level.parse().ok());
    tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(Level::INFO))
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal())
        .with_target(false)
        .init();
    let result = match arguments.role {
        Role::Bootstrap(arguments) => bootstrap::run(arguments),
        Role::Companion(arguments) => companion::run(&arguments),
    };
    match result {
        Ok(ending) => finish(&ending),
        Err(error) => {
            eprintln!("tessera: {error:#}");
            let status = error.downcast_ref::<SliceError>().map(SliceError::status);
            ExitCode::from(status.unwrap_or(STATUS_REFUSED))
        }
    }
}

fn finish(ending: &Ending) -> ExitCode {
    eprintln!("tessera: {}", ending.describe());
    ExitCode::from(ending.status())
}
