//! What is kept free for a VM that starts or a slice that moves.

use super::claim::{Claim, DeviceAt, Part};
use crate::ids::{HostId, VmId};
use crate::resources::Resources;
use crate::spec::{DeviceCount, Spec};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A part of a slice, or all of it, that goes to another host.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Move {
    /// Whose.
    pub vm: VmId,
    /// Where it is.
    pub from: HostId,
    /// Where it goes. The VM may have a slice there.
    pub to: HostId,
    /// How much of it.
    pub resources: Resources,
    /// Devices that go along, by kind in ascending order.
    pub devices: Vec<DeviceCount>,
}

/// What a reservation is for, and how far that is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A VM starts.
    Start {
        /// What it wants.
        spec: Arc<Spec>,
        /// Where its bootstrap slice is to be.
        bootstrap: HostId,
    },
    /// A slice moves.
    Move {
        /// What goes where.
        step: Move,
        /// The location table has flipped, or is about to: there is no way back.
        flips: bool,
    },
}

/// One reservation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reservation {
    pub(super) vm: VmId,
    pub(super) purpose: Purpose,
    pub(super) claim: Claim,
    pub(super) expires: u64,
    /// Whether the claim has been given back; only with a planted bug.
    pub(super) is_hollow: bool,
}

impl Reservation {
    /// For which VM.
    #[must_use]
    pub fn vm(&self) -> VmId {
        self.vm
    }

    /// What for.
    #[must_use]
    pub fn purpose(&self) -> &Purpose {
        &self.purpose
    }

    /// What is reserved of which NUMA nodes.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.claim.parts
    }

    /// Which devices are.
    #[must_use]
    pub fn devices(&self) -> &[DeviceAt] {
        &self.claim.devices
    }

    /// When it expires; never once the move flips.
    #[must_use]
    pub fn expires(&self) -> Option<u64> {
        let flips = matches!(self.purpose, Purpose::Move { flips: true, .. });
        (!flips).then_some(self.expires)
    }

    pub(super) fn spec(&self) -> Option<&Arc<Spec>> {
        match &self.purpose {
            Purpose::Start { spec, .. } => Some(spec),
            Purpose::Move { .. } => None,
        }
    }
}
