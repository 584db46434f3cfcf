//! The one thing the safe wrappers of the operating system lack here.
#![expect(unsafe_code, reason = "a borrowed descriptor can only be made from a raw one")]
// UNSAFETY: `vmm_sys_util` hands out its epoll descriptor only as a number, and the seam promises a
// `BorrowedFd`. Nothing else lives in this module.

use std::os::fd::{BorrowedFd, RawFd};

/// Lends `fd`, which `owner` keeps open.
pub(crate) fn borrow<T>(_owner: &T, fd: RawFd) -> BorrowedFd<'_> {
    // SAFETY: every caller passes the descriptor of an epoll instance inside `owner`, which closes
    // it only when dropped, and the borrow of `owner` outlives the result.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
