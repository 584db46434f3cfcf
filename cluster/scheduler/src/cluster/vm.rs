//! One running VM: what it has, and where.

use super::claim::{Claim, DeviceAt, Part, Parts};
use crate::ids::HostId;
use crate::resources::Resources;
use crate::spec::{DeviceCount, Spec};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::sync::Arc;

/// What a VM has of one host.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slice {
    /// The host.
    pub host: HostId,
    /// Cores and memory; none of either if it only has devices.
    pub resources: Resources,
    /// Devices, by kind in ascending order.
    pub devices: Vec<DeviceCount>,
}

/// One running VM.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Vm {
    spec: Arc<Spec>,
    /// Those of the bootstrap slice are first, and the first one has cores.
    parts: Parts,
    devices: Box<[DeviceAt]>,
    started: u64,
}

impl Vm {
    pub(super) fn new(spec: Arc<Spec>, claim: Claim, bootstrap: HostId, started: u64) -> Self {
        // That was about its start.
        let spec = if spec.avoid.is_empty() {
            spec
        } else {
            Arc::new(Spec { avoid: Vec::new(), ..Spec::clone(&spec) })
        };
        let parts = Parts::new(ordered(claim.parts, bootstrap));
        Self { spec, parts, devices: claim.devices.into(), started }
    }

    /// What it wants.
    #[must_use]
    pub fn spec(&self) -> &Arc<Spec> {
        &self.spec
    }

    /// When it was started.
    #[must_use]
    pub fn started(&self) -> u64 {
        self.started
    }

    /// What it has of which NUMA nodes.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        self.parts.as_slice()
    }

    /// Which devices it has where.
    #[must_use]
    pub fn devices(&self) -> &[DeviceAt] {
        &self.devices
    }

    /// The host of its bootstrap slice, which has a core at least.
    #[must_use]
    pub fn bootstrap(&self) -> HostId {
        self.parts().first().map_or_else(HostId::default, |part| part.host)
    }

    /// All that it has.
    #[must_use]
    pub fn resources(&self) -> Resources {
        self.parts().iter().fold(Resources::NONE, |sum, part| sum.plus(part.resources()))
    }

    /// What it has of each host: the bootstrap slice, and the others by host.
    #[must_use]
    pub fn slices(&self) -> Vec<Slice> {
        let mut slices: Vec<Slice> = Vec::new();
        for part in self.parts() {
            match slices.last_mut() {
                Some(slice) if slice.host == part.host => {
                    slice.resources = slice.resources.plus(part.resources());
                }
                _ => slices.push(Slice {
                    host: part.host,
                    resources: part.resources(),
                    devices: Vec::new(),
                }),
            }
        }
        for at in &self.devices {
            match slices.iter_mut().find(|slice| slice.host == at.host) {
                Some(slice) => slice.devices.push(at.device),
                None => slices.push(Slice {
                    host: at.host,
                    resources: Resources::NONE,
                    devices: vec![at.device],
                }),
            }
        }
        slices
    }

    /// Whether it is on one host alone.
    #[must_use]
    pub fn is_on_one_host(&self) -> bool {
        let first = self.bootstrap();
        let devices = self.devices.iter().map(|at| at.host);
        self.parts().iter().map(|part| part.host).chain(devices).all(|host| host == first)
    }

    pub(super) fn claim(&self) -> Claim {
        Claim { parts: self.parts().to_vec(), devices: self.devices.to_vec() }
    }

    /// What of a slice goes, if it has that much: from the smallest parts first, so that as few as possible remain.
    pub(super) fn taken_from(
        &self,
        from: HostId,
        amount: Resources,
        devices: &[DeviceCount],
    ) -> Option<Claim> {
        let mut here: Vec<Part> =
            self.parts().iter().filter(|part| part.host == from).copied().collect();
        here.sort_by_key(|part| (part.cores, part.memory, part.node));
        let (mut rest, mut parts) = (amount, Vec::new());
        for part in here {
            let share = part.resources().least(rest);
            rest = rest.minus(share);
            if !share.is_none() {
                parts.push(Part { cores: share.cores, memory: share.memory, ..part });
            }
        }
        let at = |device: &DeviceCount| DeviceAt { host: from, device: *device };
        let devices: Vec<_> = devices.iter().map(at).collect();
        let has = devices.iter().all(|device| self.devices.contains(device));
        (rest.is_none() && has).then_some(Claim { parts, devices })
    }

    /// It has `new` instead of `old`, of which it has all.
    pub(super) fn exchange(&mut self, old: &Claim, new: &Claim) {
        let mut parts = self.parts().to_vec();
        for gone in &old.parts {
            let of = |part: &&mut Part| (part.host, part.node) == (gone.host, gone.node);
            for part in parts.iter_mut().filter(of) {
                part.cores = part.cores.saturating_sub(gone.cores);
                part.memory = part.memory.saturating_sub(gone.memory);
            }
        }
        parts.extend(&new.parts);
        let mut devices = self.devices.to_vec();
        devices.retain(|at| !old.devices.contains(at));
        devices.extend(&new.devices);
        devices.sort_unstable_by_key(|at| at.device.kind);
        self.parts = Parts::new(ordered(parts, self.bootstrap()));
        self.devices = devices.into();
    }
}

/// Each node once, nothing that is empty, the bootstrap slice first. If no core is left there, another slice has become it: the
/// one with most cores.
fn ordered(mut parts: Vec<Part>, bootstrap: HostId) -> Vec<Part> {
    parts.sort_unstable_by_key(|part| (part.host, part.node));
    parts.dedup_by(|next, kept| {
        let same = (next.host, next.node) == (kept.host, kept.node);
        if same {
            kept.cores = kept.cores.saturating_add(next.cores);
            kept.memory = kept.memory.saturating_add(next.memory);
        }
        same
    });
    parts.retain(|part| !part.resources().is_none());
    let cores = |host| -> u64 {
        let of_host = parts.iter().filter(|part| part.host == host);
        of_host.map(|part| u64::from(part.cores)).sum()
    };
    let hosts = parts.iter().map(|part| part.host);
    let most = hosts
        .max_by_key(|&host| (host == bootstrap && cores(host) > 0, cores(host), Reverse(host)));
    let first = most.unwrap_or(bootstrap);
    parts.sort_by_key(|part| (part.host != first, part.host, part.cores == 0, part.node));
    parts
}
