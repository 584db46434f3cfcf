//! What the safe wrappers of the operating system lack here.
#![expect(unsafe_code, reason = "a borrowed descriptor from a raw one, and one socket option")]
// UNSAFETY: `vmm_sys_util` hands out its epoll descriptor only as a number, and the seam promises a
// `BorrowedFd`; `SO_RCVLOWAT` has no wrapper. Nothing else lives in this module.

use std::io;
use std::mem::size_of_val;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// Lends `fd`, which `owner` keeps open.
pub(crate) fn borrow<T>(_owner: &T, fd: RawFd) -> BorrowedFd<'_> {
    // SAFETY: every caller passes the descriptor of an epoll instance inside `owner`, which closes
    // it only when dropped, and the borrow of `owner` outlives the result.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Has a socket be readable only once so many bytes are there, or it ends, or takes no more (`tcp(7)`, `SO_RCVLOWAT`
/// in `socket(7)`).
pub(crate) fn set_low_water(stream: &TcpStream, bytes: usize) -> io::Result<()> {
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let length = libc::socklen_t::try_from(size_of_val(&value)).expect("a few bytes");
    let fd = stream.as_raw_fd();
    // SAFETY: the descriptor is open as long as the stream is borrowed, and the option is a whole c_int.
    let result = unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const value).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
