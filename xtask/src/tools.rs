//! Programs of others that verbs run. Each is built once, of one version, from the package registry.
//!
//! ```text
//!   TARGET/tools/NAME-VERSION/bin/NAME --is not there--> cargo install --locked --> is there
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::workspace;

/// A program, and the version that is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool {
    name: &'static str,
    version: &'static str,
    /// That of cargo: what runs for moments is built fast.
    profile: &'static str,
}

/// Makes Debian packages.
pub(crate) const CARGO_DEB: Tool = Tool { name: "cargo-deb", version: "3.8.0", profile: "release" };
/// Judges licences and sources of crates.
pub(crate) const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2", profile: "dev" };

impl Tool {
    /// The program, which is built first if it has not been.
    pub(crate) fn get(self, root: &Path) -> Result<PathBuf> {
        let Self { name, version, profile } = self;
        let tools = workspace::target(root).join("tools");
        let folder = tools.join(format!("{name}-{version}"));
        let program = folder.join("bin").join(name);
        if program.exists() {
            return Ok(program);
        }
        println!("x: building {name} {version}, once");
        let build = tools.join("build");
        let status = Process::new(workspace::cargo())
            .args(["install", "-q", "--locked", "--no-track", "--profile", profile])
            .args(["--version", version, name, "--root"])
            .arg(&folder)
            .arg("--target-dir")
            .arg(&build)
            .current_dir(root)
            .stdin(Stdio::null())
            .status()
            .context("start cargo")?;
        if !status.success() {
            bail!("cargo install {name} ended with {status}");
        }
        // Nobody needs what it was made of.
        fs::remove_dir_all(&build).with_context(|| format!("remove {}", build.display()))?;
        ensure!(program.exists(), "{name} {version} has no program {}", program.display());
        Ok(program)
    }
}
