//! Room on one host for a VM that waits: others move aside, each as a whole and to a host that has room for it.
//!
//! How much is moved is a choice ([`Room`]). Once nobody may pass the first VM of the queue, all others wait for it: a move for that VM
//! shortens many delays. Moves for those behind it shorten only their own.
//!
//! Of the hosts with most free cores the one that the fewest VMs leave, and of those with the least memory. Aggregate VMs, VMs with
//! devices and VMs that move already stay.

use crate::cluster::{Cluster, Host, Move};
use crate::ids::{HostId, VmId};
use crate::resources::Resources;
use crate::spec::Spec;
use crate::validate::{Candidate, of_moment, of_traits};
use std::fmt;

/// Hosts that are looked at.
const HOSTS_MAX: usize = 32;
/// Places for one that moves aside that are looked at.
const PLACES_MAX: usize = 8;

/// For whom others move aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum When {
    /// For the first VM of the queue, once nobody may pass it ([`Discipline`](crate::Discipline)).
    Blocks,
    /// For each that has waited for so long, in milliseconds.
    Waited(u64),
}

/// For whom others move aside, and how many of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Room {
    /// For whom.
    pub when: When,
    /// So many VMs at most.
    pub moved_max: usize,
}

impl Room {
    /// Two VMs, for the one that nobody may pass: few moves.
    pub const SPARING: Self = Self { when: When::Blocks, moved_max: 2 };
    /// Four VMs for each that has waited for a minute: shortest delays.
    pub const EAGER: Self = Self { when: When::Waited(60_000), moved_max: 4 };

    /// Moves after which one host has room for all of it; none if there are no such, or it is too early.
    #[must_use]
    pub fn moves(&self, cluster: &Cluster, it: &RoomFor<'_>) -> Vec<Move> {
        let is_time = match self.when {
            When::Blocks => it.blocks,
            When::Waited(after) => it.waited >= after,
        };
        if is_time { make_room(cluster, it, self.moved_max) } else { Vec::new() }
    }
}

/// A VM that waits for room.
#[derive(Clone, Copy)]
pub struct RoomFor<'a> {
    /// What it wants.
    pub spec: &'a Spec,
    /// How long it has waited, in milliseconds.
    pub waited: u64,
    /// It is the first, and nobody may pass it.
    pub blocks: bool,
    /// Whether these moves may be made now.
    pub allows: &'a dyn Fn(&[Move]) -> bool,
}

impl fmt::Debug for RoomFor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { spec, waited, blocks, .. } = self;
        let mut it = f.debug_struct("RoomFor");
        it.field("spec", spec)
            .field("waited", waited)
            .field("blocks", blocks)
            .finish_non_exhaustive()
    }
}

/// Moves of at most so many VMs after which one host has room for all of it; none if there are no such that may be made.
fn make_room(cluster: &Cluster, it: &RoomFor<'_>, moved_max: usize) -> Vec<Move> {
    let spec = it.spec;
    let whole = Candidate::complete(spec, None);
    // What it lacks is made; all else must be so.
    let lacking = whole.with(Resources::NONE, &spec.devices);
    let suits = |host: &&Host| {
        spec.needs.fits_in(host.total()) && of_moment(cluster, host, &lacking).is_none()
    };
    let hosts = cluster.emptiest(|traits| of_traits(traits, &whole).is_none());
    let plan = |host: &Host| left(cluster, host, it, moved_max);
    let plans = hosts.filter(suits).take(HOSTS_MAX).filter_map(plan);
    plans.min_by_key(|moves| (moves.len(), memory(moves))).unwrap_or_default()
}

fn memory(moves: &[Move]) -> u64 {
    moves.iter().map(|step| u64::from(step.resources.memory)).sum()
}

/// Moves after which this host has room.
fn left(cluster: &Cluster, host: &Host, it: &RoomFor<'_>, moved_max: usize) -> Option<Vec<Move>> {
    let mut there = movable(cluster, host);
    let mut lacks = it.spec.needs.minus(host.free());
    let mut moves: Vec<Move> = Vec::new();
    while !lacks.is_none() {
        if moves.len() == moved_max {
            return None;
        }
        // The smallest that is enough alone, else the largest.
        let enough = there.iter().position(|(_, has)| lacks.fits_in(*has));
        let at = enough.or_else(|| there.len().checked_sub(1))?;
        let (vm, resources) = there.remove(at);
        let Some(all) = with_one_more(cluster, host.id(), (vm, resources), (it, &moves)) else {
            continue;
        };
        (moves, lacks) = (all, lacks.minus(resources));
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

/// These moves and one more, of this VM to the best fit beside what comes there already, if all of them may be made.
fn with_one_more(
    cluster: &Cluster,
    from: HostId,
    (vm, resources): (VmId, Resources),
    (asks, moves): (&RoomFor<'_>, &[Move]),
) -> Option<Vec<Move>> {
    let spec = cluster.vm(vm)?.spec();
    let it = Candidate::complete(spec, Some(vm));
    let hosts = cluster.best_fit(spec.needs, |traits| of_traits(traits, &it).is_none());
    let has_room = |host: &&Host| {
        let coming = moves.iter().filter(|step| step.to == host.id());
        let comes = coming.fold(Resources::NONE, |sum, step| sum.plus(step.resources));
        host.id() != from
            && spec.needs.plus(comes).fits_in(host.free())
            && of_moment(cluster, host, &it).is_none()
    };
    let all = |host: &Host| {
        let step = Move { vm, from, to: host.id(), resources, devices: Vec::new() };
        let all: Vec<Move> = moves.iter().cloned().chain([step]).collect();
        (asks.allows)(&all).then_some(all)
    };
    hosts.filter(has_room).take(PLACES_MAX).find_map(all)
}
