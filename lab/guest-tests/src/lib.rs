//! What the guest test program and those who judge it from outside share.

use std::time::Duration;

pub mod kernel_log;
pub mod records;

/// Where an echo on the host waits for the guest's test of sockets.
pub const VSOCK_ECHO_PORT: u32 = 1024;

/// For how long the guest pauses at most at each mark of its operations (`tessera.sharing=`), by its own clock: its counters are read
/// then. A guest with a slow clock is told to pause for less (`tessera.pause=`).
pub const MOST_SHARING_PAUSE: Duration = Duration::from_millis(500);
