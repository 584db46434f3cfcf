//! Two machines over the same memory, each with its own placement, and what carries interrupts and hand-overs between them:
//! the coordinator and the members of `migrate::handover`, and channels that keep the order of each pair of slices and no
//! other.

use crate::code::{ENTRY_PAGE, RAM, READY};
use crate::handlers::PORT_EVENT;
use crate::stray::{self, PORT_STRAY};
use devices::{
    Bus, DeliveryMode, InterruptMessage, InterruptSink, SharedBus, ShutdownCause, ShutdownSink,
};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_regs};
use kvm_ioctls::Kvm;
use migrate::handover::{Coordinator, Effect, Input, Member, Message, Move, Outcome, Verdict};
use migrate::saved::{decode, encode};
use migrate::{Change, Placement, PlacementOwner};
use needs::Need;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tessera_vmm::cpuid::{Cpuid, Topology, for_vcpu};
use tessera_vmm::interrupts::{InterruptBackEnd, RemoteInterrupts, VcpuEvent};
use tessera_vmm::machine::{
    HandoverRefusal, Machine, MachineConfig, MachineError, MachineHooks, MemorySlot,
};
use tessera_vmm::slice::one_line;
use tessera_vmm::timer_spacing::TimerSpacing;
use tessera_vmm::tsc::ClockRate;
use tessera_vmm::vcpu::VcpuError;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use wire::control::InterruptEvent;
use wire::{Epoch, SliceId, VcpuId};

/// Patience with a loaded machine; nothing depends on its value.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
const VCPUS: u32 = 2;
pub(crate) const SLICES: [SliceId; 2] = [SliceId(0), SliceId(1)];
pub(crate) const MOVER: VcpuId = VcpuId(1);
const QUEUE: usize = 1 << 16;

type State = Vec<u8>;
type Frame = Message<InterruptEvent, State>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Event(u8),
    /// It left its way: see `stray`.
    Stray(String),
    Shutdown(ShutdownCause),
    Fatal(String),
}

/// Notes what the guest tells.
struct Device {
    seen: SyncSender<Seen>,
    /// For what it has told.
    memory: GuestMemoryMmap,
    /// What no guest does was seen: the test is over.
    is_strange: AtomicBool,
}

impl Device {
    fn note(&self, seen: Seen) {
        self.is_strange.fetch_or(!matches!(seen, Seen::Event(_)), SeqCst);
        self.seen.try_send(seen).expect("the queue holds all events of a test");
    }

    /// What a vCPU does that has left its way.
    fn stray(&self, what: &str) {
        let thread = std::thread::current().name().unwrap_or("?").to_owned();
        self.note(Seen::Stray(format!("{thread}: {what}")));
    }
}

impl Bus for Device {
    fn pio_read(&self, port: u16, _data: &mut [u8]) {
        self.stray(&format!("reads port {port:#x}"));
    }
    fn pio_write(&self, port: u16, data: &[u8]) {
        match port {
            PORT_EVENT => self.note(Seen::Event(data[0])),
            PORT_STRAY => self.stray(&stray::told(&self.memory)),
            _ => self.stray(&format!("writes port {port:#x}")),
        }
    }
    fn mmio_read(&self, address: u64, _data: &mut [u8]) {
        self.stray(&format!("reads {address:#x}"));
    }
    fn mmio_write(&self, address: u64, _data: &[u8]) {
        self.stray(&format!("writes {address:#x}"));
    }
}

impl MachineHooks for Device {
    fn fatal(&self, error: &VcpuError) {
        let chain = std::iter::successors(Some(error as &dyn std::error::Error), |e| e.source());
        let texts: Vec<_> = chain.map(ToString::to_string).collect();
        self.note(Seen::Fatal(texts.join(": ")));
    }
}

impl ShutdownSink for Device {
    fn shutdown(&self, cause: ShutdownCause) {
        self.note(Seen::Shutdown(cause));
    }
}

/// What a machine has for other slices.
pub(crate) struct Forwarded(SliceId, SyncSender<(SliceId, VcpuId, VcpuEvent)>);

impl RemoteInterrupts for Forwarded {
    fn forward(&self, target: VcpuId, event: VcpuEvent) {
        self.1.try_send((self.0, target, event)).expect("the queue holds all interrupts of a test");
    }
}

/// One slice: its machine, its placement and its parts in the moves of each vCPU.
pub(crate) struct Slice {
    pub(crate) machine: Machine,
    pub(crate) owner: PlacementOwner,
    members: Vec<Member<InterruptEvent, State>>,
}

impl Slice {
    /// Puts another placement in force.
    pub(crate) fn place(&mut self, vcpu: VcpuId, to: SliceId) {
        let epoch = Epoch(self.owner.view().load().epoch().0 + 1);
        self.owner.advance(&[Change::Vcpu { vcpu, to }], epoch).expect("it is the next");
    }
}

pub(crate) struct World {
    pub(crate) memory: GuestMemoryMmap,
    pub(crate) back_end: InterruptBackEnd,
    device: Arc<Device>,
    pub(crate) slices: [Slice; 2],
    seen: Receiver<Seen>,
    pub(crate) forwarded: Receiver<(SliceId, VcpuId, VcpuEvent)>,
    coordinator: Coordinator,
    /// What is on its way, by sender and receiver.
    channels: BTreeMap<(SliceId, SliceId), VecDeque<(VcpuId, Frame)>>,
    placement: Placement,
    outcome: Option<Outcome>,
    seed: u64,
}

fn place(id: SliceId) -> usize {
    usize::from(id.0)
}

impl World {
    /// Both vCPUs are of slice 0, and do not run. None when this machine has no usable KVM.
    pub(crate) fn new(back_end: InterruptBackEnd) -> Option<Self> {
        let kvm = Kvm::new();
        if !needs::has(Need::Kvm, kvm.as_ref()) {
            return None;
        }
        let kvm = kvm.expect("it was opened");
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), RAM)]).expect("map RAM");
        let (sender, seen) = sync_channel(QUEUE);
        let device = Device { seen: sender, memory: memory.clone(), is_strange: false.into() };
        let device = Arc::new(device);
        let (forward, forwarded) = sync_channel(QUEUE);
        let vcpus = vec![SLICES[0]; 2];
        let placement = Placement::new(Epoch(1), SLICES.to_vec(), vcpus, Vec::new(), Vec::new());
        let placement = placement.expect("a placement");
        let slices = SLICES.map(|id| {
            let owner = PlacementOwner::new(id, placement.clone());
            let remote = Arc::new(Forwarded(id, forward.clone()));
            let config = config(&kvm, &memory, back_end, (&device, remote), &owner);
            let machine = Machine::new(config).expect("make the machine");
            let members = SLICES.into_iter().collect();
            let member = |vcpu| {
                let known = (SLICES[0], std::collections::BTreeSet::clone(&members));
                Member::new(id, VcpuId(vcpu), known, (SLICES[0], Epoch(1)))
            };
            Slice { machine, owner, members: (0..VCPUS).map(member).collect() }
        });
        Some(Self {
            memory,
            back_end,
            device,
            slices,
            seen,
            forwarded,
            coordinator: Coordinator::new(),
            channels: BTreeMap::new(),
            placement,
            outcome: None,
            seed: 23,
        })
    }

    /// Starts both machines, with the guest in memory.
    pub(crate) fn start(&self) {
        let machine = self.machine(0);
        let mut sregs = machine.sregs(VcpuId(0)).expect("read registers");
        (sregs.cs.base, sregs.cs.selector) = (0x8000, 0x800);
        let regs = kvm_regs { rflags: 2, rsp: 0x7000, ..Default::default() };
        machine.set_registers(VcpuId(0), &regs, &sregs).expect("set registers");
        for slice in &self.slices {
            slice.machine.start(Arc::clone(&self.device) as SharedBus).expect("start the machine");
        }
    }

    pub(crate) fn machine(&self, slice: usize) -> &Machine {
        &self.slices[slice].machine
    }

    /// Starts both machines and vCPU 1.
    pub(crate) fn start_both(&self) {
        self.start();
        self.machine(0).deliver_local(MOVER, VcpuEvent::Init);
        self.machine(0).deliver_local(MOVER, VcpuEvent::Startup(ENTRY_PAGE));
        self.expect(Seen::Event(READY));
    }

    pub(crate) fn random(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.seed >> 33) % below
    }

    fn send(&mut self, from: SliceId, to: SliceId, vcpu: VcpuId, frame: Frame) {
        self.channels.entry((from, to)).or_default().push_back((vcpu, frame));
    }

    fn step(&mut self, slice: SliceId, vcpu: VcpuId, input: Input<InterruptEvent, State>) {
        let at = usize::try_from(vcpu.0).expect("it fits");
        let effects = self.slices[place(slice)].members[at].step(input).expect("it fits");
        let (sends, others): (Vec<_>, Vec<_>) =
            effects.into_iter().partition(|effect| matches!(effect, Effect::Send { .. }));
        for effect in sends {
            let Effect::Send { to, message } = effect else { continue };
            self.send(slice, to, vcpu, message);
        }
        for effect in others {
            if let Some(input) = self.perform(slice, vcpu, effect) {
                self.step(slice, vcpu, input);
            }
        }
    }

    /// Does what a slice wants done.
    fn perform(
        &mut self,
        slice: SliceId,
        vcpu: VcpuId,
        effect: Effect<InterruptEvent, State>,
    ) -> Option<Input<InterruptEvent, State>> {
        let slice = &mut self.slices[place(slice)];
        let machine = &slice.machine;
        // A step that had failed need not be undone.
        let undone = |result: Result<(), MachineError>, is: &'static str| match result {
            Err(MachineError::Handover { refusal: HandoverRefusal::Is(now), .. }) if now == is => {}
            other => other.expect("undo"),
        };
        match effect {
            Effect::Send { .. } => unreachable!("sent already"),
            Effect::Prepare(one) => {
                let prepared = machine.prepare_vcpu(vcpu, LIMIT).map_err(|error| error.to_string());
                return Some(Input::Prepared(one.number, prepared));
            }
            Effect::Stop(number) => {
                let state = machine.stop_vcpu(vcpu, LIMIT).map_err(|error| one_line(&error));
                let bytes = state.map(|state| encode(&state).expect("write"));
                return Some(Input::Saved(number, bytes));
            }
            Effect::Install(number, bytes) => {
                let state = decode(&bytes).expect("read");
                let result = machine.install_vcpu(&state, LIMIT).map_err(|error| one_line(&error));
                return Some(Input::Restored(number, result));
            }
            Effect::Resume => undone(machine.resume_vcpu(vcpu), "here"),
            Effect::Discard => undone(machine.discard_vcpu(vcpu), "elsewhere"),
            Effect::Place(Move { vcpu, to, .. }, _) => slice.place(vcpu, to),
            Effect::Run => machine.run_vcpu(vcpu).expect("run"),
            Effect::Forget => machine.release_vcpu(vcpu).expect("release"),
            Effect::Deliver(event) => machine.deliver_local(vcpu, event.into()),
        }
        None
    }

    fn follow(&mut self, verdict: Verdict<InterruptEvent, State>) {
        for (to, message) in verdict.messages {
            self.send(SLICES[0], to, MOVER, message);
        }
        if let Some(placement) = verdict.placement {
            self.placement = placement;
        }
        if let Some((_, outcome)) = verdict.outcome {
            self.outcome = Some(outcome);
        }
    }

    /// Takes what the machines have forwarded, then one frame of a channel drawn at random. False if there was nothing.
    fn pump(&mut self) -> bool {
        if self.device.is_strange.load(SeqCst) {
            self.fail();
        }
        let forwarded: Vec<_> = self.forwarded.try_iter().collect();
        let any = !forwarded.is_empty();
        for (slice, vcpu, event) in forwarded {
            self.step(slice, vcpu, Input::Local(event.into()));
        }
        let full: Vec<_> = self
            .channels
            .iter()
            .filter(|(_, queue)| !queue.is_empty())
            .map(|(key, _)| *key)
            .collect();
        if full.is_empty() {
            return any;
        }
        let at = self.random(u64::try_from(full.len()).expect("it fits"));
        let (from, to) = full[usize::try_from(at).expect("it fits")];
        let queue = self.channels.get_mut(&(from, to)).expect("it is there");
        let (vcpu, frame) = queue.pop_front().expect("it is not empty");
        let decides = matches!(
            frame,
            Message::Ready(_) | Message::Installed(_) | Message::Settled(_) | Message::Failed(..)
        );
        if decides {
            let verdict = self.coordinator.message(from, &frame, &self.placement);
            self.follow(verdict.expect("it fits"));
        } else {
            self.step(to, vcpu, Input::Message { from, message: frame });
        }
        true
    }

    /// Carries frames for that long.
    pub(crate) fn carry(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            if !self.pump() {
                std::thread::yield_now();
            }
        }
    }

    /// Moves vCPU 1 and waits for the end; gives up after so many frames, if that is still possible.
    pub(crate) fn hand_over(&mut self, to: SliceId, give_up_after: Option<u64>) -> Outcome {
        let verdict = self.coordinator.begin(MOVER, to, &self.placement).expect("begin");
        self.follow(verdict);
        let (end, mut frames) = (Instant::now() + LIMIT, 0);
        loop {
            if give_up_after == Some(frames) {
                let verdict = self.coordinator.give_up("asked");
                self.follow(verdict);
            }
            frames += u64::from(self.pump());
            if let Some(outcome) = self.outcome.take() {
                return outcome;
            }
            assert!(Instant::now() < end, "the hand-over hangs: {:?}", self.coordinator);
        }
    }

    /// Carries frames until the guest has told this.
    pub(crate) fn carry_until(&mut self, expected: &Seen) {
        let end = Instant::now() + LIMIT;
        loop {
            if let Ok(seen) = self.seen.try_recv() {
                assert_eq!(seen, *expected);
                return;
            }
            assert!(Instant::now() < end, "{expected:?} does not come; {}", self.counts());
            self.pump();
        }
    }

    pub(crate) fn expect(&self, expected: Seen) {
        assert_eq!(self.seen.recv_timeout(LIMIT), Ok(expected), "{}", self.counts());
    }

    /// Tells what no guest does, and where the vCPUs are now.
    fn fail(&self) -> ! {
        let states = self.slices.iter().flat_map(|slice| {
            let state = |vcpu| slice.machine.stop_vcpu(VcpuId(vcpu), Duration::from_secs(2)).ok();
            (0..VCPUS).filter_map(state).map(|state| (state.general, state.system, state.events))
        });
        let states: Vec<_> = states.collect();
        panic!("{:?}; {}; {states:x?}", self.so_far(), self.counts());
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

    pub(crate) fn word(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.read(at))
    }

    /// What the guest has counted.
    pub(crate) fn counts(&self) -> String {
        let words: Vec<_> = (0..11).map(|n| self.word(0x6000 + n * 2)).collect();
        format!(
            "slow, answered, answers, up, armed, fired, device, nested, early, back, changed: {words:?}"
        )
    }

    pub(crate) fn stop(&self) {
        for slice in &self.slices {
            slice.machine.stop(LIMIT).expect("stop the machine");
        }
        assert_eq!(self.so_far(), []);
    }
}

fn config(
    kvm: &Kvm,
    memory: &GuestMemoryMmap,
    back_end: InterruptBackEnd,
    (device, remote): (&Arc<Device>, Arc<Forwarded>),
    owner: &PlacementOwner,
) -> MachineConfig {
    let supported = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).expect("read CPUID");
    let base = Cpuid::from_kvm(supported.as_slice());
    let topology = Topology { vcpus: VCPUS, guest_tsc_khz: None, msi_ext_dest_id: false };
    let host = memory.get_host_address(GuestAddress(0)).expect("RAM starts at 0");
    MachineConfig {
        placement: owner.view(),
        memory: vec![MemorySlot {
            guest_address: 0,
            host_address: host.expose_provenance(),
            bytes: u64::try_from(RAM).expect("it fits"),
        }],
        cpuid: (0..VCPUS).map(|id| for_vcpu(&base, id, &topology).to_kvm()).collect(),
        remote,
        shutdown: Arc::clone(device) as _,
        hooks: Arc::clone(device) as _,
        back_end,
        timer_spacing: TimerSpacing::Off,
        clock_rate: ClockRate::REAL,
    }
}

pub(crate) fn interrupt(machine: &Machine, vcpu: VcpuId, vector: u8) {
    let (logical, mode) = (false, DeliveryMode::Fixed);
    machine.deliver(InterruptMessage { destination: vcpu.0, logical, mode, vector });
}

/// Runs a scenario with both back ends.
pub(crate) fn on_both(scenario: impl Fn(World)) {
    for back_end in [InterruptBackEnd::Userspace, InterruptBackEnd::Ghost] {
        println!("{back_end}");
        let Some(world) = World::new(back_end) else { return };
        scenario(world);
    }
}
