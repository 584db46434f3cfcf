//! By which policy the scheduler places, as an operator chooses it.

use scheduler::cluster::{Cluster, Move};
use scheduler::policy::{Bff, Facts, FragBff, Policy, Refusal};
use scheduler::{Decision, Spec, VmId};

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Choice {
    /// Best fit on one host, or it waits.
    BestFit,
    /// Best fit, and over several hosts where no single one has room.
    Split(FragBff),
}

impl Policy for Choice {
    fn place(&self, cluster: &Cluster, spec: &Spec) -> Result<Decision, Refusal> {
        match self {
            Self::BestFit => Bff.place(cluster, spec),
            Self::Split(policy) => policy.place(cluster, spec),
        }
    }

    /// Nothing moves yet: the executor has no operation for it.
    fn consolidate(&self, _: &Cluster, _: VmId, _: &Facts<'_>) -> Vec<Move> {
        Vec::new()
    }
}
