//! Slices that move: together, or away from a host that is drained.

use super::{Effect, InputError, Scheduler};
use crate::cluster::{Host, Move, Slice, Traits, Vm};
use crate::ids::{HostId, ReservationId, VmId};
use crate::planted::PlantedBug;
use crate::policy::{Facts, Policy, all_of};
use crate::validate::{Candidate, of_moment, of_traits};

impl<P: Policy> Scheduler<P> {
    /// The slice is at its new place.
    pub(super) fn flipped(
        &mut self,
        id: ReservationId,
        effects: &mut Vec<Effect>,
    ) -> Result<(), InputError> {
        let step = self.cluster.commit_move(id)?;
        self.budget.done(step.vm);
        // What was counted was counted of another placement.
        self.measured.remove(&step.vm);
        if !self.cluster.is_aggregate(step.vm) {
            effects.push(Effect::HandBack { vm: step.vm });
        }
        self.serve(effects, None);
        self.consolidate(step.vm, Some(step.to), effects);
        if self.draining.contains(&step.from) {
            self.drain(step.from, effects);
        }
        Ok(())
    }

    /// Something has ended on these hosts. Aggregate VMs with a slice there may come together.
    pub(super) fn consolidate_beside(&mut self, hosts: &[HostId], effects: &mut Vec<Effect>) {
        for &host in hosts {
            let there = self.cluster.host(host).map(|host| host.vms().collect::<Vec<_>>());
            for vm in there.unwrap_or_default() {
                self.consolidate(vm, Some(host), effects);
            }
        }
    }

    /// Time has passed: some Aggregate VMs are looked at, those first that wait for too much.
    pub(super) fn revisit(&mut self, effects: &mut Vec<Effect>) {
        let most = self.settings.revisits_max;
        let over: Vec<VmId> =
            self.measured.keys().copied().filter(|vm| self.is_over(*vm)).take(most).collect();
        let mut turn: Vec<VmId> = self.cluster.aggregates_from(self.next).take(most).collect();
        self.next = turn.last().and_then(|last| last.0.checked_add(1)).map_or(VmId(0), VmId);
        if turn.len() < most {
            self.next = VmId(0);
        }
        turn.retain(|vm| !over.contains(vm));
        for vm in over.into_iter().chain(turn).take(most) {
            self.consolidate(vm, None, effects);
        }
    }

    fn is_over(&self, vm: VmId) -> bool {
        let since = self.measured.get(&vm).and_then(|measured| measured.over_since);
        since.is_some_and(|at| at.saturating_add(self.settings.stall_patience) <= self.now)
    }

    fn consolidate(&mut self, vm: VmId, released: Option<HostId>, effects: &mut Vec<Effect>) {
        let is_running = self.cluster.vm(vm).is_some() && self.cluster.is_aggregate(vm);
        if !is_running || self.cluster.reservations_of(vm).next().is_some() {
            return;
        }
        let stall = self.measured.get(&vm).map(|measured| &measured.stall);
        let is_over_budget = self.is_over(vm);
        let facts = Facts { now: self.now, released, stall, is_over_budget };
        let moves = self.policy.consolidate(&self.cluster, vm, &facts);
        if !moves.iter().any(|step| self.is_cleared(step.to)) {
            self.begin(&moves, false, effects);
        }
    }

    /// Whether all of these moves are within the budget, and short.
    pub(super) fn may_begin(&self, moves: &[Move], is_drain: bool) -> bool {
        let Self { settings, budget, planted, now, .. } = self;
        let pause = |step: &Move| settings.prices.pause_us(step);
        let is_short = |step: &Move| {
            pause(step) <= settings.pause_max_us || planted.has(PlantedBug::PauseNotBounded)
        };
        budget.allows(*now, moves, is_drain, &settings.limits, *planted)
            && moves.iter().all(is_short)
    }

    /// Begins all of these moves, or none. Says which.
    pub(super) fn begin(
        &mut self,
        moves: &[Move],
        is_drain: bool,
        effects: &mut Vec<Effect>,
    ) -> bool {
        if !self.may_begin(moves, is_drain) {
            return false;
        }
        let expires = self.now.saturating_add(self.settings.reservation_ttl);
        let mut kept: Vec<ReservationId> = Vec::new();
        for step in moves {
            let Ok(id) = self.cluster.reserve_move(step, expires) else {
                for id in kept {
                    let cancelled = self.cluster.cancel(id);
                    debug_assert!(cancelled.is_ok(), "{cancelled:?}");
                }
                return false;
            };
            kept.push(id);
        }
        for (step, reservation) in moves.iter().zip(kept) {
            self.budget.note(self.now, step);
            let (step, pause_us) = (step.clone(), self.settings.prices.pause_us(step));
            effects.push(Effect::Move { reservation, step, expires, pause_us });
        }
        true
    }

    /// What is on a host that is drained goes elsewhere, as far as there is room and the budget allows; the rest later.
    pub(super) fn drain(&mut self, host: HostId, effects: &mut Vec<Effect>) {
        let there = self.cluster.host(host).map(|host| host.vms().collect::<Vec<_>>());
        for id in there.unwrap_or_default() {
            let Some(vm) = self.cluster.vm(id) else { continue };
            if self.cluster.reservations_of(id).next().is_some() {
                continue;
            }
            let slices = vm.slices();
            let slice = slices.iter().find(|slice| slice.host == host);
            let step = slice.and_then(|slice| self.way_out(id, vm, &slices, slice));
            let may_move = |step: &Move| {
                self.policy.may_move(&self.cluster, step) && !self.is_cleared(step.to)
            };
            if let Some(step) = step.filter(may_move) {
                self.begin(&[step], true, effects);
            }
        }
    }

    /// To where the VM is already, if there is room, else to the best fit.
    fn way_out(&self, id: VmId, vm: &Vm, slices: &[Slice], slice: &Slice) -> Option<Move> {
        let own = slices.iter().map(|other| other.host).filter(|host| *host != slice.host);
        if let Some(step) = { own }.find_map(|to| all_of(&self.cluster, id, slice, to)) {
            return Some(step);
        }
        let spec = vm.spec();
        let is_slice = slices.len() > 1;
        let it = Candidate {
            vm: Some(id),
            spec,
            resources: slice.resources,
            devices: &slice.devices,
            is_slice,
        };
        let suits = |traits: &Traits| of_traits(traits, &it).is_none();
        let fits = |host: &&Host| of_moment(&self.cluster, host, &it).is_none();
        let found = if is_slice {
            let fabric = self.cluster.host(vm.bootstrap())?.fabric();
            let mut hosts = self.cluster.best_fit_in(fabric, slice.resources, suits);
            hosts.find(fits).map(|host| host.id())
        } else {
            let mut hosts = self.cluster.best_fit(slice.resources, suits);
            hosts.find(fits).map(|host| host.id())
        };
        all_of(&self.cluster, id, slice, found?)
    }
}
