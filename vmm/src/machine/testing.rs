//! Machines whose vCPUs do not run, for tests.

use super::{Machine, MachineConfig, MachineHooks};
use crate::interrupts::{InterruptBackEnd, RemoteInterrupts};
use crate::timer_spacing::TimerSpacing;
use crate::tsc::ClockRate;
use crate::vcpu::VcpuError;
use devices::{ShutdownCause, ShutdownSink};
use kvm_bindings::KVM_MAX_CPUID_ENTRIES;
use kvm_ioctls::{Kvm, VcpuFd};
use migrate::PlacementView;
use needs::Need;
use std::sync::Arc;
use wire::{SliceId, VcpuId};

struct Nobody;

impl MachineHooks for Nobody {
    fn fatal(&self, error: &VcpuError) {
        panic!("nothing runs: {error}");
    }
}

impl ShutdownSink for Nobody {
    fn shutdown(&self, cause: ShutdownCause) {
        panic!("nothing runs: {cause:?}");
    }
}

/// A machine of so many vCPUs, all here, none of which runs; none without KVM.
pub(crate) fn idle(
    back_end: InterruptBackEnd,
    vcpus: usize,
    remote: Arc<dyn RemoteInterrupts>,
) -> Option<Machine> {
    let kvm = Kvm::new();
    if !needs::has(Need::Kvm, kvm.as_ref()) {
        return None;
    }
    let cpuid = kvm.unwrap().get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).unwrap();
    let nobody = Arc::new(Nobody);
    let config = MachineConfig {
        placement: PlacementView::fixed(SliceId(0), &vec![SliceId(0); vcpus]).unwrap(),
        memory: Vec::new(),
        cpuid: vec![cpuid.as_slice().to_vec(); vcpus],
        remote,
        shutdown: Arc::clone(&nobody) as _,
        hooks: nobody,
        back_end,
        timer_spacing: TimerSpacing::Off,
        clock_rate: ClockRate::REAL,
    };
    Some(Machine::new(config).unwrap())
}

pub(crate) fn with_fd<T>(machine: &Machine, id: VcpuId, work: impl FnOnce(&mut VcpuFd) -> T) -> T {
    let place = usize::try_from(id.0).unwrap();
    work(machine.shared.cores[place].fd.lock().unwrap().as_mut().unwrap())
}
