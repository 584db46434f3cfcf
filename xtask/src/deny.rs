//! Crates of others: their licences, where they come from, and which are not used (`deny.toml`), as cargo-deny judges them.
//!
//! Known flaws of crates (advisories) are in a database that is no package. They are looked at where somebody has put one, and nothing is
//! fetched.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

use anyhow::{Context, Result, bail};

use crate::tools::CARGO_DENY;

/// Building cargo-deny takes minutes: that is done if `build` says so, and else it is used if it is there.
pub(crate) fn check(root: &Path, build: bool) -> Result<()> {
    let found = CARGO_DENY.find(root).map_or_else(
        || if build { CARGO_DENY.get(root).map(Some) } else { Ok(None) },
        |program| Ok(Some(program)),
    );
    let Some(program) = found? else {
        println!(
            "  licences and sources of crates were not looked at; ./x check --full builds cargo-deny once"
        );
        return Ok(());
    };
    run(root, &program, &["check", "licenses", "bans", "sources"])?;
    let databases = databases();
    if databases.as_deref().is_none_or(is_empty) {
        let place = databases.unwrap_or_default();
        println!("  advisories were not looked at: no database in {}", place.display());
        return Ok(());
    }
    run(root, &program, &["check", "--disable-fetch", "advisories"])
}

/// Where cargo-deny keeps databases.
fn databases() -> Option<PathBuf> {
    let home = env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
    let home = env::var_os("CARGO_HOME").map(PathBuf::from).or(home);
    home.map(|home| home.join("advisory-dbs"))
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none())
}

fn run(root: &Path, program: &Path, words: &[&str]) -> Result<()> {
    let status = Process::new(program)
        .args(["--locked", "--log-level", "error"])
        .args(words)
        .args(["--hide-inclusion-graph", "--show-stats"])
        .current_dir(root)
        .stdin(Stdio::null())
        .status()
        .context("start cargo-deny")?;
    if status.success() {
        Ok(())
    } else {
        bail!("cargo-deny {} ended with {status}", words.join(" "))
    }
}
