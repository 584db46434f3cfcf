//! The state: hosts, VMs and what of which host is theirs or kept for them. A ledger: nothing here chooses.
//!
//! ```text
//!                reserve                   commit
//!   nothing ────────────> kept for a VM ───────────> the VM runs ──release──> nothing
//!                           │ cancel, expire
//!                           └────────────────────────────────────────────────> nothing
//!
//!   a slice of a running VM:
//!                reserve                     flip                          commit
//!   at its host ────────> at its host, and ────────> at its host, and ────────────> at the new host
//!        ^                kept at the new one        held at the new one            the former one is free
//!        └─────────────────────┘ cancel, expire      (no way back)
//! ```
//! **Make before break.** What a slice goes to is kept before anything that it has is given up.
//!
//! **Compare and swap.** Each change of what is free on a host is a new generation of it. A decision names the generations
//! that it was made on, and is refused when one is another by then.

mod claim;
mod error;
mod host;
mod index;
mod ledger;
mod lookup;
mod reservation;
mod vm;

#[cfg(test)]
mod tests;

pub use claim::{DeviceAt, Part};
pub use error::ClusterError;
pub(crate) use host::Traits;
pub use host::{Host, HostSpec, HostState};
pub use reservation::{Move, Purpose, Reservation};
pub use vm::{Slice, Vm};

use crate::ids::{Group, HostId, ReservationId, VmId};
use crate::planted::Planted;
use crate::spec::SpecError;
use index::Index;
use std::collections::{BTreeMap, BTreeSet};

/// Hosts and VMs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cluster {
    hosts: Vec<Host>,
    vms: BTreeMap<VmId, Vm>,
    /// VMs, running or about to, that are on several hosts.
    aggregates: BTreeSet<VmId>,
    /// How often a host is claimed for VMs of a group.
    groups: BTreeMap<(Group, HostId), u32>,
    reservations: BTreeMap<ReservationId, Reservation>,
    reserved_by: BTreeSet<(VmId, ReservationId)>,
    next_reservation: u64,
    /// Nothing expires before.
    first_expiry: u64,
    index: Index,
    planted: Planted,
}

impl Cluster {
    /// Without hosts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    pub(crate) fn planted(&self) -> Planted {
        self.planted
    }

    /// A host more, which is open.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn add_host(&mut self, spec: &HostSpec) -> Result<HostId, SpecError> {
        let id = HostId(u32::try_from(self.hosts.len()).map_err(|_| SpecError::TooLarge)?);
        let host = Host::new(id, spec)?;
        self.index.add(&host);
        self.hosts.push(host);
        Ok(id)
    }

    /// Whether a host takes anything. What is there stays, whatever the state.
    ///
    /// # Errors
    /// There is no such host.
    pub fn set_state(&mut self, id: HostId, state: HostState) -> Result<(), ClusterError> {
        self.change(id, |host| host.state = state)
    }

    /// Changes a host, and finds it by what is free then.
    fn change<T>(
        &mut self,
        id: HostId,
        change: impl FnOnce(&mut Host) -> T,
    ) -> Result<T, ClusterError> {
        let host = usize::try_from(id.0).ok().and_then(|at| self.hosts.get_mut(at));
        let host = host.ok_or(ClusterError::NoHost(id))?;
        if host.state == HostState::Open {
            self.index.remove(host);
        }
        let result = change(host);
        host.generation += 1;
        if host.state == HostState::Open {
            self.index.add(host);
        }
        Ok(result)
    }
}
