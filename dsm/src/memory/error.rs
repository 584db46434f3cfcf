//! Why guest memory cannot be made.

use std::io::Error;
use thiserror::Error;

/// Why guest memory cannot be made.
#[derive(Debug, Error)]
pub enum RamError {
    /// No frames were given, or they overlap.
    #[error("lay out guest memory: the frame ranges are empty or overlap")]
    Layout,
    /// A system call failed.
    #[error("{what} for {bytes} bytes of guest memory")]
    Call {
        /// Which.
        what: &'static str,
        /// Size asked for.
        bytes: u64,
        /// The cause.
        #[source]
        source: Error,
    },
    /// The pool of huge pages is too small.
    #[error(
        "memory on hugetlbfs needs {needed} free huge pages of 2 MiB, this host has {free}; set them \
         aside (sysctl vm.nr_hugepages={total}) or choose memfd or anonymous memory"
    )]
    HugePages {
        /// Huge pages that are needed.
        needed: u64,
        /// Huge pages that nobody has claimed.
        free: u64,
        /// What the pool must hold.
        total: u64,
    },
}
