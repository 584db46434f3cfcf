//! The userfaultfd of Linux.
//!
//! The published bindings need libclang at build time and lack what newer kernels offer. Structures
//! and numbers are those of `linux/userfaultfd.h` (Linux 6.4 and later on shared memory files).
#![expect(unsafe_code, reason = "ioctl, syscall and read on the userfaultfd")]
// UNSAFETY: the kernel interface is a file descriptor with ioctls on structures of our own.

use super::error::UffdError;
use super::userfaultfd::{Fault, Userfaultfd};
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use vmm_sys_util::ioctl::{ioctl_with_mut_ref, ioctl_with_ref, ioctl_with_val};
use vmm_sys_util::{ioctl_io_nr, ioctl_ior_nr, ioctl_iowr_nr};

const API: u64 = 0xaa;
const FEATURES: u64 = FEATURE_WP
    | FEATURE_MISSING_SHMEM
    | FEATURE_THREAD_ID
    | FEATURE_MINOR_SHMEM
    | FEATURE_WP_SHMEM
    | FEATURE_WP_UNPOPULATED;
/// For memory on hugetlbfs only; older than the others.
const FEATURES_HUGETLBFS: u64 = 1 << 4 | 1 << 9;
const FEATURE_WP: u64 = 1 << 0;
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const FEATURE_THREAD_ID: u64 = 1 << 8;
const FEATURE_MINOR_SHMEM: u64 = 1 << 10;
const FEATURE_WP_SHMEM: u64 = 1 << 12;
/// Pages of private memory that were never touched are protected too.
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
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
struct UffdioCopy {
    to: u64,
    from: u64,
    len: u64,
    mode: u64,
    copied: i64,
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
ioctl_iowr_nr!(UFFDIO_COPY, 0xaa, 0x03, UffdioCopy);
ioctl_iowr_nr!(UFFDIO_WRITEPROTECT, 0xaa, 0x06, UffdioWriteprotect);
ioctl_iowr_nr!(UFFDIO_CONTINUE, 0xaa, 0x07, UffdioContinue);

/// A userfaultfd, non-blocking.
#[derive(Debug)]
pub(crate) struct LinuxUserfaultfd(File);

impl LinuxUserfaultfd {
    /// Opens one that also reports faults taken inside the kernel (KVM).
    pub(crate) fn open() -> Result<Self, UffdError> {
        let uffd = Self::new()?;
        // The first handshake only asks; it must be made on a descriptor of its own.
        let offered = Self::new()?.handshake(0)?;
        require(offered)?;
        uffd.handshake(FEATURES | FEATURES_HUGETLBFS & offered)?;
        Ok(uffd)
    }

    fn new() -> Result<Self, UffdError> {
        let fd = Self::open_device().or_else(|_| Self::open_syscall()).map_err(UffdError::Open)?;
        // SAFETY: the descriptor is new and owned by nobody else.
        Ok(Self(unsafe { File::from_raw_fd(fd) }))
    }

    /// Asks for features; those that the kernel offers.
    fn handshake(&self, features: u64) -> Result<u64, UffdError> {
        let mut api = UffdioApi { api: API, features, ioctls: 0 };
        let shaken = self.call(UFFDIO_API(), &mut api);
        let failed = |source| UffdError::Call { what: "UFFDIO_API", start: 0, len: 0, source };
        shaken.map(|()| api.features).map_err(failed)
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

    fn call<T>(&self, request: libc::c_ulong, argument: &mut T) -> Result<(), Error> {
        // SAFETY: each request is made with the structure it was defined with.
        done(unsafe { ioctl_with_mut_ref(&self.0, request, argument) })
    }

    /// A request that takes nothing but a range.
    fn with_range(&self, request: libc::c_ulong, start: u64, len: u64) -> Result<(), Error> {
        let range = UffdioRange { start, len };
        // SAFETY: the request takes a range.
        done(unsafe { ioctl_with_ref(&self.0, request, &range) })
    }
}

fn done(result: libc::c_int) -> Result<(), Error> {
    if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

impl Userfaultfd for LinuxUserfaultfd {
    fn register(&self, start: u64, len: u64, modes: u64) -> Result<(), Error> {
        let range = UffdioRange { start, len };
        self.call(UFFDIO_REGISTER(), &mut UffdioRegister { range, mode: modes, ioctls: 0 })
    }

    fn unregister(&self, start: u64, len: u64) -> Result<(), Error> {
        self.with_range(UFFDIO_UNREGISTER(), start, len)
    }

    fn wake(&self, start: u64, len: u64) -> Result<(), Error> {
        self.with_range(UFFDIO_WAKE(), start, len)
    }

    fn map_present(&self, start: u64, len: u64, wp: bool) -> Result<(), (Error, i64)> {
        let mode = if wp { MODE_CONTINUE_WP } else { 0 };
        let mut argument = UffdioContinue { range: UffdioRange { start, len }, mode, mapped: 0 };
        let result = self.call(UFFDIO_CONTINUE(), &mut argument);
        result.map_err(|error| (error, argument.mapped))
    }

    fn copy(&self, start: u64, from: &[u8]) -> Result<(), (Error, i64)> {
        let number = |size: usize| u64::try_from(size).expect("a size fits u64");
        let (address, len) = (number(from.as_ptr().expose_provenance()), number(from.len()));
        let mut argument = UffdioCopy { to: start, from: address, len, mode: 0, copied: 0 };
        // The kernel only reads from there.
        let result = self.call(UFFDIO_COPY(), &mut argument);
        result.map_err(|error| (error, argument.copied))
    }

    fn write_protect(&self, start: u64, len: u64, on: bool) -> Result<(), Error> {
        let mode = if on { MODE_PROTECT } else { 0 };
        let range = UffdioRange { start, len };
        self.call(UFFDIO_WRITEPROTECT(), &mut UffdioWriteprotect { range, mode })
    }

    /// At most 64 faults at a time.
    fn read(&self, sink: &mut Vec<Fault>) -> Result<(), Error> {
        let mut bytes = [0u8; 64 * MESSAGE_BYTES];
        let count = match (&self.0).read(&mut bytes) {
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

    fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Checks that the kernel offers what the engine needs, and permits it.
///
/// # Errors
/// What is missing.
pub fn check_host() -> Result<(), UffdError> {
    LinuxUserfaultfd::open().map(drop)
}

/// Checks the feature bits that the kernel offers.
fn require(offered: u64) -> Result<(), UffdError> {
    match FEATURES & !offered {
        0 => Ok(()),
        missing => Err(UffdError::Features { missing }),
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
