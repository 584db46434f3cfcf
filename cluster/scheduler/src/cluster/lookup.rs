//! What there is to ask of the state.

use super::claim::Claim;
use super::host::Traits;
use super::index::Free;
use super::{Cluster, Host, HostState, Purpose, Reservation, Vm};
use crate::ids::{Fabric, Group, HostId, ReservationId, VmId};
use crate::resources::Resources;
use std::collections::BTreeMap;

impl Host {
    pub(crate) fn traits(&self) -> &Traits {
        &self.traits
    }
}

impl Cluster {
    /// All hosts, by number.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// One of them.
    #[must_use]
    pub fn host(&self, id: HostId) -> Option<&Host> {
        usize::try_from(id.0).ok().and_then(|at| self.hosts.get(at))
    }

    /// Running VMs, by number.
    pub fn vms(&self) -> impl Iterator<Item = (VmId, &Vm)> {
        self.vms.iter().map(|(id, vm)| (*id, vm))
    }

    /// One of them.
    #[must_use]
    pub fn vm(&self, id: VmId) -> Option<&Vm> {
        self.vms.get(&id)
    }

    /// VMs that run on several hosts, or are about to start there, from this one on.
    pub fn aggregates_from(&self, first: VmId) -> impl Iterator<Item = VmId> + '_ {
        self.aggregates.range(first..).copied()
    }

    /// Whether it is one of them.
    #[must_use]
    pub fn is_aggregate(&self, vm: VmId) -> bool {
        self.aggregates.contains(&vm)
    }

    /// All reservations, by number.
    pub fn reservations(&self) -> impl Iterator<Item = (ReservationId, &Reservation)> {
        self.reservations.iter().map(|(id, it)| (*id, it))
    }

    /// One of them.
    #[must_use]
    pub fn reservation(&self, id: ReservationId) -> Option<&Reservation> {
        self.reservations.get(&id)
    }

    /// Those of a VM.
    pub fn reservations_of(&self, vm: VmId) -> impl Iterator<Item = ReservationId> + '_ {
        let all = (vm, ReservationId(0))..=(vm, ReservationId(u64::MAX));
        self.reserved_by.range(all).map(|(_, id)| *id)
    }

    /// Whether a VM of a group is on a host or kept for there, other than `vm`.
    pub(crate) fn has_other_of(&self, group: Group, host: &Host, vm: Option<VmId>) -> bool {
        let claims = self.groups.get(&(group, host.id())).copied().unwrap_or(0);
        let own = vm.map_or(0, |vm| host.vms.iter().filter(|other| **other == vm).count());
        usize::try_from(claims).is_ok_and(|claims| claims > own)
    }

    /// Slices of Aggregate VMs on a host.
    pub(crate) fn slices_on(&self, host: &Host) -> u16 {
        let slices = host.vms().filter(|vm| self.aggregates.contains(vm)).count();
        u16::try_from(slices).unwrap_or(u16::MAX)
    }

    /// Cores and memory that are free on open hosts that suit.
    pub(crate) fn free(&self, suits: impl Fn(&Traits) -> bool) -> (u64, u64) {
        self.index.free(suits)
    }

    pub(crate) fn best_fit<'a>(
        &'a self,
        needs: Resources,
        suits: impl Fn(&Traits) -> bool,
    ) -> impl Iterator<Item = &'a Host> + 'a {
        self.index.best_fit(needs, suits).filter_map(|id| self.host(id))
    }

    pub(crate) fn best_fit_in<'a>(
        &'a self,
        fabric: Fabric,
        needs: Resources,
        suits: impl Fn(&Traits) -> bool,
    ) -> impl Iterator<Item = &'a Host> + 'a {
        self.index.best_fit_in(fabric, needs, suits).filter_map(|id| self.host(id))
    }

    /// Hosts with free cores, those with most first.
    pub(crate) fn emptiest<'a>(
        &'a self,
        suits: impl Fn(&Traits) -> bool,
    ) -> impl Iterator<Item = &'a Host> + 'a {
        self.index.emptiest(suits).filter_map(|id| self.host(id))
    }

    pub(crate) fn fabrics(
        &self,
        suits: impl Fn(&Traits) -> bool,
    ) -> impl Iterator<Item = (Fabric, u64, u64)> {
        self.index.fabrics(suits)
    }

    pub(crate) fn most_first<'a>(
        &'a self,
        fabric: Fabric,
        suits: impl Fn(&Traits) -> bool,
    ) -> impl Iterator<Item = Free> + 'a {
        self.index.most_first(fabric, suits)
    }

    pub(crate) fn least_first<'a>(
        &'a self,
        fabric: Fabric,
        from: u32,
        suits: impl Fn(&Traits) -> bool,
    ) -> impl Iterator<Item = Free> + 'a {
        self.index.least_first(fabric, from, suits)
    }

    /// The host of a fabric with most free memory, of those that are admitted.
    pub(crate) fn most_memory(
        &self,
        fabric: Fabric,
        suits: impl Fn(&Traits) -> bool,
        mut admits: impl FnMut(&Host) -> bool,
    ) -> Option<Free> {
        let mut best: Option<Free> = None;
        for mut hosts in self.index.most_memory_by_cores(fabric, suits) {
            let beats = |free: &Free| best.is_none_or(|best| free.1 > best.1);
            let more = hosts.by_ref().take_while(beats);
            let first = { more }.find(|free| self.host(free.2).is_some_and(&mut admits));
            best = first.or(best);
        }
        best.filter(|free| free.1 > 0)
    }

    /// Checks what must always hold; what does not.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), &'static str> {
        let mut used: BTreeMap<HostId, Resources> = BTreeMap::new();
        let mut entries: BTreeMap<HostId, usize> = BTreeMap::new();
        let claims = self.reservations.values().map(|it| it.claim.clone());
        for claim in claims.chain(self.vms.values().map(Vm::claim)) {
            for part in &claim.parts {
                let sum = used.entry(part.host).or_default();
                *sum = sum.plus(part.resources());
            }
            claim.hosts().iter().for_each(|host| *entries.entry(*host).or_default() += 1);
        }
        for host in &self.hosts {
            if !host.is_consistent() {
                return Err("what is free on a host is between nothing and all");
            }
            if host.used() != used.get(&host.id()).copied().unwrap_or_default() {
                return Err("what is not free is somebody's");
            }
            if host.vms.len() != entries.get(&host.id()).copied().unwrap_or(0) {
                return Err("a host knows who is there");
            }
        }
        self.check_vms()
    }

    fn check_vms(&self) -> Result<(), &'static str> {
        for (id, vm) in &self.vms {
            if vm.resources() != vm.spec().needs || !has_devices(vm) {
                return Err("slices sum to what the VM wants");
            }
            if vm.parts().first().is_none_or(|part| part.cores == 0) {
                return Err("the bootstrap slice has a core");
            }
            if vm.is_on_one_host() == self.aggregates.contains(id) {
                return Err("a VM on several hosts is an Aggregate VM");
            }
        }
        let by_vm = self.reservations.iter().map(|(id, it)| (it.vm, *id)).collect();
        if self.reserved_by != by_vm {
            return Err("a VM knows its reservations");
        }
        let orphan = |it: &Reservation| {
            matches!(it.purpose, Purpose::Move { .. }) && !self.vms.contains_key(&it.vm)
        };
        if self.reservations.values().any(orphan) {
            return Err("only running VMs move");
        }
        Ok(())
    }

    /// Hosts in a state.
    pub fn hosts_in(&self, state: HostState) -> impl Iterator<Item = &Host> {
        self.hosts.iter().filter(move |host| host.state() == state)
    }
}

fn has_devices(vm: &Vm) -> bool {
    vm.devices().iter().map(|at| at.device).eq(vm.spec().devices.iter().copied())
}

impl Claim {
    pub(super) fn is_on_several_hosts(&self) -> bool {
        self.hosts().len() > 1
    }
}
