//! The files that slices write what they say to.
//!
//! ```text
//!   open: locked for sharing, for as long as a process has it open --> all of them have ended --> remove: locked for itself, and gone
//! ```
//! A slice's log has the same name in each of its lives, and the next life may begin while the log of the last one is removed. The lock
//! (flock(2)) is of the open file, so a slice that was started keeps it, whatever becomes of the agent.

use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A pipe that nobody reads is no log, and would hold the agent up.
const NONBLOCK: i32 = OFlags::NONBLOCK.bits().cast_signed();

/// Opens a log for a slice, at its end. It is not removed while this, or a copy of it in another process, is open.
///
/// # Errors
/// The file system refuses.
pub fn open(path: &Path) -> io::Result<File> {
    loop {
        let mut how = OpenOptions::new();
        how.create(true).append(true).mode(0o600);
        let log = open_file(&mut how, path)?;
        // Whoever removes it has it for a moment only.
        log.lock_shared()?;
        if is_at(&log, path)? {
            return Ok(log);
        }
    }
}

/// Removes a log unless a slice has it open. True if it is gone.
///
/// # Errors
/// The file system refuses.
pub fn remove(path: &Path) -> io::Result<bool> {
    let log = open_file(OpenOptions::new().write(true), path)?;
    match log.try_lock() {
        Ok(()) if is_at(&log, path)? => fs::remove_file(path).map(|()| true),
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// For reading too: NFS locks nothing for sharing that cannot be read, and nothing alone that cannot be written.
fn open_file(how: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let log = how.read(true).custom_flags(NONBLOCK).open(path)?;
    let is_file = log.metadata()?.is_file();
    if is_file { Ok(log) } else { Err(io::Error::other("it is no file")) }
}

/// Whether it still has this name. Only [`remove`] takes that away. The number of its names says nothing: on NFS a file that is open
/// gets another one when it is removed.
fn is_at(log: &File, path: &Path) -> io::Result<bool> {
    let named = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        named => named?,
    };
    let log = log.metadata()?;
    Ok((log.dev(), log.ino()) == (named.dev(), named.ino()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::Write;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    /// A folder that goes away.
    pub(crate) struct Folder(pub(crate) PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("tessera-agent-logs-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            fs::create_dir(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn log_stays_as_long_as_a_slice_has_it() {
        let folder = Folder::new("stays");
        let path = folder.0.join("log");
        let log = open(&path).unwrap();
        let (copy, second) = (log.try_clone().unwrap(), open(&path).unwrap());
        drop(log);
        assert!(!remove(&path).unwrap());
        drop(second);
        assert!(!remove(&path).unwrap());
        drop(copy);
        assert!(remove(&path).unwrap());
        assert!(!path.exists());
    }

    /// As NFS does it.
    #[test]
    fn log_that_got_another_name_when_it_was_removed_is_not_opened() {
        let folder = Folder::new("renamed");
        let (path, renamed) = (folder.0.join("log"), folder.0.join(".nfs1"));
        let removed = open(&path).unwrap();
        removed.unlock().unwrap();
        removed.lock().unwrap();
        thread::scope(|scope| {
            let opened = scope.spawn(|| open(&path).unwrap());
            // It waits for the lock by then, or opens the next one at once: both are right.
            thread::sleep(Duration::from_millis(100));
            fs::rename(&path, &renamed).unwrap();
            drop(removed);
            let ino = |found: fs::Metadata| found.ino();
            let opened = opened.join().unwrap();
            assert_eq!(ino(opened.metadata().unwrap()), ino(fs::metadata(&path).unwrap()));
        });
    }

    /// One life after another under the same name, while somebody removes what nobody has open.
    #[test]
    fn slice_that_begins_while_its_last_log_goes_has_one() {
        let folder = Folder::new("begins");
        let (path, over) = (folder.0.join("log"), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    if let Err(error) = remove(&path) {
                        assert_eq!(error.kind(), io::ErrorKind::NotFound);
                    }
                }
            });
            for life in 0..2000 {
                let mut log = open(&path).unwrap();
                writeln!(log, "life {life}").unwrap();
                let found = fs::read_to_string(&path).unwrap();
                assert!(found.ends_with(&format!("life {life}\n")), "{found:?}");
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
