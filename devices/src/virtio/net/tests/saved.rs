//! Networks at rest, and in another process.

use super::*;
use crate::saved::testing::{damage, through_bytes};
use crate::virtio::{NetPairState, PacketState, QueueState, WorkerState};
use migrate::{Saved, SavedState};
use std::thread;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

impl Bench {
    fn rest(&mut self, within: Duration) -> bool {
        self.pair.rest(Instant::now() + within)
    }

    fn state(&self) -> NetPairState {
        let WorkerState::Pair(state) = QueueWorker::save(&self.pair) else { panic!("a pair") };
        state
    }

    /// The guest goes on with a device and a network that are new.
    fn move_over(&mut self) {
        assert!(self.rest(LONG));
        let (state, device_state) = (self.state(), self.device.save());
        let nic = Arc::new(FakeNic { pairs: 4, keep: self.nic.keep, ..FakeNic::default() });
        let device = NetDevice::new(nic.clone());
        let setups = (self.receive.setup(), self.transmit.setup());
        let (to, bell) = ((Arc::clone(&device), 0), Doorbell::new().unwrap());
        let context = &self.guest.context;
        let mut pair = NetPair::new(context, MERGE, (&setups.0, &setups.1), to, bell).unwrap();
        device.connect(MERGE);
        device.restore(through_bytes(&device_state)).unwrap();
        QueueWorker::restore(&mut pair, through_bytes(&WorkerState::Pair(state))).unwrap();
        assert_eq!(device.save(), device_state);
        (self.pair, self.device, self.nic) = (pair, device, nic);
    }

    /// A packet comes if the front end has allowed one.
    fn bring_if_allowed(&self, number: u8, bytes: usize) -> Option<Vec<u8>> {
        {
            let mut allowed = self.nic.allowed.lock().unwrap();
            *allowed = allowed.checked_sub(1)?;
        }
        let packet = vec![number; bytes];
        let sink = self.nic.sink.lock().unwrap().clone().unwrap();
        sink.packet(0, packet.clone());
        Some(packet)
    }
}

#[test]
fn packets_of_the_driver_have_left_before_a_pair_rests() {
    let mut bench = Bench::new(MERGE, true);
    bench.transmit.request(&[(DATA, 60, false)]);
    bench.serve();
    assert!(!bench.rest(Duration::from_millis(5)), "the back end has not taken it");
    let nic = Arc::clone(&bench.nic);
    let later = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        let done = nic.kept.lock().unwrap().pop_front().unwrap();
        done();
    });
    assert!(bench.rest(LONG));
    assert!(bench.nic.kept.lock().unwrap().is_empty());
    later.join().unwrap();
    let state = QueueState { size: 32, next_avail: 1, next_used: 1, broken: false };
    assert_eq!(bench.state().transmit, state);
}

#[test]
fn pairs_in_use_are_those_that_the_driver_has_asked_for() {
    let bench = Bench::new(MERGE | F_MQ, false);
    assert!(bench.device.use_pairs(3));
    let state = bench.device.save();
    assert_eq!(state, NetDeviceState { pairs_in_use: 3 });
    let fresh = |pairs| {
        let nic = Arc::new(FakeNic { pairs, ..FakeNic::default() });
        (NetDevice::new(nic.clone()), nic)
    };
    let (device, nic) = fresh(4);
    device.restore(state).unwrap_err();
    assert_eq!(device.save(), NetDeviceState { pairs_in_use: 0 }, "not connected");
    device.connect(MERGE | F_MQ);
    device.restore(through_bytes(&state)).unwrap();
    assert_eq!(nic.connected.lock().unwrap().last(), Some(&(MERGE | F_MQ, 3, true)));
    let (device, _) = fresh(2);
    device.connect(MERGE | F_MQ);
    device.restore(state).unwrap_err();
    device.restore(NetDeviceState { pairs_in_use: 0 }).unwrap_err();
    device.restore(NetDeviceState { pairs_in_use: u16::MAX }).unwrap_err();
    assert_eq!(device.save(), NetDeviceState { pairs_in_use: 1 }, "nothing has changed");
    bench.device.disconnect();
    assert_eq!(bench.device.save(), NetDeviceState { pairs_in_use: 0 });
}

#[test]
fn pair_that_another_slice_serves_allows_nothing_any_more() {
    let mut bench = Bench::new(MERGE | F_MQ, false);
    assert!(bench.device.use_pairs(3));
    bench.serve();
    let other = QueueWorker::save(&bench.pair);
    let setups = (bench.receive.setup(), bench.transmit.setup());
    let (to, bell) = ((Arc::clone(&bench.device), 1), Doorbell::new().unwrap());
    let context = &bench.guest.context;
    let mut stays = NetPair::new(context, MERGE, (&setups.0, &setups.1), to, bell).unwrap();
    QueueWorker::restore(&mut stays, other).unwrap();
    while stays.service() {}
    assert_eq!(*bench.nic.allowed.lock().unwrap(), 256, "two windows");

    assert!(bench.rest(LONG));
    bench.bring(60);
    assert!(bench.pair.stop(Instant::now()));
    bench.device.hand_over(false);
    assert_eq!(*bench.nic.allowed.lock().unwrap(), 128, "that of the pair that stays");
    assert_eq!(bench.device.save(), NetDeviceState { pairs_in_use: 3 });
    bench.bring(60);
    assert_eq!(bench.device.inlets.iter().filter(|inlet| lock(inlet).is_some()).count(), 1);

    bench.device.hand_over(true);
    assert_eq!(bench.nic.connected.lock().unwrap().last(), Some(&(MERGE | F_MQ, 1, true)));
    assert_eq!(bench.device.save(), NetDeviceState { pairs_in_use: 1 });
    bench.device.disconnect();
    let connections = bench.nic.connected.lock().unwrap().len();
    bench.device.hand_over(true);
    assert_eq!(bench.nic.connected.lock().unwrap().len(), connections, "it is not connected");
}

#[test]
fn state_that_must_be_short_loses_the_newest_packets() {
    let bench = Bench::new(MERGE, false);
    let packets: Vec<_> =
        (0..60).map(|size| PacketState(vec![size; 12 + 40 * usize::from(size)])).collect();
    let whole = WorkerState::Pair(NetPairState { packets: packets.clone(), ..bench.state() });
    assert_eq!(whole.clone().within(1 << 20), whole);
    for bytes in [600, 1000, 5000, 20_000, 60_000] {
        let state = whole.clone().within(bytes);
        assert!(migrate::saved::encode(&state).unwrap().len() <= bytes);
        let WorkerState::Pair(state) = state else { panic!("a pair") };
        assert_eq!(state.packets, packets[..state.packets.len()]);
        assert!(bytes < 1000 || !state.packets.is_empty());
    }
    let queue = WorkerState::Queue(bench.state().receive);
    assert_eq!(queue.clone().within(0), queue);
}

#[test]
fn packets_that_are_too_many_or_too_long_and_other_queues_are_refused() {
    let mut bench = Bench::new(MERGE, false);
    let good = bench.state();
    let packets = |count, bytes| {
        let packets = vec![PacketState(vec![0; bytes]); count];
        NetPairState { packets, ..good.clone() }
    };
    let size = |state: QueueState| QueueState { size: 16, ..state };
    let bad = [
        packets(129, 60),
        packets(1, PACKET_BYTES_MAX + 1),
        NetPairState { receive: size(good.receive), ..good.clone() },
        NetPairState { transmit: size(good.transmit), ..good.clone() },
    ];
    for bad in bad {
        Saved::restore(&mut bench.pair, bad).unwrap_err();
        assert_eq!(bench.state(), good, "nothing has changed");
    }
    QueueWorker::restore(&mut bench.pair, WorkerState::Queue(good.receive)).unwrap_err();
    let most = packets(128, PACKET_BYTES_MAX);
    through_bytes(&WorkerState::Pair(most.clone()));
    assert!(most.packets.len() * PACKET_BYTES_MAX > NetPairState::MAX_BYTES / 10 * 9);
    damage(&packets(2, 14), 0x42, |state| drop(Saved::restore(&mut bench.pair, state)));
}

proptest! {
    /// Packets come in bursts, buffers one by one, and the pair rests and moves in between.
    #[test]
    fn packets_arrive_once_and_in_order_however_often_a_pair_rests_and_moves(
        steps in prop::collection::vec((0_u8..6, 12_usize..300), 0..60),
    ) {
        let mut bench = Bench::new(MERGE, false);
        let (mut packets, mut rooms) = (Vec::new(), 0_u64);
        for (kind, size) in steps {
            match kind {
                0 | 1 => {
                    for _ in 0..size / 6 {
                        let number = packets.len().to_le_bytes()[0];
                        packets.extend(bench.bring_if_allowed(number, size));
                    }
                }
                2 if rooms < 32 => {
                    let room = u32::try_from(size).unwrap();
                    bench.receive.request(&[(DATA + 0x1000 * rooms, room, true)]);
                    rooms += 1;
                }
                2 | 3 => bench.serve(),
                4 => prop_assert!(bench.rest(LONG)),
                _ => bench.move_over(),
            }
        }
        bench.serve();
        let mut used = VecDeque::from(bench.receive.used());
        let mut got = 0;
        while let Some((first, _)) = used.front() {
            let header = bench.guest.get(DATA + 0x1000 * u64::from(*first), 12);
            let buffers = usize::from(u16::from_le_bytes([header[10], header[11]]));
            let mut bytes = Vec::new();
            for (head, length) in used.drain(..buffers) {
                let at = DATA + 0x1000 * u64::from(head);
                bytes.extend(bench.guest.get(at, usize::try_from(length).unwrap()));
            }
            packets[got][10..12].copy_from_slice(&header[10..12]);
            prop_assert_eq!(&bytes, &packets[got]);
            got += 1;
        }
        prop_assert!(bench.rest(LONG));
        let waiting: Vec<_> = bench.state().packets.into_iter().map(|packet| packet.0).collect();
        prop_assert_eq!(&waiting[..], &packets[got..], "what has not arrived waits");
        prop_assert_eq!(bench.guest.fault(), None);
    }
}
