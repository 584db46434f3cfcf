//! Why a userfaultfd cannot be used.

use std::io::Error;
use thiserror::Error;

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
