//! A ghost takes over a KVM vCPU that has run, or was restored, here. What is pending in it came after its state was
//! saved, and is forwarded. Since others send to it at any time, its APIC is set register by register.

use crate::interrupts::saved::KernelApic;
use crate::vcpu::VcpuError;
use crate::vcpu::kvm::set_msr;
use kvm_bindings::{
    KVM_VCPUEVENT_VALID_NMI_PENDING, KVM_VCPUEVENT_VALID_SMM, kvm_debugregs, kvm_vcpu_events,
};
use kvm_ioctls::VcpuFd;
use std::io;
use wire::VcpuId;

/// Spurious-vector register, and the value that enables the APIC.
pub(super) const SVR: u32 = 0x80f;
pub(super) const SVR_ENABLED: u64 = 0x1ff;
const TPR: u32 = 0x808;
const EOI: u32 = 0x80b;
const LVT_TIMER: u32 = 0x832;
const LVT_ERROR: u32 = 0x837;
const LVT_MASKED: u64 = 1 << 16;
const INITIAL_COUNT: u32 = 0x838;
/// Values of DR6 and DR7 after a reset (SDM vol. 3, table 11-1).
const DR6_RESET: u64 = 0xffff_0ff0;
const DR7_RESET: u64 = 0x400;

/// Takes the guest out of a KVM vCPU, but for what is pending.
pub(crate) fn clear(id: VcpuId, fd: &VcpuFd) -> Result<(), VcpuError> {
    let error = |action| {
        move |source: kvm_ioctls::Error| VcpuError::Ioctl {
            vcpu: id,
            action,
            source: source.into(),
        }
    };
    let mut sregs = fd.get_sregs().map_err(error("read registers for its ghost"))?;
    sregs.interrupt_bitmap = [0; 4];
    sregs.cr8 = 0;
    fd.set_sregs(&sregs).map_err(error("set registers for its ghost"))?;
    let events = fd.get_vcpu_events().map_err(error("read events for its ghost"))?;
    fd.set_vcpu_events(&quiet(events)).map_err(error("set events for its ghost"))?;
    let debug = kvm_debugregs { dr6: DR6_RESET, dr7: DR7_RESET, ..Default::default() };
    fd.set_debug_regs(&debug).map_err(error("set debug registers for its ghost"))?;
    let page = fd.get_lapic().map_err(error("read the local APIC for its ghost"))?;
    clear_apic(&KernelApic::from(&page), fd).map_err(|source| VcpuError::Ioctl {
        vcpu: id,
        action: "clear the local APIC for its ghost",
        source,
    })
}

/// Nothing is about to happen, but for NMIs and an INIT that wait, which stay as they are.
fn quiet(events: kvm_vcpu_events) -> kvm_vcpu_events {
    // Where KVM reads the state of system management mode it takes back an INIT as well.
    let left = KVM_VCPUEVENT_VALID_NMI_PENDING | KVM_VCPUEVENT_VALID_SMM;
    let mut quiet = kvm_vcpu_events { flags: events.flags & !left, ..Default::default() };
    quiet.nmi.pending = events.nmi.pending;
    quiet
}

/// No timer, nothing in service, all priorities.
fn clear_apic(apic: &KernelApic, fd: &VcpuFd) -> Result<(), io::Error> {
    for entry in LVT_TIMER..=LVT_ERROR {
        set_msr(fd, entry, LVT_MASKED)?;
    }
    set_msr(fd, INITIAL_COUNT, 0)?;
    set_msr(fd, TPR, 0)?;
    set_msr(fd, SVR, SVR_ENABLED)?;
    let in_service: u32 = apic.isr.iter().map(|word| word.count_ones()).sum();
    (0..in_service).try_for_each(|_| set_msr(fd, EOI, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_the_guest_are_gone_and_waiting_nmis_stay() {
        let mut events = kvm_vcpu_events { flags: 0xf, ..Default::default() };
        (events.nmi.pending, events.nmi.injected, events.nmi.masked) = (1, 1, 1);
        (events.interrupt.injected, events.exception.injected) = (1, 1);
        let quiet = quiet(events);
        assert_eq!((quiet.nmi.pending, quiet.nmi.injected, quiet.nmi.masked), (1, 0, 0));
        assert_eq!((quiet.interrupt.injected, quiet.exception.injected), (0, 0));
        assert_eq!(quiet.flags, 0xf & !(KVM_VCPUEVENT_VALID_NMI_PENDING | KVM_VCPUEVENT_VALID_SMM));
    }
}
