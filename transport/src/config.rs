//! Bounds and times of a transport. The bootstrap sends its own to every companion: both ends of a
//! stream must count the same credits.

use crate::frame::{HEAD_BYTES_U32, payload_max};
use crate::traits::Class;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The smallest window that never stalls a largest frame: a receiver may sit on up to a quarter of
/// its window before it gives credit back.
fn window_bytes_min(class: Class) -> u32 {
    2 * (payload_max(class) + HEAD_BYTES_U32)
}
/// The largest window, in bytes.
pub(crate) const WINDOW_BYTES_MAX: u32 = 64 << 20;
const LEASE_MIN: Duration = Duration::from_millis(20);
const LEASE_MAX: Duration = Duration::from_secs(3600);

/// Why there is no RDMA in a program that is built without it.
pub(crate) const WITHOUT_RDMA: &str =
    "no RDMA: this program is built without it (the cargo feature rdma)";

/// Why a configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A window that is too small for one frame or larger than the bound.
    #[error("a window of {window} bytes is outside {least}..={WINDOW_BYTES_MAX}")]
    Window {
        /// The refused size in bytes.
        window: u32,
        /// The least of its class.
        least: u32,
    },
    /// A lease outside 20 ms to one hour.
    #[error("a lease of {lease:?} is outside 20 ms..=1 h")]
    Lease {
        /// The refused lease.
        lease: Duration,
    },
    /// No carrier, or one twice.
    #[error("the list of carriers is empty or names one twice")]
    Carriers,
    /// No frame could ever be queued.
    #[error("a queue of no frames cannot send")]
    Queue,
}

/// What carries frames between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CarrierKind {
    /// TCP connections.
    Tcp,
    /// Reliable queue pairs of InfiniBand or RoCE.
    Rdma,
    /// Shared memory, where all slices are on one host.
    Shm,
}

impl fmt::Display for CarrierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
            Self::Shm => "shm",
        })
    }
}

impl FromStr for CarrierKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "rdma" if cfg!(not(feature = "rdma")) => Err(WITHOUT_RDMA.to_owned()),
            "rdma" => Ok(Self::Rdma),
            "shm" => Ok(Self::Shm),
            other => Err(format!("there is no carrier {other:?}: choose tcp, rdma or shm")),
        }
    }
}

/// What RDMA pins of a slice's memory, and so how pages travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RdmaMemory {
    /// Slots of a pool. Pages are copied into them and out of them; guest memory stays reclaimable and
    /// may lie on huge pages.
    #[default]
    Pool,
    /// All of the VM's memory, on every slice. Pages are written from one slice's memory into the other's
    /// without a copy. Every peer can write this slice's copy of guest memory, and nothing else.
    Registered,
}

impl fmt::Display for RdmaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pool => "pool",
            Self::Registered => "registered",
        })
    }
}

impl FromStr for RdmaMemory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "pool" => Ok(Self::Pool),
            "registered" => Ok(Self::Registered),
            _ => Err(format!("{text:?} is no choice; there are: pool, registered")),
        }
    }
}

/// Bounds and times, equal on all slices of one VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// A peer that was silent for this long is lost.
    pub lease: Duration,
    /// Bytes that may be under way or unread per peer, by class (interrupt, coherence, run, bulk).
    pub window: [u32; Class::COUNT],
    /// Frames that may wait in the send queue per peer and class.
    pub queue_frames: u32,
    /// What carries the frames of the whole VM, best first. A later one is only taken when some slice cannot
    /// use the ones before.
    pub carriers: Vec<CarrierKind>,
    /// What RDMA pins.
    pub rdma_memory: RdmaMemory,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(3),
            window: [256 << 10, 1 << 20, 4 << 20, 1 << 20],
            queue_frames: 8192,
            carriers: vec![CarrierKind::Tcp],
            rdma_memory: RdmaMemory::default(),
        }
    }
}

impl Config {
    /// Checks every bound.
    ///
    /// # Errors
    /// Names the first value that is out of bounds.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (window, class) in self.window.into_iter().zip(Class::ALL) {
            let least = window_bytes_min(class);
            if !(least..=WINDOW_BYTES_MAX).contains(&window) {
                return Err(ConfigError::Window { window, least });
            }
        }
        if self.lease < LEASE_MIN || self.lease > LEASE_MAX {
            return Err(ConfigError::Lease { lease: self.lease });
        }
        if self.queue_frames == 0 {
            return Err(ConfigError::Queue);
        }
        let twice =
            (1..).zip(&self.carriers).any(|(next, one)| self.carriers[next..].contains(one));
        if self.carriers.is_empty() || twice {
            return Err(ConfigError::Carriers);
        }
        Ok(())
    }

    /// How often the lease is looked at, and a heartbeat goes out.
    pub(crate) fn beat(&self) -> Duration {
        self.lease / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_config_is_valid() {
        assert_eq!(Config::default().validate(), Ok(()));
    }

    #[test]
    fn carriers_are_read_as_they_are_written() {
        for kind in [CarrierKind::Tcp, CarrierKind::Rdma, CarrierKind::Shm] {
            let is_built = kind != CarrierKind::Rdma || cfg!(feature = "rdma");
            let expected = if is_built { Ok(kind) } else { Err(WITHOUT_RDMA.to_owned()) };
            assert_eq!(kind.to_string().parse(), expected);
        }
        assert!("udp".parse::<CarrierKind>().unwrap_err().contains("tcp, rdma or shm"));
    }

    #[test]
    fn choices_of_memory_are_read_as_they_are_written() {
        for choice in [RdmaMemory::Pool, RdmaMemory::Registered] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("odp".parse::<RdmaMemory>().unwrap_err().contains("pool, registered"));
    }

    #[test]
    fn config_out_of_bounds_is_refused() {
        let window = Config { window: [1, 2, 3, 4], ..Config::default() };
        let lease = Config { lease: Duration::ZERO, ..Config::default() };
        let queue = Config { queue_frames: 0, ..Config::default() };

        assert_eq!(
            window.validate(),
            Err(ConfigError::Window { window: 1, least: 2 * (64 * 1024 + 8) })
        );
        assert_eq!(lease.validate(), Err(ConfigError::Lease { lease: Duration::ZERO }));
        assert_eq!(queue.validate(), Err(ConfigError::Queue));
        for carriers in [vec![], vec![CarrierKind::Rdma; 2]] {
            let config = Config { carriers, ..Config::default() };
            assert_eq!(config.validate(), Err(ConfigError::Carriers));
        }
    }
}
