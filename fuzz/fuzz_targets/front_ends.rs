//! PCI, virtio transport and front ends against a guest that does anything: rings and buffers anywhere
//! in a small memory that changes while the device works, registers written in between, replies and packets
//! at any time.
//!
//! Never a panic; two replicas of the PCI root stay equal; a disk is asked only for what it has, and a
//! read-only one never to change; packets have a header and a bounded length; sockets keep to their bounds.

#![no_main]

use devices::back_end::{
    Disk, DiskDone, DiskReply, DiskRequest, DiskShape, Nic, NicShape, PACKET_BYTES_MAX, PacketSink,
    PacketsDone, REQUEST_BYTES_MAX, SECTOR_BYTES,
};
use devices::msix::MsixView;
use devices::pci::{DeviceId, PciEffect, PciRoot};
use devices::virtio::blk::{self, DiskQueue};
use devices::virtio::console::{
    self, ConsoleInput, ConsoleOutput, ConsoleReceive, ConsoleTransmit,
};
use devices::virtio::net::{self, NetControl, NetDevice, NetPair, NetQueue};
use devices::virtio::rng::{self, RngQueue};
use devices::virtio::vsock::{
    self, CONNECTIONS_MAX, End, Events, Receive, Transmit, View, Vsock, VsockEvents, VsockReceive,
    VsockTransmit,
};
use devices::virtio::{
    Activation, DeviceFaults, Doorbell, QueueContext, QueueSetup, QueueWorker, RingError, Used,
    UsedMemory,
};
use devices::{InterruptMessage, InterruptSink, layout};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryMmap, Permissions};

/// Two regions with a hole between them.
const REGION_BYTES: usize = 0x8000;
const HIGH: u64 = 0x1_0000;
const SECTORS: u64 = 16;
const OPERATIONS_MAX: usize = 200;
/// Slots of the devices.
const DEVICES: u64 = 6;
/// Address of the guest.
const CID: u32 = 3;
/// Bytes of a connection that wait in one direction.
const SOCKET_BYTES: usize = 64 << 10;

struct Outside;

impl InterruptSink for Outside {
    fn deliver(&self, _: InterruptMessage) {}
}

impl DeviceFaults for Outside {
    fn broken(&self, _: DeviceId, _: RingError) {}
}

/// What a worker says that it uses is in guest memory, to the last byte. It says so after it has looked at
/// a buffer's descriptor and before it looks at the buffer: that is when the guest changes memory again.
struct Treacherous {
    memory: Arc<GuestMemoryMmap>,
    /// What is written where, the last first.
    changes: Arc<Mutex<Vec<(u64, Vec<u8>)>>>,
}

impl UsedMemory for Treacherous {
    fn used(&self, address: u64, bytes: u64, _: Used) {
        let count = usize::try_from(bytes).unwrap();
        let there = self.memory.check_range(GuestAddress(address), count, Permissions::Read);
        assert!(bytes == 0 || there, "{address:#x} {bytes:#x}");
        if let Some((address, data)) = self.changes.lock().unwrap().pop() {
            let _ = self.memory.write_slice(&data, GuestAddress(address));
        }
    }
}

#[derive(Default)]
struct FuzzDisk {
    read_only: bool,
    kept: Mutex<Vec<(DiskRequest, DiskDone)>>,
}

impl std::fmt::Debug for FuzzDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FuzzDisk")
    }
}

fn disk_shape(read_only: bool) -> DiskShape {
    DiskShape { sectors: SECTORS, block_bytes: 512, read_only, discard: true, id: [1; 20] }
}

impl Disk for FuzzDisk {
    fn shape(&self) -> DiskShape {
        disk_shape(self.read_only)
    }

    fn submit(&self, request: DiskRequest, done: DiskDone) {
        let (sector, bytes, changes) = match &request {
            DiskRequest::Read { sector, bytes } => (*sector, u64::from(*bytes), false),
            DiskRequest::Write { sector, data } => (*sector, data.len() as u64, true),
            DiskRequest::Flush => (0, 0, false),
            DiskRequest::Discard { sector, sectors }
            | DiskRequest::WriteZeroes { sector, sectors, .. } => {
                (*sector, sectors * SECTOR_BYTES, true)
            }
        };
        assert!(bytes.is_multiple_of(SECTOR_BYTES) && bytes <= REQUEST_BYTES_MAX as u64);
        assert!(sector + bytes / SECTOR_BYTES <= SECTORS, "{request:?}");
        assert!(!(changes && self.read_only), "{request:?}");
        self.kept.lock().unwrap().push((request, done));
    }
}

#[derive(Default)]
struct FuzzNic {
    kept: Mutex<Vec<PacketsDone>>,
}

impl std::fmt::Debug for FuzzNic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FuzzNic")
    }
}

fn nic_shape() -> NicShape {
    NicShape { mac: [2; 6], mtu: 1500, pairs: 2, offloads: u64::MAX }
}

impl Nic for FuzzNic {
    fn shape(&self) -> NicShape {
        nic_shape()
    }

    fn connect(&self, _: u64, pairs: u16, sink: Option<Arc<dyn PacketSink>>) {
        assert!(pairs <= 2 && (pairs > 0) == sink.is_some());
    }

    fn transmit(&self, pair: u16, packets: Vec<Vec<u8>>, done: PacketsDone) {
        assert!(pair < 2);
        assert!(packets.iter().all(|packet| (12..=PACKET_BYTES_MAX).contains(&packet.len())));
        self.kept.lock().unwrap().push(done);
    }

    fn allow(&self, pair: u16, _: u32) {
        assert!(pair < 2);
    }
}

/// A slice with everything that a vmm would have.
struct Slice {
    roots: [PciRoot; 2],
    memory: Arc<GuestMemoryMmap>,
    changes: Arc<Mutex<Vec<(u64, Vec<u8>)>>>,
    views: Vec<Arc<MsixView>>,
    workers: BTreeMap<DeviceId, Vec<Box<dyn QueueWorker>>>,
    disks: [Arc<FuzzDisk>; 2],
    nic: Arc<FuzzNic>,
    net: Arc<NetDevice>,
    input: ConsoleInput,
    vsock: Vsock,
}

impl Slice {
    fn new() -> Self {
        let disk = |read_only| blk::shape(&disk_shape(read_only), 2);
        let shapes = vec![
            disk(false),
            disk(true),
            net::shape(&nic_shape()),
            rng::shape(),
            console::shape(),
            vsock::shape(CID),
        ];
        let root = PciRoot::new(shapes).unwrap();
        let regions = [(GuestAddress(0), REGION_BYTES), (GuestAddress(HIGH), REGION_BYTES)];
        let outside = Arc::new(Outside);
        let views = root
            .devices()
            .map(|(id, _)| Arc::new(MsixView::new(root.vectors(id), outside.clone())))
            .collect();
        let nic = Arc::new(FuzzNic::default());
        Self {
            roots: [root.clone(), root],
            memory: Arc::new(GuestMemoryMmap::from_ranges(&regions).unwrap()),
            changes: Arc::default(),
            views,
            workers: BTreeMap::new(),
            disks: [false, true]
                .map(|read_only| Arc::new(FuzzDisk { read_only, ..FuzzDisk::default() })),
            net: NetDevice::new(nic.clone()),
            nic,
            input: ConsoleInput::new(Doorbell::new().unwrap()),
            vsock: Vsock::new(CID).unwrap(),
        }
    }

    fn write(&mut self, address: u64, data: &[u8]) {
        let bell = self.roots[0].doorbell(address, data);
        let [mut effects, mut others] = [Vec::new(), Vec::new()];
        self.roots[0].write(address, data, &mut effects);
        self.roots[1].write(address, data, &mut others);
        assert_eq!(effects, others);
        assert!(bell.is_none() || effects.is_empty());
        for effect in effects {
            self.act(effect);
        }
    }

    fn act(&mut self, effect: PciEffect) {
        match effect {
            PciEffect::Activated { device, activation } => self.start(device, &activation),
            PciEffect::Reset { device } => {
                match device.0 {
                    2 => self.net.disconnect(),
                    5 => self.vsock.set_active(false),
                    _ => {}
                }
                let mut workers = self.workers.remove(&device).unwrap_or_default();
                for worker in &mut workers {
                    worker.stop(Instant::now());
                }
                self.views[usize::from(device.0)].forget();
            }
            PciEffect::MsixChanged { device, vector, route } => {
                self.views[usize::from(device.0)].route(vector, route);
            }
            PciEffect::DoorbellsMoved { .. } => drop(self.roots[0].doorbells()),
            PciEffect::ConfigChanged { .. } | PciEffect::Doorbell { .. } => {}
        }
    }

    fn start(&mut self, device: DeviceId, activation: &Activation) {
        let context = QueueContext {
            device,
            memory: Arc::clone(&self.memory),
            used: Arc::new(Treacherous {
                memory: Arc::clone(&self.memory),
                changes: Arc::clone(&self.changes),
            }),
            msix: Arc::clone(&self.views[usize::from(device.0)]),
            faults: Arc::new(Outside),
        };
        let features = activation.features;
        let bell = || Doorbell::new().unwrap();
        let mut workers: Vec<Box<dyn QueueWorker>> = Vec::new();
        let mut pairs: BTreeMap<u16, [Option<QueueSetup>; 2]> = BTreeMap::new();
        for (queue, setup) in &activation.queues {
            let made: Result<Box<dyn QueueWorker>, RingError> = match (device.0, queue.0) {
                (0 | 1, _) => {
                    let disk = self.disks[usize::from(device.0)].clone();
                    DiskQueue::new(&context, features, setup, disk, bell())
                        .map(|w| Box::new(w) as _)
                }
                (2, _) => match NetQueue::of(*queue, 2, features) {
                    Some(NetQueue::Receive(pair)) => {
                        pairs.entry(pair).or_default()[0] = Some(*setup);
                        continue;
                    }
                    Some(NetQueue::Transmit(pair)) => {
                        pairs.entry(pair).or_default()[1] = Some(*setup);
                        continue;
                    }
                    Some(NetQueue::Control) => {
                        let net = Arc::clone(&self.net);
                        NetControl::new(&context, features, setup, net).map(|w| Box::new(w) as _)
                    }
                    None => continue,
                },
                (3, _) => {
                    let source = Arc::new(|data: &mut [u8]| data.fill(0x5a));
                    RngQueue::new(&context, features, setup, source).map(|w| Box::new(w) as _)
                }
                (5, 0) => {
                    let receive = Receive::new(&self.vsock);
                    VsockReceive::new(&context, features, setup, receive).map(|w| Box::new(w) as _)
                }
                (5, 1) => {
                    let transmit = Transmit::new(&self.vsock);
                    VsockTransmit::new(&context, features, setup, transmit)
                        .map(|w| Box::new(w) as _)
                }
                (5, 2) => {
                    let events = Events::new(&self.vsock);
                    VsockEvents::new(&context, features, setup, events).map(|w| Box::new(w) as _)
                }
                (_, 0) => {
                    let input = self.input.clone();
                    ConsoleReceive::new(&context, features, setup, input).map(|w| Box::new(w) as _)
                }
                _ => {
                    let output: ConsoleOutput = Arc::new(Mutex::new(std::io::sink()));
                    ConsoleTransmit::new(&context, features, setup, output)
                        .map(|w| Box::new(w) as _)
                }
            };
            workers.extend(made);
        }
        for (pair, setups) in pairs {
            if let [Some(receive), Some(transmit)] = setups {
                let to = (Arc::clone(&self.net), pair);
                let made = NetPair::new(&context, features, (&receive, &transmit), to, bell());
                workers.extend(made.map(|w| Box::new(w) as _));
            }
        }
        match device.0 {
            2 => self.net.connect(features),
            5 => self.vsock.set_active(true),
            _ => {}
        }
        self.workers.insert(device, workers);
    }

    /// What a driver does to bring a device up, with the rings where it says.
    fn activate(&mut self, device: u64, script: &mut Script<'_>) {
        self.write(layout::ECAM_START + ((device + 1) << 15) + 4, &[6, 0]);
        let bar = layout::PCI_WINDOW_START + (device << 16);
        self.write(bar + 20, &[0]);
        self.write(bar + 20, &[3]);
        let features = script.byte();
        for select in 0..2_u32 {
            self.write(bar, &select.to_le_bytes());
            let mut offered = [0; 4];
            self.roots[0].read(bar + 4, &mut offered);
            if features & 1 != 0 && select == 0 {
                offered[3] = 0;
            }
            self.write(bar + 8, &select.to_le_bytes());
            self.write(bar + 12, &offered);
        }
        self.write(bar + 20, &[11]);
        for queue in 0..5_u16 {
            self.write(bar + 22, &queue.to_le_bytes());
            self.write(bar + 24, &(1_u16 << (script.byte() % 9)).to_le_bytes());
            self.write(bar + 26, &queue.to_le_bytes());
            for field in [32, 40, 48] {
                let area = script.address() & !15;
                self.write(bar + field, &area.to_le_bytes());
            }
            self.write(bar + 28, &[1, 0]);
        }
        self.write(bar + 20, &[15]);
    }

    fn serve(&mut self) {
        for worker in self.workers.values_mut().flatten() {
            for _ in 0..8 {
                if !worker.service() {
                    break;
                }
            }
        }
    }

    fn reply(&mut self, manner: u8) {
        for disk in &self.disks {
            let Some((request, done)) = disk.kept.lock().unwrap().pop() else { continue };
            let bytes = match request {
                DiskRequest::Read { bytes, .. } => bytes as usize,
                _ => 0,
            };
            match manner % 4 {
                0 => done(DiskReply::Failed),
                1 => drop(done),
                2 => done(DiskReply::Done(vec![7; bytes / 2])),
                _ => done(DiskReply::Done(vec![7; bytes])),
            }
        }
        self.attend(manner);
        let kept: Vec<_> = self.nic.kept.lock().unwrap().drain(..).collect();
        kept.into_iter().for_each(|done| done());
    }
}

impl Slice {
    /// What the host's side of sockets may do, in one manner or another.
    fn attend(&self, manner: u8) {
        if manner & 64 != 0 {
            let _ = self.vsock.connect(u32::from(manner & 3));
        }
        let news = self.vsock.news();
        assert!(news.len() <= 8 * CONNECTIONS_MAX);
        for id in news {
            let Some(view) = self.vsock.view(id) else { continue };
            if let View::Open { waiting, room, .. } = view {
                assert!(waiting <= SOCKET_BYTES && room <= SOCKET_BYTES);
            }
            match (view, manner % 16) {
                (View::Dialing(_), 0) | (_, 1) => self.vsock.reset(id),
                (View::Dialing(_), _) => self.vsock.accept(id),
                (_, 2) => self.vsock.end(id, End::Sending),
                (_, 3) => self.vsock.end(id, End::Taking),
                (_, 4) => self.vsock.end(id, End::Both),
                (_, 5..9) => {
                    self.vsock.push(id, &[7; 3000]);
                }
                _ => {
                    let count = self.vsock.peek(id, &mut [0; 1000]);
                    self.vsock.forward(id, count);
                }
            }
        }
    }
}

/// The input, taken piece by piece; zeros when it is used up.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Mostly in memory or near its ends.
    fn address(&mut self) -> u64 {
        let word = u64::from(self.word());
        if word & 0x8000 == 0 { word } else { HIGH + (word & 0x7fff) }
    }

    fn bytes(&mut self, most: u8) -> Vec<u8> {
        let count = self.byte() % most;
        (0..count).map(|_| self.byte()).collect()
    }
}

fuzz_target!(|input: &[u8]| {
    let (mut script, mut slice) = (Script(input), Slice::new());
    for _ in 0..OPERATIONS_MAX {
        if script.0.is_empty() {
            break;
        }
        match script.byte() % 8 {
            0 => {
                let device = u64::from(script.byte()) % DEVICES;
                slice.activate(device, &mut script);
            }
            1 => {
                let (address, data) = (script.address(), script.bytes(64));
                let _ = slice.memory.write_slice(&data, GuestAddress(address));
            }
            2 => {
                let (address, data) = (script.address(), script.bytes(64));
                slice.changes.lock().unwrap().push((address, data));
            }
            3 => {
                // A descriptor with a buffer that makes sense, or nearly.
                let table = script.address() & !15;
                let mut data = script.address().to_le_bytes().to_vec();
                data.extend(u32::from(script.word()).to_le_bytes());
                data.extend(u16::from(script.byte() % 8).to_le_bytes());
                data.extend(u16::from(script.byte() % 16).to_le_bytes());
                let _ = slice.memory.write_slice(&data, GuestAddress(table));
            }
            4 => slice.serve(),
            5 => {
                let manner = script.byte();
                slice.reply(manner);
                if manner & 128 != 0 {
                    // A header of a packet for sockets, where some descriptor may point.
                    let mut data = [u64::from(CID).to_le_bytes(), 2_u64.to_le_bytes()].concat();
                    for _ in 0..2 {
                        data.extend(u32::from(script.byte() % 4).to_le_bytes());
                    }
                    data.extend(u32::from(script.byte()).to_le_bytes());
                    data.extend([1, 0, script.byte() % 9, 0]);
                    data.extend(u32::from(script.byte() % 4).to_le_bytes());
                    data.extend(u32::from(script.word()).to_le_bytes());
                    data.extend(u32::from(script.byte()).to_le_bytes());
                    let _ = slice.memory.write_slice(&data, GuestAddress(script.address()));
                }
            }
            6 => {
                let (pair, bytes) = (u16::from(script.byte() % 3), usize::from(script.word()));
                slice.net.packet(pair, vec![9; bytes]);
                slice.input.push(&[b'x'; 32][..bytes % 32]);
            }
            _ => {
                let device = u64::from(script.byte()) % (DEVICES + 1);
                let (offset, kind) = (u64::from(script.word()), script.byte() & 1);
                let pci = layout::PCI_WINDOW_START + (device << 16) + offset;
                let ecam = layout::ECAM_START + (device << 15) + (offset & 0xff);
                let address = if kind == 0 { pci } else { ecam };
                let data = script.bytes(9);
                if !data.is_empty() {
                    slice.write(address, &data);
                    slice.roots[0].read(address, &mut [0; 8][..data.len()]);
                }
            }
        }
    }
    slice.serve();
    assert!(slice.roots[0] == slice.roots[1]);
});
