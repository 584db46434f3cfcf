//! Locks of an open file ("open file description locks", fcntl(2)): of a range of its bytes, until the file is closed. Unlike
//! locks of a process they exclude each other within one process too, and no other file that is closed takes them away.
#![expect(unsafe_code, reason = "fcntl with a structure")]
// UNSAFETY: the structure is there for as long as the call lasts, and the file is open.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Bytes of a file: the first one and how many, or all from there on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) from: i64,
    pub(super) bytes: Option<i64>,
}

fn lock(kind: i32, range: Range) -> libc::flock {
    // They are small numbers.
    let kind = i16::try_from(kind).unwrap_or_default();
    let whence = i16::try_from(libc::SEEK_SET).unwrap_or_default();
    let (l_start, l_len) = (range.from, range.bytes.unwrap_or(0));
    libc::flock { l_type: kind, l_whence: whence, l_start, l_len, l_pid: 0 }
}

/// Takes a range for itself alone. False: somebody has some of it.
pub(super) fn try_lock(file: &File, range: Range) -> io::Result<bool> {
    let lock = lock(libc::F_WRLCK, range);
    // SAFETY: as above.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            error => Err(error),
        },
    }
}

/// Gives a range back.
pub(super) fn unlock(file: &File, range: Range) -> io::Result<()> {
    let lock = lock(libc::F_UNLCK, range);
    // SAFETY: as above.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether somebody else has some of a range.
pub(super) fn is_held(file: &File, range: Range) -> io::Result<bool> {
    let mut lock = lock(libc::F_WRLCK, range);
    // SAFETY: as above.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } {
        0 => Ok(i32::from(lock.l_type) != libc::F_UNLCK),
        _ => Err(io::Error::last_os_error()),
    }
}
