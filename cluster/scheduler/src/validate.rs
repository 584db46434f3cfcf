//! What a host must be for a VM, or a slice of one, to be there: each rule is kept or broken, nothing is weighed.

use crate::cluster::{Cluster, Host, HostState, Traits};
use crate::ids::{HostId, VmId};
use crate::reason::WhyNot;
use crate::resources::Resources;
use crate::spec::{DeviceCount, Spec};

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
    if it.spec.avoid.contains(&host.id()) {
        return Some(WhyNot::Avoided);
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

/// Open hosts that may take it and have room, the best fit first: least cores left, then least memory, then the lowest number.
pub fn candidates<'a>(
    cluster: &'a Cluster,
    it: &'a Candidate<'a>,
) -> impl Iterator<Item = &'a Host> + 'a {
    let hosts = cluster.best_fit(it.resources, |traits| of_traits(traits, it).is_none());
    hosts.filter(move |host| of_moment(cluster, host, it).is_none())
}

/// What is against a host, if anything is.
#[must_use]
pub fn why_not(cluster: &Cluster, host: HostId, it: &Candidate<'_>) -> Option<WhyNot> {
    let Some(host) = cluster.host(host) else { return Some(WhyNot::Closed) };
    of_traits(host.traits(), it).or_else(|| of_moment(cluster, host, it))
}
