//! Where a VM is to be, and on what knowledge that was decided.

use crate::ids::HostId;
use crate::reason::WhyNot;
use crate::resources::Resources;
use crate::spec::DeviceCount;
use serde::{Deserialize, Serialize};

/// What a VM gets of a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Share {
    /// The host; each once in a placement.
    pub host: HostId,
    /// Cores and memory.
    pub resources: Resources,
    /// Devices, by kind in ascending order.
    pub devices: Vec<DeviceCount>,
}

impl Share {
    pub(crate) fn new(host: HostId, resources: Resources) -> Self {
        Self { host, resources, devices: Vec::new() }
    }
}

/// By which rule a placement was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Rule {
    /// On the host that has least left.
    BestFit,
    /// On as few hosts as possible.
    FewestHosts,
    /// On as many hosts as allowed.
    MostHosts,
}

/// Hosts named in a decision that were looked at and not taken.
pub const REJECTED_MAX: usize = 16;

/// A placement, and how it came about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Decision {
    /// The bootstrap slice first, which has a core at least.
    pub shares: Vec<Share>,
    /// How it was found.
    pub rule: Rule,
    /// Hosts that would have come before, and why they were not taken: the first [`REJECTED_MAX`].
    pub rejected: Vec<(HostId, WhyNot)>,
    /// How many were not taken altogether.
    pub rejected_count: u32,
    /// The hosts' generations that it was decided on. The decision is void once one is another.
    pub basis: Vec<(HostId, u64)>,
}

/// Hosts that are not taken, as they are met.
#[derive(Debug, Default)]
pub(crate) struct Rejections {
    pub(crate) first: Vec<(HostId, WhyNot)>,
    pub(crate) count: u32,
}

impl Rejections {
    /// Whether there is nothing against it; else it is noted.
    pub(crate) fn admit(&mut self, host: HostId, why_not: Option<WhyNot>) -> bool {
        let Some(why) = why_not else { return true };
        if self.first.len() < REJECTED_MAX {
            self.first.push((host, why));
        }
        self.count = self.count.saturating_add(1);
        false
    }
}
