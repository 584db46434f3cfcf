//! Waiting for a descriptor until a deadline.

use std::io;
use std::time::Instant;
use vmm_sys_util::epoll::{Epoll, EpollEvent};

/// The token of the next readable descriptor, or `None` at the deadline.
pub(crate) fn next_ready(epoll: &Epoll, deadline: Instant) -> io::Result<Option<usize>> {
    let mut events = [EpollEvent::default()];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        // Rounded up, or the last millisecond would be spent spinning.
        let wait = i32::try_from(left.as_millis().saturating_add(1)).unwrap_or(i32::MAX);
        match epoll.wait(wait, &mut events) {
            Ok(0) => {}
            Ok(_) => return Ok(usize::try_from(events[0].data()).ok()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
