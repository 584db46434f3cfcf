//! Why each host is not taken for a VM. It looks at all hosts, so it is for a person who asks, not for each decision.

use crate::cluster::{Cluster, HostState};
use crate::ids::HostId;
use crate::reason::WhyNot;
use crate::spec::Spec;
use crate::validate::{Candidate, why_not};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Hosts that an explanation names.
pub const EXPLAINED_MAX: usize = 32;

/// Why a VM is not on one host, of each host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Explanation {
    /// Hosts that would do.
    pub fit: u32,
    /// Open hosts by what is against them: in words, without numbers.
    pub counts: BTreeMap<String, u32>,
    /// Hosts that take nothing.
    pub closed: u32,
    /// The hosts with most free cores of those that do not do, and why: [`EXPLAINED_MAX`] at most.
    pub hosts: Vec<(HostId, WhyNot)>,
}

/// Asks each host. `is_slice` asks whether a slice may be there, however small.
#[must_use]
pub fn explain(cluster: &Cluster, spec: &Spec, is_slice: bool) -> Explanation {
    let it = if is_slice { Candidate::slice(spec, None) } else { Candidate::complete(spec, None) };
    let mut explanation = Explanation::default();
    let mut nearest: BTreeMap<(Reverse<u32>, HostId), WhyNot> = BTreeMap::new();
    for host in cluster.hosts() {
        if host.state() != HostState::Open {
            explanation.closed += 1;
            continue;
        }
        let Some(why) = why_not(cluster, host.id(), &it) else {
            explanation.fit += 1;
            continue;
        };
        *explanation.counts.entry(kind(&why).to_owned()).or_default() += 1;
        nearest.insert((Reverse(host.free().cores), host.id()), why);
        if nearest.len() > EXPLAINED_MAX {
            nearest.pop_last();
        }
    }
    explanation.hosts = nearest.into_iter().map(|((_, host), why)| (host, why)).collect();
    explanation
}

fn kind(why: &WhyNot) -> &'static str {
    match why {
        WhyNot::Closed => "takes nothing new",
        WhyNot::Avoided => "could not start it",
        WhyNot::Features(_) => "lacks CPU features",
        WhyNot::Dedicated(_) => "is another tenant's",
        WhyNot::NotDedicated => "is not the tenant's alone",
        WhyNot::NoDevice(_) => "lacks a device",
        WhyNot::CannotShare => "cannot share memory",
        WhyNot::AntiAffinity(_) => "has a VM of the same group",
        WhyNot::SlicesFull => "carries no more slices",
        WhyNot::Cores(_) => "has too few free cores",
        WhyNot::Memory(_) => "has too little free memory",
        WhyNot::Devices(_) => "has too few free devices",
        WhyNot::SpansNodes => "has no NUMA node with room",
    }
}
