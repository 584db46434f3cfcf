mod saved;

use super::super::QueueWorker;
use super::super::testing::{Driver, Guest};
use super::connection::Key;
use super::header::{NO_MORE, NO_RECEIVE, NO_SEND, Op, STREAM};
use super::*;
use proptest::prelude::*;
use zerocopy::FromBytes;

const CID: u64 = 5;
/// Where the rings lie.
const RECEIVE: u64 = 0x10_0000;
const TRANSMIT: u64 = 0x20_0000;
/// Where buffers lie: one for each descriptor, and that of packets of the driver.
const BUFFERS: u64 = 0x40_0000;
const PACKET: u64 = 0x80_0000;
const PORTS: Key = Key { host: 52, guest: 1024 };

/// A guest with a driver that has as much room for each connection as a test says, and the host's side.
struct Rig {
    guest: Guest,
    receive: Driver,
    transmit: Driver,
    bringing: VsockReceive,
    taking: VsockTransmit,
    vsock: Vsock,
    buffer_bytes: u32,
}

impl Rig {
    fn new() -> Self {
        let guest = Guest::new();
        let vsock = Vsock::new(5).unwrap();
        vsock.set_active(true);
        let [receive, transmit] = [RECEIVE, TRANSMIT].map(|base| Driver::new(&guest, base, 256));
        let (context, features) = (&guest.context, Driver::FEATURES);
        let bringing = Receive::new(&vsock);
        let bringing = VsockReceive::new(context, features, &receive.setup(), bringing).unwrap();
        let taking = Transmit::new(&vsock);
        let taking = VsockTransmit::new(context, features, &transmit.setup(), taking).unwrap();
        Self { guest, receive, transmit, bringing, taking, vsock, buffer_bytes: 4096 }
    }

    /// Gives the device so many buffers.
    fn post(&mut self, count: usize) {
        for _ in 0..count {
            let at = BUFFERS + u64::from(self.receive.available % 256) * 0x4000;
            self.receive.request(&[(at, self.buffer_bytes, true)]);
        }
    }

    /// What the driver gets, without new buffers.
    fn got(&mut self) -> Vec<(Header, Vec<u8>)> {
        while self.bringing.service() {}
        let mut got = Vec::new();
        for (head, length) in self.receive.used() {
            let bytes = self.guest.get(BUFFERS + u64::from(head) * 0x4000, length as usize);
            let (header, data) = Header::read_from_prefix(&bytes).unwrap();
            assert_eq!(data.len(), header.len.get() as usize);
            got.push((header, data.to_vec()));
        }
        got
    }

    /// All that the driver gets with as many buffers as that takes.
    fn all(&mut self) -> Vec<(Header, Vec<u8>)> {
        let mut all = Vec::new();
        loop {
            self.post(16);
            let got = self.got();
            all.extend_from_slice(&got);
            if got.len() < 16 {
                return all;
            }
        }
    }

    fn ops(&mut self) -> Vec<Op> {
        self.all().iter().map(|(header, _)| Op::of(header.op.get()).unwrap()).collect()
    }

    /// Sends a packet as it is, in two buffers.
    fn send_raw(&mut self, header: &Header, data: &[u8]) {
        self.guest.put(PACKET, header.as_bytes());
        self.guest.put(PACKET + 64, data);
        let bytes = u32::try_from(data.len()).unwrap();
        self.transmit.request(&[(PACKET, 44, false), (PACKET + 64, bytes, false)]);
        while self.taking.service() {}
        self.transmit.used();
    }

    /// A packet of an orderly driver with so much room.
    fn send(&mut self, op: Op, change: impl FnOnce(&mut Header), data: &[u8]) {
        let mut header = Header {
            src_cid: CID.into(),
            dst_cid: HOST_CID.into(),
            src_port: PORTS.guest.into(),
            dst_port: PORTS.host.into(),
            len: u32::try_from(data.len()).unwrap().into(),
            kind: STREAM.into(),
            op: op.code().into(),
            buf_alloc: (1 << 20).into(),
            ..Header::default()
        };
        change(&mut header);
        self.send_raw(&header, data);
    }

    /// A connection that the guest has asked for.
    fn open(&mut self, room: u32) -> ConnectionId {
        self.vsock.news();
        self.send(Op::Request, |header| header.buf_alloc = room.into(), &[]);
        let id = *self.vsock.news().first().unwrap();
        assert_eq!(self.vsock.view(id), Some(View::Dialing(PORTS.host)));
        self.vsock.accept(id);
        assert_eq!(self.ops(), [Op::Response]);
        id
    }

    fn view(&self, id: ConnectionId) -> (usize, usize, bool, bool) {
        match self.vsock.view(id) {
            Some(View::Open { waiting, room, sends, receives }) => (waiting, room, sends, receives),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn guest_and_host_talk_over_a_connection_of_the_guest() {
    let mut rig = Rig::new();
    let id = rig.open(1 << 20);
    rig.send(Op::Data, |_| {}, b"to the host");
    assert_eq!(rig.view(id), (11, BUFFER_BYTES, true, true));
    let mut bytes = [0; 16];
    assert_eq!(rig.vsock.peek(id, &mut bytes), 11);
    assert_eq!(&bytes[..11], b"to the host");
    rig.vsock.forward(id, 11);
    assert_eq!(rig.view(id).0, 0);

    assert_eq!(rig.vsock.push(id, b"to the guest"), 12);
    let [(header, data)] = &rig.all()[..] else { panic!() };
    assert_eq!(data, b"to the guest");
    assert_eq!((header.src_cid.get(), header.dst_cid.get()), (HOST_CID, CID));
    assert_eq!((header.src_port.get(), header.dst_port.get()), (PORTS.host, PORTS.guest));
    assert_eq!((header.buf_alloc.get(), header.fwd_cnt.get()), (64 << 10, 11));
    assert_eq!(rig.guest.fault(), None);
}

#[test]
fn host_asks_for_a_connection_and_learns_the_answer() {
    let mut rig = Rig::new();
    let (id, host) = rig.vsock.connect(1024).unwrap();
    let [(header, _)] = &rig.all()[..] else { panic!() };
    assert_eq!(header.op.get(), Op::Request.code());
    assert_eq!((header.src_port.get(), header.dst_port.get()), (host, 1024));
    assert_eq!(rig.vsock.view(id), Some(View::Asked));
    rig.send(Op::Response, |header| header.dst_port = host.into(), &[]);
    assert_eq!(rig.view(id), (0, BUFFER_BYTES, true, true));
    assert!(rig.vsock.news().contains(&id));

    let (refused, host) = rig.vsock.connect(1024).unwrap();
    assert_eq!(rig.ops(), [Op::Request]);
    rig.send(Op::Reset, |header| header.dst_port = host.into(), &[]);
    assert_eq!(rig.vsock.view(refused), None);
    assert!(rig.vsock.news().contains(&refused));
    assert!(rig.ops().is_empty(), "a reset is not answered");
}

#[test]
fn more_than_the_credit_waits_for_the_guest_and_more_than_the_room_waits_outside() {
    let mut rig = Rig::new();
    let id = rig.open(10_000);
    let sent: Vec<u8> =
        (0..100_000_u32).map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect();
    let (mut pushed, mut seen) = (0, Vec::new());
    while seen.len() < sent.len() {
        pushed += rig.vsock.push(id, &sent[pushed..]);
        assert!(pushed - seen.len() <= BUFFER_BYTES + 10_000);
        let got: Vec<u8> = rig.all().into_iter().flat_map(|(_, data)| data).collect();
        assert!(!got.is_empty() && got.len() <= 10_000);
        seen.extend(got);
        let forwarded = u32::try_from(seen.len()).unwrap();
        let update = |header: &mut Header| {
            (header.buf_alloc, header.fwd_cnt) = (10_000.into(), forwarded.into());
        };
        rig.send(Op::CreditUpdate, update, &[]);
    }
    assert!(seen == sent);
}

#[test]
fn who_waits_for_room_is_told_of_it() {
    let mut rig = Rig::new();
    let id = rig.open(1 << 20);
    assert_eq!(rig.vsock.push(id, &[1; 2 * BUFFER_BYTES]), BUFFER_BYTES);
    rig.vsock.news();
    assert_eq!(rig.view(id).1, 0);
    assert!(rig.vsock.news().is_empty());
    assert_eq!(rig.all().iter().map(|(_, data)| data.len()).sum::<usize>(), BUFFER_BYTES);
    assert!(rig.vsock.news().contains(&id));
}

#[test]
fn guest_is_told_of_room_in_time_and_when_it_asks() {
    let mut rig = Rig::new();
    let id = rig.open(0);
    rig.send(Op::Data, |_| {}, &[7; BUFFER_BYTES]);
    rig.vsock.forward(id, BUFFER_BYTES / 2 - 1);
    assert!(rig.ops().is_empty());
    rig.vsock.forward(id, 1);
    let [(header, _)] = &rig.all()[..] else { panic!() };
    assert_eq!(header.op.get(), Op::CreditUpdate.code());
    assert_eq!(header.fwd_cnt.get(), 32 << 10);
    rig.send(Op::CreditRequest, |_| {}, &[]);
    assert_eq!(rig.ops(), [Op::CreditUpdate]);
    // As much as there is room for is fine, a byte more is not.
    rig.send(Op::Data, |_| {}, &[8; BUFFER_BYTES / 2]);
    assert_eq!(rig.view(id).0, BUFFER_BYTES);
    rig.send(Op::Data, |_| {}, &[9]);
    assert_eq!(rig.vsock.view(id), None);
    assert_eq!(rig.ops(), [Op::Reset]);
}

#[test]
fn each_side_may_end_its_direction() {
    let mut rig = Rig::new();
    let id = rig.open(1 << 20);
    rig.send(Op::Data, |_| {}, b"last");
    rig.send(Op::Shutdown, |header| header.flags = NO_SEND.into(), &[]);
    assert_eq!(rig.view(id), (4, BUFFER_BYTES, false, true));
    // The host goes on, and the end comes behind its bytes.
    assert_eq!(rig.vsock.push(id, b"more"), 4);
    rig.vsock.end(id, End::Sending);
    assert_eq!(rig.vsock.push(id, b"too late"), 0);
    let got = rig.all();
    assert_eq!((got.len(), &got[0].1[..]), (2, &b"more"[..]));
    assert_eq!((got[1].0.op.get(), got[1].0.flags.get()), (Op::Shutdown.code(), NO_SEND));
    assert_eq!(rig.view(id).0, 4, "what the guest has sent is still there");
    rig.send(Op::Shutdown, |header| header.flags = NO_MORE.into(), &[]);
    assert_eq!(rig.view(id), (4, 0, false, false));
    rig.vsock.reset(id);
    assert_eq!(rig.ops(), [Op::Reset]);

    let id = rig.open(1 << 20);
    rig.vsock.push(id, b"never read");
    rig.send(Op::Shutdown, |header| header.flags = NO_RECEIVE.into(), &[]);
    assert!(rig.ops().is_empty() && rig.view(id) == (0, 0, true, false));
    // After the host has gone its guest's bytes are dropped, and it has room for ever.
    rig.vsock.end(id, End::Both);
    for _ in 0..4 {
        rig.send(Op::Data, |_| {}, &[1; BUFFER_BYTES]);
    }
    assert!(!rig.ops().contains(&Op::Reset) && rig.view(id).0 == 0);
    // Who has said that it sends no more must not.
    rig.send(Op::Shutdown, |header| header.flags = NO_SEND.into(), &[]);
    rig.send(Op::Data, |_| {}, b"x");
    assert_eq!((rig.vsock.view(id), rig.ops()), (None, vec![Op::Reset]));
}

#[test]
fn reset_of_the_guest_ends_a_connection_and_its_ports_can_be_used_again() {
    let mut rig = Rig::new();
    let id = rig.open(1 << 20);
    rig.vsock.push(id, b"lost");
    rig.send(Op::Reset, |_| {}, &[]);
    assert_eq!(rig.vsock.view(id), None);
    assert!(rig.ops().is_empty());
    assert_eq!((rig.vsock.push(id, b"x"), rig.vsock.peek(id, &mut [0; 4])), (0, 0));
    let again = rig.open(1 << 20);
    assert!(again > id, "nobody takes it for the earlier one");
}

/// Linux resets what it has shut down and has had no answer for within eight seconds.
#[test]
fn reset_behind_an_end_leaves_the_host_what_the_guest_has_sent() {
    let mut rig = Rig::new();
    let id = rig.open(1 << 20);
    rig.vsock.push(id, b"dropped");
    rig.send(Op::Data, |_| {}, b"last");
    rig.send(Op::Shutdown, |header| header.flags = NO_MORE.into(), &[]);
    rig.send(Op::Reset, |_| {}, &[]);
    assert_eq!(rig.view(id), (4, 0, false, false));
    assert!(rig.vsock.news().contains(&id));
    // The guest knows nothing of it any more, and has its ports for another.
    let again = rig.open(1 << 20);
    let mut bytes = [0; 8];
    assert_eq!((rig.vsock.peek(id, &mut bytes), &bytes[..4]), (4, &b"last"[..]));
    rig.vsock.forward(id, 4);
    rig.vsock.end(id, End::Both);
    rig.vsock.reset(id);
    assert_eq!((rig.vsock.view(id), rig.ops()), (None, vec![]));
    rig.send(Op::Data, |_| {}, b"new");
    assert_eq!(rig.view(again).0, 3);
    rig.vsock.with(|switch| switch.check());

    // One that comes before the end ends all at once.
    rig.send(Op::Shutdown, |header| header.flags = NO_RECEIVE.into(), &[]);
    rig.send(Op::Reset, |_| {}, &[]);
    assert_eq!(rig.vsock.view(again), None);
}

#[test]
fn what_belongs_to_nothing_is_reset_or_dropped() {
    let mut rig = Rig::new();
    rig.send(Op::Data, |_| {}, b"to nobody");
    let [(header, _)] = &rig.all()[..] else { panic!() };
    assert_eq!(header.op.get(), Op::Reset.code());
    assert_eq!((header.src_port.get(), header.dst_port.get()), (PORTS.host, PORTS.guest));
    rig.send(Op::Request, |header| header.kind = 2.into(), &[]);
    rig.send(Op::Request, |header| header.dst_cid = 9.into(), &[]);
    rig.send(Op::Request, |header| header.op = 77.into(), &[]);
    assert_eq!(rig.ops(), [Op::Reset; 3]);
    rig.send(Op::Request, |header| header.src_cid = 6.into(), &[]);
    rig.send(Op::Reset, |_| {}, &[]);
    assert!(rig.ops().is_empty() && rig.vsock.news().is_empty());
    // What no state has a place for ends the connection.
    for (op, change) in
        [(Op::Request, 0), (Op::Response, 0), (Op::Data, 1000), (Op::Data, u32::MAX)]
    {
        let id = rig.open(0);
        rig.send(op, |header| header.len = change.into(), &[]);
        assert_eq!((rig.vsock.view(id), rig.ops()), (None, vec![Op::Reset]), "{op:?} {change}");
    }
    assert_eq!(rig.guest.fault(), None);
}

#[test]
fn driver_that_claims_to_have_taken_what_was_not_sent_gets_nothing() {
    let mut rig = Rig::new();
    let id = rig.open(100);
    rig.send(Op::CreditUpdate, |header| header.fwd_cnt = 1.into(), &[]);
    rig.vsock.push(id, b"bytes");
    assert!(rig.ops().is_empty());
}

#[test]
fn reset_of_the_device_drops_everything() {
    let mut rig = Rig::new();
    let id = rig.open(1 << 20);
    rig.vsock.push(id, b"lost");
    rig.vsock.news();
    rig.vsock.set_active(false);
    assert_eq!(rig.vsock.view(id), None);
    assert!(rig.vsock.news().contains(&id));
    rig.send(Op::Request, |_| {}, &[]);
    assert!(rig.vsock.connect(1024).is_none());
    assert!(rig.ops().is_empty() && rig.vsock.news().is_empty());
    rig.vsock.set_active(true);
    rig.open(1 << 20);
}

#[test]
fn connections_are_bounded_and_who_only_waits_gives_way() {
    let mut rig = Rig::new();
    let mut first = None;
    for port in 0..1024 {
        rig.send(Op::Request, |header| header.src_port = port.into(), &[]);
        let id = *rig.vsock.news().first().unwrap();
        rig.vsock.accept(id);
        first.get_or_insert(id);
    }
    assert_eq!(rig.ops(), [Op::Response; 1024]);
    assert!(rig.vsock.connect(1).is_none());
    rig.send(Op::Request, |header| header.src_port = 5000.into(), &[]);
    assert_eq!(rig.ops(), [Op::Reset]);
    rig.vsock.with(|switch| switch.check());
    // One end is gone, and the guest does not care.
    rig.vsock.end(first.unwrap(), End::Both);
    assert!(rig.vsock.connect(1).is_none(), "the guest does not know yet");
    assert_eq!(rig.ops(), [Op::Shutdown]);
    assert!(rig.vsock.connect(1).is_some());
    assert_eq!(rig.ops(), [Op::Reset, Op::Request]);
    assert_eq!(rig.vsock.view(first.unwrap()), None);
}

#[test]
fn driver_that_takes_nothing_is_not_heard_until_it_does() {
    let mut rig = Rig::new();
    for _ in 0..3000 {
        rig.transmit.publish(0);
        rig.guest.put(PACKET, Header { src_cid: CID.into(), ..Header::default() }.as_bytes());
        rig.transmit.describe(TRANSMIT, 0, (PACKET, 44), 0, 0);
        while rig.taking.service() {}
        if rig.transmit.used().is_empty() {
            break;
        }
    }
    let held = rig.transmit.available;
    assert!((1000..1100).contains(&held), "{held}");
    let waits = |rig: &Rig| rig.vsock.with(|switch| !switch.takes());
    assert!(waits(&rig));
    rig.vsock.with(|switch| switch.check());
    rig.post(100);
    assert_eq!(rig.got().len(), 100);
    assert!(!waits(&rig));
    while rig.taking.service() {}
    assert_eq!(rig.transmit.used().len(), 1);
}

#[test]
fn data_fits_itself_to_the_buffers_of_the_driver() {
    let mut rig = Rig::new();
    let id = rig.open(1 << 20);
    let sent: Vec<u8> = (0..9000_u32).map(|at| at.to_le_bytes()[0]).collect();
    for bytes in [45, 100, 0x4000] {
        rig.buffer_bytes = bytes;
        let sent = if bytes == 45 { &sent[..300] } else { &sent };
        assert_eq!(rig.vsock.push(id, sent), sent.len());
        let got: Vec<u8> = rig.all().into_iter().flat_map(|(_, data)| data).collect();
        assert!(got == sent, "{bytes}");
    }
    rig.buffer_bytes = 44;
    rig.vsock.push(id, b"x");
    // Of buffers that are still there some are large enough.
    rig.post(16);
    for _ in 0..200 {
        rig.vsock.push(id, b"x");
        rig.got();
    }
    assert_eq!(rig.guest.fault(), Some(RingError::Request));
}

#[test]
fn packet_without_a_whole_header_breaks_the_device() {
    let mut rig = Rig::new();
    rig.transmit.request(&[(PACKET, 43, false)]);
    assert!(!rig.taking.service());
    assert_eq!(rig.guest.fault(), Some(RingError::Request));
}

/// A header that often makes sense.
fn header() -> impl Strategy<Value = Header> {
    let cid = || prop_oneof![9 => Just(CID), 1 => 0..8_u64];
    let op = prop_oneof![9 => 1..8_u16, 1 => any::<u16>()];
    let room = prop_oneof![Just(0), Just(100), Just(1_u32 << 20), any::<u32>()];
    let len = prop_oneof![4 => 0..64_u32, 1 => Just(64_u32 << 10), 1 => any::<u32>()];
    let to = prop_oneof![9 => Just(HOST_CID), 1 => 0..8_u64];
    let (ports, flags) = ((0..4_u32, 0..4_u32), 0..5_u32);
    (cid(), to, ports, op, room.clone(), room, len, flags).prop_map(
        |(src, dst, (from, to), op, alloc, forwarded, len, flags)| Header {
            src_cid: src.into(),
            dst_cid: dst.into(),
            src_port: from.into(),
            dst_port: if to == 3 { (1_u32 << 30).into() } else { to.into() },
            len: len.into(),
            kind: STREAM.into(),
            op: op.into(),
            flags: flags.into(),
            buf_alloc: alloc.into(),
            fwd_cnt: forwarded.into(),
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Packet(Header),
    Buffers(usize),
    Connect(u32),
    Look(u8),
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => header().prop_map(Step::Packet),
        3 => (0..8_usize).prop_map(Step::Buffers),
        2 => (0..4_u32).prop_map(Step::Connect),
        6 => any::<u8>().prop_map(Step::Look),
        1 => Just(Step::Reset),
    ]
}

proptest! {
    /// Whatever a guest says, and whenever the host does what it may: bounds hold, and the device is not broken.
    #[test]
    fn hostile_headers_leave_bounds_whole(steps in prop::collection::vec(step(), 0..120)) {
        let mut rig = Rig::new();
        let data = vec![3; BUFFER_BYTES];
        for step in steps {
            match step {
                Step::Packet(header) => {
                    let there = (header.len.get() as usize).min(BUFFER_BYTES);
                    rig.send_raw(&header, &data[..there]);
                }
                Step::Buffers(count) => {
                    rig.post(count);
                    rig.got();
                }
                Step::Connect(port) => {
                    let _ = rig.vsock.connect(port);
                }
                Step::Look(how) => {
                    for id in rig.vsock.news() {
                        match (rig.vsock.view(id), how % 8) {
                            (None, _) => {}
                            (Some(View::Dialing(_)), 0) => rig.vsock.reset(id),
                            (Some(View::Dialing(_)), _) => rig.vsock.accept(id),
                            (Some(_), 1) => rig.vsock.end(id, End::Both),
                            (Some(_), 2) => rig.vsock.end(id, End::Sending),
                            (Some(_), 3) => rig.vsock.end(id, End::Taking),
                            (Some(_), 4) => rig.vsock.reset(id),
                            (Some(_), 5) => {
                                rig.vsock.push(id, &data);
                            }
                            (Some(_), _) => rig.vsock.forward(id, usize::from(how) * 512),
                        }
                    }
                }
                Step::Reset => {
                    rig.vsock.set_active(false);
                    rig.vsock.set_active(true);
                }
            }
            rig.vsock.with(|switch| switch.check());
        }
        prop_assert_eq!(rig.guest.fault(), None);
    }
}
