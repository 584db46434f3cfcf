//! `./x check`: everything that is judged without running the project.

use std::path::Path;
use std::process::{Command as Process, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

use crate::{arrows, tidy, workspace};

/// Runs all checks, also after one failed, and names those that did.
pub(crate) fn run() -> Result<ExitCode> {
    let root = workspace::root()?;
    let clippy =
        ["clippy", "-q", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    let checks: [(&str, &dyn Fn() -> Result<()>); 4] = [
        ("format", &|| cargo(&root, &["fmt", "--all", "--check"])),
        ("tidy rules", &|| report(&tidy::findings(&root)?)),
        ("dependency arrows", &|| report(&arrows::findings(&root)?)),
        ("clippy, warnings denied", &|| cargo(&root, &clippy)),
    ];
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

/// Runs cargo in the tree with its output going where ours goes.
pub(crate) fn cargo(root: &Path, arguments: &[&str]) -> Result<()> {
    let status = Process::new(workspace::cargo())
        .args(arguments)
        .current_dir(root)
        .stdin(Stdio::null())
        .status()
        .context("start cargo")?;
    if status.success() { Ok(()) } else { bail!("cargo {} ended with {status}", arguments[0]) }
}
