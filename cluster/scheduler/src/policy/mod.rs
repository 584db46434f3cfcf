//! Policies: on which hosts a VM starts, and which slices move together later. A policy looks at the state and changes nothing.
//!
//! | policy | a VM that fits one host | one that does not | later |
//! |---|---|---|---|
//! | [`Bff`] | best fit | waits | nothing |
//! | [`FragBff`] (FragVisor) | best fit | split over the fewest or the most hosts | when something ends beside a slice: fewer hosts, or less fragmentation |
//! | [`Lifetime`] (ours) | best fit, within a NUMA node if that costs nothing | fewest hosts, the last slice as best fit; others move aside for the first that waits | at any time: what is worth its cost, by age and measured stall |

mod best_fit;
mod consolidate;
mod fragbff;
mod lifetime;
mod refusal;
mod room;
mod split;

#[cfg(test)]
mod tests;

pub use best_fit::Bff;
pub(crate) use consolidate::all_of;
pub use fragbff::{Consolidation, FragBff, Spread};
pub use lifetime::Lifetime;
pub use refusal::Refusal;
pub use room::{Room, RoomFor, When};

use crate::cluster::{Cluster, Move};
use crate::cost::Stall;
use crate::ids::{HostId, VmId};
use crate::placement::Decision;
use crate::spec::Spec;

/// What a policy is told beside the state.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The time, in milliseconds.
    pub now: u64,
    /// Something has ended on this host; nothing has, and time has passed.
    pub released: Option<HostId>,
    /// What was measured of the VM.
    pub stall: Option<&'a Stall>,
    /// It has waited for more than its class allows, for so long that it is not by chance.
    pub is_over_budget: bool,
}

/// Chooses hosts and moves.
pub trait Policy {
    /// Where a VM is to start.
    ///
    /// # Errors
    /// Nowhere at this moment, and why.
    fn place(&self, cluster: &Cluster, spec: &Spec) -> Result<Decision, Refusal>;

    /// What of an Aggregate VM moves now; all of it, or nothing. None of it moves already.
    fn consolidate(&self, cluster: &Cluster, vm: VmId, facts: &Facts<'_>) -> Vec<Move>;

    /// Whether it is also asked when nothing has ended.
    fn revisits(&self) -> bool {
        false
    }

    /// What of other VMs moves so that this one finds room; all of it, or nothing. None of them moves already. The room is not
    /// kept: whoever has its turn first when it is free has it.
    fn make_room(&self, _: &Cluster, _: &RoomFor<'_>) -> Vec<Move> {
        Vec::new()
    }

    /// Whether whoever acts can make this move, which a host's drain is about to decide.
    fn may_move(&self, _: &Cluster, _: &Move) -> bool {
        true
    }

    /// Whether it is asked for room at all.
    fn makes_room(&self) -> bool {
        false
    }
}

impl<P: Policy + ?Sized> Policy for Box<P> {
    fn place(&self, cluster: &Cluster, spec: &Spec) -> Result<Decision, Refusal> {
        (**self).place(cluster, spec)
    }

    fn consolidate(&self, cluster: &Cluster, vm: VmId, facts: &Facts<'_>) -> Vec<Move> {
        (**self).consolidate(cluster, vm, facts)
    }

    fn revisits(&self) -> bool {
        (**self).revisits()
    }

    fn make_room(&self, cluster: &Cluster, it: &RoomFor<'_>) -> Vec<Move> {
        (**self).make_room(cluster, it)
    }

    fn may_move(&self, cluster: &Cluster, step: &Move) -> bool {
        (**self).may_move(cluster, step)
    }

    fn makes_room(&self) -> bool {
        (**self).makes_room()
    }
}
