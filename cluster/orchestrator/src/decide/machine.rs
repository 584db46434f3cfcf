//! The machine: what it knows, and a step of it.

use super::ask::{Answer, Ask, Refusal, Request};
use super::call::{Call, Failure, Reply, Report, Target};
use super::ids::{CallId, Ticket, Time};
use super::objects::{Objects, Stored, Write};
use super::placement::Choice;
use super::planted::{Planted, PlantedBug};
use super::progress::{FailedStarts, Runs, Work, operation_is_over};
use scheduler::cluster::Move;
use scheduler::{Effect as Decided, HostId, ReservationId, Scheduler, VmId};
use state::{Name, Operation, Term, Vm};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What an operator has said.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Where VMs are placed.
    pub choice: Choice,
    /// A host that has not answered for so long is lost, in milliseconds in which it was listened to.
    pub lease_ms: u64,
    /// Between two ticks it listens for no longer than this: what is more it was kept from listening, by a slow commit. Ticks come as
    /// often.
    pub listens_ms: u64,
    /// What fails is tried again after so long.
    pub retry_ms: u64,
    /// A step of a start takes so long at most.
    pub step_ms: u64,
    /// The same, where a VM goes on from a checkpoint, whose memory may have to be read first.
    pub restore_ms: u64,
    /// So long after a slice was fenced all others of its VM have stopped by themselves. VMs have a lease of 3 s, and count silence in
    /// quarters of it, of which the first may be cut short; clocks differ, and whoever was stopped from outside looks first.
    pub silence_ms: u64,
    /// A guest has so long to shut down.
    pub shutdown_ms: u64,
    /// A VM whose start has failed waits for so long.
    pub again_ms: u64,
    /// A VM that has ended sooner after it ran rests before it starts again, the longer the more often ...
    pub steady_ms: u64,
    /// ... and for so long at most.
    pub rest_max_ms: u64,
    /// A host where a VM could not start is avoided by it for so long, if there is room elsewhere.
    pub avoid_ms: u64,
    /// A VM that is lost sooner after it has gone on from a checkpoint was lost because of that.
    pub settled_ms: u64,
    /// VMs of which something moves at a time.
    pub moves_max: usize,
    /// VMs that are written down at a time.
    pub checkpoints_max: usize,
    /// VMs that are kept.
    pub vms_max: usize,
    /// Hosts that are kept.
    pub hosts_max: usize,
    /// Operations that are over and are kept.
    pub operations_max: usize,
    /// Ids of requests that are kept.
    pub asked_max: usize,
}

impl Settings {
    /// With this policy.
    #[must_use]
    pub fn new(choice: Choice) -> Self {
        Self {
            choice,
            lease_ms: 10_000,
            listens_ms: 1000,
            retry_ms: 1000,
            step_ms: 60_000,
            restore_ms: 600_000,
            silence_ms: 10_000,
            shutdown_ms: 90_000,
            again_ms: 5000,
            steady_ms: 600_000,
            rest_max_ms: 600_000,
            avoid_ms: 600_000,
            settled_ms: 120_000,
            moves_max: 4,
            checkpoints_max: 4,
            vms_max: 10_000,
            hosts_max: 10_000,
            operations_max: 1024,
            asked_max: 4096,
        }
    }
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Somebody asks.
    Asked {
        /// Who is answered.
        ticket: Ticket,
        /// By which id, if by any.
        request: Option<Request>,
        /// It is only checked.
        validate_only: bool,
        /// What.
        ask: Ask,
    },
    /// A call has come to its end.
    Answered {
        /// Which.
        call: CallId,
        /// How.
        result: Result<Reply, Failure>,
    },
    /// Time has passed. What has come before is an input before.
    Tick,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Write all of this, or none of it, under the leader's term. If it cannot be, nothing that follows is done, and the machine is
    /// dropped.
    Commit(Vec<Write>),
    /// Ask the agent of a host. Each call is answered, in the end.
    Call {
        /// Which.
        call: CallId,
        /// Where.
        host: Name,
        /// What.
        what: Box<Call>,
    },
    /// Tell whoever waits.
    Answer {
        /// Whom.
        ticket: Ticket,
        /// What.
        result: Result<Answer, Refusal>,
    },
    /// Lead no more: somebody else does.
    StandDown,
}

/// VMs that are looked at in a step, so that a commit has its bounds.
const CARED_MAX: usize = 16;
/// What the scheduler has decided that a step acts on.
const SERVED_MAX: usize = 16;
/// Changes after which a step begins nothing more: what is left over is seen by a later one. What is begun adds a few, and the
/// store takes 100 at once.
const CHANGES_MAX: usize = 64;

/// Operations that are over, or ids of requests, that go for one that comes: there are never many more than are kept, however fast they
/// come.
pub(crate) const FORGOTTEN_FOR_ONE: usize = 2;

/// What is known of a host beside the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Heard {
    /// In the scheduler, once its agent has said what it has.
    pub(crate) id: Option<HostId>,
    /// It is asked since then, as [`Orchestrator::listened`] counts.
    pub(crate) since: u64,
    /// When its agent has answered last, as [`Orchestrator::listened`] counts.
    pub(crate) at: Option<u64>,
    /// What it said then, and to which call.
    pub(crate) report: Option<(CallId, Report)>,
    /// Slices of it that were a part of their VMs then, or until they ended.
    pub(crate) members: BTreeSet<Target>,
    /// Why its agent did not answer when it was asked last, if so.
    pub(crate) silence: Option<String>,
    /// The call that asks it now.
    pub(crate) looking: Option<CallId>,
    /// The host whose agent has answered for it.
    pub(crate) double_of: Option<Name>,
    /// Its agent may know nothing of slices that run there.
    pub(crate) has_new_journal: bool,
    /// Slices of it that it is asked to end or to forget.
    pub(crate) sweeping: BTreeSet<Target>,
    /// It is lost, as far as the scheduler knows.
    pub(crate) is_lost: bool,
}

/// Decides about a cluster, as long as it leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Orchestrator {
    pub(crate) settings: Settings,
    pub(crate) term: Term,
    pub(crate) now: Time,
    /// It leads since then.
    pub(crate) since: u64,
    /// For so long it has listened since.
    pub(crate) listened: u64,
    /// The last tick.
    ticked: u64,
    pub(crate) objects: Objects,
    pub(crate) scheduler: Scheduler<Choice>,
    pub(crate) heard: BTreeMap<Name, Heard>,
    pub(crate) host_names: BTreeMap<HostId, Name>,
    pub(crate) vm_ids: BTreeMap<Name, VmId>,
    pub(crate) vm_names: BTreeMap<VmId, Name>,
    /// What goes on, by VM.
    pub(crate) works: BTreeMap<Name, Work>,
    /// Who waits for what is called.
    pub(crate) calls: BTreeMap<CallId, Purpose>,
    /// VMs whose start has failed, or that have ended soon after they ran, wait until then.
    pub(crate) resting: BTreeMap<Name, u64>,
    /// Starts of VMs that have failed.
    pub(crate) failed: BTreeMap<Name, FailedStarts>,
    /// How VMs have run of late.
    pub(crate) runs: BTreeMap<Name, Runs>,
    /// Since which call VMs run: what was asked before does not know of them.
    pub(crate) running_since: BTreeMap<Name, CallId>,
    /// When VMs were written down last, or tried to be, or have begun to run.
    pub(crate) written: BTreeMap<Name, u64>,
    /// VMs that are to be no more, and of which nothing is left by checkpoints that failed.
    pub(crate) swept: BTreeSet<Name>,
    /// Hosts that have not deleted what was written of a VM that is to be no more, and why not, if they have said so.
    pub(crate) discarding: BTreeMap<Name, BTreeMap<Name, Option<String>>>,
    /// What the scheduler has decided and nobody has acted on.
    pub(crate) decided: VecDeque<Decided>,
    /// Moves that the scheduler has decided, and that wait for their turn.
    pub(crate) planned: VecDeque<(ReservationId, Move)>,
    /// VMs of which something moves, and what is kept for it in the ledger.
    pub(crate) moving: BTreeMap<Name, Option<ReservationId>>,
    /// The VM that is looked at next.
    pub(crate) next_cared: Option<Name>,
    pub(crate) next_vm: u32,
    pub(crate) next_call: u64,
    pub(crate) next_operation: u64,
    pub(crate) is_deposed: bool,
    pub(crate) planted: Planted,
    /// Of this step.
    changes: BTreeMap<String, Option<Stored>>,
    effects: Vec<Effect>,
}

/// What a call is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// To know how a host is.
    Host(Name),
    /// An operation, on a host.
    Work { vm: Name, host: Name },
    /// What was written of a VM that is to be no more.
    Discard { vm: Name, host: Name, folders: Vec<String> },
    /// To have a slice end that is over, or be forgotten.
    Sweep { host: Name, target: Target },
}

impl Orchestrator {
    pub(crate) fn bare(
        settings: Settings,
        term: Term,
        now: Time,
        objects: Objects,
        scheduler: Scheduler<Choice>,
    ) -> Self {
        Self {
            settings,
            term,
            now,
            since: now.ms,
            listened: 0,
            ticked: now.ms,
            objects,
            scheduler,
            heard: BTreeMap::new(),
            host_names: BTreeMap::new(),
            vm_ids: BTreeMap::new(),
            vm_names: BTreeMap::new(),
            works: BTreeMap::new(),
            calls: BTreeMap::new(),
            resting: BTreeMap::new(),
            failed: BTreeMap::new(),
            runs: BTreeMap::new(),
            running_since: BTreeMap::new(),
            written: BTreeMap::new(),
            swept: BTreeSet::new(),
            discarding: BTreeMap::new(),
            decided: VecDeque::new(),
            planned: VecDeque::new(),
            moving: BTreeMap::new(),
            next_cared: None,
            next_vm: 0,
            next_call: 0,
            next_operation: 0,
            is_deposed: false,
            planted: Planted::default(),
            changes: BTreeMap::new(),
            effects: Vec::new(),
        }
    }

    /// What follows.
    #[must_use]
    pub fn step(&mut self, now: Time, input: Input) -> Vec<Effect> {
        self.now = Time { ms: self.now.ms.max(now.ms), unix: now.unix };
        if self.is_deposed {
            return self.refuse_all(&input);
        }
        match input {
            Input::Asked { ticket, request, validate_only, ask } => {
                self.asked(ticket, request.as_ref(), validate_only, ask);
            }
            Input::Answered { call, result } => self.answered(call, result),
            Input::Tick => self.tick(),
        }
        for _ in 0..SERVED_MAX {
            if self.is_full() || self.is_deposed {
                break;
            }
            let Some(decided) = self.decided.pop_front() else { break };
            self.serve(decided);
        }
        if !self.is_deposed {
            self.begin_moves();
        }
        self.finish_step()
    }

    fn refuse_all(&self, input: &Input) -> Vec<Effect> {
        match input {
            Input::Asked { ticket, .. } => {
                vec![Effect::Answer { ticket: *ticket, result: Err(Refusal::Deposed) }]
            }
            Input::Answered { .. } | Input::Tick => Vec::new(),
        }
    }

    /// Silence is counted where somebody listens. It stands still between ticks, so answers that wait for a slow commit one after
    /// another find each other's hosts as they were.
    fn listen(&mut self) {
        let passed = self.now.ms.saturating_sub(self.ticked);
        let counts_all = self.planted.has(PlantedBug::DeafnessCounted);
        let most = if counts_all { passed } else { self.settings.listens_ms };
        self.listened = self.listened.saturating_add(passed.min(most));
        self.ticked = self.now.ms;
    }

    fn tick(&mut self) {
        self.listen();
        self.look_at_hosts();
        self.forget_what_is_old();
        self.decide(scheduler::Input::Passed);
        let after = self.next_cared.take();
        let from = |name: &Name| after.as_ref().is_none_or(|after| name > after);
        let names = self.objects.vms.keys().filter(|name| from(name));
        let names: Vec<Name> = names.take(CARED_MAX).cloned().collect();
        let mut before = after;
        self.next_cared = (names.len() == CARED_MAX).then(|| names.last().cloned()).flatten();
        for name in names {
            if self.is_full() {
                // From the first of them that was not looked at.
                self.next_cared = before;
                break;
            }
            self.care(&name);
            before = Some(name);
        }
        let working: Vec<Name> = self.works.keys().cloned().collect();
        for name in working {
            if self.is_full() {
                // What was worked on has nothing to change at the next tick, so the others come then.
                break;
            }
            self.work(&name);
        }
    }

    /// The commit of this step is as large as one may be.
    pub(crate) fn is_full(&self) -> bool {
        self.changes.len() >= CHANGES_MAX
    }

    fn answered(&mut self, id: CallId, result: Result<Reply, Failure>) {
        let Some(waits) = self.calls.remove(&id) else { return };
        if matches!(result, Err(Failure::Deposed)) && !self.planted.has(PlantedBug::DeposedGoesOn) {
            self.is_deposed = true;
            self.changes.clear();
            self.effects.push(Effect::StandDown);
            return;
        }
        match waits {
            Purpose::Host(host) => self.looked(id, &host, result),
            Purpose::Work { vm, host } => self.worked(&vm, id, &host, result),
            Purpose::Discard { vm, host, folders } => self.discarded(&vm, &host, &folders, result),
            Purpose::Sweep { host, target } => self.swept(&host, &target),
        }
    }

    /// Tells the scheduler, and keeps what it says for later.
    pub(crate) fn decide(&mut self, input: scheduler::Input) -> bool {
        let mut effects = Vec::new();
        let done = self.scheduler.step(self.now.ms, input, &mut effects);
        self.decided.extend(effects);
        if let Err(error) = &done {
            tracing::warn!(%error, "the scheduler refuses what the orchestrator tells it");
        }
        done.is_ok()
    }

    pub(crate) fn call(&mut self, host: &Name, what: Call, purpose: Purpose) -> CallId {
        let call = CallId(self.next_call);
        self.next_call += 1;
        self.calls.insert(call, purpose);
        self.effects.push(Effect::Call { call, host: host.clone(), what: Box::new(what) });
        call
    }

    pub(crate) fn answer(&mut self, ticket: Ticket, result: Result<Answer, Refusal>) {
        self.effects.push(Effect::Answer { ticket, result });
    }

    pub(crate) fn put(&mut self, one: Stored) {
        self.changes.insert(one.key(), Some(one.clone()));
        self.objects.put(one);
    }

    pub(crate) fn put_vm(&mut self, vm: Vm) {
        let known = self.objects.vms.get(&vm.name);
        if known.map(|known| known.observed.state) != Some(vm.observed.state) {
            let (state, why) = (vm.observed.state, &vm.observed.why);
            tracing::info!(vm = %vm.name, uid = %vm.uid, life = vm.life, ?state, why, "a VM changes");
        }
        if known != Some(&vm) {
            self.put(Stored::Vm(vm));
        }
    }

    pub(crate) fn put_operation(&mut self, operation: Operation) {
        if self.objects.operations.get(&operation.id) != Some(&operation) {
            let is_over = operation.result.is_some();
            if is_over {
                operation_is_over(&operation);
            }
            self.put(Stored::Operation(operation));
            if is_over {
                self.forget_operations(FORGOTTEN_FOR_ONE);
            }
        }
    }

    /// What was under a key of the store is not any more; it is gone from the objects already.
    pub(crate) fn deleted(&mut self, key: String) {
        self.changes.insert(key, None);
    }

    fn finish_step(&mut self) -> Vec<Effect> {
        let changes = std::mem::take(&mut self.changes);
        let mut effects = std::mem::take(&mut self.effects);
        if changes.is_empty() {
            return effects;
        }
        let write = |(key, one): (String, Option<Stored>)| match one {
            Some(one) => Write::Put(Box::new(one)),
            None => Write::Delete(key),
        };
        let commit = Effect::Commit(changes.into_iter().map(write).collect());
        if self.planted.has(PlantedBug::CalledFirst) {
            effects.push(commit);
        } else {
            effects.insert(0, commit);
        }
        effects
    }
}
