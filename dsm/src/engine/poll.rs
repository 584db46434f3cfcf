//! Waiting for descriptors: of faults, frames and commands.
#![expect(unsafe_code, reason = "poll")]
// UNSAFETY: poll(2) takes an array of descriptors.

use std::io::Error;
use std::os::fd::RawFd;
use std::time::Duration;

/// What there is to do for an engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ready {
    pub(crate) faults: bool,
    pub(crate) frames: bool,
    pub(crate) commands: bool,
}

/// Waits until one of the descriptors is readable or the time is over: those of faults, frames and commands.
pub(super) fn poll(fds: [RawFd; 3], limit: Duration) -> Result<Ready, Error> {
    let mut array = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let time = libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(1),
        tv_nsec: libc::c_long::from(limit.subsec_nanos().cast_signed()),
    };
    // SAFETY: three initialised descriptors, a valid time, no signal mask.
    let result = unsafe { libc::ppoll(array.as_mut_ptr(), 3, &raw const time, std::ptr::null()) };
    if result >= 0 {
        let [faults, frames, commands] = array.map(|fd| fd.revents != 0);
        return Ok(Ready { faults, frames, commands });
    }
    let error = Error::last_os_error();
    if error.raw_os_error() == Some(libc::EINTR) { Ok(Ready::default()) } else { Err(error) }
}
