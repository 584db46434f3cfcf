//! Files of slices on the host, and whether the files that requests name are where they may be.
//!
//! ```text
//!   STATE/run/VM-NUMBER-LIFE/   secret (0600, before the order is recorded), control and console (sockets), report
//!     made --order recorded--> in use --RemoveSlice, or a later life is here--> removed
//!       \--order refused, or the agent was killed: nobody knows of it--> removed at once, or when an agent begins
//! ```

use crate::order::{Files, Named};
use agent::decide::{Generation, Journal, SliceName, Vm};
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of the path of a UNIX socket, without the one that ends it.
const SOCKET_MAX: usize = 107;

/// One life of one slice.
type Of = (SliceName, Generation);

/// The folder of all of them.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    root: PathBuf,
}

impl Places {
    /// Below the agent's folder.
    ///
    /// # Errors
    /// It cannot be made, or sockets there would have too long a name.
    pub(crate) fn open(state: &Path) -> io::Result<Self> {
        let places = Self { root: state.join("run") };
        let longest = SliceName { vm: Vm(u128::MAX), number: u16::MAX };
        let longest = places.folder((longest, Generation(u64::MAX))).join("control");
        let over = longest.as_os_str().len().saturating_sub(SOCKET_MAX);
        if over > 0 {
            let text = format!("the folder's name is {over} bytes too long for sockets below it");
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, text));
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&places.root)?;
        Ok(places)
    }

    fn folder(&self, (slice, life): Of) -> PathBuf {
        self.root.join(format!("{}-{}-{}", slice.vm, slice.number, life.0))
    }

    /// Files of a slice. The name of the agent's folder is text, as has been looked at when it began.
    pub(crate) fn files(&self, of: Of) -> Files {
        let name = |file: &str| self.folder(of).join(file).to_string_lossy().into_owned();
        Files {
            secret: name("secret"),
            control: name("control"),
            console: name("console"),
            report: name("report"),
        }
    }

    pub(crate) fn control(&self, of: Of) -> PathBuf {
        self.folder(of).join("control")
    }

    /// Writes the secret, which is whole or is not there.
    pub(crate) fn keep_secret(&self, of: Of, secret: &[u8]) -> io::Result<()> {
        let folder = self.folder(of);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let mut random = [0; 8];
        getrandom(&mut random, GetRandomFlags::empty())?;
        let new = folder.join(format!("secret.{:016x}", u64::from_ne_bytes(random)));
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&new)?;
        file.write_all(secret)?;
        file.sync_all()?;
        fs::rename(&new, folder.join("secret"))?;
        File::open(&folder)?.sync_all()?;
        File::open(&self.root)?.sync_all()
    }

    /// Whether a slice has this secret. Of one whose file is gone nobody can say otherwise.
    pub(crate) fn has_secret(&self, of: Of, secret: &[u8]) -> io::Result<bool> {
        match fs::read(self.folder(of).join("secret")) {
            Ok(found) => Ok(found == secret),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Removes what no slice of the journal has. What cannot be removed is tried again later.
    pub(crate) fn sweep(&self, journal: &Journal) {
        let known =
            journal.slices.iter().map(|(name, slice)| self.folder((*name, slice.generation)));
        let known: BTreeSet<PathBuf> = known.collect();
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()).filter(|path| !known.contains(path)) {
            if let Err(error) = fs::remove_dir_all(&path) {
                tracing::warn!("{} cannot be removed: {error}", path.display());
            }
        }
    }
}

/// Whether a file that a request names is below its folder, also where symbolic links lead. That of a slice whose process opens it
/// later may have changed by then: only whoever may write below the folder can do that.
pub(crate) fn look(named: &Named) -> Result<(), String> {
    let of = |path: &str| fs::canonicalize(path).map_err(|error| format!("{path}: {error}"));
    let (folder, path) = (of(&named.folder)?, of(&named.path)?);
    if path.starts_with(&folder) && path != folder {
        Ok(())
    } else {
        Err(format!("{} leads out of {}", named.path, named.folder))
    }
}

#[cfg(test)]
mod tests;
