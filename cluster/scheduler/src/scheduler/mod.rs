//! The machine: VMs come and go, reservations are confirmed or expire, slices move.
//!
//! ```text
//!              Arrive                policy finds room            Ready
//!   nothing ──────────> waits ───────────────────────> starts ───────────────> runs ──Depart──> nothing
//!                         ^   a reservation on each host │
//!                         └──────────────────────────────┘ Failed, or it expires
//!
//!   a slice:                policy, within the budget             Ready                       Flipped
//!   at its host ───────────────────────────> destination kept ─────────────> it flips ─────────────────> at its new host
//!        ^                                         │                         (no way back)
//!        └─────────────────────────────────────────┘ Failed, or it expires
//! ```
//! **Whoever acts asks first.** An executor prepares what an effect says, and reports it [`Ready`](Input::Ready). Only the answer,
//! [`Run`](Effect::Run) or [`Flip`](Effect::Flip), makes it so. If the reservation has expired by then there is an error
//! instead, and what was prepared is undone.
//!
//! **Order.** When something is free, VMs that wait have it first; then slices may come together.
//!
//! **Time** is given with each input, in milliseconds of a clock that is never set back. An earlier one counts as the last one.

mod clearing;
mod consolidating;
mod inputs;
mod serving;
mod settings;
#[cfg(test)]
mod tests;

pub use inputs::{Effect, Input, InputError};
pub use settings::Settings;

use crate::budget::Budget;
use crate::cluster::{Cluster, HostSpec, HostState, Purpose};
use crate::cost::Stall;
use crate::ids::{HostId, ReservationId, VmId};
use crate::planted::{Planted, PlantedBug};
use crate::policy::Policy;
use crate::queue::{Queue, Waiting};
use crate::spec::{Spec, SpecError};
use clearing::Clearing;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What was measured, and since when it has been too much.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Measured {
    stall: Stall,
    over_since: Option<u64>,
}

/// Decides about a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scheduler<P> {
    cluster: Cluster,
    policy: P,
    settings: Settings,
    queue: Queue,
    /// VMs that start, and since when they have waited.
    starting: BTreeMap<VmId, u64>,
    budget: Budget,
    measured: BTreeMap<VmId, Measured>,
    draining: BTreeSet<HostId>,
    /// VMs that wait and that others make room for.
    clearing: BTreeMap<VmId, Clearing>,
    /// The Aggregate VM that is looked at next when time passes.
    next: VmId,
    now: u64,
    planted: Planted,
}

impl<P: Policy> Scheduler<P> {
    /// For hosts without VMs, or as they are.
    #[must_use]
    pub fn new(cluster: Cluster, policy: P, settings: Settings) -> Self {
        let draining = cluster.hosts_in(HostState::Draining).map(|host| host.id()).collect();
        Self {
            cluster,
            policy,
            settings,
            queue: Queue::default(),
            starting: BTreeMap::new(),
            budget: Budget::default(),
            measured: BTreeMap::new(),
            draining,
            clearing: BTreeMap::new(),
            next: VmId::default(),
            now: 0,
            planted: Planted::default(),
        }
    }

    /// With a bug that a model is to find.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn plant(mut self, bug: PlantedBug) -> Self {
        self.planted = Planted::some(bug);
        self.cluster.plant(self.planted);
        self
    }

    /// A host more, which is open. Whoever waits has it when time passes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn add_host(&mut self, spec: &HostSpec) -> Result<HostId, SpecError> {
        self.cluster.add_host(spec)
    }

    /// The state.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// VMs that wait.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// VMs that start, and since when they have waited.
    pub fn starting(&self) -> impl Iterator<Item = (VmId, u64)> + '_ {
        self.starting.iter().map(|(vm, since)| (*vm, *since))
    }

    /// A move of this VM has failed lately: nothing of it moves before.
    #[must_use]
    pub fn rests_until(&self, vm: VmId) -> Option<u64> {
        self.budget.rests_until(vm).filter(|until| *until > self.now)
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &P {
        &self.policy
    }

    /// Something has happened. What follows is added to `effects`, in its order; with an error too, for time has passed.
    ///
    /// # Errors
    /// The input is refused, and has changed nothing.
    pub fn step(
        &mut self,
        now: u64,
        input: Input,
        effects: &mut Vec<Effect>,
    ) -> Result<(), InputError> {
        self.now = self.now.max(now);
        let has_expired = self.expire(effects);
        let result = match input {
            Input::Arrive { vm, spec } => self.arrive(vm, &spec, effects),
            Input::Depart { vm } => self.depart(vm, effects),
            Input::Ready { reservation } => self.ready(reservation, effects),
            Input::Failed { reservation } => self.failed(reservation, effects),
            Input::Flipped { reservation } => self.flipped(reservation, effects),
            Input::Measured { vm, stall } => self.measured(vm, stall),
            Input::Host { host, state } => self.host(host, state, effects),
            Input::Passed => {
                self.passed(effects);
                Ok(())
            }
        };
        if has_expired {
            self.serve(effects, None);
        }
        result
    }

    fn is_known(&self, vm: VmId) -> bool {
        self.queue.contains(vm) || self.starting.contains_key(&vm) || self.cluster.vm(vm).is_some()
    }

    fn arrive(
        &mut self,
        vm: VmId,
        spec: &Arc<Spec>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), InputError> {
        spec.check()?;
        if self.is_known(vm) {
            return Err(InputError::Known(vm));
        }
        if self.queue.len() >= self.settings.queue_max {
            return Err(InputError::QueueFull(self.queue.len()));
        }
        self.queue.add(Waiting { vm, spec: Arc::clone(spec), since: self.now });
        let refusal = self.serve(effects, Some(vm));
        if let Some(refusal) = refusal {
            effects.push(Effect::Waits { vm, refusal });
        }
        Ok(())
    }

    fn depart(&mut self, vm: VmId, effects: &mut Vec<Effect>) -> Result<(), InputError> {
        if !self.is_known(vm) {
            return Err(InputError::Unknown(vm));
        }
        self.starting.remove(&vm);
        self.measured.remove(&vm);
        self.budget.forget(vm);
        if self.queue.remove(vm).is_none() {
            let hosts = self.cluster.release(vm);
            self.serve(effects, None);
            self.consolidate_beside(&hosts, effects);
        } else {
            // The next one may be the first now, whom nobody keeps from starting.
            self.serve(effects, None);
        }
        Ok(())
    }

    fn ready(&mut self, id: ReservationId, effects: &mut Vec<Effect>) -> Result<(), InputError> {
        let reservation = self.cluster.reservation(id).ok_or_else(|| InputError::stale(id))?;
        match reservation.purpose() {
            Purpose::Start { .. } => {
                let vm = self.cluster.commit_start(id, self.now)?;
                self.starting.remove(&vm);
                effects.push(Effect::Run { vm });
            }
            Purpose::Move { .. } => {
                self.cluster.flip(id)?;
                effects.push(Effect::Flip { reservation: id });
            }
        }
        Ok(())
    }

    fn failed(&mut self, id: ReservationId, effects: &mut Vec<Effect>) -> Result<(), InputError> {
        let vm = self.cluster.reservation(id).ok_or_else(|| InputError::stale(id))?.vm();
        let purpose = self.cluster.cancel(id)?;
        self.wait_again(vm, purpose, self.planted.has(PlantedBug::FailedStartForgotten));
        self.serve(effects, None);
        Ok(())
    }

    /// What came to nothing is tried again: a start when there is room, a move after a while.
    fn wait_again(&mut self, vm: VmId, purpose: Purpose, is_forgotten: bool) {
        let Purpose::Start { spec, .. } = purpose else {
            return self.budget.failed(self.now, vm, &self.settings.limits);
        };
        let Some(since) = self.starting.remove(&vm) else { return };
        if !is_forgotten {
            self.queue.add(Waiting { vm, spec, since });
        }
    }

    /// Gives back what is kept for too long. Returns whether there was any.
    fn expire(&mut self, effects: &mut Vec<Effect>) -> bool {
        if self.planted.has(PlantedBug::NeverExpires) {
            return false;
        }
        let expired = self.cluster.expired(self.now);
        for id in &expired {
            self.expire_one(*id, effects);
        }
        !expired.is_empty()
    }

    fn expire_one(&mut self, id: ReservationId, effects: &mut Vec<Effect>) {
        let Some(reservation) = self.cluster.reservation(id) else { return };
        let (vm, purpose) = (reservation.vm(), reservation.purpose().clone());
        let is_start = matches!(purpose, Purpose::Start { .. });
        let bug = if is_start { PlantedBug::StartedLate } else { PlantedBug::ReadyAfterExpiry };
        let given_back = if self.planted.has(bug) {
            self.cluster.hollow_out(id)
        } else {
            self.cluster.cancel(id).map(drop)
        };
        if given_back.is_ok() {
            self.wait_again(vm, purpose, false);
            effects.push(Effect::Expired { reservation: id, vm });
        }
    }

    fn measured(&mut self, vm: VmId, stall: Stall) -> Result<(), InputError> {
        let running = self.cluster.vm(vm).ok_or(InputError::Unknown(vm))?;
        let is_over = stall.share() > running.spec().class.stall_budget();
        let before = self.measured.get(&vm).and_then(|measured| measured.over_since);
        let over_since = is_over.then(|| before.unwrap_or(self.now));
        self.measured.insert(vm, Measured { stall, over_since });
        Ok(())
    }

    fn host(
        &mut self,
        host: HostId,
        state: HostState,
        effects: &mut Vec<Effect>,
    ) -> Result<(), InputError> {
        self.cluster.set_state(host, state)?;
        if state == HostState::Draining {
            self.draining.insert(host);
            self.drain(host, effects);
        } else {
            self.draining.remove(&host);
            self.serve(effects, None);
        }
        Ok(())
    }

    fn passed(&mut self, effects: &mut Vec<Effect>) {
        self.budget.pass(self.now, &self.settings.limits);
        self.serve(effects, None);
        self.clear(effects);
        for host in self.draining.clone() {
            self.drain(host, effects);
        }
        if self.policy.revisits() {
            self.revisit(effects);
        }
    }
}
