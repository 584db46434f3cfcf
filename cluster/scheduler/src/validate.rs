//! What a host must be for a VM, or a slice of one, to be there: each rule is kept or broken, nothing is weighed.

use crate::cluster::{Cluster, Host, HostState, Traits};
use crate::ids::{DeviceKind, Features, Group, HostId, Tenant, VmId};
use crate::resources::Resources;
use crate::spec::{DeviceCount, Spec};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is to be on a host.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The VM, if it is known by a number.
    pub vm: Option<VmId>,
    /// What it wants.
    pub spec: &'a Spec,
    /// What of it comes to the host.
    pub resources: Resources,
    /// Which devices do.
    pub devices: &'a [DeviceCount],
    /// Other slices of it are on other hosts.
    pub is_slice: bool,
}

impl<'a> Candidate<'a> {
    /// The VM on one host.
    #[must_use]
    pub fn complete(spec: &'a Spec, vm: Option<VmId>) -> Self {
        let (resources, devices) = (spec.needs, spec.devices.as_slice());
        Self { vm, spec, resources, devices, is_slice: false }
    }

    /// A slice of it, with nothing yet.
    #[must_use]
    pub fn slice(spec: &'a Spec, vm: Option<VmId>) -> Self {
        Self { vm, spec, resources: Resources::NONE, devices: &[], is_slice: true }
    }

    /// A slice with so much.
    #[must_use]
    pub fn with(self, resources: Resources, devices: &'a [DeviceCount]) -> Self {
        Self { resources, devices, ..self }
    }
}

/// Why a host is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum WhyNot {
    /// It takes nothing.
    Closed,
    /// Its CPUs cannot do this, a bit each.
    Features(Features),
    /// It is a tenant's alone.
    Dedicated(Tenant),
    /// The VM is to be on hosts of its tenant alone, and this is none.
    NotDedicated,
    /// It has no devices of a kind.
    NoDevice(DeviceKind),
    /// Its kernel cannot share memory with other hosts.
    CannotShare,
    /// A VM of the same group is there.
    AntiAffinity(Group),
    /// It has as many slices of Aggregate VMs as it carries.
    SlicesFull,
    /// So many cores are free.
    Cores(u32),
    /// So much memory is free, in units of 2 MiB.
    Memory(u32),
    /// Too few devices of a kind are free.
    Devices(DeviceKind),
    /// The VM would lie over several NUMA nodes, and elsewhere it does not.
    SpansNodes,
}

impl fmt::Display for WhyNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("it takes nothing new"),
            Self::Features(missing) => write!(f, "it lacks CPU features {:#x}", missing.0),
            Self::Dedicated(tenant) => write!(f, "it is for {tenant} alone"),
            Self::NotDedicated => f.write_str("it is not for the VM's tenant alone"),
            Self::NoDevice(kind) => write!(f, "it has no {kind}"),
            Self::CannotShare => f.write_str("its kernel cannot share memory with other hosts"),
            Self::AntiAffinity(group) => write!(f, "a VM of {group} is there"),
            Self::SlicesFull => f.write_str("it carries no more slices of Aggregate VMs"),
            Self::Cores(free) => write!(f, "{free} cores are free"),
            Self::Memory(free) => write!(f, "{} MiB are free", u64::from(*free) * 2),
            Self::Devices(kind) => write!(f, "too few of {kind} are free"),
            Self::SpansNodes => f.write_str("the VM would lie over several NUMA nodes"),
        }
    }
}

/// What hosts with these traits lack, whatever is free there.
pub(crate) fn of_traits(traits: &Traits, it: &Candidate<'_>) -> Option<WhyNot> {
    let missing = traits.features.missing_of(it.spec.features);
    if !missing.is_empty() {
        return Some(WhyNot::Features(missing));
    }
    match traits.dedicated {
        Some(tenant) if !it.spec.dedicated || tenant != it.spec.tenant => {
            return Some(WhyNot::Dedicated(tenant));
        }
        None if it.spec.dedicated => return Some(WhyNot::NotDedicated),
        _ => {}
    }
    if it.is_slice && !traits.shares {
        return Some(WhyNot::CannotShare);
    }
    let missing = it.devices.iter().find(|device| traits.devices >> device.kind.0 & 1 == 0);
    missing.map(|device| WhyNot::NoDevice(device.kind))
}

/// What is against a host at this moment, if its traits suit.
pub(crate) fn of_moment(cluster: &Cluster, host: &Host, it: &Candidate<'_>) -> Option<WhyNot> {
    if host.state() != HostState::Open {
        return Some(WhyNot::Closed);
    }
    let free = host.free();
    if it.resources.cores > free.cores {
        return Some(WhyNot::Cores(free.cores));
    }
    if it.resources.memory > free.memory {
        return Some(WhyNot::Memory(free.memory));
    }
    let busy = it.devices.iter().find(|device| device.count > host.free_devices(device.kind));
    if let Some(device) = busy {
        return Some(WhyNot::Devices(device.kind));
    }
    if let Some(group) = it.spec.anti_affinity
        && cluster.has_other_of(group, host, it.vm)
    {
        return Some(WhyNot::AntiAffinity(group));
    }
    let is_there = it.vm.is_some_and(|vm| host.vms().any(|other| other == vm));
    let is_full = it.is_slice && !is_there && cluster.slices_on(host) >= host.slices_max();
    is_full.then_some(WhyNot::SlicesFull)
}

/// What is against a host, if anything is.
#[must_use]
pub fn why_not(cluster: &Cluster, host: HostId, it: &Candidate<'_>) -> Option<WhyNot> {
    let Some(host) = cluster.host(host) else { return Some(WhyNot::Closed) };
    of_traits(host.traits(), it).or_else(|| of_moment(cluster, host, it))
}
