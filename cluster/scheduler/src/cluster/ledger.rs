//! Changes of the state. Each is made as a whole, or refused before anything has changed.

use super::claim::Claim;
use super::{Cluster, ClusterError, HostState, Move, Purpose, Reservation, Vm};
use crate::ids::{Group, HostId, ReservationId, VmId};
use crate::placement::{Decision, Share};
use crate::planted::PlantedBug;
use crate::resources::Resources;
use crate::spec::{DeviceCount, Spec};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Cluster {
    /// Keeps what was decided for a VM that is to start.
    ///
    /// # Errors
    /// The decision was made on something else, or is not what the VM wants.
    pub fn reserve_start(
        &mut self,
        vm: VmId,
        spec: &Arc<Spec>,
        decision: &Decision,
        expires: u64,
    ) -> Result<ReservationId, ClusterError> {
        let starts = |id| self.reservations.get(&id).is_some_and(|it| it.spec().is_some());
        if self.vms.contains_key(&vm) || self.reservations_of(vm).any(starts) {
            return Err(ClusterError::Runs(vm));
        }
        self.check_basis(&decision.basis)?;
        let bootstrap = check_shares(spec, &decision.shares)
            .or_else(|| self.planted.has(PlantedBug::SurplusForgotten).then(|| first(decision)))
            .ok_or(ClusterError::NotThePlacement)?;
        let claim = self.take(vm, spec.anti_affinity, &decision.shares)?;
        if claim.is_on_several_hosts() {
            self.aggregates.insert(vm);
        }
        let purpose = Purpose::Start { spec: Arc::clone(spec), bootstrap };
        Ok(self.keep(vm, purpose, claim, expires))
    }

    /// Keeps what a slice needs where it goes. What it has stays.
    ///
    /// # Errors
    /// It does not have that, or there is no room.
    pub fn reserve_move(
        &mut self,
        step: &Move,
        expires: u64,
    ) -> Result<ReservationId, ClusterError> {
        let vm = self.vms.get(&step.vm).ok_or(ClusterError::NoVm(step.vm))?;
        let not_there = ClusterError::NotThere { vm: step.vm, host: step.from };
        let source = vm.taken_from(step.from, step.resources, &step.devices).ok_or(not_there)?;
        let is_nothing = step.resources.is_none() && step.devices.is_empty();
        if step.from == step.to || is_nothing || !self.remains(vm, step) {
            return Err(not_there);
        }
        let share =
            Share { host: step.to, resources: step.resources, devices: step.devices.clone() };
        let group = vm.spec().anti_affinity;
        let claim = self.take(step.vm, group, &[share])?;
        if self.planted.has(PlantedBug::DestinationNotReserved) {
            self.give(step.vm, group, &claim)?;
        }
        if self.planted.has(PlantedBug::SourceReleasedFirst) {
            let hosts = source.hosts();
            self.give(step.vm, group, &source)?;
            hosts.iter().try_for_each(|host| self.change(*host, |host| host.enter(step.vm)))?;
        }
        let purpose = Purpose::Move { step: step.clone(), flips: false };
        Ok(self.keep(step.vm, purpose, claim, expires))
    }

    /// Whether the slice has that beside what leaves it already.
    fn remains(&self, vm: &Vm, step: &Move) -> bool {
        let mut amount = step.resources;
        for id in self.reservations_of(step.vm) {
            let Purpose::Move { step: other, .. } = &self.reservations[&id].purpose else {
                continue;
            };
            if other.from != step.from {
                continue;
            }
            if other.devices.iter().any(|device| step.devices.contains(device)) {
                return false;
            }
            amount = amount.plus(other.resources);
        }
        vm.taken_from(step.from, amount, &step.devices).is_some()
    }

    fn keep(&mut self, vm: VmId, purpose: Purpose, claim: Claim, expires: u64) -> ReservationId {
        let id = ReservationId(self.next_reservation);
        self.next_reservation += 1;
        self.first_expiry = self.first_expiry.min(expires);
        self.reserved_by.insert((vm, id));
        self.reservations.insert(id, Reservation { vm, purpose, claim, expires, is_hollow: false });
        id
    }

    /// The VM that this is kept for runs.
    ///
    /// # Errors
    /// The reservation is no more, or is not of a start.
    pub fn commit_start(&mut self, id: ReservationId, now: u64) -> Result<VmId, ClusterError> {
        let reservation = self.reservations.get(&id).ok_or(ClusterError::Stale(id))?;
        let Purpose::Start { spec, bootstrap } = &reservation.purpose else {
            return Err(ClusterError::Stale(id));
        };
        let (vm, spec, bootstrap) = (reservation.vm, Arc::clone(spec), *bootstrap);
        let claim = self.forget(id).map(|it| it.claim).unwrap_or_default();
        self.vms.insert(vm, Vm::new(spec, claim, bootstrap, now));
        Ok(vm)
    }

    /// From here on the move can only go on.
    ///
    /// # Errors
    /// The reservation is no more, or is not of a move.
    pub fn flip(&mut self, id: ReservationId) -> Result<&Move, ClusterError> {
        match self.reservations.get_mut(&id).map(|it| &mut it.purpose) {
            Some(Purpose::Move { step, flips }) => {
                *flips = true;
                Ok(step)
            }
            _ => Err(ClusterError::Stale(id)),
        }
    }

    /// The slice is where it was to go, and what it had is free. Returns the move.
    ///
    /// # Errors
    /// It has not flipped, or is no more.
    pub fn commit_move(&mut self, id: ReservationId) -> Result<Move, ClusterError> {
        let reservation = self.reservations.get(&id).ok_or(ClusterError::Stale(id))?;
        let step = match &reservation.purpose {
            Purpose::Move { step, flips: true } => step.clone(),
            Purpose::Move { .. } => return Err(ClusterError::NotFlipped(id)),
            Purpose::Start { .. } => return Err(ClusterError::Stale(id)),
        };
        let new = reservation.claim.clone();
        let vm = self.vms.get_mut(&step.vm).ok_or(ClusterError::NoVm(step.vm))?;
        let old = vm.taken_from(step.from, step.resources, &step.devices);
        let old = old.ok_or(ClusterError::NotThere { vm: step.vm, host: step.from })?;
        let group = vm.spec().anti_affinity;
        let before: BTreeSet<HostId> = vm.claim().hosts().into_iter().collect();
        vm.exchange(&old, &new);
        let after: BTreeSet<HostId> = vm.claim().hosts().into_iter().collect();
        let is_aggregate = after.len() > 1;
        self.forget(id);
        for part in &old.parts {
            self.change(part.host, |host| host.give(part))?;
        }
        for at in &old.devices {
            self.change(at.host, |host| host.give_device(at.device))?;
        }
        // The VM was there once for the slice and once for the reservation; it stays once where it has anything.
        let joined = before.contains(&step.to).then_some(step.to);
        for host in before.difference(&after).copied().chain(joined) {
            self.leave(step.vm, group, host)?;
        }
        if is_aggregate {
            self.aggregates.insert(step.vm);
        } else {
            self.aggregates.remove(&step.vm);
        }
        Ok(step)
    }

    /// Gives up a start, or a move that has not flipped. Returns what it was for.
    ///
    /// # Errors
    /// It is no more, or flips.
    pub fn cancel(&mut self, id: ReservationId) -> Result<Purpose, ClusterError> {
        let reservation = self.reservations.get(&id).ok_or(ClusterError::Stale(id))?;
        if matches!(reservation.purpose, Purpose::Move { flips: true, .. })
            && !self.planted.has(PlantedBug::AbortedAfterFlip)
        {
            return Err(ClusterError::Flips(id));
        }
        self.drop_reservation(id)
    }

    fn drop_reservation(&mut self, id: ReservationId) -> Result<Purpose, ClusterError> {
        let reservation = self.forget(id).ok_or(ClusterError::Stale(id))?;
        let Reservation { vm, purpose, claim, is_hollow, .. } = reservation;
        let group = match &purpose {
            Purpose::Start { spec, .. } => {
                self.aggregates.remove(&vm);
                spec.anti_affinity
            }
            Purpose::Move { .. } => self.vms.get(&vm).and_then(|vm| vm.spec().anti_affinity),
        };
        if is_hollow {
            return Ok(purpose);
        }
        if let Purpose::Move { step, .. } = &purpose
            && self.planted.has(PlantedBug::AbortReleasesSource)
            && let Some(running) = self.vms.get_mut(&vm)
            && let Some(old) = running.taken_from(step.from, step.resources, &step.devices)
        {
            running.exchange(&old, &Claim::default());
            self.give(vm, group, &old)?;
        }
        self.give(vm, group, &claim)?;
        Ok(purpose)
    }

    fn forget(&mut self, id: ReservationId) -> Option<Reservation> {
        let reservation = self.reservations.remove(&id)?;
        self.reserved_by.remove(&(reservation.vm, id));
        Some(reservation)
    }

    /// Reservations that are over by now. They are looked through only when one may be.
    pub(crate) fn expired(&mut self, now: u64) -> Vec<ReservationId> {
        if now < self.first_expiry {
            return Vec::new();
        }
        let at = |it: &Reservation| it.expires().filter(|_| !it.is_hollow);
        let all = || self.reservations.iter().filter_map(|(id, it)| Some((*id, at(it)?)));
        let expired = all().filter(|(_, at)| *at <= now).map(|(id, _)| id).collect();
        let later = all().map(|(_, at)| at).filter(|at| *at > now);
        self.first_expiry = later.min().unwrap_or(u64::MAX);
        expired
    }

    /// Gives back what is kept, and forgets nothing else; only with a planted bug.
    pub(crate) fn hollow_out(&mut self, id: ReservationId) -> Result<(), ClusterError> {
        let reservation = self.reservations.get_mut(&id).ok_or(ClusterError::Stale(id))?;
        reservation.is_hollow = true;
        let (vm, claim) = (reservation.vm, reservation.claim.clone());
        self.give(vm, None, &claim)
    }

    /// The VM is no more, nor what was kept for it. Returns hosts on which something is free now.
    pub fn release(&mut self, id: VmId) -> Vec<HostId> {
        let mut hosts = BTreeSet::new();
        let reserved: Vec<_> = self.reservations_of(id).collect();
        for reservation in reserved {
            if self.planted.has(PlantedBug::ReservationLeftBehind) {
                continue;
            }
            hosts.extend(self.reservations[&reservation].claim.hosts());
            let dropped = self.drop_reservation(reservation);
            debug_assert!(dropped.is_ok(), "{dropped:?}");
        }
        if let Some(vm) = self.vms.remove(&id) {
            let claim = vm.claim();
            hosts.extend(claim.hosts());
            let given = self.give(id, vm.spec().anti_affinity, &claim);
            debug_assert!(given.is_ok(), "{given:?}");
        }
        self.aggregates.remove(&id);
        hosts.into_iter().collect()
    }

    fn check_basis(&self, basis: &[(HostId, u64)]) -> Result<(), ClusterError> {
        for (id, decided) in basis {
            let now = self.host(*id).ok_or(ClusterError::NoHost(*id))?.generation();
            if now != *decided {
                return Err(ClusterError::Generation { host: *id, decided: *decided, now });
            }
        }
        Ok(())
    }

    fn take(
        &mut self,
        vm: VmId,
        group: Option<Group>,
        shares: &[Share],
    ) -> Result<Claim, ClusterError> {
        for share in shares {
            let host = self.host(share.host).ok_or(ClusterError::NoHost(share.host))?;
            if host.state != HostState::Open || !host.has_room(share.resources, &share.devices) {
                return Err(ClusterError::NoRoom(share.host));
            }
        }
        let mut claim = Claim::default();
        for share in shares {
            self.change(share.host, |host| {
                claim.parts.extend(host.take(share.resources));
                let devices = share.devices.iter().map(|device| host.take_device(*device));
                claim.devices.extend(devices);
                host.enter(vm);
            })?;
            if let Some(group) = group {
                *self.groups.entry((group, share.host)).or_default() += 1;
            }
        }
        claim.devices.sort_unstable_by_key(|at| at.device.kind);
        Ok(claim)
    }

    fn give(&mut self, vm: VmId, group: Option<Group>, claim: &Claim) -> Result<(), ClusterError> {
        for part in &claim.parts {
            self.change(part.host, |host| host.give(part))?;
        }
        for at in &claim.devices {
            self.change(at.host, |host| host.give_device(at.device))?;
        }
        claim.hosts().iter().try_for_each(|host| self.leave(vm, group, *host))
    }

    fn leave(&mut self, vm: VmId, group: Option<Group>, id: HostId) -> Result<(), ClusterError> {
        self.change(id, |host| host.leave(vm))?;
        if let Some(group) = group
            && let Some(claims) = self.groups.get_mut(&(group, id))
        {
            *claims = claims.saturating_sub(1);
            if *claims == 0 {
                self.groups.remove(&(group, id));
            }
        }
        Ok(())
    }
}

fn first(decision: &Decision) -> HostId {
    decision.shares.first().map_or_else(HostId::default, |share| share.host)
}

/// The bootstrap's host, if the shares are what the VM wants.
fn check_shares(spec: &Spec, shares: &[Share]) -> Option<HostId> {
    let mut hosts: Vec<_> = shares.iter().map(|share| share.host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let sum = shares.iter().fold(Resources::NONE, |sum, share| sum.plus(share.resources));
    let mut devices: Vec<DeviceCount> =
        shares.iter().flat_map(|share| &share.devices).copied().collect();
    devices.sort_unstable();
    let empty = |it: &Share| it.resources.is_none() && it.devices.is_empty();
    let first = shares.first().filter(|share| share.resources.cores > 0)?;
    let is_right = hosts.len() == shares.len()
        && sum == spec.needs
        && devices == spec.devices
        && !shares.iter().any(empty);
    is_right.then_some(first.host)
}
