//! Best fit: the host that has least left. BFF is that and a queue.

use super::refusal::refuse;
use super::{Facts, Policy, Refusal};
use crate::cluster::{Cluster, Host, Move};
use crate::ids::VmId;
use crate::placement::{Decision, Rejections, Rule, Share};
use crate::reason::WhyNot;
use crate::spec::Spec;
use crate::validate::{Candidate, of_moment, of_traits};

/// Best-fit FIFO: FragVisor's baseline. A VM runs on one host or waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bff;

impl Policy for Bff {
    fn place(&self, cluster: &Cluster, spec: &Spec) -> Result<Decision, Refusal> {
        let mut rejections = Rejections::default();
        best_fit(cluster, spec, &mut rejections)
            .map(|host| on_one(host, spec, rejections))
            .ok_or_else(|| refuse(cluster, spec))
    }

    fn consolidate(&self, _: &Cluster, _: VmId, _: &Facts<'_>) -> Vec<Move> {
        Vec::new()
    }
}

/// The host with least cores left, then least memory, then the lowest number.
pub(super) fn best_fit<'a>(
    cluster: &'a Cluster,
    spec: &Spec,
    rejections: &mut Rejections,
) -> Option<&'a Host> {
    let it = Candidate::complete(spec, None);
    let mut hosts = cluster.best_fit(spec.needs, |traits| of_traits(traits, &it).is_none());
    hosts.find(|host| rejections.admit(host.id(), of_moment(cluster, host, &it)))
}

/// Hosts with equally many cores left that are looked at for a NUMA node with room for all of it.
const NODES_LOOKED_AT: usize = 16;

/// The same, and of those with as many cores left the first where the VM lies on one NUMA node.
pub(super) fn best_fit_on_a_node<'a>(
    cluster: &'a Cluster,
    spec: &Spec,
    rejections: &mut Rejections,
) -> Option<&'a Host> {
    let it = Candidate::complete(spec, None);
    let hosts = cluster.best_fit(spec.needs, |traits| of_traits(traits, &it).is_none());
    let mut hosts =
        hosts.filter(|host| of_moment(cluster, host, &it).is_none()).take(NODES_LOOKED_AT);
    let first = hosts.next()?;
    if first.fits_one_node(spec.needs) {
        return Some(first);
    }
    let same = hosts.take_while(|host| host.free().cores == first.free().cores);
    let Some(on_one) = { same }.find(|host| host.fits_one_node(spec.needs)) else {
        return Some(first);
    };
    rejections.admit(first.id(), Some(WhyNot::SpansNodes));
    Some(on_one)
}

/// All of the VM on this host.
pub(super) fn on_one(host: &Host, spec: &Spec, rejections: Rejections) -> Decision {
    let share = Share { devices: spec.devices.clone(), ..Share::new(host.id(), spec.needs) };
    Decision {
        shares: vec![share],
        rule: Rule::BestFit,
        rejected: rejections.first,
        rejected_count: rejections.count,
        basis: vec![(host.id(), host.generation())],
    }
}
