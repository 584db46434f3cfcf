//! What somebody has, or has reserved, of hosts.

use crate::ids::HostId;
use crate::resources::Resources;
use crate::spec::DeviceCount;
use serde::{Deserialize, Serialize};

/// What somebody has of a NUMA node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Part {
    /// The host.
    pub host: HostId,
    /// The node, by its place in the host.
    pub node: u8,
    /// Cores of it.
    pub cores: u32,
    /// Memory of it, in units of 2 MiB.
    pub memory: u32,
}

impl Part {
    /// Cores and memory.
    #[must_use]
    pub fn resources(&self) -> Resources {
        Resources::new(self.cores, self.memory)
    }
}

/// Devices of a host that somebody has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceAt {
    /// The host.
    pub host: HostId,
    /// Which, and how many.
    pub device: DeviceCount,
}

/// Parts and devices together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Claim {
    pub(crate) parts: Vec<Part>,
    pub(crate) devices: Vec<DeviceAt>,
}

impl Claim {
    /// Each host once, ascending.
    pub(crate) fn hosts(&self) -> Vec<HostId> {
        let parts = self.parts.iter().map(|part| part.host);
        let mut hosts: Vec<_> = parts.chain(self.devices.iter().map(|at| at.host)).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }
}

/// Parts of a VM. Nearly all have one, for which nothing is allocated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Parts {
    One(Part),
    Many(Box<Several>),
}

/// Two parts or more, or none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Several(Vec<Part>);

impl Parts {
    pub(super) fn new(parts: Vec<Part>) -> Self {
        match parts[..] {
            [only] => Self::One(only),
            _ => Self::Many(Box::new(Several(parts))),
        }
    }

    pub(super) fn as_slice(&self) -> &[Part] {
        match self {
            Self::One(part) => std::slice::from_ref(part),
            Self::Many(several) => &several.0,
        }
    }
}
