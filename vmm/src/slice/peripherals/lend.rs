//! What the operator of a companion's host lends to VMs: of one kind, opened once, before any VM is there.
//!
//! The bootstrap names what it wants; the name only chooses among what is open. Who may change folders or
//! links of this host later changes nothing, and a disk is never taken for the file of a console.

use super::back_ends::OpenError;
use super::terminal::append_to;
use crate::slice::spec::ConsoleEnd;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// One thing that is lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lend {
    /// An image file or block device.
    Disk {
        /// Where it is.
        path: PathBuf,
        /// Whether VMs may write to it.
        writable: bool,
    },
    /// A tap interface.
    Tap {
        /// Its name.
        name: String,
    },
    /// The other end of a console.
    Console(ConsoleEnd),
}

impl fmt::Display for Lend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk { path, writable: true } => write!(f, "disk:rw:{}", path.display()),
            Self::Disk { path, writable: false } => write!(f, "disk:ro:{}", path.display()),
            Self::Tap { name } => write!(f, "tap:{name}"),
            Self::Console(ConsoleEnd::Stdio) => f.write_str("console:stdio"),
            Self::Console(ConsoleEnd::File { path }) => {
                write!(f, "console:file={}", path.display())
            }
            Self::Console(ConsoleEnd::Socket { path }) => {
                write!(f, "console:socket={}", path.display())
            }
        }
    }
}

/// What stands behind it.
#[derive(Debug)]
enum Behind {
    /// An image, or the file of a console.
    File(File),
    /// Number of an interface: another one of the same name has another.
    Interface(u32),
    /// Made when a VM uses it: standard input and output, a socket.
    Later,
}

/// All that is lent, open.
#[derive(Debug, Default)]
pub(crate) struct Lent(Vec<(Lend, Behind)>);

impl Lent {
    /// Opens all of it.
    ///
    /// # Errors
    /// Something is not there, is of another kind, or may not be opened so.
    pub(crate) fn open(lends: &[Lend]) -> Result<Self, OpenError> {
        let open = |lend: &Lend| {
            let behind = match lend {
                Lend::Disk { path, writable } => disk(path, *writable).map(Behind::File),
                Lend::Tap { name } => interface(name).map(Behind::Interface),
                Lend::Console(ConsoleEnd::File { path }) => {
                    return Ok((lend.clone(), Behind::File(append_to(path)?)));
                }
                Lend::Console(ConsoleEnd::Stdio | ConsoleEnd::Socket { .. }) => Ok(Behind::Later),
            };
            let failed = |source| OpenError::Lend { what: lend.to_string(), source };
            Ok((lend.clone(), behind.map_err(failed)?))
        };
        lends.iter().map(open).collect::<Result<_, _>>().map(Self)
    }

    fn find(&self, wanted: &Lend) -> Result<&Behind, OpenError> {
        let fits = |lend: &Lend| match (lend, wanted) {
            // Who may write may read.
            (Lend::Disk { path, writable: true }, Lend::Disk { path: wanted, .. }) => {
                path == wanted
            }
            (lend, wanted) => lend == wanted,
        };
        let found = self.0.iter().find(|(lend, _)| fits(lend));
        let refusal = || OpenError::NotLent { what: wanted.to_string() };
        found.map(|(_, behind)| behind).ok_or_else(refusal)
    }

    /// The path at which the very file that is open can be opened once more, as the VM needs it.
    pub(super) fn disk(&self, path: &Path, read_only: bool) -> Result<PathBuf, OpenError> {
        let wanted = Lend::Disk { path: path.to_owned(), writable: !read_only };
        Ok(match self.find(&wanted)? {
            Behind::File(file) => format!("/proc/self/fd/{}", file.as_raw_fd()).into(),
            Behind::Interface(_) | Behind::Later => path.to_owned(),
        })
    }

    /// Fine if the interface is lent and still the same.
    pub(super) fn tap(&self, name: &str) -> Result<(), OpenError> {
        let wanted = Lend::Tap { name: name.to_owned() };
        let failed = |source| OpenError::Lend { what: wanted.to_string(), source };
        match self.find(&wanted)? {
            Behind::Interface(number) if interface(name).map_err(failed)? != *number => {
                Err(failed(io::Error::other("it is another interface than at the start")))
            }
            _ => Ok(()),
        }
    }

    /// The file of a console, if it goes to one.
    pub(super) fn console(&self, end: &ConsoleEnd) -> Result<Option<File>, OpenError> {
        let wanted = Lend::Console(end.clone());
        let failed = |source| OpenError::Lend { what: wanted.to_string(), source };
        match self.find(&wanted)? {
            Behind::File(file) => file.try_clone().map(Some).map_err(failed),
            Behind::Interface(_) | Behind::Later => Ok(None),
        }
    }
}

/// Opens an image. A FIFO or a device of another kind must not block or start anything.
fn disk(path: &Path, writable: bool) -> io::Result<File> {
    let mut options = File::options();
    let file = options.read(true).write(writable).custom_flags(libc::O_NONBLOCK).open(path)?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() || kind.is_block_device() {
        Ok(file)
    } else {
        Err(io::Error::other("it is neither a file nor a block device"))
    }
}

/// The number of an interface that is a tap.
fn interface(name: &str) -> io::Result<u32> {
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let folder = Path::new("/sys/class/net").join(name);
    let number = fs::read_to_string(folder.join("ifindex"))?;
    if !folder.join("tun_flags").exists() {
        return Err(io::Error::other("it is no tap interface"));
    }
    number.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::fs::symlink;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("tessera-lend-{}-{name}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn file(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, text).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn refused(result: Result<impl fmt::Debug, OpenError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn kind_and_mode_must_fit() {
        let folder = Folder::new("kinds");
        let [ro, rw, log] = ["ro", "rw", "log"].map(|name| folder.file(name, name));
        let lends = [
            Lend::Disk { path: ro.clone(), writable: false },
            Lend::Disk { path: rw.clone(), writable: true },
            Lend::Console(ConsoleEnd::File { path: log.clone() }),
        ];
        let lent = Lent::open(&lends).unwrap();
        let console = |path: &PathBuf| lent.console(&ConsoleEnd::File { path: path.clone() });

        assert!(lent.disk(&ro, true).is_ok() && lent.disk(&rw, true).is_ok());
        assert!(lent.disk(&rw, false).is_ok() && console(&log).unwrap().is_some());
        let not = |how: &str, path: &Path| {
            let path = path.display();
            format!(
                "{how}{path} is not lent to VMs here; start the companion with --lend {how}{path}"
            )
        };
        assert_eq!(refused(lent.disk(&ro, false)), not("disk:rw:", &ro));
        assert_eq!(refused(lent.disk(&log, true)), not("disk:ro:", &log));
        // The disk would be added to.
        assert_eq!(refused(console(&rw)), not("console:file=", &rw));
        assert_eq!(refused(lent.tap("rw")), not("tap:", Path::new("rw")));
        assert!(lent.console(&ConsoleEnd::Stdio).is_err());
        assert!(lent.console(&ConsoleEnd::Socket { path: log }).is_err());
    }

    #[test]
    fn what_is_lent_is_what_was_there_at_the_start() {
        let folder = Folder::new("names");
        let (path, other) = (folder.file("disk", "lent"), folder.file("other", "not lent"));
        let lent = Lent::open(&[Lend::Disk { path: path.clone(), writable: true }]).unwrap();

        fs::remove_file(&path).unwrap();
        symlink(&other, &path).unwrap();
        let again = lent.disk(&path, false).unwrap();

        let mut file = File::options().read(true).write(true).open(again).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        file.write_all(b"!").unwrap();
        assert_eq!(
            (text.as_str(), fs::read_to_string(&other).unwrap().as_str()),
            ("lent", "not lent")
        );
    }

    #[test]
    fn what_cannot_be_lent_is_refused_at_the_start() {
        let folder = Folder::new("refused");
        let disk =
            |path: &Path| Lent::open(&[Lend::Disk { path: path.to_owned(), writable: false }]);
        let tap = |name: &str| Lent::open(&[Lend::Tap { name: name.to_owned() }]);
        let file =
            |path: &Path| Lent::open(&[Lend::Console(ConsoleEnd::File { path: path.to_owned() })]);

        assert!(disk(&folder.0.join("none")).is_err());
        assert!(disk(&folder.0).is_err() && disk(Path::new("/dev/null")).is_err());
        assert!(file(Path::new("/dev/null")).is_err() && file(&folder.0).is_err());
        assert!(tap("lo").is_err() && tap("../lo").is_err() && tap("").is_err());
    }
}
