use super::*;
use crate::interrupts::saved::KernelApic;
use crate::interrupts::{InterruptBackEnd, RemoteInterrupts, VcpuEvent};
use crate::machine::testing::{idle, with_fd};
use crate::vcpu::kvm::set_msr;
use std::sync::Mutex;
use wire::VcpuId;

const ID: VcpuId = VcpuId(0);
const VECTOR: u8 = 0x41;
const SVR: u32 = 0x80f;
const EOI: u32 = 0x80b;

#[derive(Default)]
struct Told(Mutex<Vec<u8>>);

impl RemoteInterrupts for Told {
    fn forward(&self, target: VcpuId, event: VcpuEvent) {
        panic!("nothing is sent: {target} {event:?}");
    }
    fn end_of_interrupt(&self, vector: u8) {
        self.0.lock().unwrap().push(vector);
    }
}

struct NoBus;

impl Bus for NoBus {
    fn pio_read(&self, port: u16, _data: &mut [u8]) {
        panic!("no guest runs: {port:#x}");
    }
    fn pio_write(&self, port: u16, _data: &[u8]) {
        panic!("no guest runs: {port:#x}");
    }
    fn mmio_read(&self, address: u64, _data: &mut [u8]) {
        panic!("no guest runs: {address:#x}");
    }
    fn mmio_write(&self, address: u64, _data: &[u8]) {
        panic!("no guest runs: {address:#x}");
    }
}

fn settle(shared: &Shared, fd: &mut VcpuFd) {
    let core = &shared.cores[0];
    let body = |shared: &Shared, fd: &mut VcpuFd| {
        let apic = shared.interrupts.vcpu_apic(ID).unwrap();
        Loop { shared, core, bus: &NoBus, apic, refusals: 0, is_shut_down: false }.settle(fd)
    };
    attached(shared, core, fd, body).unwrap();
}

#[test]
fn kvm_end_of_an_interrupt_that_kvm_has_not_told_yet_is_told_before_the_vcpu_is_saved() {
    let told = Arc::new(Told::default());
    let remote = Arc::clone(&told) as _;
    let Some(machine) = idle(InterruptBackEnd::Ghost, 1, remote) else { return };
    machine.set_level_vector(VECTOR, true).unwrap();
    with_fd(&machine, ID, |fd| {
        // KVM takes the routes at an entry.
        settle(&machine.shared, fd);
        let before = fd.get_regs().unwrap();
        set_msr(fd, SVR, 0x1ff).unwrap();
        let mut apic = KernelApic::from(&fd.get_lapic().unwrap());
        (apic.isr[2], apic.tmr[2]) = (2, 2);
        fd.set_lapic(&(&apic).into()).unwrap();
        set_msr(fd, EOI, 0).unwrap();
        settle(&machine.shared, fd);
        assert_eq!(fd.get_regs().unwrap(), before);
    });
    assert_eq!(*told.0.lock().unwrap(), [VECTOR]);
}
