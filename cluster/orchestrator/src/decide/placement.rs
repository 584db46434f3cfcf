//! By which policy the scheduler places, as an operator chooses it.

use scheduler::cluster::{Cluster, HostState, Move, Vm};
use scheduler::policy::{Bff, Facts, FragBff, Policy, Refusal};
use scheduler::{Decision, HostId, Spec, VmId};

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Choice {
    /// Best fit on one host, or it waits.
    BestFit,
    /// Best fit, and over several hosts where no single one has room. What is split comes together when it can.
    Split(FragBff),
}

/// What an executor can do: a whole slice goes to another host, the first slice stays, and both it and the host that is left answer.
fn may_be_made(cluster: &Cluster, vm: &Vm, step: &Move) -> bool {
    let answers =
        |host: HostId| cluster.host(host).is_some_and(|host| host.state() != HostState::Lost);
    if !answers(vm.bootstrap()) || !answers(step.from) {
        return false;
    }
    let slices = vm.slices();
    let is_whole = slices.iter().any(|slice| {
        slice.host == step.from
            && slice.resources == step.resources
            && slice.devices == step.devices
    });
    is_whole && step.from != vm.bootstrap()
}

impl Policy for Choice {
    fn place(&self, cluster: &Cluster, spec: &Spec) -> Result<Decision, Refusal> {
        match self {
            Self::BestFit => Bff.place(cluster, spec),
            Self::Split(policy) => policy.place(cluster, spec),
        }
    }

    /// As the policy says where something has ended; and as if something had just ended on each host of the VM when time has passed,
    /// because a move may have failed, or a leader may not have been there to make it.
    fn consolidate(&self, cluster: &Cluster, vm: VmId, facts: &Facts<'_>) -> Vec<Move> {
        let Self::Split(policy) = self else { return Vec::new() };
        let Some(it) = cluster.vm(vm) else { return Vec::new() };
        let all = || it.slices().iter().map(|slice| slice.host).collect();
        let hosts: Vec<HostId> = facts.released.map_or_else(all, |host| vec![host]);
        for host in hosts {
            let facts = Facts { released: Some(host), ..*facts };
            let moves = policy.consolidate(cluster, vm, &facts);
            if let [step] = &moves[..]
                && may_be_made(cluster, it, step)
            {
                return moves;
            }
        }
        Vec::new()
    }

    fn may_move(&self, cluster: &Cluster, step: &Move) -> bool {
        cluster.vm(step.vm).is_some_and(|vm| may_be_made(cluster, vm, step))
    }

    fn revisits(&self) -> bool {
        matches!(self, Self::Split(_))
    }
}
