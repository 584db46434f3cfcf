//! What the guest test program and those who judge it from outside share.

pub mod kernel_log;
pub mod records;

/// Where an echo on the host waits for the guest's test of sockets.
pub const VSOCK_ECHO_PORT: u32 = 1024;
