//! `tessera vm`: what a whole VM is asked, by its bootstrap slice.

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde_json::json;
use std::io::{Write, stdout};
use std::path::PathBuf;
use vmm::control::{Answer, Client, MoveVcpuRequest, PauseRequest, Request, ResumeRequest};

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Stop the guest on all slices at one moment. Its memory and devices stay where they are, and packets to it wait or
    /// are lost. The guest's clock goes on.
    Pause(Target),
    /// Have the guest go on after a pause.
    Resume(Target),
    /// Bring a vCPU to another slice, where it runs on. The guest runs meanwhile and notices nothing.
    Move(MoveArguments),
}

#[derive(Args, Debug)]
struct MoveArguments {
    /// Number of the vCPU
    vcpu: u32,
    /// Number of the slice that is to have it; 0 is the bootstrap slice
    slice: u16,
    #[command(flatten)]
    target: Target,
}

#[derive(Args, Debug)]
struct Target {
    /// Control socket of the bootstrap slice
    #[arg(long, value_name = "PATH")]
    control: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Asks, and prints how long it took.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let (target, request, done) = match &arguments.verb {
        Verb::Pause(target) => (target, Request::Pause(PauseRequest {}), "paused"),
        Verb::Resume(target) => (target, Request::Resume(ResumeRequest {}), "resumed"),
        Verb::Move(MoveArguments { vcpu, slice, target }) => {
            let request = MoveVcpuRequest { vcpu: *vcpu, slice: *slice };
            (target, Request::MoveVcpu(request), "moved")
        }
    };
    let answer = Client::connect(&target.control)?.ask(&request)?;
    let Answer::Done(answer) = answer else {
        anyhow::bail!("the slice answers something else: it is of another version");
    };
    let line = if target.json {
        json!({ done: true, "milliseconds": answer.milliseconds }).to_string()
    } else {
        format!("{done} after {:.1} ms", answer.milliseconds)
    };
    writeln!(stdout(), "{line}").context("print the answer")
}
