//! Why RDMA cannot be used.

use crate::config::ConfigError;
use sideway::ibverbs::memory_region::RegisterMemoryRegionErrorKind;
use std::fs;
use std::io;

/// Why RDMA cannot be used. Each text names the device, port and GID as far as they are known.
#[derive(Debug, thiserror::Error)]
pub enum RdmaError {
    /// There is no libibverbs, or it cannot list devices.
    #[error("no RDMA devices can be listed (are libibverbs and a provider installed?): {0}")]
    Library(String),
    /// No port fits.
    #[error("no RDMA port {wanted}; {found}")]
    NoPort {
        /// What was looked for.
        wanted: String,
        /// What there is.
        found: String,
    },
    /// A step of the set-up was refused.
    #[error("cannot {step} on {place}: {cause}")]
    Step {
        /// What was tried.
        step: &'static str,
        /// Device, port and GID.
        place: String,
        /// What the library or the kernel said.
        cause: String,
    },
    /// Memory could not be pinned.
    #[error(
        "cannot pin {bytes} bytes for RDMA on {place}: {cause}; this process may lock {limit} \
         (raise it with `ulimit -l unlimited`, LimitMEMLOCK= in a systemd unit, or give it \
         CAP_IPC_LOCK)"
    )]
    Pinning {
        /// Size of the region.
        bytes: usize,
        /// Device, port and GID.
        place: String,
        /// What the kernel said.
        cause: io::Error,
        /// The limit as text.
        limit: String,
    },
    /// The other end offers something this version cannot use.
    #[error("the peer's RDMA offer cannot be used from {place}: {what}")]
    BadOffer {
        /// Our device, port and GID.
        place: String,
        /// What is wrong.
        what: String,
    },
    /// The first messages did not arrive.
    #[error("no answer over RDMA from {peer} through {place}: {cause}")]
    Unreachable {
        /// The peer's GID.
        peer: String,
        /// Our device, port and GID.
        place: String,
        /// A failed send, or the time limit.
        cause: String,
    },
    /// The bounds cannot work.
    #[error("the transport's configuration cannot be used")]
    Config(#[source] ConfigError),
    /// Sockets or descriptors are refused.
    #[error("cannot build the transport from its queue pairs")]
    Transport(#[source] io::Error),
}

/// Memory was refused.
pub(super) fn not_pinned(
    error: RegisterMemoryRegionErrorKind,
    bytes: usize,
    place: &str,
) -> RdmaError {
    let cause = match error {
        RegisterMemoryRegionErrorKind::Ibverbs(cause) => cause,
        other => io::Error::other(other.to_string()),
    };
    RdmaError::Pinning { bytes, place: place.to_owned(), cause, limit: limit() }
}

/// How much this process may lock, as text.
fn limit() -> String {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    match soft {
        Some("unlimited") | None => String::from("without a limit"),
        Some(bytes) => format!("{bytes} bytes"),
    }
}
