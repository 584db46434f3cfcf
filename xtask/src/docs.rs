//! `./x docs`: writes the documents that are made from the code.

use std::fs;
use std::process::{Command as Process, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};

use crate::workspace;

const OPTIONS: &str = "docs/options.md";

/// Writes the page of options as `tessera` tells it. A test of `cli` compares the two.
pub(crate) fn run() -> Result<ExitCode> {
    let root = workspace::root()?;
    let output = Process::new(workspace::cargo())
        .args(["run", "-q", "--locked", "-p", "tessera", "--", "markdown-help"])
        .current_dir(&root)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("start cargo")?;
    ensure!(output.status.success(), "tessera markdown-help ended with {}", output.status);
    let path = root.join(OPTIONS);
    let same = fs::read(&path).is_ok_and(|page| page == output.stdout);
    if !same {
        fs::write(&path, output.stdout).with_context(|| format!("write {OPTIONS}"))?;
    }
    println!("docs: {OPTIONS} {}", if same { "is as it was" } else { "is written" });
    Ok(ExitCode::SUCCESS)
}
