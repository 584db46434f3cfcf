//! What waits in a vCPU of the kernel stays there, whatever is set beside it.

use crate::interrupts::ghost::clear;
use crate::interrupts::saved::KernelApic;
use crate::interrupts::{InterruptBackEnd, NoRemote, VcpuEvent};
use crate::machine::Machine;
use crate::machine::testing::{idle, with_fd};
use crate::vcpu::kvm::set_msr;
use kvm_bindings::{KVM_MP_STATE_INIT_RECEIVED, KVM_MP_STATE_UNINITIALIZED};
use std::sync::Arc;
use wire::VcpuId;

const ID: VcpuId = VcpuId(1);
const VECTOR: u8 = 0x41;
/// Spurious-vector register, and its value that turns the APIC on.
const SVR: u32 = 0x80f;
const SVR_ENABLED: u64 = 0x1ff;

fn machine() -> Option<Machine> {
    idle(InterruptBackEnd::Ghost, 2, Arc::new(NoRemote))
}

fn send(machine: &Machine, event: VcpuEvent) {
    machine.shared.interrupts.deliver_local(ID, event);
}

fn mp_state(machine: &Machine) -> u32 {
    with_fd(machine, ID, |fd| fd.get_mp_state().unwrap().mp_state)
}

#[test]
fn kvm_init_that_comes_while_a_ghost_takes_over_is_not_lost() {
    let Some(machine) = machine() else { return };
    assert_eq!(mp_state(&machine), KVM_MP_STATE_UNINITIALIZED);
    send(&machine, VcpuEvent::Init);
    with_fd(&machine, ID, |fd| clear(ID, fd).unwrap());
    assert_eq!(mp_state(&machine), KVM_MP_STATE_INIT_RECEIVED);
}

#[test]
fn kvm_vector_that_waits_in_an_apic_that_is_off_stays_there() {
    let Some(machine) = machine() else { return };
    let interrupts = &machine.shared.interrupts;
    for svr in [SVR_ENABLED, SVR_ENABLED & 0xff] {
        with_fd(&machine, ID, |fd| set_msr(fd, SVR, SVR_ENABLED).unwrap());
        send(&machine, VcpuEvent::Fixed(VECTOR));
        with_fd(&machine, ID, |fd| {
            set_msr(fd, SVR, svr).unwrap();
            let apic = |fd: &mut _| KernelApic::from(&kvm_ioctls::VcpuFd::get_lapic(fd).unwrap());
            let before = apic(fd);
            let pending = interrupts.take_pending(fd).unwrap();
            assert_eq!((before.irr, apic(fd).irr), (pending.vectors, [0; 8]));
            interrupts.put_pending(ID, fd, &pending).unwrap();
            assert_eq!(apic(fd), before, "{svr:#x}");
        });
    }
}
