//! The host with the lowest score.

use scheduler::cluster::{Cluster, Host};
use scheduler::policy::Refusal;
use scheduler::{Candidate, Decision, Rule, Share, Spec, candidates};

/// All of the VM on the host with the lowest score; of hosts alike on the one that a best fit takes.
pub(super) fn lowest<S: PartialOrd>(
    cluster: &Cluster,
    spec: &Spec,
    score: impl Fn(&Host) -> S,
) -> Result<Decision, Refusal> {
    let it = Candidate::complete(spec, None);
    let mut best: Option<(S, &Host)> = None;
    for host in candidates(cluster, &it) {
        let score = score(host);
        if best.as_ref().is_none_or(|(lowest, _)| score < *lowest) {
            best = Some((score, host));
        }
    }
    best.map(|(_, host)| on_one(host, spec)).ok_or(Refusal::Scattered)
}

/// All of the VM on this host.
pub(super) fn on_one(host: &Host, spec: &Spec) -> Decision {
    let (id, resources, devices) = (host.id(), spec.needs, spec.devices.clone());
    Decision {
        shares: vec![Share { host: id, resources, devices }],
        rule: Rule::BestFit,
        rejected: Vec::new(),
        rejected_count: 0,
        basis: vec![(id, host.generation())],
    }
}
