//! `./x lab rdma`: the transport's conformance tests over soft-RoCE, pages of two memory engines, and
//! trouble between two hosts (`lab_links`).
//!
//! The kernel of a development machine seldom has soft-RoCE, a lab host always can. The test programs are
//! built here and run there, with the word that turns what would be skipped into a failure.

use std::process::{Command as Process, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use lab::{Command, Config, Host, Lab, Mode};
use needs::Need;
use serde_json::Value;

use crate::links::trouble;
use crate::workspace;

/// Most seconds the tests may take.
const LIMIT: Duration = Duration::from_secs(900);

/// What `./x lab rdma` takes.
#[derive(Args, Debug)]
pub struct RdmaOptions {
    /// Name of the lab
    #[arg(long, default_value = "rdma")]
    name: String,
    /// Use these test programs instead of building them
    #[arg(long = "program")]
    programs: Vec<String>,
    /// Only the test programs: no trouble between two hosts
    #[arg(long)]
    no_links: bool,
    /// Words for the test program
    #[arg(last = true)]
    words: Vec<String>,
}

/// Runs the tests in a host, then the cases of trouble between two.
///
/// # Errors
/// A lab with soft-RoCE cannot be had; a test that fails is no error.
pub fn run(options: &RdmaOptions) -> Result<ExitCode> {
    let programs = match options.programs.as_slice() {
        [] => build()?,
        given => given.to_vec(),
    };
    let config = Config {
        name: options.name.clone(),
        hosts: 2,
        mode: Mode::Machines,
        rdma: true,
        ..Config::default()
    };
    let lab = Lab::up(&config, &|line| println!("x: {line}"))?;
    let host = lab.hosts().next().context("a host")?;
    let mut good = true;
    for (number, program) in programs.iter().enumerate() {
        // The tests run from a copy, so that a build meanwhile does not pull it away under them.
        let name = format!("tests-{number}");
        let copy = host.job()?.join(&name);
        std::fs::copy(program, &copy).with_context(|| format!("copy {program}"))?;
        let path = host.job_inside()?.join(&name).to_string_lossy().into_owned();
        let plain = [path.as_str(), "rdma", "--test-threads=1"];
        good &= test(&host, &plain, &options.words)?;
        // Without the right to lock memory as it likes; the program without such a test passes.
        let words = "prlimit --memlock=65536 setpriv --bounding-set=-ipc_lock";
        let bound: Vec<_> =
            words.split(' ').chain([path.as_str(), "--ignored", "refused_registration"]).collect();
        good &= test(&host, &bound, &[])?;
    }
    if !options.no_links {
        good &= trouble::check(&lab)?;
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a test program in the host and prints what it prints; true when all passed.
fn test(host: &Host<'_>, words: &[&str], more: &[String]) -> Result<bool> {
    let words = words.iter().map(|word| (*word).to_owned()).chain(more.iter().cloned());
    let command = Command {
        environment: vec![(needs::REQUIRE.to_owned(), Need::Rdma.word().to_owned())],
        ..Command::new(words.collect::<Vec<_>>())
    };
    println!("x: {command}");
    let (status, lines) = host.run(&command, LIMIT)?;
    for line in lines {
        println!("{}", line.text);
    }
    Ok(status.success())
}

/// Builds the tests and returns the programs, as cargo names them.
fn build() -> Result<Vec<String>> {
    println!("x: building the transport's tests");
    let arguments =
        "test -p tessera-transport -p tessera-dsm --lib --test conformance --test engine --no-run --locked"
            .split(' ');
    let output = Process::new(workspace::cargo())
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .current_dir(workspace::root()?)
        .stderr(Stdio::inherit())
        .output()
        .context("start cargo")?;
    if !output.status.success() {
        bail!("the conformance tests do not build");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let programs = text.lines().filter_map(|line| {
        let value: Value = serde_json::from_str(line).ok()?;
        value.get("executable")?.as_str().map(str::to_owned)
    });
    let programs: Vec<String> = programs.collect();
    ensure!(!programs.is_empty(), "cargo named no test program");
    Ok(programs)
}
