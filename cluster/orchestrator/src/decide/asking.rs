//! What users want: checked, recorded, and acted on.

use super::ask::{Answer, Ask, Refusal, Request};
use super::goal::Goal;
use super::ids::Ticket;
use super::machine::{FORGOTTEN_FOR_ONE, Orchestrator};
use super::objects::Stored;
use super::view::etag;
use scheduler::Class;
use state::{
    Asked, Generation, Host, HostDesired, Name, Object, RunStrategy, Secret, Uid, Vm, VmDesired,
    VmObserved, VmState,
};
use std::collections::BTreeSet;

/// Ids of requests are forgotten after so many seconds.
const KEPT_S: u64 = 24 * 3600;
/// What is forgotten as time passes, at a time.
const FORGOTTEN_MAX: usize = 16;

impl Orchestrator {
    pub(crate) fn asked(
        &mut self,
        ticket: Ticket,
        request: Option<&Request>,
        validate_only: bool,
        ask: Ask,
    ) {
        let result = self.known(request).unwrap_or_else(|| self.act(ask, validate_only));
        if let (Ok(answer), Some(request), false) = (&result, request, validate_only) {
            self.remember(request, answer);
        }
        self.answer(ticket, result);
    }

    /// What was answered to this request before.
    fn known(&self, request: Option<&Request>) -> Option<Result<Answer, Refusal>> {
        let request = request?;
        let asked = self.objects.asked.get(&request.id).filter(|_| !self.forgets_requests())?;
        if asked.content != request.content {
            return Some(Err(Refusal::RequestReused));
        }
        Some(Ok(match asked.answer.split_once('/') {
            Some(("vms", name)) => Answer::Vm(Name::new(name).ok()?),
            Some(("hosts", name)) => Answer::Host(Name::new(name).ok()?),
            Some(("operations", name)) => Answer::Goal(Name::new(name).ok()?),
            _ => Answer::Done,
        }))
    }

    fn remember(&mut self, request: &Request, answer: &Answer) {
        if self.objects.asked.contains_key(&request.id) {
            return;
        }
        let answer = match answer {
            Answer::Goal(name) => format!("operations/{name}"),
            Answer::Vm(name) => format!("vms/{name}"),
            Answer::Host(name) => format!("hosts/{name}"),
            Answer::Done | Answer::Valid => String::new(),
        };
        let (id, content) = (request.id.clone(), request.content.clone());
        self.put(Stored::Asked(Asked { id, content, answer, at: self.now.unix }));
        self.forget_requests(FORGOTTEN_FOR_ONE);
    }

    /// What changes something is told, to who reads the log.
    fn act(&mut self, ask: Ask, only: bool) -> Result<Answer, Refusal> {
        let what = (!only).then(|| ask.words());
        let answer = self.do_it(ask, only);
        if let (Some(what), Ok(_)) = (what, &answer) {
            tracing::info!(what, "somebody asks");
        }
        answer
    }

    fn do_it(&mut self, ask: Ask, only: bool) -> Result<Answer, Refusal> {
        match ask {
            Ask::Create { name, uid, secret, desired, plan } => {
                self.create(name, uid, secret, *desired, plan.as_deref(), only)
            }
            Ask::Update { name, run, etag } => self.update(&name, run, etag.as_deref(), only),
            Ask::Delete { name, etag } => self.delete(&name, etag.as_deref(), only),
            Ask::Register { name, agent } => self.register(name, agent),
            Ask::Cordon { name, cordoned } => self.cordon(&name, (cordoned, false)),
            Ask::Drain { name } => self.cordon(&name, (true, true)),
            Ask::RemoveHost { name, gone } => self.remove_host(&name, gone),
        }
    }

    fn create(
        &mut self,
        name: Name,
        uid: Uid,
        secret: Secret,
        desired: VmDesired,
        plan: Option<&str>,
        only: bool,
    ) -> Result<Answer, Refusal> {
        if self.objects.vms.contains_key(&name) {
            return Err(Refusal::VmExists(name));
        }
        let count = self.objects.vms.len();
        if count >= self.settings.vms_max {
            return Err(Refusal::TooMany { what: "VMs", count });
        }
        let vm = new_vm(name.clone(), uid, desired);
        vm.check().map_err(|why| Refusal::Invalid { field: "vm.spec", why })?;
        check_slices(&vm.desired)?;
        if plan.is_some_and(|plan| self.plan(&name, &vm.desired).token != plan) {
            return Err(Refusal::PlanStale);
        }
        if only {
            return Ok(Answer::Valid);
        }
        self.put(Stored::Secret(secret));
        let goal = Goal::Created.name(&vm.uid);
        self.put_vm(vm);
        self.care(&name);
        Ok(Answer::Goal(goal))
    }

    fn known_vm(&self, name: &Name, etag: Option<&str>) -> Result<Vm, Refusal> {
        let vm = self.objects.vms.get(name).ok_or_else(|| Refusal::NoVm(name.clone()))?;
        let current = self::etag(vm);
        if etag.is_some_and(|etag| etag != current) {
            return Err(Refusal::Etag { current });
        }
        Ok(vm.clone())
    }

    fn update(
        &mut self,
        name: &Name,
        run: RunStrategy,
        etag: Option<&str>,
        only: bool,
    ) -> Result<Answer, Refusal> {
        let mut vm = self.known_vm(name, etag)?;
        if vm.desired.deleted {
            return Err(Refusal::VmDeleted(name.clone()));
        }
        if only {
            return Ok(Answer::Valid);
        }
        if vm.desired.run != run {
            let is_halted = run == RunStrategy::Halted;
            vm.former_run = is_halted.then_some(vm.desired.run);
            vm.desired.run = run;
            vm.generation = Generation(vm.generation.0 + 1);
            self.put_vm(vm);
            self.care(name);
        }
        Ok(Answer::Vm(name.clone()))
    }

    fn delete(&mut self, name: &Name, etag: Option<&str>, only: bool) -> Result<Answer, Refusal> {
        let mut vm = self.known_vm(name, etag)?;
        if only {
            return Ok(Answer::Valid);
        }
        let goal = Goal::Deleted.name(&vm.uid);
        if !vm.desired.deleted {
            vm.desired.deleted = true;
            vm.generation = Generation(vm.generation.0 + 1);
            self.put_vm(vm);
            self.care(name);
        }
        Ok(Answer::Goal(goal))
    }

    fn register(&mut self, name: Name, agent: String) -> Result<Answer, Refusal> {
        if let Some(known) = self.objects.hosts.get(&name) {
            let known = known.desired.agent.clone();
            let same = known == agent;
            let other = Refusal::HostExists { name: name.clone(), agent: known };
            return if same { Ok(Answer::Host(name)) } else { Err(other) };
        }
        self.check_address(&agent)?;
        let count = self.objects.hosts.len();
        if count >= self.settings.hosts_max {
            return Err(Refusal::TooMany { what: "hosts", count });
        }
        let desired = HostDesired { agent, ..HostDesired::default() };
        let host = Host { name: name.clone(), facts: None, desired };
        host.check().map_err(|why| Refusal::Invalid { field: "agent", why })?;
        self.put(Stored::Host(host));
        self.heard_entry(&name);
        Ok(Answer::Host(name))
    }

    fn cordon(
        &mut self,
        name: &Name,
        (cordoned, draining): (bool, bool),
    ) -> Result<Answer, Refusal> {
        let host = self.objects.hosts.get(name).ok_or_else(|| Refusal::NoHost(name.clone()))?;
        let mut host = host.clone();
        if (host.desired.cordoned, host.desired.draining) != (cordoned, draining) {
            (host.desired.cordoned, host.desired.draining) = (cordoned, draining);
            self.put(Stored::Host(host));
            self.show_host(name);
        }
        Ok(Answer::Host(name.clone()))
    }

    fn remove_host(&mut self, name: &Name, gone: bool) -> Result<Answer, Refusal> {
        let host = self.objects.hosts.get(name).ok_or_else(|| Refusal::NoHost(name.clone()))?;
        let key = host.key();
        let has = |assignment: &&state::Assignment| {
            assignment.slices.iter().any(|part| part.host == *name)
        };
        let all = self.objects.assignments.values().chain(self.objects.before.values());
        let vms: BTreeSet<Name> = all.filter(has).map(|it| it.vm.clone()).collect();
        if !vms.is_empty() && !gone {
            return Err(Refusal::HostInUse { name: name.clone(), count: vms.len() });
        }
        self.objects.remove_host(name);
        self.deleted(key);
        if let Some(id) = self.heard.remove(name).and_then(|heard| heard.id) {
            self.host_names.remove(&id);
            let state = scheduler::cluster::HostState::Lost;
            self.decide(scheduler::Input::Host { host: id, state });
        }
        // VMs that had a part of it are looked at as time passes, a few at once.
        Ok(Answer::Done)
    }

    /// Operations that are over, and ids of requests, beyond what is kept, and ids that are old.
    pub(crate) fn forget_what_is_old(&mut self) {
        self.forget_operations(FORGOTTEN_MAX);
        self.forget_requests(FORGOTTEN_MAX);
    }

    /// Operations that are over, beyond what is kept.
    pub(crate) fn forget_operations(&mut self, most: usize) {
        for _ in 0..most {
            let oldest = self.objects.forget_operation_beyond(self.settings.operations_max);
            let Some(operation) = oldest else { return };
            self.deleted(operation.key());
        }
    }

    fn forget_requests(&mut self, most: usize) {
        let since = self.now.unix.saturating_sub(KEPT_S);
        for _ in 0..most {
            let oldest = self.objects.forget_request_beyond(self.settings.asked_max, since);
            let Some(asked) = oldest else { return };
            self.deleted(asked.key());
        }
    }
}

fn new_vm(name: Name, uid: Uid, desired: VmDesired) -> Vm {
    Vm {
        name,
        uid,
        life: 1,
        generation: Generation(1),
        desired,
        former_run: None,
        observed: VmObserved {
            generation: Generation(0),
            state: VmState::Waiting,
            assignment: None,
            why: "it has been created".to_owned(),
            goes_on: None,
            line: 0,
        },
    }
}

/// A class that is never split has one slice.
fn check_slices(desired: &VmDesired) -> Result<(), Refusal> {
    let class = super::care::spec(desired).class;
    let wrong = class == Class::Shared && desired.slices_max.is_some_and(|slices| slices > 1);
    let why = || "a VM of the class SHARED is never split".to_owned();
    if wrong { Err(Refusal::Invalid { field: "vm.spec.slices_max", why: why() }) } else { Ok(()) }
}
