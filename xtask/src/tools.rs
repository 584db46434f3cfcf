//! Programs of others that verbs run. Each is built once, of one version, from the package registry.
//!
//! ```text
//!   TARGET/tools/NAME-VERSION/bin/NAME --is not there--> cargo install --locked --> is there
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

use anyhow::{Context, Result, bail};

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
    fn folder(self, root: &Path) -> PathBuf {
        let Self { name, version, .. } = self;
        workspace::target(root).join("tools").join(format!("{name}-{version}"))
    }

    /// The program, if it has been built.
    pub(crate) fn find(self, root: &Path) -> Option<PathBuf> {
        let program = self.folder(root).join("bin").join(self.name);
        program.exists().then_some(program)
    }

    /// The program, which is built first if it has not been.
    pub(crate) fn get(self, root: &Path) -> Result<PathBuf> {
        if let Some(program) = self.find(root) {
            return Ok(program);
        }
        let Self { name, version, profile } = self;
        let (tools, folder) = (workspace::target(root).join("tools"), self.folder(root));
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
        self.find(root).with_context(|| format!("{name} {version} has no program {name}"))
    }
}
