//! `./x bench NAME`: an experiment on this machine's KVM; without a name, the benchmarks of cargo.
//!
//! The microguest has a profile of its own (no unwinding) and the experiments are a program of their
//! own: they start processes and must begin with one thread.

use std::process::{Command as Process, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::{arrows, check, workspace};

#[derive(Args, Clone, Debug)]
pub(crate) struct BenchOptions {
    /// An experiment: faults, sharing, writes, scan, solo, npb; all benchmarks of cargo if not given
    name: Option<String>,
    /// Fewer rounds: for a look, not for a claim
    #[arg(long)]
    quick: bool,
    /// Arguments for `cargo bench`
    #[arg(last = true)]
    rest: Vec<String>,
}

pub(crate) fn run(options: &BenchOptions) -> Result<ExitCode> {
    let root = workspace::root()?;
    let Some(name) = &options.name else {
        ensure!(arrows::has_benchmarks(&root)?, "the workspace has no benchmark yet");
        return workspace::run_cargo("bench", &options.rest);
    };
    eprintln!("building the microguest and the experiments");
    let guest = ["-p", "tessera-microguest", "--features", "guest", "--profile", "guest"];
    check::cargo(&root, &[&["build", "-q", "--locked"], &guest[..]].concat())
        .context("build the microguest")?;
    check::cargo(&root, &["build", "-q", "--locked", "--release", "-p", "tessera-benches"])
        .context("build the experiments")?;
    let target = workspace::target(&root);
    let mut program = Process::new(target.join("release/tessera-bench"));
    program.arg(name).arg("--image").arg(target.join("guest/microguest"));
    program.arg("--out").arg(target.join("bench"));
    if options.quick {
        program.arg("--quick");
    }
    let status = program.status().context("start the experiment")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
