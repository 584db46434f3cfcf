//! Rules as of Azure's allocator, Protean: what must be is checked; what is preferred is asked in an order, each as a number of
//! few values; among hosts that are alike in all of them chance decides, so that several agents do not want the same one.
//!
//! Its rules are not published in full. These are: on one NUMA node; how full the host is with it, in eighths; a host that is
//! in use already.

use super::scored::lowest;
use scheduler::cluster::{Cluster, Host, Move};
use scheduler::policy::{Facts, Policy, Refusal};
use scheduler::{Decision, Spec, VmId};

/// The rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protean;

impl Policy for Protean {
    fn place(&self, cluster: &Cluster, spec: &Spec) -> Result<Decision, Refusal> {
        lowest(cluster, spec, |host| {
            let spans = !host.fits_one_node(spec.needs);
            (spans, eighths_free(host, spec), host.vms().next().is_none(), chance(host))
        })
    }

    fn consolidate(&self, _: &Cluster, _: VmId, _: &Facts<'_>) -> Vec<Move> {
        Vec::new()
    }
}

/// What is free with the VM, of the scarcer of cores and memory, in eighths.
fn eighths_free(host: &Host, spec: &Spec) -> u64 {
    let (left, total) = (host.free().minus(spec.needs), host.total());
    let eighths = |left: u32, total: u32| u64::from(left) * 8 / u64::from(total.max(1));
    eighths(left.cores, total.cores).min(eighths(left.memory, total.memory))
}

/// The same for the same host in the same state, and another one for others.
fn chance(host: &Host) -> u64 {
    let mixed = u64::from(host.id().0).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ host.generation();
    (mixed ^ mixed >> 31).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 32
}
