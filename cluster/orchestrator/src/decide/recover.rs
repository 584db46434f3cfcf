//! A new leader begins from what is in the store. What goes on it goes on with: it asks again, and agents do each once.

use super::ids::Time;
use super::machine::{Heard, Orchestrator, Settings};
use super::moves::{Course, resources};
use super::objects::{Objects, Stored};
use super::planted::{Planted, PlantedBug};
use super::progress::Work;
use super::work::at;
use scheduler::cluster::{Cluster, Move};
use scheduler::{Decision, HostId, Resources, Rule, Scheduler, Share, VmId};
use state::{Assignment, Name, Term, Verb, Vm};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Orchestrator {
    /// The machine of a leader of this term.
    #[must_use]
    pub fn recover(settings: Settings, term: Term, now: Time, objects: Objects) -> Self {
        Self::begun(settings, term, now, objects, Planted::default())
    }

    fn begun(
        settings: Settings,
        term: Term,
        now: Time,
        objects: Objects,
        planted: Planted,
    ) -> Self {
        let mut cluster = Cluster::new();
        let (mut heard, mut host_names) = (BTreeMap::new(), BTreeMap::new());
        let mut ids: BTreeMap<Name, HostId> = BTreeMap::new();
        let taken = taken(&objects);
        for host in objects.hosts.values() {
            let nodes = host.facts.as_ref().map_or(&[][..], |facts| &facts.nodes);
            let spec = super::hosts::spec(nodes).map(|mut spec| {
                // Its agent may have less to give than when these VMs began: what they have is theirs.
                let missing = taken.get(&host.name).map(|taken| taken.minus(spec.total()));
                if let (Some(node), Some(missing)) = (spec.nodes.first_mut(), missing) {
                    *node = node.plus(missing);
                }
                spec
            });
            let id = spec.and_then(|spec| cluster.add_host(&spec).ok());
            heard.insert(host.name.clone(), Heard { id, ..Heard::default() });
            if let Some(id) = id {
                host_names.insert(id, host.name.clone());
                ids.insert(host.name.clone(), id);
            }
        }
        let (mut vm_ids, mut vm_names, mut next_vm) = (BTreeMap::new(), BTreeMap::new(), 0);
        for (name, assignment) in &objects.assignments {
            let Some(vm) = objects.vms.get(name) else { continue };
            // What moves is where it was until it is known to be there.
            let assignment = objects.before.get(name).unwrap_or(assignment);
            let id = VmId(next_vm);
            next_vm += 1;
            if place(&mut cluster, id, vm, assignment, &ids).is_some() {
                vm_ids.insert(name.clone(), id);
                vm_names.insert(id, name.clone());
            } else {
                tracing::warn!(vm = %name, "it is not where it could be placed now");
            }
        }
        let mut moving = BTreeMap::new();
        for (name, before) in &objects.before {
            let goal = objects.assignments.get(name);
            let step = goal.and_then(|goal| move_between(*vm_ids.get(name)?, before, goal, &ids));
            let kept = step.and_then(|step| cluster.reserve_move(&step, u64::MAX).ok());
            moving.insert(name.clone(), kept);
        }
        for host in objects.hosts.values() {
            // What is there is placed by now. Whoever asks next is not put where nothing may come.
            if let Some(id) = ids.get(&host.name) {
                let _ = cluster.set_state(*id, super::hosts::state_of(false, false, &host.desired));
            }
        }
        // What is kept in the ledger is an operation's affair, which has its own times.
        let limits = scheduler::Settings { reservation_ttl: u64::MAX, ..Default::default() };
        let scheduler = Scheduler::new(cluster, settings.choice.clone(), limits);
        let mut it = Self::bare(settings, term, now, objects, scheduler);
        (it.heard, it.host_names) = (heard, host_names);
        (it.vm_ids, it.vm_names, it.next_vm) = (vm_ids, vm_names, next_vm);
        it.moving = moving;
        it.planted = planted;
        it.resume();
        it
    }

    /// With a bug that a model is to find, which is there from the beginning.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn recover_with(
        settings: Settings,
        term: Term,
        now: Time,
        objects: Objects,
        bug: PlantedBug,
    ) -> Self {
        Self::begun(settings, term, now, objects, Planted::some(bug))
    }

    /// What goes on, in memory.
    fn resume(&mut self) {
        let (now, after) = (self.now, self.last_call());
        let going = self.objects.operations.values().filter(|it| it.result.is_none());
        let mut works = BTreeMap::new();
        for operation in going {
            if self.planted.has(PlantedBug::OperationForgotten) {
                continue;
            }
            let mut work = Work::new(operation.id.clone(), now, after);
            // Of a start that is undone: whether its slices are over already. If nobody knows, they are fenced once more.
            let fenced = operation.steps.iter().skip(1).all(|step| step.done == step.undone);
            work.is_fenced = operation.verb == Verb::Start
                && operation.undoing.is_some()
                && fenced
                && at(operation) == Some(0);
            works.insert(operation.vm.clone(), work);
        }
        self.works = works;
        // VMs that run: reports that this leader asks for know of them.
        let runs = |name: &Name| {
            let verb = self.operation(name).map(|operation| operation.verb);
            matches!(verb, None | Some(Verb::Checkpoint | Verb::Move))
        };
        let running = self.objects.assignments.keys().filter(|name| runs(name));
        self.running_since = running.map(|name| (name.clone(), after)).collect();
    }

    /// What is in the store, as this machine has it.
    #[must_use]
    pub fn objects(&self) -> &Objects {
        &self.objects
    }
}

/// What VMs have of each host, or are about to have.
fn taken(objects: &Objects) -> BTreeMap<Name, Resources> {
    let mut taken: BTreeMap<Name, Resources> = BTreeMap::new();
    for (name, assignment) in &objects.assignments {
        let before = objects.before.get(name);
        let course = before.and_then(|before| Course::between(before, assignment));
        let parts = before.unwrap_or(assignment).slices.iter();
        let parts = parts.map(|part| (&part.host, resources(part)));
        let coming = course.iter().map(|course| (&course.after.host, course.resources()));
        for (host, resources) in parts.chain(coming) {
            let sum = taken.entry(host.clone()).or_default();
            *sum = sum.plus(resources);
        }
    }
    taken
}

/// What moves, in the words of the scheduler.
fn move_between(
    vm: VmId,
    before: &Assignment,
    goal: &Assignment,
    hosts: &BTreeMap<Name, HostId>,
) -> Option<Move> {
    let course = Course::between(before, goal)?;
    let (from, to) = (*hosts.get(&course.from.host)?, *hosts.get(&course.after.host)?);
    Some(Move { vm, from, to, resources: course.resources(), devices: Vec::new() })
}

/// What a VM has is its own, also where nothing new would be placed.
fn place(
    cluster: &mut Cluster,
    id: VmId,
    vm: &Vm,
    assignment: &Assignment,
    hosts: &BTreeMap<Name, HostId>,
) -> Option<()> {
    let mut shares = Vec::new();
    for part in &assignment.slices {
        let (host, resources) = (*hosts.get(&part.host)?, resources(part));
        shares.push(Share { host, resources, devices: Vec::new() });
    }
    let decision = Decision {
        shares,
        rule: Rule::BestFit,
        rejected: Vec::new(),
        rejected_count: 0,
        basis: Vec::new(),
    };
    let spec = Arc::new(super::care::spec(&vm.desired));
    let reservation = cluster.reserve_start(id, &spec, &decision, u64::MAX).ok()?;
    cluster.commit_start(reservation, 0).ok().map(drop)
}

impl Objects {
    /// All of them, in no order.
    pub fn all(&self) -> impl Iterator<Item = Stored> + '_ {
        let vms = self.vms.values().cloned().map(Stored::Vm);
        let assignments = self.assignments.values().cloned().map(Stored::Assignment);
        let hosts = self.hosts.values().cloned().map(Stored::Host);
        let operations = self.operations.values().cloned().map(Stored::Operation);
        let secrets = self.secrets.values().cloned().map(Stored::Secret);
        let asked = self.asked.values().cloned().map(Stored::Asked);
        let before = self.before.values().cloned().map(Stored::Assignment);
        let checkpoints = self.checkpoints.values().flat_map(BTreeMap::values);
        let checkpoints = checkpoints.cloned().map(Stored::Checkpoint);
        vms.chain(assignments)
            .chain(before)
            .chain(hosts)
            .chain(operations)
            .chain(secrets)
            .chain(asked)
            .chain(checkpoints)
    }
}
