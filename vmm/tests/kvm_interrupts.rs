//! Both interrupt back ends do the same for the same guest, on this machine's KVM.
//!
//! The guest is real-mode code of a few instructions: real mode runs on every KVM, also on one
//! that emulates kernel-mode code. It has three vCPUs: 0 and 1 run here, 2 runs "elsewhere", where
//! a recorder stands for the other slice. Handlers tell what happened by port writes.

mod assembler;

use assembler::{Code, EOI, ICR, LVT_TIMER};
use devices::{
    Bus, DeliveryMode, InterruptMessage, InterruptSink, SharedBus, ShutdownCause, ShutdownSink,
};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_regs, kvm_segment, kvm_sregs};
use kvm_ioctls::Kvm;
use migrate::PlacementView;
use needs::Need;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::yield_now;
use std::time::{Duration, Instant};
use tessera_vmm::cpuid::{Cpuid, Topology, for_vcpu};
use tessera_vmm::interrupts::{InterruptBackEnd, RemoteInterrupts, VcpuEvent};
use tessera_vmm::machine::{Machine, MachineConfig, MachineHooks, MemorySlot};
use tessera_vmm::timer_spacing::TimerSpacing;
use tessera_vmm::tsc::ClockRate;
use tessera_vmm::vcpu::VcpuError;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use wire::{SliceId, VcpuId};

/// Patience with a loaded machine; nothing depends on its value.
const LIMIT: Duration = Duration::from_secs(60);
const RAM: usize = 1 << 20;

const PORT_UP: u8 = 0x99;
const PORT_VECTOR: u8 = 0x98;
/// Vectors of the guest. What their handlers do is in `Guest::new`.
const TELL: u8 = 0x41;
const SEND_TO_1: u8 = 0x42;
const ARM_TIMER: u8 = 0x43;
const TIMER: u8 = 0x44;
const START_2: u8 = 0x45;
const SEND_TO_2: u8 = 0x46;
const SEND_TO_OTHERS: u8 = 0x47;
const SEND_TO_SELF: u8 = 0x48;
const SEND_LOGICAL: u8 = 0x49;
const WRITE_CLOCK: u8 = 0x4a;
const NMI: u8 = 2;
const PROTECTION: u8 = 13;

/// Where a guest with KVM's clock says where it wants it (MSR_KVM_SYSTEM_TIME_NEW); CPUID hides it.
const KVM_CLOCK: u32 = 0x4b56_4d01;

const INIT: u32 = 0x4500;
const STARTUP: u32 = 0x4600;
/// Page of the other vCPUs' entry.
const ENTRY_PAGE: u8 = 9;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Port(u8, u8),
    Forwarded(VcpuId, VcpuEvent),
    Shutdown(ShutdownCause),
    Fatal(String),
}

struct Recorder(SyncSender<Seen>);

impl Recorder {
    fn note(&self, seen: Seen) {
        self.0.try_send(seen).expect("the queue holds all events of a test");
    }
}

impl Bus for Recorder {
    fn pio_read(&self, _port: u16, data: &mut [u8]) {
        data.fill(0xff);
    }
    fn pio_write(&self, port: u16, data: &[u8]) {
        self.note(Seen::Port(port.to_le_bytes()[0], data[0]));
    }
    fn mmio_read(&self, _address: u64, data: &mut [u8]) {
        data.fill(0xff);
    }
    fn mmio_write(&self, _address: u64, _data: &[u8]) {}
}

impl RemoteInterrupts for Recorder {
    fn forward(&self, target: VcpuId, event: VcpuEvent) {
        self.note(Seen::Forwarded(target, event));
    }
}

impl MachineHooks for Recorder {
    fn fatal(&self, error: &VcpuError) {
        self.note(Seen::Fatal(error.to_string()));
    }
}

impl ShutdownSink for Recorder {
    fn shutdown(&self, cause: ShutdownCause) {
        self.note(Seen::Shutdown(cause));
    }
}

impl Code {
    fn tell(self, port: u8, value: u8) -> Self {
        self.bytes(&[0xb0, value, 0xe6, port]) // mov al, value ; out port, al
    }
    fn end(self) -> Self {
        self.wrmsr(EOI, 0, 0).bytes(&[0xcf]) // iret
    }
}

struct Guest {
    machine: Machine,
    seen: Receiver<Seen>,
    _memory: GuestMemoryMmap,
}

fn put_code(memory: &GuestMemoryMmap) {
    let put = |address: u64, code: Code| {
        memory.write_slice(&code.0, GuestAddress(address)).expect("code lies in RAM");
    };
    let handler = |vector: u8, code: Code| {
        let address = 0xa000 + u16::from(vector) * 0x40;
        put(u64::from(vector) * 4, Code::default().bytes(&address.to_le_bytes()));
        assert!(code.0.len() <= 0x40, "handler {vector:#x} is too long");
        put(u64::from(address), code);
    };
    let code = Code::default;
    put(0x8000, code().enable_apic().tell(PORT_UP, 0).sleep());
    let entry = u64::from(ENTRY_PAGE) << 12;
    put(entry, code().enable_apic().tell(PORT_UP, 1).sleep());
    for vector in [TELL, TIMER] {
        handler(vector, code().tell(PORT_VECTOR, vector).end());
    }
    handler(NMI, code().tell(PORT_VECTOR, NMI).bytes(&[0xcf]));
    // In real mode the fault would come back to the instruction: stay.
    handler(PROTECTION, code().tell(PORT_VECTOR, PROTECTION).bytes(&[0xf4, 0xeb, 0xfd]));
    let write = code().wrmsr(KVM_CLOCK, 0x6001, 0);
    handler(WRITE_CLOCK, write.tell(PORT_VECTOR, WRITE_CLOCK).end());
    let vector = u32::from(TELL);
    let send = |low, high| code().wrmsr(ICR, low, high).end();
    handler(SEND_TO_1, send(vector, 1));
    handler(SEND_TO_2, send(vector, 2));
    handler(SEND_TO_OTHERS, send(3 << 18 | vector, 0));
    handler(SEND_TO_SELF, send(1 << 18 | vector, 0));
    handler(SEND_LOGICAL, send(1 << 11 | vector, 0b110));
    let start = STARTUP | u32::from(ENTRY_PAGE);
    handler(START_2, code().wrmsr(ICR, INIT, 2).wrmsr(ICR, start, 2).end());
    // Deadline mode, and a deadline that has passed already.
    let timer = 2 << 17 | u32::from(TIMER);
    handler(ARM_TIMER, code().wrmsr(LVT_TIMER, timer, 0).wrmsr(0x6e0, 1, 0).end());
}

impl Guest {
    /// A running guest, or none when this machine has no usable KVM.
    fn new(back_end: InterruptBackEnd, timer_spacing: TimerSpacing) -> Option<Self> {
        let guest = Self::start(back_end, timer_spacing, |_| {})?;
        guest.expect(Seen::Port(PORT_UP, 0));
        Some(guest)
    }

    /// The same, started with system registers that `change` has changed.
    fn start(
        back_end: InterruptBackEnd,
        timer_spacing: TimerSpacing,
        change: impl FnOnce(&mut kvm_sregs),
    ) -> Option<Self> {
        let kvm = Kvm::new();
        if !needs::has(Need::Kvm, kvm.as_ref()) {
            return None;
        }
        let kvm = kvm.expect("it was opened");
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), RAM)]).expect("map RAM");
        put_code(&memory);
        let supported = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).expect("read CPUID");
        let base = Cpuid::from_kvm(supported.as_slice());
        let topology = Topology { vcpus: 3, guest_tsc_khz: None, msi_ext_dest_id: false };
        let (sender, seen) = sync_channel(4096);
        let recorder = Arc::new(Recorder(sender));
        let host = memory.get_host_address(GuestAddress(0)).expect("RAM starts at 0");
        let machine = Machine::new(MachineConfig {
            placement: PlacementView::fixed(SliceId(0), &[0, 0, 1].map(SliceId))
                .expect("three vCPUs"),
            memory: vec![MemorySlot {
                guest_address: 0,
                host_address: host.expose_provenance(),
                bytes: u64::try_from(RAM).expect("a MiB fits"),
            }],
            cpuid: (0..3).map(|id| for_vcpu(&base, id, &topology).to_kvm()).collect(),
            remote: Arc::clone(&recorder) as Arc<dyn RemoteInterrupts>,
            shutdown: Arc::clone(&recorder) as Arc<dyn ShutdownSink>,
            hooks: Arc::clone(&recorder) as Arc<dyn MachineHooks>,
            back_end,
            timer_spacing,
            clock_rate: ClockRate::REAL,
        })
        .expect("make the machine");
        let mut sregs = machine.sregs(VcpuId(0)).expect("read registers");
        sregs.cs.base = 0x8000;
        sregs.cs.selector = 0x800;
        change(&mut sregs);
        let regs = kvm_regs { rflags: 2, rsp: 0x7000, ..Default::default() };
        machine.set_registers(VcpuId(0), &regs, &sregs).expect("set registers");
        machine.start(recorder as SharedBus).expect("start the machine");
        Some(Self { machine, seen, _memory: memory })
    }

    fn interrupt(&self, vcpu: u32, vector: u8) {
        self.machine.deliver(InterruptMessage {
            destination: vcpu,
            logical: false,
            mode: DeliveryMode::Fixed,
            vector,
        });
    }

    fn expect(&self, expected: Seen) {
        let seen = self.seen.recv_timeout(LIMIT);
        assert_eq!(seen, Ok(expected), "{:#?}", self.machine.stats());
    }

    fn expect_in_any_order(&self, mut expected: Vec<Seen>) {
        while !expected.is_empty() {
            let seen = self.seen.recv_timeout(LIMIT).expect("an event in time");
            let place = expected.iter().position(|other| *other == seen);
            expected.remove(place.unwrap_or_else(|| panic!("{seen:?}, not {expected:?}")));
        }
    }

    fn start_vcpu_1(&self) {
        self.machine.deliver_local(VcpuId(1), VcpuEvent::Init);
        self.machine.deliver_local(VcpuId(1), VcpuEvent::Startup(ENTRY_PAGE));
        self.expect(Seen::Port(PORT_UP, 1));
    }

    fn start_vcpu_2(&self) {
        self.interrupt(0, START_2);
        self.expect(Seen::Forwarded(VcpuId(2), VcpuEvent::Init));
        self.expect(Seen::Forwarded(VcpuId(2), VcpuEvent::Startup(ENTRY_PAGE)));
    }

    /// Waits until the ghost of vCPU 2, if there is one, sleeps again: a guest must not restart a
    /// CPU that it just interrupted.
    fn settle_vcpu_2(&self) {
        let start = Instant::now();
        loop {
            let stats = &self.machine.stats()[2];
            if stats.ghost_wakes == stats.ghost_parks {
                return;
            }
            assert!(start.elapsed() < LIMIT, "{stats:#?}");
            yield_now();
        }
    }

    fn stop(self) {
        self.machine.stop(LIMIT).expect("stop the machine");
        assert_eq!(self.seen.try_iter().collect::<Vec<_>>(), []);
    }
}

/// Runs a scenario with both back ends.
fn on_both(spacing: TimerSpacing, scenario: impl Fn(&Guest)) {
    for back_end in [InterruptBackEnd::Userspace, InterruptBackEnd::Ghost] {
        println!("{back_end}");
        let Some(guest) = Guest::new(back_end, spacing) else { return };
        scenario(&guest);
        guest.stop();
    }
}

#[test]
fn kvm_device_interrupt_wakes_a_halted_vcpu() {
    on_both(TimerSpacing::Off, |guest| {
        for _ in 0..20 {
            guest.interrupt(0, TELL);
            guest.expect(Seen::Port(PORT_VECTOR, TELL));
        }
    });
}

#[test]
fn kvm_second_vcpu_starts_restarts_and_takes_ipis() {
    on_both(TimerSpacing::Off, |guest| {
        guest.start_vcpu_1();
        guest.interrupt(0, SEND_TO_1);
        guest.expect(Seen::Port(PORT_VECTOR, TELL));
        guest.start_vcpu_1();
        guest.interrupt(0, SEND_TO_1);
        guest.expect(Seen::Port(PORT_VECTOR, TELL));
    });
}

#[test]
fn kvm_paravirtual_registers_that_cpuid_hides_are_not_there() {
    on_both(TimerSpacing::Off, |guest| {
        guest.interrupt(0, WRITE_CLOCK);
        guest.expect(Seen::Port(PORT_VECTOR, PROTECTION));
    });
}

#[test]
fn kvm_nmi_from_another_slice_reaches_the_vcpu() {
    on_both(TimerSpacing::Off, |guest| {
        guest.start_vcpu_1();
        for _ in 0..5 {
            guest.machine.deliver_local(VcpuId(1), VcpuEvent::Nmi);
            guest.expect(Seen::Port(PORT_VECTOR, NMI));
        }
        let stats = guest.machine.stats();
        assert_eq!(stats[1].interrupts_in, 7);
    });
}

#[test]
fn kvm_vcpu_elsewhere_is_started_and_interrupted_by_message() {
    on_both(TimerSpacing::Off, |guest| {
        guest.start_vcpu_2();
        for _ in 0..20 {
            guest.interrupt(0, SEND_TO_2);
            guest.expect(Seen::Forwarded(VcpuId(2), VcpuEvent::Fixed(TELL)));
        }
        guest.settle_vcpu_2();
        guest.start_vcpu_2();
        guest.interrupt(0, SEND_TO_2);
        guest.expect(Seen::Forwarded(VcpuId(2), VcpuEvent::Fixed(TELL)));
        assert_eq!(guest.machine.stats()[2].interrupts_out, 25);
    });
}

#[test]
fn kvm_shorthands_and_logical_destinations_reach_local_and_remote_vcpus() {
    on_both(TimerSpacing::Off, |guest| {
        guest.start_vcpu_1();
        guest.start_vcpu_2();
        let both = || {
            let remote = Seen::Forwarded(VcpuId(2), VcpuEvent::Fixed(TELL));
            vec![Seen::Port(PORT_VECTOR, TELL), remote]
        };
        guest.interrupt(0, SEND_TO_OTHERS);
        guest.expect_in_any_order(both());
        guest.interrupt(0, SEND_LOGICAL);
        guest.expect_in_any_order(both());
        guest.interrupt(0, SEND_TO_SELF);
        guest.expect(Seen::Port(PORT_VECTOR, TELL));
    });
}

#[test]
fn kvm_timer_deadline_fires_with_and_without_spacing() {
    for spacing in [TimerSpacing::Off, TimerSpacing::Fixed(Duration::from_millis(5))] {
        on_both(spacing, |guest| {
            for _ in 0..5 {
                guest.interrupt(0, ARM_TIMER);
                guest.expect(Seen::Port(PORT_VECTOR, TIMER));
            }
        });
    }
}

/// Long mode with neither page tables nor an interrupt table: the first fetch is a triple fault.
fn hopeless(sregs: &mut kvm_sregs) {
    let code = kvm_segment {
        limit: u32::MAX,
        selector: 8,
        present: 1,
        type_: 11,
        s: 1,
        l: 1,
        g: 1,
        ..Default::default()
    };
    let data = kvm_segment { type_: 3, selector: 16, l: 0, db: 1, ..code };
    sregs.cs = code;
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.tr = kvm_segment { limit: 0x67, present: 1, type_: 11, ..Default::default() };
    (sregs.cr0, sregs.cr3, sregs.cr4, sregs.efer) = (0x8005_0033, 0x5_0000, 0x20, 0x500);
    sregs.idt.limit = 0;
}

#[test]
fn kvm_triple_fault_is_told_as_reset_and_the_machine_stops() {
    for back_end in [InterruptBackEnd::Userspace, InterruptBackEnd::Ghost] {
        let Some(guest) = Guest::start(back_end, TimerSpacing::Off, hopeless) else { return };
        guest.expect(Seen::Shutdown(ShutdownCause::Reset));
        guest.stop();
    }
}

#[test]
fn kvm_stop_ends_vcpus_that_never_started() {
    on_both(TimerSpacing::Off, |guest| {
        assert_eq!(guest.machine.tids().len(), 2);
        guest.machine.sample_cr3(VcpuId(0));
        assert_eq!(guest.machine.cr3(VcpuId(0)), Some(0));
        assert_eq!(guest.machine.cr3(VcpuId(2)), None);
    });
}
