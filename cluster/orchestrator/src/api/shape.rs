//! What the machine knows, in the shapes of the API.

use super::names::page;
use super::spec::{run_message, spec};
use crate::decide::{HostStanding, HostView, Orchestrator, Plan, Standings};
use control::v1::{
    ClusterHost, ClusterProgress, ClusterStatus, ClusterVm, HostResources, PlacedSlice,
    ProgressStep, RejectedHost, RunStrategy, StayingVm, VmExplanation, VmPlan, cluster_host,
    cluster_vm,
};
use scheduler::Resources;
use state::{Name, Operation, Part, Verb, Vm, VmState};

const MIB: u64 = 1 << 20;
/// A unit of memory of the scheduler.
const UNIT: u64 = 2 * MIB;

fn part(part: &Part) -> PlacedSlice {
    PlacedSlice {
        host: format!("hosts/{}", part.host),
        vcpus: part.vcpus.iter().copied().map(u32::from).collect(),
        memory_bytes: part.memory_mib.saturating_mul(MIB),
    }
}

/// A VM.
pub(crate) fn vm(machine: &Orchestrator, vm: &Vm) -> ClusterVm {
    let state = match vm.observed.state {
        VmState::Waiting => cluster_vm::State::Waiting,
        VmState::Starting => cluster_vm::State::Starting,
        VmState::Running => cluster_vm::State::Running,
        VmState::Paused => cluster_vm::State::Paused,
        VmState::Stopping => cluster_vm::State::Stopping,
        VmState::Stopped => cluster_vm::State::Stopped,
        VmState::Lost => cluster_vm::State::Lost,
    };
    let slices = machine.assignment(&vm.name).map(|it| &it.slices[..]).unwrap_or_default();
    let operation = machine.going_on(&vm.name);
    ClusterVm {
        name: format!("vms/{}", vm.name),
        uid: vm.uid.to_string(),
        spec: Some(spec(&vm.desired)),
        etag: Orchestrator::etag(vm),
        state: state.into(),
        why: vm.observed.why.clone(),
        generation: vm.generation.0,
        observed_generation: vm.observed.generation.0,
        life: vm.life,
        placement: slices.iter().map(part).collect(),
        operation: operation.map_or_else(String::new, |it| format!("operations/{}", it.id)),
        former_run: vm.former_run.map_or(RunStrategy::Unspecified, run_message).into(),
    }
}

/// A VM by its name.
pub(crate) fn vm_of(machine: &Orchestrator, name: &Name) -> Option<ClusterVm> {
    machine.vm(name).map(|it| vm(machine, it))
}

/// A page of VMs.
pub(crate) fn vms(
    machine: &Orchestrator,
    after: Option<&Name>,
    size: usize,
) -> (Vec<ClusterVm>, String) {
    page(machine.vms_after(after), size, |it| (it.name.clone(), vm(machine, it)))
}

/// Cores and memory as messages have them.
fn resources(resources: Resources) -> HostResources {
    HostResources {
        cores: resources.cores,
        memory_bytes: u64::from(resources.memory).saturating_mul(UNIT),
    }
}

fn host(view: &HostView<'_>, stays: Vec<(Name, String)>) -> ClusterHost {
    let state = match view.standing {
        HostStanding::Unknown => cluster_host::State::Unknown,
        HostStanding::Up => cluster_host::State::Up,
        HostStanding::Down => cluster_host::State::Down,
        HostStanding::Foreign => cluster_host::State::Foreign,
    };
    let (host, facts) = (view.host, view.host.facts.as_ref());
    let known = facts.is_some();
    let desired = &host.desired;
    let takes = (desired.cordoned, desired.draining);
    let identity = format!("{} {} {takes:?}", host.name, desired.agent);
    let staying = |(name, why)| StayingVm { vm: format!("vms/{name}"), why };
    ClusterHost {
        name: format!("hosts/{}", host.name),
        agent: desired.agent.clone(),
        etag: blake3::hash(identity.as_bytes()).to_hex().as_str()[..16].to_owned(),
        cordoned: desired.cordoned,
        state: state.into(),
        capacity: known.then(|| resources(view.total)),
        free: known.then(|| resources(view.free)),
        vms: view.vms.iter().map(|name| format!("vms/{name}")).collect(),
        boot_id: facts.map_or_else(String::new, |it| it.boot_id.clone()),
        version: facts.map_or_else(String::new, |it| it.version.clone()),
        draining: desired.draining,
        stays: stays.into_iter().map(staying).collect(),
        warning: view.warning.clone().unwrap_or_default(),
        lacks: view.lacks.to_vec(),
    }
}

/// A host by its name.
pub(crate) fn host_of(machine: &Orchestrator, name: &Name) -> Option<ClusterHost> {
    machine.host(name).map(|view| host(&view, machine.what_stays(name)))
}

/// A page of hosts.
pub(crate) fn hosts(
    machine: &Orchestrator,
    after: Option<&Name>,
    size: usize,
) -> (Vec<ClusterHost>, String) {
    let names = machine.hosts().filter(|name| after.is_none_or(|after| *name > after));
    let views = names.filter_map(|name| machine.host(name));
    page(views, size, |view| {
        let name = view.host.name.clone();
        let stays = machine.what_stays(&name);
        (name, host(&view, stays))
    })
}

/// A word of it.
pub(crate) const fn verb(verb: Verb) -> &'static str {
    match verb {
        Verb::Start => "start",
        Verb::Stop => "stop",
        Verb::Restart => "restart",
        Verb::Delete => "delete",
        Verb::Move => "move",
        Verb::Checkpoint => "checkpoint",
    }
}

/// How far an operation is.
pub(crate) fn progress(operation: &Operation) -> ClusterProgress {
    let step = |step: &state::Step| ProgressStep {
        what: step.what.clone(),
        done: step.done,
        undone: step.undone,
    };
    ClusterProgress {
        target: format!("vms/{}", operation.vm),
        verb: verb(operation.verb).to_owned(),
        steps: operation.steps.iter().map(step).collect(),
        undoing: operation.undoing.clone().unwrap_or_default(),
    }
}

fn rejected((host, why): (Name, String)) -> RejectedHost {
    RejectedHost { host: format!("hosts/{host}"), why }
}

/// Where a VM would be.
pub(crate) fn plan(plan: Plan) -> VmPlan {
    let mut next = 0;
    let part = |(host, resources): (Name, Resources)| {
        let vcpus = (next..next + resources.cores).collect();
        next += resources.cores;
        let memory_bytes = u64::from(resources.memory).saturating_mul(UNIT);
        PlacedSlice { host: format!("hosts/{host}"), vcpus, memory_bytes }
    };
    VmPlan {
        unchanged: plan.unchanged,
        placement: plan.parts.into_iter().map(part).collect(),
        why: plan.why,
        rejected: plan.rejected.into_iter().map(rejected).collect(),
        token: plan.token,
    }
}

/// Why a VM is where it is.
pub(crate) fn explanation(machine: &Orchestrator, name: &Name) -> Option<VmExplanation> {
    let why = machine.why(name)?;
    Some(VmExplanation {
        vm: vm_of(machine, name),
        why: why.why,
        hosts_that_fit: why.fit,
        rejected: why.rejected.into_iter().map(rejected).collect(),
        operation: machine.going_on(name).map(progress),
    })
}

/// How the cluster is.
pub(crate) fn cluster(machine: &Orchestrator, leader: String) -> ClusterStatus {
    let standing = machine.standing();
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let Standings { all: hosts, up, .. } = standing.hosts;
    let (free_cores, fragmentation) = standing.fragmentation;
    ClusterStatus {
        leader,
        term: standing.term.0,
        hosts_up: count(up),
        hosts: count(hosts),
        vms_running: count(standing.running),
        vms_waiting: count(standing.waiting),
        vms: count(standing.vms),
        vms_aggregate: count(standing.aggregate),
        free_cores,
        fragmentation,
    }
}
