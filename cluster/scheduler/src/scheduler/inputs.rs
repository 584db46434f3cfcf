//! What the machine is told, and what it says.

use crate::cluster::{ClusterError, HostState, Move};
use crate::cost::Stall;
use crate::ids::{HostId, ReservationId, VmId};
use crate::placement::Decision;
use crate::policy::Refusal;
use crate::spec::{Spec, SpecError};
use std::sync::Arc;
use thiserror::Error;

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Somebody wants a VM.
    Arrive {
        /// Its number, which no VM has had before.
        vm: VmId,
        /// What it wants.
        spec: Arc<Spec>,
    },
    /// It has ended, is lost, or is wanted no more.
    Depart {
        /// Which.
        vm: VmId,
    },
    /// What an effect asked for is prepared on all hosts.
    Ready {
        /// For which.
        reservation: ReservationId,
    },
    /// It could not be.
    Failed {
        /// For which.
        reservation: ReservationId,
    },
    /// The slice is at its new host, and nothing of it is at the former one.
    Flipped {
        /// By which move.
        reservation: ReservationId,
    },
    /// A VM has counted its faults.
    Measured {
        /// Which.
        vm: VmId,
        /// What it has found.
        stall: Stall,
    },
    /// A host takes VMs, or does not.
    Host {
        /// Which.
        host: HostId,
        /// What it is now.
        state: HostState,
    },
    /// Time has passed.
    Passed,
}

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Keep this on the hosts, and prepare the VM there.
    Start {
        /// What to report on.
        reservation: ReservationId,
        /// The VM.
        vm: VmId,
        /// Where, and why there.
        decision: Decision,
        /// Hosts give it back then.
        expires: u64,
    },
    /// It runs from now on.
    Run {
        /// Which.
        vm: VmId,
    },
    /// It waits. Said once, when it has come.
    Waits {
        /// Which.
        vm: VmId,
        /// Why.
        refusal: Refusal,
    },
    /// Keep room for a slice where it goes, and prepare it there.
    Move {
        /// What to report on.
        reservation: ReservationId,
        /// What goes where.
        step: Move,
        /// The host gives it back then.
        expires: u64,
        /// How long some of the VM stands still, in microseconds.
        pause_us: u64,
    },
    /// The location table flips. It cannot be given up any more.
    Flip {
        /// By which move.
        reservation: ReservationId,
    },
    /// It was kept for too long, and is given back.
    Expired {
        /// Which.
        reservation: ReservationId,
        /// For whom.
        vm: VmId,
    },
    /// The VM is on one host now, and an ordinary VM.
    HandBack {
        /// Which.
        vm: VmId,
    },
}

/// Why an input is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum InputError {
    /// What it wants makes no sense.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// There is a VM of that number.
    #[error("{0} is known already")]
    Known(VmId),
    /// There is none.
    #[error("there is no {0}")]
    Unknown(VmId),
    /// Too many wait.
    #[error("{0} VMs wait already, and no more are taken")]
    QueueFull(usize),
    /// The state does not allow it.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl InputError {
    pub(super) fn stale(id: ReservationId) -> Self {
        Self::Cluster(ClusterError::Stale(id))
    }
}
