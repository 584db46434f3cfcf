//! What is asked of a userfaultfd: which faults to report, and what to do with pages.

use std::fmt::Debug;
use std::io::Error;
use std::os::fd::RawFd;

/// Modes of `UFFDIO_REGISTER`: touches of absent pages, stores to protected pages, and touches of pages that the file has
/// and that are not mapped.
pub(crate) const MODE_MISSING: u64 = 1;
pub(crate) const MODE_WP: u64 = 2;
pub(crate) const MODE_MINOR: u64 = 4;

/// Which faults a range reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultWatch {
    /// All: the range is home elsewhere.
    Everything,
    /// Minor faults and writes to protected pages; pages never touched appear by themselves. For
    /// ranges whose home is this slice.
    GivenAway,
    /// Writes to protected pages only.
    Writes,
    /// Touches of pages that are not there, in private anonymous memory.
    Absent,
    /// The same in memory of a file, of huge pages or not: touches of pages that are not mapped, whether the file has them or not.
    AbsentInFile,
}

impl FaultWatch {
    /// Modes of `UFFDIO_REGISTER`.
    pub(crate) fn modes(self) -> u64 {
        match self {
            Self::Everything => MODE_MISSING | MODE_WP | MODE_MINOR,
            Self::GivenAway => MODE_WP | MODE_MINOR,
            Self::Writes => MODE_WP,
            Self::Absent => MODE_MISSING,
            Self::AbsentInFile => MODE_MISSING | MODE_MINOR,
        }
    }
}

/// A page fault that a thread waits on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) address: u64,
    pub(crate) write: bool,
    /// The thread that waits, as its own process counts.
    pub(crate) thread: u32,
}

/// The requests of a userfaultfd (`ioctl_userfaultfd(2)`). Addresses and lengths are bytes, whole pages; errors are
/// those of the requests.
pub(crate) trait Userfaultfd: Debug + Send + Sync {
    /// `UFFDIO_REGISTER`, with modes as of [`FaultWatch::modes`].
    fn register(&self, start: u64, len: u64, modes: u64) -> Result<(), Error>;
    /// `UFFDIO_UNREGISTER`.
    fn unregister(&self, start: u64, len: u64) -> Result<(), Error>;
    /// `UFFDIO_WAKE`.
    fn wake(&self, start: u64, len: u64) -> Result<(), Error>;
    /// `UFFDIO_CONTINUE`, write-protected if asked for. With the error comes the field `mapped`: bytes that are mapped
    /// all the same, or less than 0.
    fn map_present(&self, start: u64, len: u64, wp: bool) -> Result<(), (Error, i64)>;
    /// `UFFDIO_COPY`: maps new pages with these contents. With the error comes the field `copy`: bytes that are there all the same,
    /// or less than 0.
    fn copy(&self, start: u64, from: &[u8]) -> Result<(), (Error, i64)>;
    /// `UFFDIO_WRITEPROTECT`.
    fn write_protect(&self, start: u64, len: u64, on: bool) -> Result<(), Error>;
    /// Reads waiting faults that were not read before.
    fn read(&self, sink: &mut Vec<Fault>) -> Result<(), Error>;
    /// Readable when there are faults.
    fn descriptor(&self) -> RawFd;
}
