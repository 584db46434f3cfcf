//! `./x check`: everything that is judged without running the project.

use std::path::Path;
use std::process::{Command as Process, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use lab::kernel_build;
use scenarios::workspace::run_cargo as cargo;

use crate::{arrows, book, circles, deny, links, named_files, names, tidy, workspace};

#[derive(Args, Debug)]
pub(crate) struct CheckOptions {
    /// Also the larger sizes of the protocol's models, 20,000 seeds of the simulator of whole engines, the patches of guests' kernels,
    /// and licences of crates, for which cargo-deny is built once
    #[arg(long)]
    full: bool,
}

/// Runs all checks, also after one failed, and names those that did.
pub(crate) fn run(options: &CheckOptions) -> Result<ExitCode> {
    let root = workspace::root()?;
    let clippy =
        ["clippy", "-q", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    let format = || cargo(&root, &["fmt", "--all", "--check"]);
    let rules = || report(&tidy::findings(&root)?);
    let arrows = || report(&arrows::findings(&root)?);
    let circles = || report(&circles::findings(&root, &arrows::sources(&root)?)?);
    let links = || report(&links::findings(&root, &tidy::files(&root)?)?);
    let book = || report(&book::findings(&root, &tidy::files(&root)?)?);
    let named_files = || report(&named_files::findings(&root, &tidy::files(&root)?)?);
    let names = || report(&names::findings(&root, &tidy::files(&root)?)?);
    let clippy = || cargo(&root, &clippy);
    let transport =
        ["clippy", "-q", "--locked", "-p", "tessera-transport", "--no-default-features"];
    let without_rdma = || cargo(&root, &[&transport[..], &["--", "-D", "warnings"]].concat());
    let crates = || deny::check(&root, options.full);
    let models = || models(&root);
    let patches = || kernel_build::check(&root, &|line| println!("  {line}"));
    let mut checks: Vec<(&str, &dyn Fn() -> Result<()>)> = vec![
        ("format", &format),
        ("tidy rules", &rules),
        ("dependency arrows", &arrows),
        ("no circle of modules", &circles),
        ("links of documents", &links),
        ("contents of the book", &book),
        ("files that documents name", &named_files),
        ("words that are not used", &names),
        ("clippy, warnings denied", &clippy),
        ("transport without RDMA", &without_rdma),
        ("crates of others", &crates),
    ];
    if options.full {
        checks.push(("patches of guests' kernels", &patches));
        checks.push(("full models", &models));
    }
    let mut failed = Vec::new();
    for (name, check) in checks {
        match check() {
            Ok(()) => println!("check: {name}: ok"),
            Err(error) => {
                println!("check: {name}: FAILED: {error:#}");
                failed.push(name);
            }
        }
    }
    if failed.is_empty() {
        println!("check: all passed");
        return Ok(ExitCode::SUCCESS);
    }
    println!("check: failed: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

fn report(findings: &[String]) -> Result<()> {
    for finding in findings {
        println!("  {finding}");
    }
    if findings.is_empty() { Ok(()) } else { bail!("{} findings", findings.len()) }
}

/// Packages with models that are larger when all is wanted, and their tests.
const MODELS: [(&str, &[&str]); 3] = [
    ("tessera-dsm-sim", &["home_moves", "joining", "ordinary", "replicas"]),
    ("tessera-migrate-sim", &["checkpoint", "cut", "handover", "supervise"]),
    ("tessera-orchestrator", &["invariants"]),
];

/// Every interleaving of the larger models too, one after the other: each takes all processors. Then many seeds of whole
/// engines over a fake kernel.
fn models(root: &Path) -> Result<()> {
    let status = Process::new(workspace::cargo())
        .args(["test", "--locked", "--no-fail-fast"])
        .args(MODELS.iter().flat_map(|(package, tests)| {
            let tests = tests.iter().flat_map(|test| ["--test", test]);
            ["-p", package].into_iter().chain(tests)
        }))
        .args(["--", "--nocapture", "--test-threads=1"])
        .env("TESSERA_MODELS", "full")
        .current_dir(root)
        .stdin(Stdio::null())
        .status()
        .context("start cargo")?;
    if !status.success() {
        bail!("the models ended with {status}");
    }
    cargo(
        root,
        &[
            "run",
            "--release",
            "--locked",
            "-p",
            "tessera-dsm-sim",
            "--",
            "--mapping",
            "--runs",
            "20000",
        ],
    )
}
