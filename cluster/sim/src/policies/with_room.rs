//! FragBFF, and room for the first VM of the queue as ours makes it: what of a difference is the room, and what the rest of the policy.

use scheduler::cluster::{Cluster, Move};
use scheduler::policy::{Facts, FragBff, Policy, Refusal, Room, RoomFor};
use scheduler::{Decision, Spec, VmId};

/// FragBFF; others move aside for the one that nobody may pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragBffWithRoom(pub FragBff);

impl Policy for FragBffWithRoom {
    fn place(&self, cluster: &Cluster, spec: &Spec) -> Result<Decision, Refusal> {
        self.0.place(cluster, spec)
    }

    fn consolidate(&self, cluster: &Cluster, vm: VmId, facts: &Facts<'_>) -> Vec<Move> {
        self.0.consolidate(cluster, vm, facts)
    }

    /// FragBFF is asked when something ends; what was kept from coming together then is asked for when the room is made.
    fn make_room(&self, cluster: &Cluster, it: &RoomFor<'_>) -> Vec<Move> {
        Room::SPARING.moves(cluster, it)
    }

    fn makes_room(&self) -> bool {
        true
    }
}
