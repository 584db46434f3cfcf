//! userfaultfd: the few calls that the engine needs, by hand.
//!
//! The published bindings need libclang at build time and lack what newer kernels offer. Structures
//! and numbers are those of `linux/userfaultfd.h` (Linux 6.4 and later on shared memory files).
#![expect(unsafe_code, reason = "ioctl, syscall and read on the userfaultfd")]
// UNSAFETY: the kernel interface is a file descriptor with ioctls on structures of our own.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, RawFd};
use thiserror::Error;
use vmm_sys_util::ioctl::{ioctl_with_mut_ref, ioctl_with_ref, ioctl_with_val};
use vmm_sys_util::{ioctl_io_nr, ioctl_ior_nr, ioctl_iowr_nr};

const API: u64 = 0xaa;
const PAGE: u64 = 4096;
const FEATURES: u64 =
    FEATURE_WP | FEATURE_MISSING_SHMEM | FEATURE_THREAD_ID | FEATURE_MINOR_SHMEM | FEATURE_WP_SHMEM;
/// For memory on hugetlbfs only; older than the others.
const FEATURES_HUGETLBFS: u64 = 1 << 4 | 1 << 9;
const FEATURE_WP: u64 = 1 << 0;
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const FEATURE_THREAD_ID: u64 = 1 << 8;
const FEATURE_MINOR_SHMEM: u64 = 1 << 10;
const FEATURE_WP_SHMEM: u64 = 1 << 12;
const EVENT_PAGEFAULT: u8 = 0x12;
const FAULT_WRITE: u64 = 1;
const FAULT_WP: u64 = 2;
const MODE_CONTINUE_WP: u64 = 2;
const MODE_PROTECT: u64 = 1;

#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct UffdioRange {
    start: u64,
    len: u64,
}

#[repr(C)]
struct UffdioRegister {
    range: UffdioRange,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdioContinue {
    range: UffdioRange,
    mode: u64,
    mapped: i64,
}

#[repr(C)]
struct UffdioWriteprotect {
    range: UffdioRange,
    mode: u64,
}

/// `struct uffd_msg`, for page faults.
#[repr(C)]
#[derive(Clone, Copy)]
struct UffdMsg {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u64,
}

const MESSAGE_BYTES: usize = 32;
const _: () = assert!(size_of::<UffdMsg>() == MESSAGE_BYTES);

ioctl_io_nr!(USERFAULTFD_IOC_NEW, 0xaa, 0x00);
ioctl_iowr_nr!(UFFDIO_API, 0xaa, 0x3f, UffdioApi);
ioctl_iowr_nr!(UFFDIO_REGISTER, 0xaa, 0x00, UffdioRegister);
ioctl_ior_nr!(UFFDIO_UNREGISTER, 0xaa, 0x01, UffdioRange);
ioctl_ior_nr!(UFFDIO_WAKE, 0xaa, 0x02, UffdioRange);
ioctl_iowr_nr!(UFFDIO_WRITEPROTECT, 0xaa, 0x06, UffdioWriteprotect);
ioctl_iowr_nr!(UFFDIO_CONTINUE, 0xaa, 0x07, UffdioContinue);

/// Why the userfaultfd cannot be used.
#[derive(Debug, Error)]
pub enum UffdError {
    /// Neither /dev/userfaultfd nor the system call gave one.
    #[error("open a userfaultfd (needs root, CAP_SYS_PTRACE or access to /dev/userfaultfd)")]
    Open(#[source] Error),
    /// The kernel is too old.
    #[error(
        "the kernel lacks userfaultfd features {missing:#x} (write protection and minor faults on \
         shared memory); use Linux 6.4 or later"
    )]
    Features {
        /// The feature bits that are not there.
        missing: u64,
    },
    /// One of the calls failed.
    #[error("{what} of {len:#x} bytes at {start:#x}")]
    Call {
        /// Which.
        what: &'static str,
        /// First host address.
        start: u64,
        /// Bytes.
        len: u64,
        /// The cause.
        #[source]
        source: Error,
    },
}

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

/// A page fault that a thread waits on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) address: u64,
    pub(crate) write: bool,
    /// The thread that waits, as its own process counts.
    pub(crate) thread: u32,
}

/// What `install` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Installed {
    Done,
    /// There is a mapping already.
    Mapped,
    /// The file has no page there.
    Absent,
    /// Nothing is: the range is of several parts of the address space (VMAs), as pages have that are asked about
    /// or whose home is another. The kernel maps within one part only.
    Parted,
}

#[derive(Debug)]
pub(crate) struct Uffd(File);

impl Uffd {
    /// Opens a userfaultfd that also reports faults taken inside the kernel (KVM), non-blocking.
    pub(crate) fn open() -> Result<Self, UffdError> {
        let fd = Self::open_device().or_else(|_| Self::open_syscall()).map_err(UffdError::Open)?;
        // SAFETY: the descriptor is new and owned by nobody else.
        let uffd = Self(unsafe { File::from_raw_fd(fd) });
        let mut api = UffdioApi { api: API, features: 0, ioctls: 0 };
        // The first handshake only asks; it must be made on a descriptor of its own.
        let probe =
            Self::open_device().or_else(|_| Self::open_syscall()).map_err(UffdError::Open)?;
        // SAFETY: the descriptor is new and owned by nobody else.
        let probe = Self(unsafe { File::from_raw_fd(probe) });
        probe.call("UFFDIO_API", UFFDIO_API(), &mut api, UffdioRange { start: 0, len: 0 })?;
        require(api.features)?;
        let features = FEATURES | FEATURES_HUGETLBFS & api.features;
        let mut api = UffdioApi { api: API, features, ioctls: 0 };
        uffd.call("UFFDIO_API", UFFDIO_API(), &mut api, UffdioRange { start: 0, len: 0 })?;
        Ok(uffd)
    }

    fn open_device() -> Result<RawFd, Error> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/userfaultfd")?;
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        let flags = u64::from(flags.unsigned_abs());
        // SAFETY: the ioctl takes flags by value and returns a descriptor.
        let fd = unsafe { ioctl_with_val(&device, USERFAULTFD_IOC_NEW(), flags) };
        if fd < 0 { Err(Error::last_os_error()) } else { Ok(fd) }
    }

    fn open_syscall() -> Result<RawFd, Error> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: the call takes flags only.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if fd < 0 { Err(Error::last_os_error()) } else { RawFd::try_from(fd).map_err(Error::other) }
    }

    fn call<T>(
        &self,
        what: &'static str,
        request: libc::c_ulong,
        argument: &mut T,
        range: UffdioRange,
    ) -> Result<(), UffdError> {
        // SAFETY: each request is made with the structure it was defined with.
        let result = unsafe { ioctl_with_mut_ref(&self.0, request, argument) };
        if result == 0 {
            return Ok(());
        }
        let source = Error::last_os_error();
        Err(UffdError::Call { what, start: range.start, len: range.len, source })
    }

    pub(crate) fn register(&self, start: u64, len: u64, watch: Watch) -> Result<(), UffdError> {
        let mode = match watch {
            Watch::Everything => 7,
            Watch::GivenAway => 6,
            Watch::Writes => 2,
            Watch::Absent => 1,
            Watch::HugeAbsent => 5,
        };
        let range = UffdioRange { start, len };
        let mut argument = UffdioRegister { range, mode, ioctls: 0 };
        self.call("UFFDIO_REGISTER", UFFDIO_REGISTER(), &mut argument, range)
    }

    /// Reports nothing there any more. All pages are as if never protected; waiters go on.
    pub(crate) fn unregister(&self, start: u64, len: u64) -> Result<(), UffdError> {
        self.with_range("UFFDIO_UNREGISTER", UFFDIO_UNREGISTER(), start, len)?;
        // The kernel wakes those only who wait for a missing page.
        self.wake(start, len)
    }

    /// Maps, for writing, all pages of a range that the file holds and that are not mapped yet, and
    /// wakes those who wait for them. A range that is more than one part of the address space goes in halves.
    pub(crate) fn install_missing(&self, start: u64, len: u64) -> Result<(), UffdError> {
        let end = start + len;
        let mut at = start;
        while at < end {
            let range = UffdioRange { start: at, len: end - at };
            let mut argument = UffdioContinue { range, mode: 0, mapped: 0 };
            let result = self.call("UFFDIO_CONTINUE", UFFDIO_CONTINUE(), &mut argument, range);
            let Err(UffdError::Call { source, .. }) = &result else { return result };
            match (source.raw_os_error(), u64::try_from(argument.mapped)) {
                // Part of the range is done.
                (Some(libc::EAGAIN), Ok(mapped)) => at += mapped,
                (Some(libc::EAGAIN), Err(_)) => {}
                (Some(libc::EEXIST | libc::EFAULT), _) => at += PAGE,
                (Some(libc::ENOENT), _) if end - at > PAGE => {
                    let half = (end - at) / PAGE / 2 * PAGE;
                    self.install_missing(at, half)?;
                    at += half;
                }
                _ => return result,
            }
        }
        Ok(())
    }

    /// Maps the page that the file holds, and wakes those who wait for it.
    pub(crate) fn install(
        &self,
        start: u64,
        len: u64,
        writable: bool,
    ) -> Result<Installed, UffdError> {
        let mode = if writable { 0 } else { MODE_CONTINUE_WP };
        let range = UffdioRange { start, len };
        loop {
            let mut argument = UffdioContinue { range, mode, mapped: 0 };
            let result = self.call("UFFDIO_CONTINUE", UFFDIO_CONTINUE(), &mut argument, range);
            let Err(UffdError::Call { source, .. }) = &result else {
                return result.map(|()| Installed::Done);
            };
            match source.raw_os_error() {
                // The address space is changing; the kernel asks to try again.
                Some(libc::EAGAIN) => {}
                Some(libc::EEXIST) => return Ok(Installed::Mapped),
                Some(libc::EFAULT) => return Ok(Installed::Absent),
                // Nothing was mapped: the kernel looks first.
                Some(libc::ENOENT) if len > PAGE => return Ok(Installed::Parted),
                _ => return result.map(|()| Installed::Done),
            }
        }
    }

    /// Takes write access away, or gives it back and wakes the writers.
    pub(crate) fn protect(&self, start: u64, len: u64, on: bool) -> Result<(), UffdError> {
        let range = UffdioRange { start, len };
        loop {
            let mode = if on { MODE_PROTECT } else { 0 };
            let mut argument = UffdioWriteprotect { range, mode };
            let result =
                self.call("UFFDIO_WRITEPROTECT", UFFDIO_WRITEPROTECT(), &mut argument, range);
            let again = matches!(&result, Err(UffdError::Call { source, .. })
                if source.raw_os_error() == Some(libc::EAGAIN));
            if !again {
                return result;
            }
        }
    }

    /// Wakes those who wait for pages of the range; they touch them again.
    pub(crate) fn wake(&self, start: u64, len: u64) -> Result<(), UffdError> {
        self.with_range("UFFDIO_WAKE", UFFDIO_WAKE(), start, len)
    }

    /// A request that takes nothing but a range.
    fn with_range(
        &self,
        what: &'static str,
        request: libc::c_ulong,
        start: u64,
        len: u64,
    ) -> Result<(), UffdError> {
        let range = UffdioRange { start, len };
        // SAFETY: the request takes a range.
        let result = unsafe { ioctl_with_ref(&self.0, request, &range) };
        if result == 0 {
            return Ok(());
        }
        Err(UffdError::Call { what, start, len, source: Error::last_os_error() })
    }

    /// Reads waiting faults; at most 64 at a time.
    pub(crate) fn read(&mut self, sink: &mut Vec<Fault>) -> Result<(), Error> {
        let mut bytes = [0u8; 64 * MESSAGE_BYTES];
        let count = match self.0.read(&mut bytes) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        for chunk in bytes[..count].chunks_exact(MESSAGE_BYTES) {
            let word = |at: usize| {
                u64::from_ne_bytes(chunk[at..at + 8].try_into().expect("a chunk has 32 bytes"))
            };
            if chunk[0] == EVENT_PAGEFAULT {
                let flags = word(8);
                let write = flags & (FAULT_WRITE | FAULT_WP) != 0;
                // A thread id, in the low half.
                let thread = u32::try_from(word(24) & 0xffff_ffff).expect("32 bits");
                sink.push(Fault { address: word(16), write, thread });
            }
        }
        Ok(())
    }
}

/// Checks the feature bits that the kernel offers.
fn require(offered: u64) -> Result<(), UffdError> {
    match FEATURES & !offered {
        0 => Ok(()),
        missing => Err(UffdError::Features { missing }),
    }
}

/// Checks that the kernel offers what the engine needs, and permits it.
///
/// # Errors
/// What is missing.
pub fn check_host() -> Result<(), UffdError> {
    Uffd::open().map(drop)
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Uffd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_without_a_needed_feature_is_refused_by_name() {
        assert!(require(FEATURES | 1 << 9).is_ok());

        let refused = require(FEATURES & !FEATURE_WP_SHMEM).unwrap_err().to_string();

        assert!(refused.contains("lacks userfaultfd features 0x1000"), "{refused}");
        assert!(refused.contains("use Linux 6.4 or later"), "{refused}");
    }
}
