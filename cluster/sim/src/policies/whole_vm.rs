//! Live migration of whole VMs, as clusters without Aggregate VMs do it: what is on a host moves aside, so that one that waits has
//! room. And both together: a VM is split at once, and whole VMs move too.

use scheduler::cluster::{Cluster, Host, Move, Slice};
use scheduler::fragmentation::Mix;
use scheduler::policy::{
    Bff, Consolidation, Facts, FragBff, Policy, Refusal, Room, RoomFor, Spread, When,
};
use scheduler::{Candidate, Decision, HostId, Spec, VmId, candidates};

/// Whoever waits is moved for, however short it has waited.
const AT_ONCE: Room = Room { when: When::Waited(0), ..Room::EAGER };

/// Nothing is split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WholeVm;

impl Policy for WholeVm {
    fn place(&self, cluster: &Cluster, spec: &Spec) -> Result<Decision, Refusal> {
        Bff.place(cluster, spec)
    }

    fn consolidate(&self, _: &Cluster, _: VmId, _: &Facts<'_>) -> Vec<Move> {
        Vec::new()
    }

    fn make_room(&self, cluster: &Cluster, it: &RoomFor<'_>) -> Vec<Move> {
        AT_ONCE.moves(cluster, it)
    }

    fn makes_room(&self) -> bool {
        true
    }
}

/// FragBFF with fewest hosts, and moves of whole VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitAndMove {
    frag_bff: FragBff,
}

impl SplitAndMove {
    /// With VMs that are expected.
    #[must_use]
    pub fn new(mix: Mix) -> Self {
        let (spread, consolidation) = (Spread::MinNodes, Consolidation::MinNodes);
        Self { frag_bff: FragBff { spread, consolidation, mix } }
    }
}

impl Policy for SplitAndMove {
    fn place(&self, cluster: &Cluster, spec: &Spec) -> Result<Decision, Refusal> {
        self.frag_bff.place(cluster, spec)
    }

    /// As FragBFF, else all of it to a host that has room for all of it.
    fn consolidate(&self, cluster: &Cluster, vm: VmId, facts: &Facts<'_>) -> Vec<Move> {
        let moves = self.frag_bff.consolidate(cluster, vm, facts);
        if !moves.is_empty() {
            return moves;
        }
        let Some(running) = cluster.vm(vm) else { return Vec::new() };
        let slices = running.slices();
        let own = |host: HostId| slices.iter().any(|slice| slice.host == host);
        let it = Candidate::complete(running.spec(), Some(vm));
        let fabric = cluster.host(running.bootstrap()).map(Host::fabric);
        let suits = |host: &&Host| !own(host.id()) && Some(host.fabric()) == fabric;
        let Some(to) = candidates(cluster, &it).find(suits) else { return Vec::new() };
        let step = |slice: &Slice| Move {
            vm,
            from: slice.host,
            to: to.id(),
            resources: slice.resources,
            devices: slice.devices.clone(),
        };
        slices.iter().map(step).collect()
    }

    fn revisits(&self) -> bool {
        true
    }

    fn make_room(&self, cluster: &Cluster, it: &RoomFor<'_>) -> Vec<Move> {
        // One that may be split is, when there is room at all.
        if it.spec.slices_max > 1 { Vec::new() } else { WholeVm.make_room(cluster, it) }
    }

    fn makes_room(&self) -> bool {
        true
    }
}
