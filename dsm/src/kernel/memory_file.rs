//! Memory files.
#![expect(unsafe_code, reason = "memfd and its seals")]
// UNSAFETY: system calls that take a name, or no pointer at all.

use std::ffi::CStr;
use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd};

/// A memory file without a size.
pub(crate) fn memory_file(name: &CStr, flags: libc::c_uint) -> Result<File, Error> {
    // SAFETY: the name is a C string; the call returns a descriptor or -1.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | flags) };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Seals the size of a memory file. A peer that it is exposed to relies on that.
pub(crate) fn fix_size(file: &File) -> Result<(), Error> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: the call takes no pointer.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}
