//! One vCPU as all its users see it: the loop that runs it, the interrupts that reach it, and the machine that it is of.
//!
//! ```text
//!   machine --> interrupts --> vcpu
//!         \---------------------^
//! ```
//! Nothing here knows where the vCPU runs, or how interrupts come to it.

mod error;
pub(crate) mod kvm;
pub(crate) mod port;
mod run_times;
pub(crate) mod sample;
pub(crate) mod signal;
pub(crate) mod stats;

pub use error::{StateError, VcpuError};
pub use run_times::RunTimes;
pub use sample::Awaited;
pub use signal::{Doorbell, drain, prepare_thread};
pub use stats::VcpuStats;

use kvm_ioctls::VcpuFd;
use run_times::Clock;
use stats::Counters;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use wire::VcpuId;

/// No CR3 was seen yet. A real one has its low bits masked.
const NO_CR3: u64 = 1;

/// A vCPU of the machine, as all threads see it.
#[derive(Debug)]
pub(crate) struct VcpuCore {
    pub(crate) id: VcpuId,
    /// Index of the vCPU in the tables of the machine: its id.
    pub(crate) place: usize,
    pub(crate) doorbell: Arc<Doorbell>,
    pub(crate) counters: Counters,
    /// Of the threads that ran it here; not of its ghost.
    pub(crate) clock: Clock,
    pub(crate) cr3: AtomicU64,
    /// Somebody wants to know where it is.
    pub(crate) sampled: AtomicBool,
    /// The page that it is said to wait for, while somebody wants to know where.
    pub(crate) awaited: Awaited,
    /// The KVM object, while no thread has it.
    pub(crate) fd: Mutex<Option<VcpuFd>>,
}

impl VcpuCore {
    pub(crate) fn new(id: VcpuId) -> Self {
        Self {
            id,
            place: usize::try_from(id.0).expect("a vCPU id fits usize"),
            doorbell: Arc::new(Doorbell::default()),
            counters: Counters::default(),
            clock: Clock::default(),
            cr3: AtomicU64::new(NO_CR3),
            sampled: AtomicBool::new(false),
            awaited: Awaited::default(),
            fd: Mutex::new(None),
        }
    }

    /// It is elsewhere: what it uses there is not known.
    pub(crate) fn forget_cr3(&self) {
        self.cr3.store(NO_CR3, SeqCst);
    }

    /// The CR3 that it had at its last exit.
    pub(crate) fn last_cr3(&self) -> Option<u64> {
        let cr3 = self.cr3.load(SeqCst);
        (cr3 != NO_CR3).then_some(cr3)
    }
}
