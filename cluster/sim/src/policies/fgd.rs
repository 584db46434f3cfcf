//! Fragmentation gradient descent: the host where the VM leaves least more that the next VM is expected to be unable to use [FGD],
//! with cores and memory for GPUs.

use super::scored::lowest;
use scheduler::cluster::{Cluster, Move};
use scheduler::fragmentation::Mix;
use scheduler::policy::{Facts, Policy, Refusal};
use scheduler::{Decision, Spec, VmId};

/// The steepest descent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fgd {
    /// VMs that are expected.
    pub mix: Mix,
}

impl Policy for Fgd {
    fn place(&self, cluster: &Cluster, spec: &Spec) -> Result<Decision, Refusal> {
        let signed = |it: u64| i64::try_from(it).unwrap_or(i64::MAX);
        lowest(cluster, spec, |host| {
            let after = self.mix.unusable(host.free().minus(spec.needs));
            signed(after) - signed(self.mix.unusable(host.free()))
        })
    }

    fn consolidate(&self, _: &Cluster, _: VmId, _: &Facts<'_>) -> Vec<Move> {
        Vec::new()
    }
}
