//! A network of another slice.

use super::{EPOCH, OWNER, World};
use crate::back_end::{Nic, NicShape, PacketSink, PacketsDone, SwitchNic, cable};
use crate::delegate::{Exchange, ExchangeError};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use wire::device::{Agreed, DeviceFrame, Part, join_packets};
use wire::{DeviceId, SliceId};

const NIC: DeviceId = DeviceId(2);
const PAIRS: u16 = 3;

fn shape() -> NicShape {
    NicShape { mac: [2, 0, 0, 0, 0, 1], mtu: 1500, pairs: PAIRS, offloads: 0 }
}

/// Keeps what came, by pair.
#[derive(Default)]
struct Inbox(Mutex<[Vec<Vec<u8>>; PAIRS as usize]>);

impl Inbox {
    fn of(&self, pair: u16) -> Vec<Vec<u8>> {
        self.0.lock().unwrap()[usize::from(pair)].clone()
    }

    fn count(&self, pair: u16) -> usize {
        self.0.lock().unwrap()[usize::from(pair)].len()
    }
}

/// A network that notes how it was connected last: features and pairs.
#[derive(Debug, Default)]
struct Noting(Mutex<(u64, u16)>);

impl Nic for Noting {
    fn shape(&self) -> NicShape {
        shape()
    }

    fn connect(&self, features: u64, pairs: u16, _: Option<Arc<dyn PacketSink>>) {
        *self.0.lock().unwrap() = (features, pairs);
    }

    fn transmit(&self, _: u16, _: Vec<Vec<u8>>, done: PacketsDone) {
        done();
    }

    fn allow(&self, _: u16, _: u32) {}
}

impl PacketSink for Inbox {
    fn packet(&self, pair: u16, bytes: Vec<u8>) {
        self.0.lock().unwrap()[usize::from(pair)].push(bytes);
    }
}

/// A world with a network on the owner: its far end, and the near end as each slice sees it.
struct Net {
    world: World,
    far: Arc<dyn Nic>,
    far_inbox: Arc<Inbox>,
    near: [Arc<dyn Nic>; 3],
    inboxes: [Arc<Inbox>; 3],
    done: Arc<AtomicUsize>,
}

impl Net {
    fn new(dice: u64) -> Self {
        let world = World::new(dice);
        let (far, near) = cable(&shape());
        let local = world.slice(OWNER).serve_nic(NIC, near).expect("a thread");
        let remote = |slice| world.slice(slice).remote_nic(NIC, OWNER, shape());
        let near = [local, remote(SliceId(1)), remote(SliceId(2))];
        let far_inbox = Arc::new(Inbox::default());
        let sink: Arc<dyn PacketSink> = Arc::<Inbox>::clone(&far_inbox);
        far.connect(0, PAIRS, Some(sink));
        let inboxes = [(); 3].map(|()| Arc::new(Inbox::default()));
        Self { world, far, far_inbox, near, inboxes, done: Arc::default() }
    }

    fn connect_all(&self) {
        for (nic, inbox) in self.near.iter().zip(&self.inboxes) {
            let sink: Arc<dyn PacketSink> = Arc::<Inbox>::clone(inbox);
            nic.connect(1, PAIRS, Some(sink));
        }
    }

    fn transmit(&self, nic: &dyn Nic, pair: u16, packets: Vec<Vec<u8>>) {
        let done = Arc::clone(&self.done);
        let done = move || {
            done.fetch_add(1, Ordering::Relaxed);
        };
        nic.transmit(pair, packets, Box::new(done));
    }

    /// Waits until packets of this pair that the far end sends come to this slice: its allowance
    /// has arrived. Returns how many probes it took.
    fn settle(&mut self, slice: usize, pair: u16, probe: &[u8]) {
        let inbox = Arc::clone(&self.inboxes[slice]);
        let far = Arc::clone(&self.far);
        far.transmit(pair, vec![probe.to_vec()], Box::new(|| ()));
        self.world.run_until(|| inbox.count(pair) > 0);
    }
}

/// Batches of packets: mostly small, some above one frame, some batches above one message.
fn batches() -> impl Strategy<Value = Vec<Vec<Vec<u8>>>> {
    let length = prop_oneof![8 => 12..200_usize, 2 => 1400..1514_usize, 1 => 60_000..65_562_usize];
    let packet = (length, any::<u8>()).prop_map(|(length, fill)| vec![fill; length]);
    vec(vec(packet, 1..80), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn packets_keep_their_order_in_a_pair_both_ways(batches in batches(), dice in any::<u64>()) {
        let mut net = Net::new(dice);
        net.connect_all();
        let packets: usize = batches.iter().map(Vec::len).sum();
        for pair in 0..PAIRS {
            net.far.allow(pair, 1 << 20);
        }
        // Out: pair n is used on slice n.
        for batch in &batches {
            for (pair, nic) in (0..PAIRS).zip(net.near.clone()) {
                net.transmit(&*nic, pair, batch.clone());
            }
        }
        let (far, done, all) = (Arc::clone(&net.far_inbox), Arc::clone(&net.done), batches.len() * 3);
        net.world.run_until(|| {
            done.load(Ordering::Relaxed) == all && (0..PAIRS).all(|pair| far.count(pair) == packets)
        });
        let sent: Vec<_> = batches.concat();
        for pair in 0..PAIRS {
            prop_assert!(net.far_inbox.of(pair) == sent);
        }

        // In: each slice allows its pair exactly what comes, after one packet that shows the way.
        for (slice, pair) in (0..3).zip(0..PAIRS) {
            net.near[slice].allow(pair, u32::try_from(packets).expect("few") + 1);
            net.settle(slice, pair, b"first packet");
            for batch in &batches {
                let far = Arc::clone(&net.far);
                net.transmit(&*far, pair, batch.clone());
            }
            let inbox = Arc::clone(&net.inboxes[slice]);
            net.world.run_until(|| inbox.count(pair) == packets + 1);
            prop_assert!(inbox.of(pair)[1..] == sent[..]);
            // Nothing more is allowed: one more waits at the far end.
            let far = Arc::clone(&net.far);
            net.transmit(&*far, pair, vec![vec![1; 20]]);
            while net.world.deliver().expect("honest slices") {}
            prop_assert_eq!(inbox.count(pair), packets + 1);
        }
        let dropped: u64 =
            net.world.slices.iter().map(|slice| slice.counters().counts().dropped).sum();
        prop_assert_eq!(dropped, 0);
    }

    #[test]
    fn loss_at_any_point_ends_every_batch_once(
        batches in batches(),
        before in 0..300_usize,
        dice in any::<u64>(),
    ) {
        let mut net = Net::new(dice);
        net.connect_all();
        for batch in &batches {
            for pair in 1..PAIRS {
                let nic = Arc::clone(&net.near[usize::from(pair)]);
                net.transmit(&*nic, pair, batch.clone());
            }
        }
        for _ in 0..before {
            net.world.deliver().expect("honest slices");
        }
        net.world.lose_owner();
        prop_assert_eq!(net.done.load(Ordering::Relaxed), 2 * batches.len());
        let nic = Arc::clone(&net.near[1]);
        net.transmit(&*nic, 0, vec![vec![0; 60]]);
        nic.allow(0, 5);
        prop_assert_eq!(net.done.load(Ordering::Relaxed), 2 * batches.len() + 1);
    }
}

#[test]
fn pair_follows_the_slice_that_allows_it_last() {
    let mut net = Net::new(5);
    net.connect_all();
    net.near[1].allow(0, 10);
    net.settle(1, 0, b"to slice one");

    net.near[2].allow(0, 10);
    while net.inboxes[2].count(0) == 0 {
        net.settle_step(0);
    }
    let before = net.inboxes[1].count(0);
    net.settle_step(0);
    net.settle_step(0);

    let inbox = Arc::clone(&net.inboxes[2]);
    net.world.run_until(|| inbox.count(0) >= 3);
    assert_eq!(net.inboxes[1].count(0), before);
}

impl Net {
    /// Delivers a frame, and lets the server's thread act on it before the next one comes, most of the time.
    fn deliver_alone(&mut self) {
        if self.world.deliver().expect("honest slices") {
            thread::sleep(Duration::from_micros(50));
        }
    }

    /// Sends one packet from the far end and delivers what there is.
    fn settle_step(&mut self, pair: u16) {
        self.far.transmit(pair, vec![vec![9; 30]], Box::new(|| ()));
        while self.world.deliver().expect("honest slices") {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A pair moves from slice to slice faster than they are heard: each begins as soon as the one before has stopped.
    #[test]
    fn pair_is_at_its_last_place_however_late_others_are_heard(
        places in vec(0..3_usize, 1..8),
        heard in vec(0..12_usize, 8),
        dice in any::<u64>(),
    ) {
        let mut net = Net::new(dice);
        net.connect_all();
        let last = *places.last().expect("there is one");
        for (number, (place, heard)) in places.iter().zip(heard).enumerate() {
            net.near[*place].allow(0, 3);
            net.near[*place].allow(0, 2);
            (0..heard).for_each(|_| net.deliver_alone());
            if number + 1 < places.len() {
                // As a front end does whose queue is served elsewhere (`NetDevice::hand_over`).
                let sink: Arc<dyn PacketSink> = Arc::<Inbox>::clone(&net.inboxes[*place]);
                net.near[*place].connect(1, PAIRS, Some(sink));
            }
        }
        (0..100).for_each(|_| net.deliver_alone());
        // All that it has allowed, and it allows no more before they come.
        let start = Instant::now();
        while net.inboxes[last].count(0) < 5 {
            prop_assert!(start.elapsed() < super::PATIENCE, "its packets go elsewhere");
            net.settle_step(0);
        }
    }
}

#[test]
fn nothing_comes_after_a_disconnect_and_old_packets_are_dropped() {
    let mut net = Net::new(6);
    net.connect_all();
    net.near[1].allow(0, 100);
    net.settle(1, 0, b"first packet");
    // Packets on their way while the guest resets its device and starts again.
    net.far.transmit(0, vec![vec![1; 40]; 5], Box::new(|| ()));
    net.near[1].connect(0, 0, None);
    let sink: Arc<dyn PacketSink> = Arc::<Inbox>::clone(&net.inboxes[1]);
    net.near[1].connect(1, PAIRS, Some(sink));
    while net.world.deliver().expect("honest slices") {}

    assert_eq!(net.inboxes[1].count(0), 1);
    assert_eq!(net.world.slice(SliceId(1)).counters().counts().dropped, 5);
}

#[test]
fn peer_that_says_what_it_must_not_is_an_error() {
    let net = Net::new(7);
    net.connect_all();
    let device = NIC;
    let say = |to: SliceId, from: SliceId, frame: &DeviceFrame<'_>| {
        net.world.slice(to).frame(from, &frame.encode(EPOCH))
    };
    let guest = SliceId(1);
    let queue = ExchangeError::Queue { device, from: guest, queue: PAIRS };

    let allow = DeviceFrame::Allow { device, queue: PAIRS, connection: 1, packets: 1 };
    assert_eq!(say(OWNER, guest, &allow), Err(queue));
    let agreed = Some(Agreed { features: 0, pairs: PAIRS + 1 });
    let connect = DeviceFrame::Connect { device, connection: 1, agreed };
    assert_eq!(say(OWNER, guest, &connect), Err(queue));
    let cut = DeviceFrame::PacketsOut {
        part: Part { device, total: 3, ..Part::default() },
        bytes: &[1, 2, 3],
    };
    assert!(matches!(say(OWNER, guest, &cut), Err(ExchangeError::Packets(_))));

    // A packet that slice 1 has not allowed, and the end of a batch that it has not sent.
    let list = join_packets(&[vec![0; 60]]);
    let part = Part { device, total: 64, ..Part::default() };
    let unasked = DeviceFrame::PacketsIn { part, connection: 1, bytes: &list };
    let overrun = ExchangeError::Overrun { device, from: OWNER };
    assert_eq!(say(guest, OWNER, &unasked), Err(overrun));
    let done = DeviceFrame::PacketsDone { device, queue: 0, tag: 77 };
    assert_eq!(say(guest, OWNER, &done), Err(ExchangeError::Answer { device, from: OWNER }));
}

/// Three slices whose front ends keep their way while the real part goes from slice to slice.
struct Moving {
    world: World,
    front: [Arc<SwitchNic>; 3],
    inboxes: [Arc<Inbox>; 3],
    /// The far end of the network that is in use, and what it has got.
    far: (Arc<dyn Nic>, Arc<Inbox>),
}

impl Moving {
    fn new(dice: u64) -> Self {
        let Net { world, far, far_inbox, near, inboxes, .. } = Net::new(dice);
        let front = near.map(|nic| Arc::new(SwitchNic::new(shape(), nic)));
        for (front, inbox) in front.iter().zip(&inboxes) {
            front.connect(1, PAIRS, Some(Arc::clone(inbox) as _));
        }
        // Pair n is used on slice n.
        (0..PAIRS).zip(&front).for_each(|(pair, front)| front.allow(pair, 1 << 20));
        (0..PAIRS).for_each(|pair| far.allow(pair, 1 << 20));
        Self { world, front, inboxes, far: (far, far_inbox) }
    }

    /// The real part goes to a slice. What is on its way may come at any time.
    fn move_to(&mut self, slice: usize) {
        let (far, near) = cable(&shape());
        let inbox = Arc::new(Inbox::default());
        far.connect(0, PAIRS, Some(Arc::clone(&inbox) as _));
        (0..PAIRS).for_each(|pair| far.allow(pair, 1 << 20));
        self.far = (far, inbox);
        let owner = SliceId(u16::try_from(slice).unwrap());
        let mut near = Some(near);
        for id in [0, 1, 2].map(SliceId) {
            let exchange = self.world.slice(id);
            let nic = match near.take_if(|_| id == owner) {
                Some(near) => exchange.serve_nic(NIC, near).expect("a thread"),
                None => exchange.remote_nic(NIC, owner, shape()),
            };
            self.front[usize::from(id.0)].put(nic);
        }
        self.front.iter().for_each(|front| front.connect_anew());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Frames of packets come late, in any order of slices. Nobody takes them for a fault, and packets go on both ways.
    #[test]
    fn network_goes_from_slice_to_slice_while_packets_are_on_their_way(
        places in vec(0..3_usize, 1..8),
        dice in any::<u64>(),
    ) {
        let mut net = Moving::new(dice);
        for (number, place) in (1..).zip(places) {
            for pair in 0..PAIRS {
                net.far.0.transmit(pair, vec![vec![0; 7000]; 20], Box::new(|| ()));
                net.front[usize::from(pair)].allow(pair, 2);
            }
            for _ in 0..net.world.roll(12) {
                net.world.deliver().expect("honest slices");
            }
            net.move_to(place);
            for pair in 0..PAIRS {
                let (far, inbox) = (Arc::clone(&net.far.0), Arc::clone(&net.inboxes[usize::from(pair)]));
                let packet = vec![number; 100];
                let came = || inbox.of(pair).contains(&packet);
                // One that comes before it is allowed may be lost.
                let mut again = 0_u32;
                net.world.run_until(|| {
                    again += 1;
                    if again.is_multiple_of(16) {
                        far.transmit(pair, vec![packet.clone()], Box::new(|| ()));
                    }
                    came()
                });
                let left = Arc::clone(&net.far.1);
                // Nothing moves before the sender knows that its packets have left.
                let done = Arc::new(AtomicUsize::new(0));
                let told = Arc::clone(&done);
                let tell = move || {
                    told.fetch_add(1, Ordering::Release);
                };
                let packets = vec![vec![number; 50]];
                net.front[usize::from(pair)].transmit(pair, packets, Box::new(tell));
                net.world.run_until(|| {
                    left.of(pair).contains(&vec![number; 50]) && done.load(Ordering::Acquire) == 1
                });
            }
        }
    }
}

#[test]
fn late_frames_are_a_fault_of_a_network_that_has_not_moved() {
    let net = Moving::new(1);
    let late = DeviceFrame::Allow { device: NIC, queue: 0, connection: 1, packets: 1 };
    let frame = late.encode(EPOCH);
    let (from, local) = (SliceId(2), SliceId(1));
    let refused = net.world.slice(local).frame(from, &frame);
    assert_eq!(refused, Err(ExchangeError::Device { device: NIC, from }));
    let mut net = net;
    net.move_to(0);
    assert_eq!(net.world.slice(local).frame(from, &frame), Ok(()));
    // An answer that nobody waits for is one still.
    let done = DeviceFrame::PacketsDone { device: NIC, queue: 0, tag: 7 }.encode(EPOCH);
    assert!(net.world.slice(local).frame(from, &done).is_err());
}

/// A later driver may want other features, and begins with one pair.
#[test]
fn what_a_slice_wanted_that_has_left_counts_no_more() {
    let mut world = World::new(1);
    let noting = Arc::new(Noting::default());
    let connected = || *noting.0.lock().unwrap();
    let owners = world.slice(OWNER).serve_nic(NIC, Arc::clone(&noting) as _).expect("a thread");
    let remote = world.slice(SliceId(1)).remote_nic(NIC, OWNER, shape());
    let sink = || Some(Arc::new(Inbox::default()) as Arc<dyn PacketSink>);
    for gone in [Exchange::forget, Exchange::lost] {
        remote.connect(1, 1, sink());
        world.run_until(|| connected() == (1, 1));
        owners.connect(1, 1, sink());

        gone(world.slice(OWNER), SliceId(1));
        owners.connect(0, 0, None);
        world.run_until(|| connected() == (0, 0));
        owners.connect(2, 1, sink());
        assert_eq!(connected(), (2, 1));
        owners.connect(0, 0, None);
    }
}
