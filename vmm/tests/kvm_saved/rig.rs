//! A machine of two vCPUs, and a device that notices any access that is lost or made twice.

use crate::code::{DEVICE, ENTRY_PAGE, PORT_READ, RAM, READY};
use crate::handlers::PORT_EVENT;
use devices::{
    Bus, DeliveryMode, InterruptMessage, InterruptSink, SharedBus, ShutdownCause, ShutdownSink,
};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_regs, kvm_sregs};
use kvm_ioctls::Kvm;
use migrate::PlacementView;
use migrate::saved::{decode, encode};
use needs::Need;
use std::cell::Cell;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tessera_vmm::cpuid::{Cpuid, Topology, for_vcpu};
use tessera_vmm::interrupts::{InterruptBackEnd, Moment, NoRemote, VcpuEvent};
use tessera_vmm::machine::saved::VcpuState;
use tessera_vmm::machine::{Machine, MachineConfig, MachineHooks, MemorySlot, Rest};
use tessera_vmm::timer_spacing::TimerSpacing;
use tessera_vmm::tsc::ClockRate;
use tessera_vmm::vcpu::VcpuError;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use wire::{SliceId, VcpuId};

/// Patience with a loaded machine; nothing depends on its value.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const VCPUS: u32 = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Event(u8),
    Shutdown(ShutdownCause),
    Fatal(String),
}

/// The device's number after some accesses, and how many there were.
pub(crate) type Trail = (u64, u64);

/// All accesses are mixed into one number, in their order; reads give a part of it.
pub(crate) struct Device {
    trail: Mutex<Trail>,
    moved: Condvar,
    held: Mutex<Hold>,
    released: Condvar,
    seen: SyncSender<Seen>,
}

/// Accesses wait while the device is held.
#[derive(Default)]
struct Hold {
    is_held: bool,
    waiting: usize,
}

impl Device {
    fn access(&self, address: u64, data: &[u8]) -> u64 {
        let mut hold = self.held.lock().expect("no test panics in the device");
        hold.waiting += 1;
        self.released.notify_all();
        let mut hold = self.released.wait_while(hold, |hold| hold.is_held).expect("as above");
        hold.waiting -= 1;
        drop(hold);
        let mut trail = self.trail.lock().expect("as above");
        for byte in address.to_le_bytes().iter().chain(data) {
            trail.0 = (trail.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
        trail.1 += 1;
        self.moved.notify_all();
        trail.0 >> 16
    }

    pub(crate) fn trail(&self) -> Trail {
        *self.trail.lock().expect("as above")
    }

    /// Waits until there were so many accesses.
    pub(crate) fn wait_for(&self, accesses: u64) {
        let trail = self.trail.lock().expect("as above");
        let few = |trail: &mut Trail| trail.1 < accesses;
        let (trail, waited) = self.moved.wait_timeout_while(trail, LIMIT, few).expect("as above");
        assert!(!waited.timed_out(), "{} accesses of {accesses}", trail.1);
    }

    /// Holds the device until an access waits for it.
    pub(crate) fn hold(&self) {
        let mut hold = self.held.lock().expect("as above");
        hold.is_held = true;
        let nobody = |hold: &mut Hold| hold.waiting == 0;
        let (_hold, waited) =
            self.released.wait_timeout_while(hold, LIMIT, nobody).expect("as above");
        assert!(!waited.timed_out(), "nobody comes");
    }

    pub(crate) fn release(&self) {
        self.held.lock().expect("as above").is_held = false;
        self.released.notify_all();
    }

    fn note(&self, seen: Seen) {
        self.seen.try_send(seen).expect("the queue holds all events of a test");
    }
}

fn fill(data: &mut [u8], number: u64) {
    data.iter_mut().zip(number.to_le_bytes()).for_each(|(slot, byte)| *slot = byte);
}

impl Bus for Device {
    fn pio_read(&self, port: u16, data: &mut [u8]) {
        assert_eq!(port, PORT_READ);
        fill(data, self.access(port.into(), &[]));
    }
    fn pio_write(&self, port: u16, data: &[u8]) {
        if port == PORT_EVENT {
            self.note(Seen::Event(data[0]));
        } else {
            self.access(port.into(), data);
        }
    }
    fn mmio_read(&self, address: u64, data: &mut [u8]) {
        assert_eq!((address, data.len()), (DEVICE, 4));
        fill(data, self.access(address, &[]));
    }
    fn mmio_write(&self, address: u64, data: &[u8]) {
        self.access(address, data);
    }
}

impl MachineHooks for Device {
    fn fatal(&self, error: &VcpuError) {
        self.note(Seen::Fatal(error.to_string()));
    }
}

impl ShutdownSink for Device {
    fn shutdown(&self, cause: ShutdownCause) {
        self.note(Seen::Shutdown(cause));
    }
}

/// Memory, device and what was seen: all that outlives a machine.
pub(crate) struct World {
    pub(crate) memory: GuestMemoryMmap,
    pub(crate) device: Arc<Device>,
    seen: Receiver<Seen>,
    /// Of the machines that are made.
    pub(crate) back_end: Cell<InterruptBackEnd>,
    kvm: Kvm,
}

impl World {
    /// None when this machine has no usable KVM.
    pub(crate) fn new(back_end: InterruptBackEnd) -> Option<Self> {
        let kvm = Kvm::new();
        if !needs::has(Need::Kvm, kvm.as_ref()) {
            return None;
        }
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), RAM)]).expect("map RAM");
        let (sender, seen) = sync_channel(4096);
        let device = Device {
            trail: Mutex::default(),
            moved: Condvar::new(),
            held: Mutex::default(),
            released: Condvar::new(),
            seen: sender,
        };
        let kvm = kvm.expect("it was opened");
        Some(Self { memory, device: Arc::new(device), seen, back_end: Cell::new(back_end), kvm })
    }

    /// A machine with this memory and this device, that does not run.
    pub(crate) fn machine(&self) -> Machine {
        let supported = self.kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).expect("read CPUID");
        let base = Cpuid::from_kvm(supported.as_slice());
        let topology = Topology { vcpus: VCPUS, guest_tsc_khz: None, msi_ext_dest_id: false };
        let host = self.memory.get_host_address(GuestAddress(0)).expect("RAM starts at 0");
        Machine::new(MachineConfig {
            placement: PlacementView::fixed(SliceId(0), &[SliceId(0); 2]).expect("two vCPUs"),
            memory: vec![MemorySlot {
                guest_address: 0,
                host_address: host.expose_provenance(),
                bytes: u64::try_from(RAM).expect("it fits"),
            }],
            cpuid: (0..VCPUS).map(|id| for_vcpu(&base, id, &topology).to_kvm()).collect(),
            remote: Arc::new(NoRemote),
            shutdown: Arc::clone(&self.device) as _,
            hooks: Arc::clone(&self.device) as _,
            back_end: self.back_end.get(),
            timer_spacing: TimerSpacing::Off,
            clock_rate: ClockRate::REAL,
        })
        .expect("make the machine")
    }

    pub(crate) fn start(&self, machine: &Machine) {
        machine.start(Arc::clone(&self.device) as SharedBus).expect("start the machine");
    }

    /// A machine that runs the guest from its beginning, with SSE.
    pub(crate) fn boot(&self) -> Machine {
        self.boot_with(|sregs| {
            (sregs.cs.base, sregs.cs.selector) = (0x8000, 0x800);
            sregs.cr4 |= 0x600;
        })
    }

    /// A machine whose vCPU 0 begins with system registers that `change` has changed.
    pub(crate) fn boot_with(&self, change: impl FnOnce(&mut kvm_sregs)) -> Machine {
        let machine = self.machine();
        let mut sregs = machine.sregs(VcpuId(0)).expect("read registers");
        change(&mut sregs);
        let regs = kvm_regs { rflags: 2, rsp: 0x7000, ..Default::default() };
        machine.set_registers(VcpuId(0), &regs, &sregs).expect("set registers");
        self.start(&machine);
        machine
    }

    /// The same, with vCPU 1 started.
    pub(crate) fn boot_both(&self) -> Machine {
        let machine = self.boot();
        machine.deliver_local(VcpuId(1), VcpuEvent::Init);
        machine.deliver_local(VcpuId(1), VcpuEvent::Startup(ENTRY_PAGE));
        self.expect(Seen::Event(READY));
        machine
    }

    /// Another machine that goes on from there, which may have the other kind of APICs; the one at rest is stopped.
    pub(crate) fn move_on(&self, machine: &Machine, rest: &Rest) -> Machine {
        let states = rest.save().expect("save the vCPUs");
        let bytes: Vec<_> = states.iter().map(|state| encode(state).expect("write")).collect();
        machine.stop(LIMIT).expect("stop the machine");
        let next = self.machine();
        next.set_clock(rest.ticks()).expect("set the clock");
        for bytes in bytes {
            let state: VcpuState = decode(&bytes).expect("read");
            let clock = next.clock();
            let at = Moment { ticks: clock.now(), khz: clock.true_khz() };
            let state = state.with_interrupts(self.back_end.get(), at).expect("it has equals");
            next.restore_vcpu(&state).expect("restore the vCPU");
        }
        self.start(&next);
        next
    }

    pub(crate) fn expect(&self, expected: Seen) {
        assert_eq!(
            self.seen.recv_timeout(LIMIT),
            Ok(expected),
            "accesses: {:?}",
            self.device.trail()
        );
    }

    /// What was seen so far.
    pub(crate) fn so_far(&self) -> Vec<Seen> {
        self.seen.try_iter().collect()
    }

    pub(crate) fn read<const BYTES: usize>(&self, at: u64) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        self.memory.read_slice(&mut bytes, GuestAddress(at)).expect("it lies in RAM");
        bytes
    }
}

pub(crate) fn interrupt(machine: &Machine, vcpu: u32, vector: u8) {
    let (logical, mode) = (false, DeliveryMode::Fixed);
    machine.deliver(InterruptMessage { destination: vcpu, logical, mode, vector });
}

/// Runs a scenario with both back ends.
pub(crate) fn on_both(scenario: impl Fn(&World)) {
    for back_end in [InterruptBackEnd::Userspace, InterruptBackEnd::Ghost] {
        println!("{back_end}");
        let Some(world) = World::new(back_end) else { return };
        scenario(&world);
    }
}
