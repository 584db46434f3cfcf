//! Where the lab keeps what it downloads and what it runs.
//!
//! ```text
//! ${TESSERA_CACHE:-$HOME/.cache/tessera}/lab/
//!   apt/           private apt state (lists, archives)
//!   packages/      unpacked packages: qemu/, kernel-host/, kernel-guest/
//!   guest-kernels/ kernels of guests that were built here, and their sources
//!   images/        initramfs images, by the hash of their content
//!   run/NAME/      one lab: state, logs, sockets, job folders
//! ```

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::time::Duration;
use std::{env, io};

use anyhow::{Context, Result, bail};

/// Longest path of a unix socket (`sun_path`), with its end.
const SOCKET_PATH: usize = 107;

/// The lab's part of the cache. It is created.
///
/// # Errors
/// When neither `TESSERA_CACHE` nor `HOME` is set or the folder cannot be made.
pub fn root() -> Result<PathBuf> {
    let base = match env::var_os("TESSERA_CACHE") {
        Some(folder) => PathBuf::from(folder),
        None => {
            PathBuf::from(env::var_os("HOME").context("neither TESSERA_CACHE nor HOME is set")?)
                .join(".cache/tessera")
        }
    };
    let root = std::path::absolute(base.join("lab")).context("make the cache folder absolute")?;
    fs::create_dir_all(&root).with_context(|| format!("create {}", root.display()))?;
    Ok(root)
}

/// The folder of a lab by its name. It is not created.
///
/// # Errors
/// When the name is no plain word, or the path is too long for the sockets in it.
pub fn run_folder(name: &str) -> Result<PathBuf> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > 20 || !name.chars().all(plain) {
        bail!("lab name '{name}': use 1 to 20 letters, digits, - or _");
    }
    let folder = root()?.join("run").join(name);
    let longest = folder.join("host-99-switch.sock");
    if longest.as_os_str().len() > SOCKET_PATH {
        bail!(
            "{} is too long for unix sockets; set TESSERA_CACHE to a shorter folder",
            folder.display()
        );
    }
    Ok(folder)
}

/// Takes a lock file for this process; waits for another process that has it.
pub(crate) fn lock(path: &Path) -> Result<File> {
    lock_after(path, || {})
}

/// The same, and `waits` hears if another process has it.
pub(crate) fn lock_after(path: &Path, waits: impl FnOnce()) -> Result<File> {
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    if file.try_lock().is_ok() {
        return Ok(file);
    }
    waits();
    file.lock().with_context(|| format!("lock {}", path.display()))?;
    Ok(file)
}

/// Writes a file so that a reader sees the old or the new content, never a part.
pub(crate) fn write_atomically(path: &Path, content: &[u8]) -> Result<()> {
    let temporary = path.with_extension(format!("new-{}", std::process::id()));
    fs::write(&temporary, content).with_context(|| format!("write {}", temporary.display()))?;
    fs::rename(&temporary, path).with_context(|| format!("put {} in place", path.display()))
}

/// Removes a folder and everything in it, if it is there.
pub(crate) fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Runs a program of the machine with a time limit and returns its standard output.
///
/// The limit is kept by `timeout` of coreutils, which also ends the program's children.
pub(crate) fn run(program: &str, arguments: &[&str], limit: Duration) -> Result<Vec<u8>> {
    let line = format!("{program} {}", arguments.join(" "));
    let output = Process::new("timeout")
        .args(["-k", "5", &limit.as_secs().max(1).to_string(), program])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start `{line}`"))?;
    if output.status.code() == Some(124) {
        bail!("`{line}` did not end within {limit:?}");
    }
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}` ended with {}: {}", output.status, said.trim());
    }
    Ok(output.stdout)
}

/// Keeps an image under a name made from its content and returns its path.
pub(crate) fn keep_image(kind: &str, content: &[u8]) -> Result<PathBuf> {
    let folder = root()?.join("images");
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    let path = folder.join(format!("{kind}-{:016x}", hasher.finish()));
    if !path.exists() {
        write_atomically(&path, content)?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_of_failing_program_tells_what_it_said() {
        let error = run("sh", &["-c", "echo spoilt >&2; exit 3"], Duration::from_secs(20));

        assert!(error.unwrap_err().to_string().contains("spoilt"));
    }

    #[test]
    fn run_folder_of_name_with_slash_is_refused() {
        assert!(run_folder("../other").is_err());
    }
}
