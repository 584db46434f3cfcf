//! A VM starts; and what has begun to start is undone.

use super::call::{Call, Phase, Role, SharePart, Target};
use super::explain::rule;
use super::machine::Orchestrator;
use super::planted::PlantedBug;
use super::progress::Work;
use super::work::{Turn, at};
use scheduler::Decision;
use state::{Assignment, Epoch, Generation, Name, Operation, Part, Uid, Verb, Vm, VmState};

const ROOM: usize = 0;
const COMPANIONS: usize = 1;
const BOOTSTRAP: usize = 2;
/// What is below these of a generation counts the placements of one life.
pub(crate) const MOVES_BITS: u32 = 20;
/// No VM begins so often: a life from here on is made up.
pub(crate) const LIFE_MAX: u64 = 1 << (63 - MOVES_BITS);

fn words(assignment: &Assignment) -> Vec<String> {
    let hosts: Vec<&str> = assignment.slices.iter().map(|part| part.host.as_str()).collect();
    let first = hosts.first().copied().unwrap_or_default();
    let rest = if hosts.len() > 1 { hosts[1..].join(", ") } else { "no other host".to_owned() };
    vec![
        format!("keep room on {}", hosts.join(", ")),
        format!("start companions on {rest}"),
        format!("start the bootstrap on {first}"),
        "wait until the guest runs".to_owned(),
    ]
}

impl Orchestrator {
    /// The scheduler has found room.
    pub(crate) fn start(&mut self, name: &Name, decision: &Decision) {
        let Some(mut vm) = self.objects.vms.get(name).cloned() else { return };
        // It may have waited for long.
        if !self.may_begin(&mut vm) {
            return;
        }
        let Some(assignment) = self.assignment_of(&vm, decision) else {
            tracing::error!(vm = %name, "the scheduler gives a VM something else than it wants");
            return;
        };
        if let Err(error) = assignment.gives(&vm.desired) {
            tracing::error!(vm = %name, %error, "the scheduler gives a VM something else than it wants");
            return;
        }
        vm.observed.state = VmState::Starting;
        vm.observed.generation = vm.generation;
        vm.observed.assignment = Some(assignment.generation);
        vm.observed.why = rule(decision.rule).to_owned();
        if vm.observed.goes_on.is_none() {
            vm.observed.line = vm.life;
        }
        if let Some(from) = &vm.observed.goes_on {
            let which = &from.checkpoint;
            vm.observed.why = format!("{}; it goes on from checkpoint {which}", vm.observed.why);
        }
        self.put(super::objects::Stored::Assignment(assignment.clone()));
        self.begin(&assignment, Verb::Start, vm.life, words(&assignment));
        self.put_vm(vm);
        self.work(name);
    }

    fn assignment_of(&self, vm: &Vm, decision: &Decision) -> Option<Assignment> {
        let mut next = 0;
        let mut slices = Vec::new();
        for share in &decision.shares {
            let cores = u16::try_from(share.resources.cores).ok()?;
            slices.push(Part {
                host: self.host_names.get(&share.host)?.clone(),
                vcpus: (next..next + cores).collect(),
                memory_mib: u64::from(share.resources.memory) * 2,
                devices: Vec::new(),
                number: None,
            });
            next += cores;
        }
        // The life is in it: a placement of a later life never has the number of an earlier one.
        let generation = Generation(vm.life << MOVES_BITS);
        let (term, epoch, former) = (self.term, Epoch(1), Vec::new());
        let vm = vm.name.clone();
        Some(Assignment { vm, generation, parent: None, term, epoch, slices, former })
    }

    pub(crate) fn turn_of_start(&self, operation: &Operation, assignment: &Assignment) -> Turn {
        let Some(vm) = self.objects.vms.get(&operation.vm) else { return Turn::Wait };
        let Some(work) = self.works.get(&operation.vm) else { return Turn::Wait };
        let Some(at) = at(operation) else { return Turn::Wait };
        let reads = vm.observed.goes_on.is_some() && at >= BOOTSTRAP;
        let limit = if reads { self.settings.restore_ms } else { self.settings.step_ms };
        if self.now.ms.saturating_sub(work.since) > limit {
            return Turn::fail(format!("it took too long: {}", operation.steps[at].what));
        }
        if let Some((why, blamed)) = self.is_in_the_way(vm, operation, assignment) {
            return Turn::Fail { why, blamed };
        }
        let lacks = |host: &Name| !work.done.contains(host);
        let mut calls = Vec::new();
        for (slice, part) in (0..).zip(&assignment.slices) {
            let target = Target { uid: vm.uid.clone(), slice, life: operation.life };
            let what = match at {
                ROOM => lacks(&part.host).then(|| self.reserve(operation, target, part)),
                COMPANIONS => (slice > 0 && lacks(&part.host))
                    .then(|| self.companion(vm, target, part))
                    .flatten(),
                BOOTSTRAP => self.of_bootstrap(vm, work, target, assignment, part),
                // It is there, and is asked until its guest runs.
                _ => (slice == 0 && lacks(&part.host)).then_some(Call::Ask { target }),
            };
            calls.extend(what.map(|what| (part.host.clone(), what)));
        }
        if calls.is_empty() { Turn::Next } else { Turn::Ask(calls) }
    }

    /// What makes it useless to go on, and the host where it failed.
    fn is_in_the_way(
        &self,
        vm: &Vm,
        operation: &Operation,
        assignment: &Assignment,
    ) -> Option<(String, Option<Name>)> {
        if vm.desired.deleted || vm.desired.run == state::RunStrategy::Halted {
            return Some(("it is not wanted any more".to_owned(), None));
        }
        let hosts = assignment.slices.iter().map(|part| &part.host);
        if let Some(lost) = { hosts }.find(|host| self.is_lost(host)) {
            return Some((format!("host {lost} is lost"), None));
        }
        let mut hosts = assignment.slices.iter().map(|part| &part.host);
        if let Some(other) = hosts.find(|host| self.is_left_alone(host)) {
            let why = if self.foreign(other).is_some() {
                "obeys another orchestrator"
            } else {
                "has an agent with a new journal"
            };
            return Some((format!("host {other} {why}"), None));
        }
        for (slice, part) in (0..).zip(&assignment.slices) {
            let target = Target { uid: vm.uid.clone(), slice, life: operation.life };
            let heard = self.heard.get(&part.host).and_then(|heard| heard.report.as_ref());
            let ended = heard.and_then(|(_, report)| report.slice(&target));
            if let Some(ended) = ended.filter(|slice| matches!(slice.phase, Phase::Ended(_))) {
                let why = format!("slice {slice} on {} has ended: {}", part.host, ended.cause);
                return Some((why, Some(part.host.clone())));
            }
        }
        None
    }

    pub(crate) fn reserve(&self, operation: &Operation, target: Target, part: &Part) -> Call {
        let operation = Uid::try_from(operation.request.clone()).unwrap_or_else(|_| Uid::new(0));
        Call::Reserve { operation, target, cores: cores(part), memory_mib: part.memory_mib }
    }

    pub(crate) fn companion(&self, vm: &Vm, target: Target, part: &Part) -> Option<Call> {
        let secret = self.objects.secrets.get(&vm.uid)?.clone();
        let (cores, memory_mib) = (cores(part), part.memory_mib);
        let role = if self.planted.has(PlantedBug::TwoBootstraps) {
            Role::Bootstrap {
                parts: Vec::new(),
                guest: Box::new(vm.desired.guest.clone()),
                restore: None,
            }
        } else {
            Role::Companion
        };
        Some(Call::Ensure { target, cores, memory_mib, secret, role })
    }

    /// The bootstrap, once all companions have said where they listen. After a crash they are asked again.
    fn of_bootstrap(
        &self,
        vm: &Vm,
        work: &Work,
        target: Target,
        assignment: &Assignment,
        part: &Part,
    ) -> Option<Call> {
        if target.slice > 0 {
            let asks = !work.addresses.contains_key(&part.host);
            return asks.then(|| self.companion(vm, target, part)).flatten();
        }
        let mut parts = Vec::new();
        for (slice, part) in (0_u16..).zip(&assignment.slices) {
            let address =
                if slice == 0 { String::new() } else { work.addresses.get(&part.host)?.clone() };
            parts.push(SharePart { address, vcpus: cores(part), memory_mib: part.memory_mib });
        }
        if work.done.contains(&part.host) {
            return None;
        }
        let secret = self.objects.secrets.get(&vm.uid)?.clone();
        let (guest, restore) = (Box::new(vm.desired.guest.clone()), self.restore(vm));
        let role = Role::Bootstrap { parts, guest, restore };
        let (cores, memory_mib) = (cores(part), part.memory_mib);
        Some(Call::Ensure { target, cores, memory_mib, secret, role })
    }

    /// Begins to take a start back.
    pub(crate) fn undo(&mut self, operation: &Operation, why: &str) {
        let mut operation = operation.clone();
        operation.undoing = Some(why.to_owned());
        let (now, after) = (self.now, self.last_call());
        if let Some(work) = self.works.get_mut(&operation.vm) {
            work.turn(now, after);
            // Before the first slice is asked for there is none to fence.
            work.is_fenced = at(&operation) == Some(ROOM);
        }
        if let Some(mut vm) = self.objects.vms.get(&operation.vm).cloned() {
            vm.observed.why = if operation.verb == Verb::Move {
                format!("a move is undone: {why}")
            } else {
                format!("its start is undone: {why}")
            };
            if self.has_tried(&operation)
                && let Some(tried) = vm.observed.goes_on.take()
            {
                vm.observed.goes_on = self.next_to_go_on(&vm, &tried);
            }
            self.put_vm(vm);
        }
        self.put_operation(operation);
    }

    pub(crate) fn turn_of_undo(&self, operation: &Operation, assignment: &Assignment) -> Turn {
        let Some(vm) = self.objects.vms.get(&operation.vm) else { return Turn::Wait };
        let Some(work) = self.works.get(&operation.vm) else { return Turn::Wait };
        if self.planted.has(PlantedBug::UndoForgotten) {
            return Turn::Next;
        }
        if !work.is_fenced && !self.knows_who_runs_it() {
            return Turn::Wait;
        }
        let others = self.run_it_too(operation, assignment).filter(|_| !work.is_fenced);
        let hosts = assignment.slices.iter().map(|part| &part.host).chain(others);
        // What was removed has the operator's word that nothing runs there.
        let lacks =
            |host: &&Name| !work.done.contains(*host) && self.objects.hosts.contains_key(*host);
        let is_giving_back = work.is_fenced;
        if is_giving_back && self.planted.has(PlantedBug::RoomKept) {
            return Turn::Next;
        }
        let calls: Vec<(Name, Call)> = hosts
            .filter(lacks)
            // What a host keeps that is lost it gives back by itself, after a while.
            .filter(|host| !(is_giving_back && self.is_out(host)))
            .map(|host| {
                let what = if is_giving_back {
                    let id = Uid::try_from(operation.request.clone());
                    Call::Release { operation: id.unwrap_or_else(|_| Uid::new(0)) }
                } else {
                    Call::Fence { uid: vm.uid.clone(), life: operation.life }
                };
                (host.clone(), what)
            })
            .collect();
        if calls.is_empty() { Turn::Next } else { Turn::Ask(calls) }
    }

    /// A part of it is undone.
    pub(crate) fn undo_next(&mut self, operation: &Operation) {
        let (now, after) = (self.now, self.last_call());
        if operation.verb == Verb::Move {
            return self.undo_next_of_move(operation);
        }
        let Some(work) = self.works.get_mut(&operation.vm) else { return };
        let mut operation = operation.clone();
        let last = if work.is_fenced { ROOM } else { COMPANIONS };
        for step in operation.steps.iter_mut().skip(last) {
            step.undone = step.done;
        }
        if work.is_fenced {
            return self.finish(operation);
        }
        work.turn(now, after);
        work.is_fenced = true;
        self.put_operation(operation);
    }
}

pub(crate) fn cores(part: &Part) -> u16 {
    u16::try_from(part.vcpus.len()).unwrap_or(u16::MAX)
}
