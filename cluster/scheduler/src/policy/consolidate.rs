//! Which parts of an Aggregate VM come together on a host that has room.

use crate::cluster::{Cluster, Host, HostState, Move, Slice};
use crate::fragmentation::Mix;
use crate::ids::{HostId, VmId};
use crate::resources::Resources;
use std::cmp::Reverse;

/// What is free on a host that takes something; nothing if it does not.
fn room(cluster: &Cluster, host: HostId) -> Resources {
    let open = cluster.host(host).filter(|host| host.state() == HostState::Open);
    open.map_or(Resources::NONE, |host| host.free())
}

/// Whether a host has these devices free.
fn has_devices(cluster: &Cluster, to: HostId, slice: &Slice) -> bool {
    let host = cluster.host(to);
    let has = |host: &Host| {
        slice.devices.iter().all(|device| device.count <= host.free_devices(device.kind))
    };
    host.is_some_and(has)
}

/// The whole slice, if there is room for it and its devices.
pub(crate) fn all_of(cluster: &Cluster, vm: VmId, slice: &Slice, to: HostId) -> Option<Move> {
    let fits = slice.resources.fits_in(room(cluster, to)) && has_devices(cluster, to, slice);
    fits.then(|| Move {
        vm,
        from: slice.host,
        to,
        resources: slice.resources,
        devices: slice.devices.clone(),
    })
}

/// *Min-fragmentation*: of all parts of slices that `to` has room for, the one that lowers Phi most, if one does.
pub(super) fn less_fragmentation(
    cluster: &Cluster,
    id: VmId,
    to: HostId,
    mix: &Mix,
) -> Option<Move> {
    let slices = cluster.vm(id)?.slices();
    slices.iter().find(|slice| slice.host == to)?;
    let free = room(cluster, to);
    let mut best: Option<((i64, bool, u32, HostId), Move)> = None;
    for slice in slices.iter().filter(|slice| slice.host != to) {
        let from = cluster.host(slice.host)?.free();
        for cores in 1..=slice.resources.cores.min(free.cores) {
            let is_all = cores == slice.resources.cores && has_devices(cluster, to, slice);
            let resources = Resources::new(cores, slice.resources.memory_with(cores));
            let change = mix.change(from, free, resources);
            if !resources.fits_in(free) || change >= 0 {
                continue;
            }
            let rank = (change, !is_all, cores, slice.host);
            if best.as_ref().is_none_or(|(best, _)| rank < *best) {
                let devices = if is_all { slice.devices.clone() } else { Vec::new() };
                best = Some((rank, Move { vm: id, from: slice.host, to, resources, devices }));
            }
        }
    }
    best.map(|(_, step)| step)
}

/// *Min-nodes*: the smallest slice for which there is room on the VM's other hosts: on `to` if all of it has, else on `to` and
/// others, which are the partial moves that let the number of hosts fall.
pub(super) fn fewer_hosts(cluster: &Cluster, id: VmId, to: HostId) -> Vec<Move> {
    let Some(vm) = cluster.vm(id) else { return Vec::new() };
    let slices = vm.slices();
    if !slices.iter().any(|slice| slice.host == to) {
        return Vec::new();
    }
    let mut smallest: Vec<&Slice> = slices.iter().filter(|slice| slice.host != to).collect();
    smallest.sort_by_key(|slice| (slice.resources.cores, slice.resources.memory, slice.host));
    let moves = smallest.into_iter().map(|slice| absorbed(cluster, id, &slices, slice, to));
    { moves }.find(|moves| !moves.is_empty()).unwrap_or_default()
}

fn absorbed(
    cluster: &Cluster,
    vm: VmId,
    slices: &[Slice],
    slice: &Slice,
    first: HostId,
) -> Vec<Move> {
    if let Some(step) = all_of(cluster, vm, slice, first) {
        return vec![step];
    }
    let mut others: Vec<HostId> = slices.iter().map(|other| other.host).collect();
    others.retain(|host| *host != slice.host && *host != first);
    others.sort_by_key(|&host| (Reverse(room(cluster, host).cores), host));
    let (mut rest, mut moves) = (slice.resources, Vec::new());
    // Devices go with the first part that has the devices' host.
    let mut devices = slice.devices.clone();
    for to in std::iter::once(first).chain(others) {
        let resources = rest.least(room(cluster, to));
        let takes = has_devices(cluster, to, slice);
        let with = if takes { std::mem::take(&mut devices) } else { Vec::new() };
        if resources.is_none() && with.is_empty() {
            continue;
        }
        rest = rest.minus(resources);
        moves.push(Move { vm, from: slice.host, to, resources, devices: with });
        if rest.is_none() && devices.is_empty() {
            return moves;
        }
    }
    Vec::new()
}
