//! Room on one host for a VM that waits: others move aside, each as a whole and to a host that has room for it.
//!
//! Of the hosts with most free cores the one that the fewest VMs leave, and of those with the least memory. Aggregate VMs, VMs with
//! devices and VMs that move already stay.

use crate::cluster::{Cluster, Host, Move};
use crate::ids::{HostId, VmId};
use crate::resources::Resources;
use crate::spec::Spec;
use crate::validate::{Candidate, of_moment, of_traits};

/// Hosts that are looked at.
const HOSTS_MAX: usize = 32;
/// VMs that move for one.
const MOVED_MAX: usize = 4;

/// Moves after which one host has room for all of it; none if there are no such.
#[must_use]
pub fn make_room(cluster: &Cluster, spec: &Spec) -> Vec<Move> {
    let it = Candidate::complete(spec, None);
    // What it lacks is made; all else must be so.
    let lacking = it.with(Resources::NONE, &spec.devices);
    let suits = |host: &&Host| {
        spec.needs.fits_in(host.total()) && of_moment(cluster, host, &lacking).is_none()
    };
    let hosts = cluster.emptiest(|traits| of_traits(traits, &it).is_none());
    let plans =
        hosts.filter(suits).take(HOSTS_MAX).filter_map(|host| left(cluster, host, spec.needs));
    plans.min_by_key(|moves| (moves.len(), memory(moves))).unwrap_or_default()
}

fn memory(moves: &[Move]) -> u64 {
    moves.iter().map(|step| u64::from(step.resources.memory)).sum()
}

/// Moves after which this host has room.
fn left(cluster: &Cluster, host: &Host, needs: Resources) -> Option<Vec<Move>> {
    let mut there = movable(cluster, host);
    let mut lacks = needs.minus(host.free());
    let mut moves: Vec<Move> = Vec::new();
    while !lacks.is_none() {
        if moves.len() == MOVED_MAX {
            return None;
        }
        // The smallest that is enough alone, else the largest.
        let enough = there.iter().position(|(_, has)| lacks.fits_in(*has));
        let at = enough.or_else(|| there.len().checked_sub(1))?;
        let (vm, resources) = there.remove(at);
        let Some(to) = elsewhere(cluster, host.id(), vm, &moves) else { continue };
        moves.push(Move { vm, from: host.id(), to, resources, devices: Vec::new() });
        lacks = lacks.minus(resources);
    }
    (!moves.is_empty()).then_some(moves)
}

/// VMs that may leave a host, the smallest first.
fn movable(cluster: &Cluster, host: &Host) -> Vec<(VmId, Resources)> {
    let may_leave = |id: VmId| {
        let vm = cluster.vm(id)?;
        let is_free = vm.devices().is_empty()
            && !cluster.is_aggregate(id)
            && cluster.reservations_of(id).next().is_none();
        is_free.then(|| (id, vm.resources()))
    };
    let mut there: Vec<_> = host.vms().filter_map(may_leave).collect();
    there.sort_by_key(|(vm, has)| (has.cores, has.memory, *vm));
    there
}

/// The best fit for a VM, beside what comes there already.
fn elsewhere(cluster: &Cluster, from: HostId, id: VmId, moves: &[Move]) -> Option<HostId> {
    let spec = cluster.vm(id)?.spec();
    let it = Candidate::complete(spec, Some(id));
    let mut hosts = cluster.best_fit(spec.needs, |traits| of_traits(traits, &it).is_none());
    let has_room = |host: &&Host| {
        let coming = moves.iter().filter(|step| step.to == host.id());
        let comes = coming.fold(Resources::NONE, |sum, step| sum.plus(step.resources));
        host.id() != from
            && spec.needs.plus(comes).fits_in(host.free())
            && of_moment(cluster, host, &it).is_none()
    };
    hosts.find(has_room).map(Host::id)
}
