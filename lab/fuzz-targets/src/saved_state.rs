//! Saved states of devices, and of a placement, that somebody else may have written.
//!
//! Never a panic; a part takes a state as it is or not at all; whatever is done to a part after it took one, its own
//! state can be saved and read again.

use devices::back_end::image::snapshot::DiskState;
use devices::back_end::{NicShape, NullDisk, cable};
use devices::msix::{MsixVector, MsixView};
use devices::pci::{DeviceId, PciRoot};
use devices::saved::{
    ChipsetState, CmosState, ConsoleInputState, FunctionState, IoApicState, MsixTableState,
    MsixViewState, NetDeviceState, NetPairState, PciRootState, PitState, Pm1State, QueueState,
    SerialLineState, TransportState, VsockState, WorkerState,
};
use devices::virtio::blk::DiskQueue;
use devices::virtio::console::{self, ConsoleInput};
use devices::virtio::net::{NetDevice, NetPair};
use devices::virtio::rng;
use devices::virtio::vsock::{View, Vsock};
use devices::virtio::{
    DeviceFaults, Doorbell, F_VERSION_1, QueueContext, QueueSetup, QueueWorker, RingError, Used,
    UsedMemory,
};
use devices::{
    Bus, Chipset, ChipsetConfig, GuestClock, HotplugConfig, IOAPIC_BASE, InterruptMessage,
    InterruptSink, ShutdownCause, ShutdownSink, layout,
};
use migrate::saved::{decode, encode};
use migrate::{Change, Placement, PlacementState, Saved, SavedState};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use wire::{SliceId, VcpuId};

const MEMORY_BYTES: usize = 0x8000;
const QUEUE_SIZE: u16 = 16;
const ACCESSES_MAX: usize = 100;
const MEMBERS_MAX: usize = 64;
const LONG: Duration = Duration::from_secs(5);

struct Outside;

impl InterruptSink for Outside {
    fn deliver(&self, _: InterruptMessage) {}
}

impl ShutdownSink for Outside {
    fn shutdown(&self, _: ShutdownCause) {}
}

impl GuestClock for Outside {
    fn ticks(&self) -> u64 {
        1 << 40
    }

    fn frequency_hz(&self) -> u64 {
        1_000_000_000
    }
}

impl DeviceFaults for Outside {
    fn broken(&self, _: DeviceId, _: RingError) {}
}

impl UsedMemory for Outside {
    fn used(&self, _: u64, _: u64, _: Used) {}
}

/// Reads a state; what is accepted is written as the same state.
fn read<T: SavedState + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let state: T = decode(bytes).ok()?;
    let again = encode(&state).unwrap();
    assert_eq!(decode::<T>(&again).unwrap(), state);
    Some(state)
}

/// Gives a state to a fresh part. It takes it as it is or stays what it was.
fn give<P>(part: &mut P, state: P::State) -> bool
where
    P: Saved,
    P::State: PartialEq + Debug + Clone,
{
    let before = part.save();
    let taken = part.restore(state.clone()).is_ok();
    assert_eq!(part.save(), if taken { state } else { before });
    taken
}

/// What a part says of itself fits together.
fn sound<P>(part: &P) -> P::State
where
    P: Saved,
    P::State: PartialEq + Debug,
{
    read(&encode(&part.save()).unwrap()).unwrap()
}

/// Accesses, as place, bytes and whether it is a write.
fn accesses(script: &[u8]) -> impl Iterator<Item = (u64, &[u8], bool)> {
    script.chunks_exact(11).take(ACCESSES_MAX).map(|chunk| {
        let place = u64::from(u16::from_le_bytes([chunk[0], chunk[1]]));
        (place, &chunk[3..][..1 << (chunk[2] & 3)], chunk[2] & 4 != 0)
    })
}

fn chipset(bytes: &[u8], script: &[u8]) {
    let Some(state) = read::<ChipsetState>(bytes) else { return };
    let outside = Arc::new(Outside);
    let hotplug = HotplugConfig { present: 2, vcpu_nodes: vec![0; 4], nodes: 1 };
    let mut chipset = Chipset::new(ChipsetConfig {
        vcpus: 4,
        hotplug: state.hotplug.is_some().then_some(hotplug),
        console: Box::new(std::io::sink()),
        interrupts: outside.clone(),
        shutdown: outside.clone(),
        clock: outside,
    });
    // Of the machine's configuration it has these two numbers only.
    let fits = state.hotplug.as_ref().is_none_or(|plugs| plugs.nodes == [0; 4]);
    assert_eq!(give(&mut chipset, state), fits);
    for (place, data, write) in accesses(script) {
        let (port, ioapic) = ((place & 0xfff) as u16, u64::from(IOAPIC_BASE) + (place & 0xff));
        match (place >> 12 & 3, write) {
            (0, true) => chipset.pio_write(port, data),
            (0, false) => chipset.pio_read(port, &mut [0; 8][..data.len()]),
            (1, true) => chipset.mmio_write(ioapic, data),
            (1, false) => chipset.mmio_read(ioapic, &mut [0; 8][..data.len()]),
            (2, _) => drop(chipset.console_input(data)),
            // No pin.
            _ if data[0] == u8::MAX => drop(chipset.notify_generation()),
            _ => chipset.set_line(data[0], write),
        }
    }
    sound(&chipset);
}

fn pci(bytes: &[u8], script: &[u8]) {
    let root = || PciRoot::new(vec![console::shape(), rng::shape()]).unwrap();
    let (Some(state), mut one) = (read::<PciRootState>(bytes), root()) else { return };
    if !give(&mut one, state) {
        assert!(one == root());
        return;
    }
    let _ = one.in_force();
    let mut effects = Vec::new();
    for (place, data, write) in accesses(script) {
        let address = match place >> 14 {
            0 => layout::ECAM_START + ((place & 0x3f00) << 7) + (place & 0xff),
            device => {
                layout::PCI_WINDOW_START
                    + ((device - 1) << 16)
                    + ((place & 0x3f80) << 5)
                    + (place & 0x7f)
            }
        };
        if write {
            one.write(address, data, &mut effects);
        } else {
            one.read(address, &mut [0; 8][..data.len()]);
        }
    }
    let mut two = root();
    two.restore(sound(&one)).unwrap();
    assert!(one == two);
}

fn view(bytes: &[u8], script: &[u8]) {
    let mut view = MsixView::new(3, Arc::new(Outside));
    let Some(state) = read::<MsixViewState>(bytes) else { return };
    give(&mut view, state);
    for (place, _, write) in accesses(script) {
        let vector = MsixVector((place % 4) as u16);
        if write { view.raise(Some(vector)) } else { view.route(vector, None) }
    }
    sound(&view);
}

fn input(bytes: &[u8], script: &[u8]) {
    let mut input = ConsoleInput::new(Doorbell::new().unwrap());
    let Some(state) = read::<ConsoleInputState>(bytes) else { return };
    assert!(give(&mut input, state));
    input.push(script);
    sound(&input);
}

fn nic_shape() -> NicShape {
    NicShape { mac: [2; 6], mtu: 1500, pairs: 2, offloads: 0 }
}

fn setup(at: u64) -> QueueSetup {
    QueueSetup {
        size: QUEUE_SIZE,
        descriptors: at,
        driver_area: at + 0x400,
        device_area: at + 0x800,
        vector: Some(MsixVector(0)),
    }
}

/// A disk's worker and that of a network pair over memory that the input has written.
fn workers(bytes: &[u8], script: &[u8]) {
    let Some(state) = read::<WorkerState>(bytes) else { return };
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY_BYTES)]).unwrap();
    for (place, data, _) in accesses(script) {
        let _ = memory.write_slice(data, GuestAddress(place & 0x1fff));
    }
    let outside = Arc::new(Outside);
    let context = QueueContext {
        device: DeviceId(0),
        memory: Arc::new(memory),
        used: outside.clone(),
        msix: Arc::new(MsixView::new(1, outside.clone())),
        faults: outside,
    };
    let (disk, bell) = (Arc::new(NullDisk::new(64)), || Doorbell::new().unwrap());
    let disk = DiskQueue::new(&context, F_VERSION_1, &setup(0x1000), disk, bell()).unwrap();
    let (near, _far) = cable(&nic_shape());
    let net = NetDevice::new(near);
    let setups = (&setup(0), &setup(0x1000));
    let pair = NetPair::new(&context, F_VERSION_1, setups, (Arc::clone(&net), 0), bell()).unwrap();
    net.connect(F_VERSION_1);
    let workers: [Box<dyn QueueWorker>; 2] = [Box::new(disk), Box::new(pair)];
    for mut worker in workers {
        if !give(&mut worker, state.clone()) {
            continue;
        }
        for _ in 0..8 {
            if !worker.service() {
                break;
            }
        }
        assert!(worker.rest(Instant::now() + LONG));
        sound(&worker);
    }
    net.disconnect();
}

fn network(bytes: &[u8]) {
    let Some(state) = read::<NetDeviceState>(bytes) else { return };
    let (near, _far) = cable(&nic_shape());
    let net = NetDevice::new(near);
    net.connect(F_VERSION_1);
    let before = net.save();
    let taken = net.restore(state).is_ok();
    assert_eq!(net.save(), if taken { state } else { before });
    net.disconnect();
}

fn sockets(bytes: &[u8], script: &[u8]) {
    let mut vsock = Vsock::new(3).unwrap();
    let Some(state) = read::<VsockState>(bytes) else { return };
    assert!(give(&mut vsock, state));
    for byte in script.iter().take(ACCESSES_MAX) {
        match byte & 3 {
            0 => vsock.set_active(byte & 4 != 0),
            1 => vsock.news().into_iter().for_each(|id| vsock.reset(id)),
            _ => {
                let asked = vsock.connect(u32::from(*byte));
                assert!(asked.is_none_or(|(id, _)| vsock.view(id) == Some(View::Asked)));
            }
        }
    }
    sound(&vsock);
}

/// Where things are: the same again from its own form, whatever moves.
fn placement(bytes: &[u8], script: &[u8]) {
    let Some(state) = read::<PlacementState>(bytes) else { return };
    let mut placement = Placement::try_from(state).unwrap();
    for (place, data, write) in accesses(script) {
        let (to, vcpu) = (SliceId(u16::from(data[0])), VcpuId(u32::from(data[0])));
        let change = match (place & 3, write) {
            (0, true) if placement.members().len() < MEMBERS_MAX => Change::Join(to),
            (0, _) => Change::Leave(to),
            (1, true) => Change::Vcpu { vcpu, to: SliceId((place >> 2) as u16) },
            (1, false) => Change::Device { device: (place >> 2) as u16, to },
            (2, _) => {
                Change::Queue { device: (place >> 2 & 1) as u16, queue: (place >> 3) as u16, to }
            }
            _ => Change::Memory { frames: place >> 2..(place >> 2) + data.len() as u64, to },
        };
        placement = placement.next(&[change]).unwrap_or(placement);
    }
    let state = PlacementState::from(&placement);
    let state: PlacementState = read(&encode(&state).unwrap()).unwrap();
    assert_eq!(Placement::try_from(state).unwrap(), placement);
}

/// States of parts that are inside others.
fn inner(bytes: &[u8]) {
    read::<SerialLineState>(bytes);
    read::<PitState>(bytes);
    read::<CmosState>(bytes);
    read::<Pm1State>(bytes);
    read::<IoApicState>(bytes);
    read::<FunctionState>(bytes);
    read::<MsixTableState>(bytes);
    read::<TransportState>(bytes);
    read::<QueueState>(bytes);
    read::<NetPairState>(bytes);
    read::<DiskState>(bytes);
}

pub(crate) fn run(input_bytes: &[u8]) {
    // What it is, the length of the state, the state, and what happens then.
    let [kind, low, high, rest @ ..] = input_bytes else { return };
    let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
    let (bytes, script) = rest.split_at(length);
    match kind % 9 {
        0 => chipset(bytes, script),
        1 => pci(bytes, script),
        2 => view(bytes, script),
        3 => input(bytes, script),
        4 => workers(bytes, script),
        5 => network(bytes),
        6 => inner(bytes),
        7 => sockets(bytes, script),
        _ => placement(bytes, script),
    }
}
