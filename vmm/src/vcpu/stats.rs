//! Counters of one vCPU, kept from the first exit.

use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use wire::VcpuId;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Live counters; written by the threads that work for the vCPU.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64),* }

        /// What a vCPU has done so far. A vCPU of another slice has only the `interrupts_out` that
        /// were sent to it and, with ghosts, the exits of its ghost.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        pub struct VcpuStats {
            /// Which vCPU.
            pub vcpu: VcpuId,
            /// True when it runs here.
            pub local: bool,
            $($(#[$doc])* pub $name: u64),*
        }

        impl Counters {
            pub(crate) fn snapshot(&self, vcpu: VcpuId, local: bool) -> VcpuStats {
                VcpuStats { vcpu, local, $($name: self.$name.load(Relaxed)),* }
            }
        }
    };
}

counters! {
    /// Entries into `KVM_RUN`.
    runs,
    /// Exits for port accesses.
    exits_io,
    /// Exits for memory-mapped registers.
    exits_mmio,
    /// Exits for reads of model-specific registers.
    exits_rdmsr,
    /// Exits for writes of model-specific registers.
    exits_wrmsr,
    /// Exits because an interrupt can be injected now.
    exits_interrupt_window,
    /// Exits because a level-triggered interrupt ended.
    exits_eoi,
    /// Exits by a kick.
    exits_kicked,
    /// Exits because the vCPU was not runnable (start-up, ghosts).
    exits_again,
    /// All other exits.
    exits_other,
    /// Halts that were seen here (with a kernel APIC, halts stay in the kernel).
    halts,
    /// Interrupts that came from other slices; with APICs in user space also each INIT and start-up.
    interrupts_in,
    /// Interrupts that this slice sent to the vCPU elsewhere.
    interrupts_out,
    /// Interrupts injected from user space.
    injected,
    /// Timer deadlines that spacing moved.
    timer_deferrals,
    /// Times a ghost woke to name pending interrupts.
    ghost_wakes,
    /// Times it went back to sleep.
    ghost_parks,
    /// Accesses to model-specific registers that nobody knows.
    unknown_msrs,
}

impl Counters {
    /// Counts one.
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }
}
