mod saved;

use super::super::testing::{Driver, Guest};
use super::super::{F_EVENT_IDX, QueueWorker};
use super::*;
use crate::back_end::{PACKET_BYTES_MAX, PacketsDone};
use crate::virtio::{QueueContext, QueueSetup, Used, UsedMemory};
use proptest::prelude::*;
use std::collections::VecDeque;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const RECEIVE: u64 = 0x10_0000;
const TRANSMIT: u64 = 0x14_0000;
const CONTROL: u64 = 0x18_0000;
const DATA: u64 = 0x30_0000;
const PLAIN: u64 = Driver::FEATURES;
const MERGE: u64 = Driver::FEATURES | F_MRG_RXBUF | F_EVENT_IDX;

/// A network that remembers what it was told.
#[derive(Default)]
struct FakeNic {
    pairs: u16,
    /// Calls of `done` wait until they are asked for.
    keep: bool,
    connected: Mutex<Vec<(u64, u16, bool)>>,
    sink: Mutex<Option<Arc<dyn PacketSink>>>,
    sent: Mutex<Vec<Vec<u8>>>,
    kept: Mutex<VecDeque<PacketsDone>>,
    allowed: Mutex<u32>,
}

impl std::fmt::Debug for FakeNic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FakeNic")
    }
}

impl Nic for FakeNic {
    fn shape(&self) -> NicShape {
        NicShape { mac: [2, 0, 0, 0, 0, 1], mtu: 1400, pairs: self.pairs, offloads: u64::MAX }
    }

    fn connect(&self, features: u64, pairs: u16, sink: Option<Arc<dyn PacketSink>>) {
        self.connected.lock().unwrap().push((features, pairs, sink.is_some()));
        // What was allowed is void.
        *self.allowed.lock().unwrap() = 0;
        *self.sink.lock().unwrap() = sink;
    }

    fn transmit(&self, _pair: u16, packets: Vec<Vec<u8>>, done: PacketsDone) {
        self.sent.lock().unwrap().extend(packets);
        if self.keep {
            self.kept.lock().unwrap().push_back(done);
        } else {
            done();
        }
    }

    fn allow(&self, _pair: u16, packets: u32) {
        *self.allowed.lock().unwrap() += packets;
    }
}

struct Bench {
    guest: Guest,
    receive: Driver,
    transmit: Driver,
    nic: Arc<FakeNic>,
    device: Arc<NetDevice>,
    pair: NetPair,
}

impl Bench {
    fn new(features: u64, keep: bool) -> Self {
        let guest = Guest::new();
        let receive = Driver::new(&guest, RECEIVE, 32);
        let transmit = Driver::new(&guest, TRANSMIT, 32);
        let nic = Arc::new(FakeNic { pairs: 4, keep, ..FakeNic::default() });
        let device = NetDevice::new(nic.clone());
        let bell = Doorbell::new().unwrap();
        let setups: (QueueSetup, QueueSetup) = (receive.setup(), transmit.setup());
        let to = (Arc::clone(&device), 0);
        let pair =
            NetPair::new(&guest.context, features, (&setups.0, &setups.1), to, bell).unwrap();
        device.connect(features);
        Self { guest, receive, transmit, nic, device, pair }
    }

    fn serve(&mut self) {
        while self.pair.service() {}
    }

    /// A packet of so many bytes comes from the network, header included.
    fn bring(&self, bytes: usize) -> Vec<u8> {
        let packet: Vec<u8> = (0..bytes).map(|at| at.to_le_bytes()[0]).collect();
        let sink = self.nic.sink.lock().unwrap().clone().unwrap();
        sink.packet(0, packet.clone());
        packet
    }
}

#[test]
fn packets_of_the_driver_leave_in_order_with_their_headers() {
    let mut bench = Bench::new(PLAIN, false);
    bench.guest.put(DATA, &[1; 12]);
    bench.guest.put(DATA + 12, b"first");
    bench.guest.put(DATA + 0x100, &[[2; 12].to_vec(), b"second".to_vec()].concat());
    bench.transmit.request(&[(DATA, 12, false), (DATA + 12, 5, false)]);
    bench.transmit.request(&[(DATA + 0x100, 18, false)]);
    bench.serve();
    let sent = [
        [[1; 12].to_vec(), b"first".to_vec()].concat(),
        [[2; 12].to_vec(), b"second".to_vec()].concat(),
    ];
    assert_eq!(*bench.nic.sent.lock().unwrap(), sent);
    assert_eq!(bench.transmit.used(), [(0, 0), (2, 0)]);
    assert_eq!(bench.guest.interrupts(), 1);
}

#[test]
fn packets_too_short_or_too_long_are_dropped() {
    let mut bench = Bench::new(PLAIN, false);
    let longest = u32::try_from(PACKET_BYTES_MAX).unwrap();
    for bytes in [0, 11, longest + 1, 8 << 20, longest] {
        bench.transmit.request(&[(DATA, bytes, false)]);
    }
    bench.serve();
    let sent = bench.nic.sent.lock().unwrap();
    assert_eq!((sent.len(), sent[0].len(), bench.transmit.used().len()), (1, PACKET_BYTES_MAX, 5));
    assert_eq!(bench.guest.fault(), None);
}

/// A driver on another vCPU, which gives more as fast as packets are taken.
struct Eager {
    memory: Arc<GuestMemoryMmap>,
    setup: QueueSetup,
    gifts: Mutex<u32>,
}

impl UsedMemory for Eager {
    fn used(&self, _: u64, _: u64, _: Used) {
        let mut gifts = self.gifts.lock().unwrap();
        if *gifts > 0 {
            *gifts -= 1;
            let [given, taken] = [self.setup.driver_area, self.setup.device_area];
            let taken: u16 = self.memory.read_obj(GuestAddress(taken + 2)).unwrap();
            let ahead = taken.wrapping_add(self.setup.size / 2);
            self.memory.write_obj(ahead, GuestAddress(given + 2)).unwrap();
        }
    }
}

/// Somebody may want the worker to rest, for a pause of the VM or a move of its queue.
#[test]
fn round_ends_however_many_packets_are_lost() {
    let mut bench = Bench::new(PLAIN, false);
    let setups = (bench.receive.setup(), bench.transmit.setup());
    let (memory, setup) = (Arc::clone(&bench.guest.memory), setups.1);
    let used = Arc::new(Eager { memory, setup, gifts: Mutex::new(10_000) });
    let context = QueueContext { used, ..bench.guest.context.clone() };
    let to = (Arc::clone(&bench.device), 0);
    let bell = Doorbell::new().unwrap();
    bench.pair = NetPair::new(&context, PLAIN, (&setups.0, &setups.1), to, bell).unwrap();
    bench.transmit.request(&[(DATA, 4, false)]);
    assert!(bench.pair.service(), "there is more");
    let index = bench.guest.get(setups.1.device_area + 2, 2);
    let done = u16::from_le_bytes([index[0], index[1]]);
    assert!((17..=64).contains(&done), "{done} packets in one round");
}

#[test]
fn transmission_waits_while_too_much_is_in_flight() {
    let mut bench = Bench::new(PLAIN, true);
    for _ in 0..30 {
        bench.transmit.request(&[(DATA, 60_000, false)]);
    }
    bench.serve();
    let begun = bench.nic.sent.lock().unwrap().len();
    assert!(begun * 60_000 >= 1 << 20 && (begun - 1) * 60_000 < 1 << 20, "{begun}");
    assert_eq!(bench.transmit.used().len(), begun);
    let done = bench.nic.kept.lock().unwrap().pop_front().unwrap();
    done();
    bench.serve();
    assert_eq!(bench.nic.sent.lock().unwrap().len(), 30);
    assert!(bench.pair.stop(std::time::Instant::now()));
}

#[test]
fn received_packet_goes_over_as_many_buffers_as_it_needs() {
    let mut bench = Bench::new(MERGE, false);
    for n in 0..4 {
        bench.receive.request(&[(DATA + 0x1000 * n, 100, true)]);
    }
    let mut packet = bench.bring(250);
    packet[10..12].copy_from_slice(&[3, 0]);
    bench.serve();
    assert_eq!(bench.receive.used(), [(0, 100), (1, 100), (2, 50)]);
    let got: Vec<u8> = (0..3).flat_map(|n| bench.guest.get(DATA + 0x1000 * n, 100)).collect();
    assert_eq!(got[..250], packet);
    assert_eq!((bench.guest.interrupts(), *bench.nic.allowed.lock().unwrap()), (1, 128));
    // One that has to wait for a second buffer, and appears only when it is whole.
    bench.bring(150);
    bench.serve();
    assert!(bench.receive.used().is_empty());
    bench.receive.request(&[(DATA, 100, true)]);
    bench.serve();
    assert_eq!(bench.receive.used(), [(3, 100), (4, 50)]);
    assert_eq!(bench.guest.get(DATA + 0x3000 + 10, 2), [2, 0]);
}

#[test]
fn without_mergeable_buffers_a_packet_that_does_not_fit_is_dropped() {
    let mut bench = Bench::new(PLAIN, false);
    bench.receive.request(&[(DATA, 60, true), (DATA + 0x1000, 40, true)]);
    bench.bring(101);
    bench.bring(11);
    bench.bring(100);
    bench.serve();
    assert_eq!(bench.receive.used(), [(0, 100)]);
    assert_eq!(bench.guest.get(DATA + 10, 2), [1, 0]);
    assert_eq!(*bench.nic.allowed.lock().unwrap(), 128);
}

#[test]
fn packet_larger_than_all_buffers_of_a_full_ring_is_dropped() {
    let mut bench = Bench::new(MERGE, false);
    for _ in 0..32 {
        bench.receive.request(&[(DATA, 100, true)]);
    }
    bench.bring(32 * 100 + 1);
    bench.bring(60);
    bench.serve();
    assert_eq!(bench.receive.used(), [(0, 60)]);
}

#[test]
fn more_packets_than_allowed_are_lost_and_nothing_else() {
    let mut bench = Bench::new(MERGE, false);
    for _ in 0..200 {
        bench.bring(60);
    }
    for n in 0..200_u32 {
        bench.receive.request(&[(DATA, 100, true)]);
        bench.serve();
        assert_eq!(bench.receive.used().len(), usize::from(n < 128));
    }
    assert_eq!(*bench.nic.allowed.lock().unwrap(), 2 * 128);
}

#[test]
fn disconnected_device_lets_nothing_in() {
    let mut bench = Bench::new(MERGE, false);
    let sink = bench.nic.sink.lock().unwrap().clone().unwrap();
    bench.device.disconnect();
    sink.packet(0, vec![0; 60]);
    sink.packet(9, vec![0; 60]);
    bench.receive.request(&[(DATA, 100, true)]);
    bench.serve();
    assert!(bench.receive.used().is_empty());
    assert_eq!(*bench.nic.connected.lock().unwrap(), [(MERGE, 1, true), (0, 0, false)]);
}

#[test]
fn receive_buffer_without_room_for_a_header_breaks_only_receiving() {
    let mut bench = Bench::new(MERGE, false);
    bench.receive.request(&[(DATA, 11, true)]);
    bench.bring(60);
    bench.serve();
    assert_eq!(bench.guest.fault(), Some(crate::virtio::RingError::Request));
    bench.transmit.request(&[(DATA, 60, false)]);
    bench.serve();
    assert_eq!(bench.nic.sent.lock().unwrap().len(), 1);
}

#[test]
fn control_queue_sets_pairs_and_refuses_everything_else() {
    let mut bench = Bench::new(MERGE, false);
    bench.serve();
    let mut driver = Driver::new(&bench.guest, CONTROL, 16);
    let setup = driver.setup();
    let device = Arc::clone(&bench.device);
    let mut control = NetControl::new(&bench.guest.context, PLAIN, &setup, device).unwrap();
    let mut ask = |command: &[u8]| {
        bench.guest.put(DATA, command);
        bench.guest.put(DATA + 0x100, &[0xee]);
        let bytes = u32::try_from(command.len()).unwrap();
        driver.request(&[(DATA, 2, false), (DATA + 2, bytes - 2, false), (DATA + 0x100, 1, true)]);
        while control.service() {}
        assert_eq!(driver.used().len(), 1);
        bench.guest.get(DATA + 0x100, 1)[0]
    };
    assert_eq!(ask(&[4, 0, 3, 0]), 0);
    assert_eq!(ask(&[4, 0, 0, 0]), 1, "no pair");
    assert_eq!(ask(&[4, 0, 5, 0]), 1, "more than there are");
    assert_eq!(ask(&[4, 0, 3]), 1, "too short");
    assert_eq!(ask(&[4, 1, 3, 0]), 1, "RSS");
    assert_eq!(ask(&[0, 0, 1]), 1, "promiscuous mode");
    assert_eq!(*bench.nic.connected.lock().unwrap(), [(MERGE, 1, true), (MERGE, 3, true)]);
    assert_eq!(*bench.nic.allowed.lock().unwrap(), 128, "what the driver has room for still comes");
    bench.device.disconnect();
    assert_eq!(ask(&[4, 0, 3, 0]), 1, "not connected");
}

#[test]
fn queues_are_what_the_features_say() {
    let of = |queue, features| NetQueue::of(QueueIndex(queue), 2, features);
    assert_eq!(of(3, F_MQ), Some(NetQueue::Transmit(1)));
    assert_eq!((of(4, F_MQ), of(5, F_MQ)), (Some(NetQueue::Control), None));
    assert_eq!((of(0, 0), of(1, 0)), (Some(NetQueue::Receive(0)), Some(NetQueue::Transmit(0))));
    assert_eq!((of(2, 0), of(3, 0), of(4, 0)), (Some(NetQueue::Control), None, None));
    assert_eq!(of(u16::MAX, F_MQ), None);
}

#[test]
fn shape_is_told_by_features_and_configuration() {
    let shape = FakeNic { pairs: 3, ..FakeNic::default() }.shape();
    assert_eq!(config(&shape), [2, 0, 0, 0, 0, 1, 1, 0, 3, 0, 0x78, 5]);
    let bits = features(&shape);
    assert_ne!(bits & F_MQ, 0);
    assert_eq!(bits >> 24 & !(1 << 30 | 1 << 31 | 1 << 32), 0, "only what is known: {bits:#x}");
    assert_eq!(features(&NicShape { pairs: 1, ..shape }) & F_MQ, 0);
}

proptest! {
    #[test]
    fn received_bytes_are_those_that_came(
        sizes in prop::collection::vec(12_usize..400, 1..20),
        rooms in prop::collection::vec(12_u32..200, 1..32),
    ) {
        let mut bench = Bench::new(MERGE, false);
        let packets: Vec<_> = sizes.iter().map(|size| bench.bring(*size)).collect();
        for (n, room) in (0..).zip(&rooms) {
            bench.receive.request(&[(DATA + 0x1000 * n, *room, true)]);
            bench.serve();
        }
        let mut used = VecDeque::from(bench.receive.used());
        for mut packet in packets {
            let Some((first, _)) = used.front() else { break };
            let header = bench.guest.get(DATA + 0x1000 * u64::from(*first), 12);
            let buffers = usize::from(u16::from_le_bytes([header[10], header[11]]));
            let mut got = Vec::new();
            for (head, bytes) in used.drain(..buffers) {
                let at = DATA + 0x1000 * u64::from(head);
                got.extend(bench.guest.get(at, usize::try_from(bytes).unwrap()));
            }
            packet[10..12].copy_from_slice(&header[10..12]);
            prop_assert_eq!(got, packet);
        }
        prop_assert!(used.is_empty());
        prop_assert_eq!(bench.guest.fault(), None);
    }
}
