//! The slice: a guest's memory, the PCI root twice, and a worker for each queue that the guest brings up.

use super::HIGH;
use super::back_ends::{FuzzDisk, FuzzNic, Outside, Treacherous, disk_shape, nic_shape};
use super::script::Script;
use devices::back_end::{DiskReply, DiskRequest};
use devices::layout;
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
use devices::virtio::{Activation, Doorbell, QueueContext, QueueSetup, QueueWorker, RingError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use vm_memory::{GuestAddress, GuestMemoryMmap};

/// Two regions with a hole between them.
const REGION_BYTES: usize = 0x8000;
/// Slots of the devices.
pub(crate) const DEVICES: u64 = 6;
/// Address of the guest.
pub(crate) const CID: u32 = 3;
/// Bytes of a connection that wait in one direction.
const SOCKET_BYTES: usize = 64 << 10;

/// A slice with everything that a vmm would have.
pub(crate) struct Slice {
    pub(crate) roots: [PciRoot; 2],
    pub(crate) memory: Arc<GuestMemoryMmap>,
    pub(crate) changes: Arc<Mutex<Vec<(u64, Vec<u8>)>>>,
    views: Vec<Arc<MsixView>>,
    workers: BTreeMap<DeviceId, Vec<Box<dyn QueueWorker>>>,
    disks: [Arc<FuzzDisk>; 2],
    nic: Arc<FuzzNic>,
    pub(crate) net: Arc<NetDevice>,
    pub(crate) input: ConsoleInput,
    vsock: Vsock,
}

impl Slice {
    pub(crate) fn new() -> Self {
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

    pub(crate) fn write(&mut self, address: u64, data: &[u8]) {
        let doorbell = self.roots[0].doorbell(address, data);
        let [mut effects, mut others] = [Vec::new(), Vec::new()];
        self.roots[0].write(address, data, &mut effects);
        self.roots[1].write(address, data, &mut others);
        assert_eq!(effects, others);
        assert!(doorbell.is_none() || effects.is_empty());
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
        let doorbell = || Doorbell::new().unwrap();
        let mut workers: Vec<Box<dyn QueueWorker>> = Vec::new();
        let mut pairs: BTreeMap<u16, [Option<QueueSetup>; 2]> = BTreeMap::new();
        for (queue, setup) in &activation.queues {
            let made: Result<Box<dyn QueueWorker>, RingError> = match (device.0, queue.0) {
                (0 | 1, _) => {
                    let disk = self.disks[usize::from(device.0)].clone();
                    DiskQueue::new(&context, features, setup, disk, doorbell())
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
                let made = NetPair::new(&context, features, (&receive, &transmit), to, doorbell());
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
    pub(crate) fn activate(&mut self, device: u64, script: &mut Script<'_>) {
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

    pub(crate) fn serve(&mut self) {
        for worker in self.workers.values_mut().flatten() {
            for _ in 0..8 {
                if !worker.service() {
                    break;
                }
            }
        }
    }

    pub(crate) fn reply(&mut self, manner: u8) {
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
