//! Where the tree and cargo are.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

use anyhow::{Context, Result, bail};

/// Root of the workspace: the folder above with a lock file. Cargo says at run time where the crate of the program is; a
/// copy of the program that is run without cargo looks where it was built.
///
/// # Errors
/// No folder above has a lock file.
pub fn root() -> Result<PathBuf> {
    let own = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let root = own.ancestors().skip(1).find(|folder| folder.join("Cargo.lock").exists());
    root.map(Path::to_owned)
        .with_context(|| format!("no folder above {} has a Cargo.lock", own.display()))
}

/// The cargo that runs this program, or the one on the path.
#[must_use]
pub fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Folder cargo builds into.
#[must_use]
pub fn target(root: &Path) -> PathBuf {
    root.join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Runs cargo in the tree with its output going where ours goes.
///
/// # Errors
/// It cannot be started, or it fails.
pub fn run_cargo(root: &Path, arguments: &[&str]) -> Result<()> {
    let status = Process::new(cargo())
        .args(arguments)
        .current_dir(root)
        .stdin(Stdio::null())
        .status()
        .context("start cargo")?;
    if status.success() { Ok(()) } else { bail!("cargo {} ended with {status}", arguments[0]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_the_folder_of_the_workspace() {
        let manifest = std::fs::read_to_string(root().unwrap().join("Cargo.toml")).unwrap();

        assert!(manifest.starts_with("[workspace]"));
    }
}
