//! `./x packages`: the Debian package of the program, of its units and of what comes with them (`cli/Cargo.toml` lists the files).
//!
//! ```text
//!   cargo build --release --> tessera package-files: completions, manuals --> cargo-deb --> TARGET/packages/*.deb, its debug symbols beside it
//!                                                       --try--> installed, run and purged in a system of its own (cli/tests/packages)
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::tools::CARGO_DEB;
use crate::workspace;

/// Tells the tests of packages which one to try.
const PACKAGE: &str = "TESSERA_PACKAGE";

#[derive(Args, Debug)]
pub(crate) struct PackagesOptions {
    /// Also install it, run a VM by its units and purge it, in a system of its own on this host; as root
    #[arg(long = "try")]
    tried: bool,
}

pub(crate) fn run(options: &PackagesOptions) -> Result<ExitCode> {
    let root = workspace::root()?;
    let packages = workspace::target(&root).join("packages");
    let deb = CARGO_DEB.get(&root)?;
    workspace::run_cargo(&root, &["build", "--release", "--locked", "-p", "tessera"])?;
    let release = workspace::target(&root).join("release");
    let made = release.join("packaging");
    for old in [&packages, &made] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| format!("clear {}", old.display()))?;
        }
    }
    start(Process::new(release.join("tessera")).arg("package-files").arg(&made), &root)?;
    let mut build = Process::new(deb);
    build.args(["--no-build", "--locked", "--dbgsym", "-p", "tessera", "--output"]).arg(&packages);
    // The same sources make the same package.
    start(build.env("SOURCE_DATE_EPOCH", date_of_sources(&root)?), &root)?;
    let package = only_package(&packages)?;
    println!("packages: {}", package.display());
    start(Process::new("dpkg-deb").arg("--info").arg(&package), &root)?;
    if options.tried {
        let mut test = Process::new(workspace::cargo());
        test.args(["test", "--locked", "-p", "tessera", "--test", "packages"]);
        start(test.env(PACKAGE, &package).env("TESSERA_REQUIRE", "kvm,uffd"), &root)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Has a program do all of its work.
fn start(command: &mut Process, root: &Path) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.current_dir(root).stdin(Stdio::null()).status();
    let status = status.with_context(|| format!("start {program}"))?;
    ensure!(status.success(), "{program} ended with {status}");
    Ok(())
}

/// Seconds since 1970 at the last commit.
fn date_of_sources(root: &Path) -> Result<String> {
    let output = Process::new("git")
        .args(["log", "-1", "--format=%ct"])
        .current_dir(root)
        .stdin(Stdio::null())
        .output()
        .context("start git")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn only_package(folder: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            found.push(path);
        }
    }
    ensure!(found.len() == 1, "{} packages in {}", found.len(), folder.display());
    found.pop().context("no package")
}
