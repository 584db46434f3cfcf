//! The guest's mapping: which page of the memory file a vCPU reaches, and with which access.
//!
//! KVM and the vCPUs go through the page tables of this process. userfaultfd stops whoever touches a page that is not
//! mapped there, or stores to one that is write-protected, until the engine has seen to it.
//!
//! ```text
//!              touched: event "missing" or "minor"            stored to: event "write-protected"
//!                    |                                              |
//!   not mapped --UFFDIO_CONTINUE, wp--> mapped, write-protected --UFFDIO_WRITEPROTECT off--> mapped
//!      ^  ^                                  |          ^                                      |
//!      |  +-------- MADV_DONTNEED -----------+          +----- UFFDIO_WRITEPROTECT on ---------+
//!      +----------------------------------- MADV_DONTNEED -------------------------------------+
//! ```
//!
//! [`GuestMapping`] and [`Userfaultfd`] are all that is asked of the kernel for it. Linux stands behind them in a VM
//! (`span`, `linux`), and in the simulator a kernel of state machines (`fake`) that refuses what Linux refuses.
//! `conformance` runs the same calls against both. What the callers do about a refusal is in `uffd`.

#[cfg(test)]
mod conformance;
#[cfg(any(test, feature = "simulate"))]
pub(crate) mod fake;
mod linux;
mod span;
mod uffd;

pub(crate) use linux::LinuxUserfaultfd;
pub(crate) use span::{HUGE, Span};
pub(crate) use uffd::{Installed, Uffd};
pub use uffd::{UffdError, check_host};

use std::fmt::Debug;
use std::fs::File;
use std::io::Error;
use std::os::fd::RawFd;

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// Modes of `UFFDIO_REGISTER`: touches of absent pages, stores to protected pages, and touches of pages that the file has
/// and that are not mapped.
pub(crate) const MODE_MISSING: u64 = 1;
pub(crate) const MODE_WP: u64 = 2;
pub(crate) const MODE_MINOR: u64 = 4;

/// Which faults a range reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// All: the range is home elsewhere.
    Everything,
    /// Minor faults and writes to protected pages; pages never touched appear by themselves. For
    /// ranges whose home is this slice.
    GivenAway,
    /// Writes to protected pages only.
    Writes,
    /// Touches of pages that are not there, in private anonymous memory.
    Absent,
    /// The same on hugetlbfs, where the file has a page or not.
    HugeAbsent,
}

impl Watch {
    /// Modes of `UFFDIO_REGISTER`.
    pub(crate) fn modes(self) -> u64 {
        match self {
            Self::Everything => MODE_MISSING | MODE_WP | MODE_MINOR,
            Self::GivenAway => MODE_WP | MODE_MINOR,
            Self::Writes => MODE_WP,
            Self::Absent => MODE_MISSING,
            Self::HugeAbsent => MODE_MISSING | MODE_MINOR,
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

/// Addresses where the guest's memory is mapped, aligned to [`HUGE`]. Offsets and lengths are bytes, whole pages.
/// Errors are those of the system calls.
pub(crate) trait GuestMapping: Debug + Send + Sync {
    /// First address.
    fn start(&self) -> usize;
    /// A userfaultfd that can watch this mapping.
    fn userfaultfd(&self) -> Result<Uffd, UffdError>;
    /// Maps a part of a file, of which the offset is that in the mapping, in place of what is there (`mmap`).
    fn map_file(&self, offset: usize, bytes: usize, file: &File) -> Result<(), Error>;
    /// The same of a file of huge pages, with memory set aside: touching it cannot fail later.
    fn map_reserved(&self, offset: usize, bytes: usize, file: &File) -> Result<(), Error>;
    /// Maps private memory that is all zeros (`mmap`).
    fn map_anonymous(&self, offset: usize, bytes: usize) -> Result<(), Error>;
    /// Tells the kernel about a part (`madvise`).
    fn advise(&self, offset: usize, bytes: usize, advice: libc::c_int) -> Result<(), Error>;
    /// Permits or forbids stores to a part (`mprotect`).
    fn set_writable(&self, offset: usize, bytes: usize, on: bool) -> Result<(), Error>;
    /// Which pages of a part are there (`mincore`): a byte for each, of which the lowest bit tells.
    fn residency(&self, offset: usize, pages: &mut [u8]) -> Result<(), Error>;
    /// Moves private pages, all at once, to the start of other addresses (`mremap` with `MREMAP_DONTUNMAP`). What is
    /// left behind is absent, and userfaultfd still watches it if it did.
    fn move_pages(&self, offset: usize, bytes: usize, to: &Span) -> Result<(), Error>;
}

/// The requests of a userfaultfd (`ioctl_userfaultfd(2)`). Addresses and lengths are bytes, whole pages; errors are
/// those of the requests.
pub(crate) trait Userfaultfd: Debug + Send + Sync {
    /// `UFFDIO_REGISTER`, with modes as of [`Watch::modes`].
    fn register(&self, start: u64, len: u64, modes: u64) -> Result<(), Error>;
    /// `UFFDIO_UNREGISTER`.
    fn unregister(&self, start: u64, len: u64) -> Result<(), Error>;
    /// `UFFDIO_WAKE`.
    fn wake(&self, start: u64, len: u64) -> Result<(), Error>;
    /// `UFFDIO_CONTINUE`, write-protected if asked for. With the error comes the field `mapped`: bytes that are mapped
    /// all the same, or less than 0.
    fn map_present(&self, start: u64, len: u64, wp: bool) -> Result<(), (Error, i64)>;
    /// `UFFDIO_WRITEPROTECT`.
    fn write_protect(&self, start: u64, len: u64, on: bool) -> Result<(), Error>;
    /// Reads waiting faults that were not read before.
    fn read(&self, sink: &mut Vec<Fault>) -> Result<(), Error>;
    /// Readable when there are faults.
    fn descriptor(&self) -> RawFd;
}
