//! One host: its NUMA nodes, what of them is free, and who is there.

use super::claim::{DeviceAt, Part};
use crate::ids::{DeviceKind, Fabric, FailureDomain, Features, HostId, Tenant, VmId};
use crate::resources::Resources;
use crate::spec::{DeviceCount, SpecError, check_devices, device_mask};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// What a host is, as its agent says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// What each NUMA node has for VMs.
    pub nodes: Vec<Resources>,
    /// Device back ends, by kind in ascending order. A VM may have several units of a kind.
    pub devices: Vec<DeviceCount>,
    /// What its CPUs can do.
    pub features: Features,
    /// Which other hosts an Aggregate VM may share memory with.
    pub fabric: Fabric,
    /// What it is lost together with.
    pub domain: FailureDomain,
    /// It is this tenant's alone.
    pub dedicated: Option<Tenant>,
    /// Slices of Aggregate VMs that it carries at most; none if its kernel cannot share memory.
    pub slices_max: u16,
}

impl HostSpec {
    /// A host with nodes and nothing special.
    #[must_use]
    pub fn new(nodes: Vec<Resources>) -> Self {
        Self {
            nodes,
            devices: Vec::new(),
            features: Features::default(),
            fabric: Fabric::default(),
            domain: FailureDomain::default(),
            dedicated: None,
            slices_max: 16,
        }
    }

    /// What all of its nodes have together.
    #[must_use]
    pub fn total(&self) -> Resources {
        self.nodes.iter().fold(Resources::NONE, |sum, node| sum.plus(*node))
    }

    fn check(&self) -> Result<(), SpecError> {
        let count = self.nodes.len();
        if count == 0 || u8::try_from(count).is_err() {
            return Err(SpecError::Nodes(count));
        }
        let sum = |of: fn(&Resources) -> u32| {
            self.nodes.iter().try_fold(0u32, |sum, node| sum.checked_add(of(node)))
        };
        if sum(|node| node.cores).is_none() || sum(|node| node.memory).is_none() {
            return Err(SpecError::TooLarge);
        }
        check_devices(&self.devices)
    }
}

/// Whether a host takes anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HostState {
    /// It does.
    #[default]
    Open,
    /// What is there stays, and nothing comes.
    Cordoned,
    /// What is there leaves.
    Draining,
    /// It does not answer, or is gone.
    Lost,
}

/// What hosts of one kind have in common. It never changes, so whether a VM may run there is asked once for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Traits {
    pub(crate) features: Features,
    pub(crate) dedicated: Option<Tenant>,
    /// Kinds of devices, a bit each.
    pub(crate) devices: u64,
    /// It carries slices of Aggregate VMs.
    pub(crate) shares: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    total: Resources,
    free: Resources,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct DevicePool {
    kind: DeviceKind,
    total: u32,
    free: u32,
}

/// One host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    id: HostId,
    nodes: Box<[Node]>,
    devices: Box<[DevicePool]>,
    free: Resources,
    pub(super) traits: Traits,
    fabric: Fabric,
    domain: FailureDomain,
    slices_max: u16,
    pub(super) state: HostState,
    pub(super) generation: u64,
    /// Ascending; a VM is there once for what it runs on, and once for each reservation.
    pub(super) vms: Vec<VmId>,
}

impl Host {
    pub(super) fn new(id: HostId, spec: &HostSpec) -> Result<Self, SpecError> {
        spec.check()?;
        let pool = |it: &DeviceCount| DevicePool { kind: it.kind, total: it.count, free: it.count };
        Ok(Self {
            id,
            nodes: spec.nodes.iter().map(|&total| Node { total, free: total }).collect(),
            devices: spec.devices.iter().map(pool).collect(),
            free: spec.total(),
            traits: Traits {
                features: spec.features,
                dedicated: spec.dedicated,
                devices: device_mask(&spec.devices),
                shares: spec.slices_max > 0,
            },
            fabric: spec.fabric,
            domain: spec.domain,
            slices_max: spec.slices_max,
            state: HostState::Open,
            generation: 0,
            vms: Vec::new(),
        })
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> HostId {
        self.id
    }

    /// What nobody has or has reserved.
    #[must_use]
    pub fn free(&self) -> Resources {
        self.free
    }

    /// The same of each NUMA node.
    pub fn free_by_node(&self) -> impl Iterator<Item = Resources> + '_ {
        self.nodes.iter().map(|node| node.free)
    }

    /// All that it has.
    #[must_use]
    pub fn total(&self) -> Resources {
        self.nodes.iter().fold(Resources::NONE, |sum, node| sum.plus(node.total))
    }

    /// Whether it takes anything.
    #[must_use]
    pub fn state(&self) -> HostState {
        self.state
    }

    /// Counts the changes of what is free here. Who has decided about another generation has decided about another host.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Hosts it may share a VM with.
    #[must_use]
    pub fn fabric(&self) -> Fabric {
        self.fabric
    }

    /// Hosts it is lost with.
    #[must_use]
    pub fn domain(&self) -> FailureDomain {
        self.domain
    }

    /// Slices of Aggregate VMs that it carries at most.
    #[must_use]
    pub fn slices_max(&self) -> u16 {
        self.slices_max
    }

    /// VMs that are here or may come, ascending, each once.
    pub fn vms(&self) -> impl Iterator<Item = VmId> + '_ {
        let new = |at: &usize| *at == 0 || self.vms[at - 1] != self.vms[*at];
        (0..self.vms.len()).filter(new).map(|at| self.vms[at])
    }

    /// Free units of a kind of device.
    #[must_use]
    pub fn free_devices(&self, kind: DeviceKind) -> u32 {
        self.devices.iter().find(|pool| pool.kind == kind).map_or(0, |pool| pool.free)
    }

    /// Whether some node has all of this.
    #[must_use]
    pub fn fits_one_node(&self, needs: Resources) -> bool {
        self.nodes.iter().any(|node| needs.fits_in(node.free))
    }

    /// Whether there is room for all of this, whatever else there is to say.
    pub(super) fn has_room(&self, needs: Resources, devices: &[DeviceCount]) -> bool {
        let has = |it: &DeviceCount| it.count <= self.free_devices(it.kind);
        needs.fits_in(self.free) && devices.iter().all(has)
    }

    /// Takes what has room. On one node if possible, the one with least left; else on those with most cores, and the
    /// memory beside the cores.
    pub(super) fn take(&mut self, needs: Resources) -> Vec<Part> {
        let fits = (0..self.nodes.len()).filter(|&at| needs.fits_in(self.nodes[at].free));
        let least = |at: &usize| (self.nodes[*at].free.cores, self.nodes[*at].free.memory, *at);
        let parts = match fits.min_by_key(least) {
            Some(at) => vec![self.part(at, needs)],
            None => self.span(needs),
        };
        for part in &parts {
            let free = &mut self.nodes[usize::from(part.node)].free;
            *free = free.minus(part.resources());
            self.free = self.free.minus(part.resources());
        }
        parts
    }

    fn part(&self, at: usize, of: Resources) -> Part {
        // There are at most 255 nodes.
        let node = u8::try_from(at).unwrap_or(u8::MAX);
        Part { host: self.id, node, cores: of.cores, memory: of.memory }
    }

    fn span(&self, needs: Resources) -> Vec<Part> {
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by_key(|&at| Reverse(self.nodes[at].free.cores));
        let mut rest = needs;
        let mut shares = vec![Resources::NONE; self.nodes.len()];
        for &at in &order {
            let free = self.nodes[at].free;
            shares[at] = Resources::new(free.cores.min(rest.cores), 0);
            rest.cores -= shares[at].cores;
            shares[at].memory =
                needs.memory_with(shares[at].cores).min(free.memory).min(rest.memory);
            rest.memory -= shares[at].memory;
        }
        for &at in &order {
            let room = self.nodes[at].free.memory - shares[at].memory;
            let more = room.min(rest.memory);
            shares[at].memory += more;
            rest.memory -= more;
        }
        let parts = shares.iter().enumerate().filter(|(_, share)| !share.is_none());
        parts.map(|(at, share)| self.part(at, *share)).collect()
    }

    pub(super) fn give(&mut self, part: &Part) {
        let Some(node) = self.nodes.get_mut(usize::from(part.node)) else { return };
        node.free = node.free.plus(part.resources());
        self.free = self.free.plus(part.resources());
    }

    pub(super) fn take_device(&mut self, device: DeviceCount) -> DeviceAt {
        for pool in self.devices.iter_mut().filter(|pool| pool.kind == device.kind) {
            pool.free = pool.free.saturating_sub(device.count);
        }
        DeviceAt { host: self.id, device }
    }

    pub(super) fn give_device(&mut self, device: DeviceCount) {
        for pool in self.devices.iter_mut().filter(|pool| pool.kind == device.kind) {
            pool.free = pool.free.saturating_add(device.count);
        }
    }

    pub(super) fn enter(&mut self, vm: VmId) {
        let at = self.vms.partition_point(|other| *other <= vm);
        self.vms.insert(at, vm);
    }

    pub(super) fn leave(&mut self, vm: VmId) {
        if let Ok(at) = self.vms.binary_search(&vm) {
            self.vms.remove(at);
        }
    }

    /// Whether what is free is between nothing and all, and adds up.
    pub(super) fn is_consistent(&self) -> bool {
        let node_is = |node: &Node| node.free.fits_in(node.total);
        let sum = self.free_by_node().fold(Resources::NONE, Resources::plus);
        let pools = self.devices.iter().all(|pool| pool.free <= pool.total);
        self.nodes.iter().all(node_is) && sum == self.free && pools
    }

    /// What is taken of it.
    pub(super) fn used(&self) -> Resources {
        self.total().minus(self.free)
    }
}
