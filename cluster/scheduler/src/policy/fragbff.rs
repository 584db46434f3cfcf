//! FragBFF: FragVisor's policies, as its section 6.5 tells them.

use super::best_fit::{best_fit, on_one};
use super::consolidate::{fewer_hosts, less_fragmentation};
use super::refusal::refuse;
use super::split::{Order, Splitter};
use super::{Facts, Policy, Refusal};
use crate::cluster::{Cluster, Move};
use crate::fragmentation::Mix;
use crate::ids::VmId;
use crate::placement::{Decision, Rejections, Rule, Share};
use crate::spec::Spec;

/// Over how many hosts a VM is split that fits none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Spread {
    /// As few as possible.
    MinNodes,
    /// As many as its class allows.
    MaxNodes,
}

/// What moves when something ends beside a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Consolidation {
    /// What lowers the fragmentation of the cluster; a part of a slice too.
    MinFragmentation,
    /// What lets the VM run on fewer hosts.
    MinNodes,
    /// Nothing.
    None,
}

/// FragBFF. FragVisor ran it with fewest hosts and least fragmentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FragBff {
    /// When a VM starts.
    pub spread: Spread,
    /// When something ends.
    pub consolidation: Consolidation,
    /// VMs that are expected, which is what fragmentation is about.
    pub mix: Mix,
}

impl Policy for FragBff {
    fn place(&self, cluster: &Cluster, spec: &Spec) -> Result<Decision, Refusal> {
        let mut rejections = Rejections::default();
        if let Some(host) = best_fit(cluster, spec, &mut rejections) {
            return Ok(on_one(host, spec, rejections));
        }
        let (order, rule) = match self.spread {
            Spread::MinNodes => (Order::MostFirst, Rule::FewestHosts),
            Spread::MaxNodes => (Order::LeastFirst, Rule::MostHosts),
        };
        let splitter =
            Splitter { cluster, spec, vm: None, slices_max: spec.slices_max, is_last_tight: false };
        on_several(&splitter, order, rule, rejections).ok_or_else(|| refuse(cluster, spec))
    }

    fn consolidate(&self, cluster: &Cluster, vm: VmId, facts: &Facts<'_>) -> Vec<Move> {
        let Some(host) = facts.released else { return Vec::new() };
        match self.consolidation {
            Consolidation::MinFragmentation => {
                less_fragmentation(cluster, vm, host, &self.mix).into_iter().collect()
            }
            Consolidation::MinNodes => fewer_hosts(cluster, vm, host),
            Consolidation::None => Vec::new(),
        }
    }
}

/// The VM split, if it may be.
pub(super) fn on_several(
    splitter: &Splitter<'_>,
    order: Order,
    rule: Rule,
    rejections: Rejections,
) -> Option<Decision> {
    if splitter.slices_max < 2 {
        return None;
    }
    let shares = splitter.split(order)?;
    let generation = |share: &Share| {
        splitter.cluster.host(share.host).map(|host| (host.id(), host.generation()))
    };
    Some(Decision {
        basis: shares.iter().filter_map(generation).collect(),
        shares,
        rule,
        rejected: rejections.first,
        rejected_count: rejections.count,
    })
}
