//! The verbs of `./x`. Each verb is a module; this file only reads the command line.
#![forbid(unsafe_code)]

mod companion;
mod demo;
mod guest_console;
mod interrupt;
mod lab_verbs;
mod layout;
mod progress;
mod scenario;
mod soak;
mod soak_kill;
mod summary;
mod vm_options;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "x", about = "Build, check, test and try Tessera")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Hosts for tests: bring them up, run commands in them, end them
    Lab {
        #[command(subcommand)]
        verb: lab_verbs::LabVerb,
    },
    /// Boot a Debian kernel as one VM over several hosts and run its tests
    Demo(demo::DemoOptions),
    /// The same again and again
    Soak {
        #[command(subcommand)]
        verb: soak::SoakVerb,
    },
    /// Run by the lab inside its hosts
    #[command(hide = true)]
    LabAgent,
    /// Run by `lab up` in the background
    #[command(hide = true)]
    LabDaemon(lab_verbs::UpOptions),
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Lab { verb } => lab_verbs::run(verb),
        Verb::Demo(options) => demo::run(&options),
        Verb::Soak { verb } => soak::run(&verb),
        Verb::LabAgent => lab::agent::serve_port().map(|()| ExitCode::SUCCESS),
        Verb::LabDaemon(options) => lab_verbs::daemon(&options).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        eprintln!("x: {error:#}");
        ExitCode::FAILURE
    })
}
