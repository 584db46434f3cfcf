//! Where one vCPU is in a hand-over, and what is kept of it meanwhile.

use super::HandoverRefusal;
use super::orders::Orders;
use super::saved::{Running, VcpuState};
use crate::interrupts::ghost::{Before, GhostCall, Pending};
use crate::interrupts::lapic::TSC_DEADLINE;
use crate::interrupts::saved::ApicState;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What is needed of a saved state when its vCPU goes on, or becomes a ghost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) running: Running,
    pub(super) tsc_ahead: i64,
    pub(super) pending: Pending,
}

impl Held {
    pub(super) fn of(state: &VcpuState) -> Self {
        let pending = match &state.apic {
            ApicState::Kernel(apic) => Pending {
                vectors: apic.irr,
                nmis: state.events.nmi_pending,
                deadline: state.msrs.get(TSC_DEADLINE).unwrap_or(0),
            },
            ApicState::Userspace(_) => Pending::default(),
        };
        Self { running: state.running, tsc_ahead: state.tsc_ahead, pending }
    }

    pub(super) fn before(&self) -> Before {
        Before::Vcpu { waits_for_startup: self.running == Running::InitReceived }
    }
}

/// The states that `handover` draws.
#[derive(Clone, Copy, Debug)]
pub(super) enum Phase {
    Here,
    Stopped(Held),
    Elsewhere,
    Prepared,
    Installed(Held),
}

impl Phase {
    pub(super) fn refusal(self) -> HandoverRefusal {
        HandoverRefusal::Is(match self {
            Self::Here => "here",
            Self::Stopped(_) => "stopped",
            Self::Elsewhere => "elsewhere",
            Self::Prepared => "prepared",
            Self::Installed(_) => "installed",
        })
    }
}

/// Where one vCPU is in a hand-over.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Held for the whole of a step.
    phase: Mutex<Phase>,
    pub(super) is_installed: AtomicBool,
    /// Read by who sends to it from user space, written by who sets its APIC as a whole.
    sending: RwLock<()>,
    pub(crate) orders: Orders,
    /// By which its ghost is asked, if it has one.
    call: Mutex<Option<Arc<GhostCall>>>,
}

impl Slot {
    pub(crate) fn new(is_here: bool) -> Self {
        let phase = if is_here { Phase::Here } else { Phase::Elsewhere };
        Self {
            phase: Mutex::new(phase),
            is_installed: AtomicBool::new(false),
            sending: RwLock::new(()),
            orders: Orders::default(),
            call: Mutex::default(),
        }
    }

    pub(super) fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is here although the placement may not say so.
    pub(crate) fn is_installed(&self) -> bool {
        self.is_installed.load(SeqCst)
    }

    /// While this is there, its APIC is not set as a whole.
    pub(crate) fn sends(&self) -> RwLockReadGuard<'_, ()> {
        self.sending.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// While this is there, nobody sends to it from user space.
    pub(super) fn is_set(&self) -> RwLockWriteGuard<'_, ()> {
        self.sending.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn call(&self) -> Option<Arc<GhostCall>> {
        self.call.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_call(&self, call: Arc<GhostCall>) {
        *self.call.lock().unwrap_or_else(PoisonError::into_inner) = Some(call);
    }
}
