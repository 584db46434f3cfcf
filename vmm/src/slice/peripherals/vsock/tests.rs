//! The host's side with real sockets, and a guest that is nothing but two rings.

use super::*;
use devices::msix::MsixView;
use devices::virtio::vsock::CONNECTIONS_MAX;
use devices::virtio::{
    Activation, DeviceFaults, F_VERSION_1, QueueContext, QueueSetup, QueueWorker, RingError, Used,
    UsedMemory,
};
use devices::{InterruptMessage, InterruptSink};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::id;
use std::sync::atomic::AtomicU32;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(30);
const CID: u64 = 3;
const HEADER_BYTES: usize = 44;
/// What the guest has room for in each connection, and says so with each packet.
const ROOM: u32 = 40_000;

const REQUEST: u16 = 1;
const RESPONSE: u16 = 2;
const RESET: u16 = 3;
const SHUTDOWN: u16 = 4;
const DATA: u16 = 5;
const CREDIT_UPDATE: u16 = 6;

struct Outside;

impl InterruptSink for Outside {
    fn deliver(&self, _: InterruptMessage) {}
}

impl DeviceFaults for Outside {
    fn broken(&self, _: DeviceId, cause: RingError) {
        panic!("{cause}");
    }
}

impl UsedMemory for Outside {
    fn used(&self, _: u64, _: u64, _: Used) {}
}

/// A packet, as far as the guest here cares.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Packet {
    op: u16,
    /// Ports of the host and of the guest.
    ports: (u32, u32),
    flags: u32,
    forwarded: u32,
    data: Vec<u8>,
}

/// A ring of 16 entries with a buffer of 8 KiB each.
struct Ring {
    memory: Arc<GuestMemoryMmap>,
    base: u64,
    available: u16,
    seen: u16,
}

impl Ring {
    const SIZE: u16 = 16;

    fn setup(&self) -> QueueSetup {
        QueueSetup {
            size: Self::SIZE,
            descriptors: self.base,
            driver_area: self.base + 0x1000,
            device_area: self.base + 0x2000,
            vector: None,
        }
    }

    fn buffer(&self, entry: u16) -> GuestAddress {
        GuestAddress(self.base + 0x1_0000 + u64::from(entry) * 0x2000)
    }

    /// Gives an entry to the device.
    fn offer(&mut self, bytes: u32, flags: u16) {
        let entry = self.available % Self::SIZE;
        let mut descriptor = self.buffer(entry).0.to_le_bytes().to_vec();
        descriptor.extend(bytes.to_le_bytes());
        descriptor.extend(flags.to_le_bytes());
        descriptor.extend([0, 0]);
        let at = GuestAddress(self.base + 16 * u64::from(entry));
        self.memory.write_slice(&descriptor, at).unwrap();
        let slot = GuestAddress(self.base + 0x1004 + 2 * u64::from(entry));
        self.memory.write_slice(&entry.to_le_bytes(), slot).unwrap();
        self.available = self.available.wrapping_add(1);
        let index = GuestAddress(self.base + 0x1002);
        self.memory.write_slice(&self.available.to_le_bytes(), index).unwrap();
    }

    /// The next entry that came back.
    fn take(&mut self) -> Option<u16> {
        let mut index = [0; 2];
        self.memory.read_slice(&mut index, GuestAddress(self.base + 0x2002)).unwrap();
        (self.seen != u16::from_le_bytes(index)).then(|| {
            self.seen = self.seen.wrapping_add(1);
            (self.seen - 1) % Self::SIZE
        })
    }
}

/// The guest, the device, and a name for its socket that goes away with the test.
struct Rig {
    open: OpenVsock,
    front: VsockFront,
    path: PathBuf,
    rings: [Ring; 2],
    workers: [Box<dyn QueueWorker>; 2],
    got: VecDeque<Packet>,
    /// Bytes that the guest has taken, for all connections alike: tests have one at a time.
    taken: u32,
    fence: Arc<Fence>,
}

impl Rig {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tessera-vsock-{}-{number}", id()));
        let (spec, fence) = (VsockSpec { cid: 3, socket: path.clone() }, Arc::default());
        let open = OpenVsock::new(&spec, &fence).unwrap();
        open.start().unwrap();
        let front = VsockFront(Some(open.vsock.clone()));
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
        let memory = Arc::new(memory);
        let ring = |base| Ring { memory: Arc::clone(&memory), base, available: 0, seen: 0 };
        let rings = [ring(0x1000), ring(0x8_0000)];
        let workers = workers(&front, &memory, &rings);
        let (got, taken) = (VecDeque::new(), 0);
        let mut rig = Self { open, front, path, rings, workers, got, taken, fence };
        (0..Ring::SIZE - 1).for_each(|_| rig.rings[0].offer(0x2000, 2));
        rig
    }

    /// Has the device work, and takes what has come.
    fn pump(&mut self) {
        for worker in &mut self.workers {
            while worker.service() {}
        }
        while let Some(entry) = self.rings[0].take() {
            let at = self.rings[0].buffer(entry);
            let mut bytes = [0; HEADER_BYTES];
            self.rings[0].memory.read_slice(&mut bytes, at).unwrap();
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let mut data = vec![0; word(24) as usize];
            let from = GuestAddress(at.0 + HEADER_BYTES as u64);
            self.rings[0].memory.read_slice(&mut data, from).unwrap();
            self.got.push_back(Packet {
                op: u16::from_le_bytes([bytes[30], bytes[31]]),
                ports: (word(16), word(20)),
                flags: word(32),
                forwarded: word(40),
                data,
            });
            self.rings[0].offer(0x2000, 2);
        }
    }

    fn send(&mut self, op: u16, (host, guest): (u32, u32), flags: u32, data: &[u8]) {
        let mut bytes = [CID.to_le_bytes(), HOST_CID.to_le_bytes()].concat();
        for word in [guest, host, u32::try_from(data.len()).unwrap()] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend([1_u16.to_le_bytes(), op.to_le_bytes()].concat());
        for word in [flags, ROOM, self.taken] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(data);
        let ring = &mut self.rings[1];
        let at = ring.buffer(ring.available % Ring::SIZE);
        ring.memory.write_slice(&bytes, at).unwrap();
        ring.offer(u32::try_from(bytes.len()).unwrap(), 0);
        let until = Instant::now() + PATIENCE;
        while self.rings[1].take().is_none() {
            assert!(Instant::now() < until, "the device takes no packet");
            self.pump();
        }
    }

    /// The next packet but for credit updates.
    fn next(&mut self) -> Packet {
        let until = Instant::now() + PATIENCE;
        loop {
            self.pump();
            match self.got.pop_front() {
                Some(packet) if packet.op == CREDIT_UPDATE => {}
                Some(packet) => return packet,
                None => thread::sleep(Duration::from_millis(1)),
            }
            assert!(Instant::now() < until, "nothing comes");
        }
    }

    /// Bytes of the host until there are so many, within the guest's room.
    fn receive(&mut self, ports: (u32, u32), count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < count {
            let packet = self.next();
            assert_eq!((packet.op, packet.ports), (DATA, ports));
            bytes.extend(&packet.data);
            self.taken += u32::try_from(packet.data.len()).unwrap();
            self.send(CREDIT_UPDATE, ports, 0, &[]);
        }
        bytes
    }

    fn client(&self, line: &str) -> UnixStream {
        let mut client = UnixStream::connect(&self.path).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(line.as_bytes()).unwrap();
        client
    }

    /// A client that the guest has answered, and the connection's ports.
    fn answered(&mut self) -> (UnixStream, (u32, u32)) {
        let mut client = self.client("CONNECT 1024\n");
        let asked = self.next();
        assert_eq!((asked.op, asked.ports.1), (REQUEST, 1024));
        self.taken = 0;
        self.send(RESPONSE, asked.ports, 0, &[]);
        let line = format!("OK {}\n", asked.ports.0);
        assert_eq!(read(&mut client, line.len()), line.as_bytes());
        (client, asked.ports)
    }

    fn listener(&self, port: u32) -> (UnixListener, PathBuf) {
        let mut path = self.path.clone().into_os_string();
        path.push(format!("_{port}"));
        (UnixListener::bind(&path).unwrap(), path.into())
    }

    /// A connection that the guest has asked for, as the one who listens has it.
    fn dialed(&mut self, port: u32) -> UnixStream {
        let (listener, path) = self.listener(port);
        self.taken = 0;
        self.send(REQUEST, (port, 99), 0, &[]);
        let answer = self.next();
        assert_eq!((answer.op, answer.ports), (RESPONSE, (port, 99)));
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        std::fs::remove_file(path).unwrap();
        stream
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn workers(
    front: &VsockFront,
    memory: &Arc<GuestMemoryMmap>,
    rings: &[Ring; 2],
) -> [Box<dyn QueueWorker>; 2] {
    let context = QueueContext {
        device: DeviceId(0),
        memory: Arc::clone(memory),
        used: Arc::new(Outside),
        msix: Arc::new(MsixView::new(4, Arc::new(Outside))),
        faults: Arc::new(Outside),
    };
    let activation = Activation { features: F_VERSION_1, queues: Vec::new() };
    front.start(F_VERSION_1);
    [0, 1].map(|queue| {
        let bell = front.bell(usize::from(queue), &[]).unwrap();
        let starting = Starting {
            context: &context,
            queue: QueueIndex(queue),
            setup: &rings[usize::from(queue)].setup(),
            bell: &bell,
            activation: &activation,
        };
        front.worker(&starting).unwrap().unwrap()
    })
}

fn read(from: &mut UnixStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    from.read_exact(&mut bytes).unwrap();
    bytes
}

fn ended(stream: &mut UnixStream) -> bool {
    matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_))
}

fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect()
}

#[test]
fn client_of_the_host_reaches_the_guest_and_both_send_more_than_there_is_room_for() {
    let mut rig = Rig::new();
    let (client, ports) = rig.answered();
    let sent = pattern(300_000);
    let (mut writer, bytes) = (client.try_clone().unwrap(), sent.clone());
    let writing = thread::spawn(move || writer.write_all(&bytes).unwrap());
    assert!(rig.receive(ports, sent.len()) == sent);
    writing.join().unwrap();

    let mut reader = client.try_clone().unwrap();
    let reading = thread::spawn(move || read(&mut reader, 300_000));
    let (mut in_flight, mut forwarded) = (0_u32, 0_u32);
    for piece in sent.chunks(8000) {
        let bytes = u32::try_from(piece.len()).unwrap();
        while in_flight + bytes - forwarded > 64 << 10 {
            rig.pump();
            forwarded = rig.got.drain(..).next_back().map_or(forwarded, |packet| packet.forwarded);
        }
        rig.send(DATA, ports, 0, piece);
        in_flight += bytes;
    }
    let until = Instant::now() + PATIENCE;
    while !reading.is_finished() && Instant::now() < until {
        rig.pump();
        thread::sleep(Duration::from_millis(1));
    }
    assert!(reading.join().unwrap() == sent);
}

#[test]
fn guest_reaches_who_listens_and_each_side_may_end_first() {
    let mut rig = Rig::new();
    let mut stream = rig.dialed(52);
    rig.send(DATA, (52, 99), 0, b"question");
    rig.send(SHUTDOWN, (52, 99), 2, &[]);
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    assert_eq!(heard, b"question");
    stream.write_all(b"answer").unwrap();
    drop(stream);
    assert_eq!(rig.receive((52, 99), 6), b"answer");
    let end = rig.next();
    assert_eq!((end.op, end.flags & 2), (SHUTDOWN, 2), "the host sends no more");
    rig.send(SHUTDOWN, (52, 99), 3, &[]);
    let mut last = end;
    while last.op == SHUTDOWN {
        last = rig.next();
    }
    assert_eq!(last.op, RESET);

    let mut stream = rig.dialed(53);
    stream.shutdown(Shutdown::Write).unwrap();
    let end = rig.next();
    assert_eq!((end.op, end.flags), (SHUTDOWN, 2));
    rig.send(DATA, (53, 99), 0, b"still open");
    assert_eq!(read(&mut stream, 10), b"still open");
    drop(stream);
    let end = rig.next();
    assert_eq!((end.op, end.flags), (SHUTDOWN, 3), "now it is gone");
}

/// Linux tells its peer of a reset then, behind what it has sent.
#[test]
fn answer_of_a_host_that_leaves_with_bytes_unread_arrives() {
    let mut rig = Rig::new();
    let mut stream = rig.dialed(52);
    rig.send(DATA, (52, 99), 0, b"question");
    assert_eq!(read(&mut stream, 1), b"q");
    stream.write_all(b"answer").unwrap();
    drop(stream);
    assert_eq!(rig.receive((52, 99), 6), b"answer");
}

#[test]
fn bytes_of_a_client_that_has_closed_before_the_answer_arrive() {
    let mut rig = Rig::new();
    drop(rig.client("CONNECT 1024\nbytes"));
    let asked = rig.next();
    assert_eq!(asked.op, REQUEST);
    rig.send(RESPONSE, asked.ports, 0, &[]);
    assert_eq!(rig.receive(asked.ports, 5), b"bytes");
    assert_eq!(rig.next().op, SHUTDOWN);
}

/// A guest that closes does so in both directions.
#[test]
fn end_of_a_guest_that_has_not_read_all_is_an_end() {
    let mut rig = Rig::new();
    let (mut client, ports) = rig.answered();
    // More than the guest and the device have room for.
    client.write_all(&pattern(150_000)).unwrap();
    rig.send(DATA, ports, 0, b"last");
    rig.send(SHUTDOWN, ports, 3, &[]);
    let mut heard = Vec::new();
    client.read_to_end(&mut heard).unwrap();
    assert_eq!(heard, b"last");
    while rig.next().op != RESET {}
}

/// Linux resets what it has shut down and has had no answer for.
#[test]
fn bytes_before_the_end_of_a_guest_reach_a_host_that_is_slow() {
    let mut rig = Rig::new();
    let mut stream = rig.dialed(52);
    let (piece, mut sent, mut forwarded, mut idle) = (pattern(8000), vec![0_u8; 0], 0, 0);
    // Until nothing fits anywhere.
    while idle < 100 {
        rig.pump();
        forwarded = rig.got.drain(..).next_back().map_or(forwarded, |packet| packet.forwarded);
        if sent.len() + piece.len() - forwarded as usize <= 64 << 10 {
            rig.send(DATA, (52, 99), 0, &piece);
            sent.extend(&piece);
            idle = 0;
        } else {
            idle += 1;
            thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(rig.open.vsock.waiting() > 0);
    rig.send(SHUTDOWN, (52, 99), 3, &[]);
    rig.send(RESET, (52, 99), 0, &[]);
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    assert!(heard == sent, "{} of {} bytes", heard.len(), sent.len());
    // Its ports can be used again meanwhile, and nothing is told of the earlier connection.
    rig.dialed(52);
}

/// True in a process where this test is alone; otherwise it has run there.
pub(super) fn alone(name: &str) -> bool {
    const ALONE: &str = "TESSERA_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let name = format!("slice::peripherals::vsock::{name}");
    let again = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success() && said.contains("1 passed"), "{said}");
    false
}

/// All descriptors that a process may have.
pub(super) fn take_descriptors() -> Vec<File> {
    let open = u64::try_from(std::fs::read_dir("/proc/self/fd").unwrap().count()).unwrap();
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(open + 20), maximum }).unwrap();
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[test]
fn without_descriptors_streams_go_on_and_new_clients_wait() {
    if !alone("tests::without_descriptors_streams_go_on_and_new_clients_wait") {
        return;
    }
    let mut rig = Rig::new();
    let (mut client, ports) = rig.answered();
    let (_listener, path) = rig.listener(52);
    let mut taken = take_descriptors();
    drop(taken.pop());
    let mut waiting = rig.client("CONNECT 7\n");
    rig.send(REQUEST, (52, 99), 0, &[]);
    let answer = rig.next();
    assert_eq!((answer.op, answer.ports), (RESET, (52, 99)), "the guest is refused");
    for _ in 0..20 {
        rig.send(DATA, ports, 0, b"question");
        assert_eq!(read(&mut client, 8), b"question");
        client.write_all(b"answer").unwrap();
        assert_eq!(rig.receive(ports, 6), b"answer");
    }
    drop(taken);
    let asked = rig.next();
    assert_eq!((asked.op, asked.ports.1), (REQUEST, 7));
    rig.send(RESPONSE, asked.ports, 0, &[]);
    assert_eq!(read(&mut waiting, 3), b"OK ");
    rig.send(REQUEST, (52, 100), 0, &[]);
    assert_eq!(rig.next().op, RESPONSE);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn streams_are_as_many_as_the_device_says_and_more_clients_wait() {
    let mut rig = Rig::new();
    // Both ends are here.
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let current = current.map(|now| maximum.unwrap_or(u64::MAX).min(now.max(8192)));
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let streams: Vec<_> = (0..CONNECTIONS_MAX).map(|_| rig.answered()).collect();
    let mut more = rig.client("CONNECT 1024\n");
    rig.send(REQUEST, (52, 5000), 0, &[]);
    assert_eq!(rig.next().op, RESET, "there is no place");
    let (mut last, ports) = streams.into_iter().next_back().unwrap();
    // The others are gone, and the guest answers their end.
    rig.send(DATA, ports, 0, b"still here");
    assert_eq!(read(&mut last, 10), b"still here");
    loop {
        let packet = rig.next();
        match packet.op {
            SHUTDOWN if packet.flags == 3 => rig.send(RESET, packet.ports, 0, &[]),
            // One that is closing gives way.
            SHUTDOWN | RESET => assert_ne!(packet.ports, ports),
            op => {
                assert_eq!(op, REQUEST);
                rig.send(RESPONSE, packet.ports, 0, &[]);
                break;
            }
        }
    }
    assert_eq!(read(&mut more, 3), b"OK ");
}

#[test]
fn who_is_not_there_or_talks_nonsense_is_let_go() {
    let mut rig = Rig::new();
    rig.send(REQUEST, (7, 1), 0, &[]);
    assert_eq!((rig.next().op, rig.got.len()), (RESET, 0));
    let long = "x".repeat(40);
    for line in ["HELLO 1\n", "CONNECT\n", "CONNECT x\n", "CONNECT 99999999999\n", long.as_str()] {
        assert!(ended(&mut rig.client(line)), "{line}");
    }
    let mut client = rig.client("CONNECT 9\n");
    let asked = rig.next();
    assert_eq!(asked.op, REQUEST);
    rig.send(RESET, asked.ports, 0, &[]);
    assert!(ended(&mut client), "the guest does not listen");
    // One that goes before it is answered.
    let client = rig.client("CONNECT 9\n");
    assert_eq!(rig.next().op, REQUEST);
    drop(client);
    assert_eq!(rig.next().op, RESET);
}

#[test]
fn reset_of_the_device_closes_streams_and_the_next_driver_starts_anew() {
    let mut rig = Rig::new();
    let (mut client, _) = rig.answered();
    rig.front.stop();
    assert!(ended(&mut client));
    assert!(ended(&mut rig.client("CONNECT 1024\n")), "there is no driver");
    rig.front.start(F_VERSION_1);
    rig.answered();
}

#[test]
fn nothing_leaves_once_the_fence_is_over() {
    let mut rig = Rig::new();
    let (listener, path) = rig.listener(52);
    listener.set_nonblocking(true).unwrap();
    let (mut client, ports) = rig.answered();
    rig.fence.shut();
    rig.send(DATA, ports, 0, b"secret");
    rig.send(REQUEST, (52, 99), 0, &[]);
    assert!(ended(&mut client), "not a byte");
    assert!(listener.accept().is_err());
    std::fs::remove_file(path).unwrap();
    rig.open.finish();
    assert!(!rig.path.exists());
}

/// What a companion does at the end of a VM, before it says that it knows.
#[test]
fn bytes_of_the_guest_arrive_at_the_end_of_the_vm() {
    let mut rig = Rig::new();
    let mut client = rig.dialed(52);
    // The host reads nothing yet: the socket fills, and then the device's buffer.
    let (mut sent, mut stalled) = (0, Instant::now());
    while stalled.elapsed() < Duration::from_millis(100) {
        rig.got.clear();
        if rig.open.vsock.waiting() + 8000 <= 64 << 10 {
            rig.send(DATA, (52, 99), 0, &pattern(8000));
            sent += 8000;
            stalled = Instant::now();
        }
        rig.pump();
    }
    assert!(rig.open.vsock.waiting() > 0);
    let reading = thread::spawn(move || {
        let mut got = Vec::new();
        let _ = client.read_to_end(&mut got);
        got.len()
    });
    rig.open.finish();
    rig.fence.shut();
    drop(rig);
    assert_eq!(reading.join().unwrap(), sent);
}

#[test]
fn socket_is_its_owners_and_goes_with_the_vm() {
    let rig = Rig::new();
    let spec = VsockSpec { cid: 4, socket: rig.path.clone() };
    let error = OpenVsock::new(&spec, &rig.fence).unwrap_err();
    assert!(crate::slice::one_line(&error).contains("another process listens at"), "{error}");
    rig.open.finish();
    assert!(!rig.path.exists());
}

#[test]
fn parse_gives_address_and_socket() {
    let spec = VsockSpec::parse(&["cid=3", "socket=/a b=c"]).unwrap();
    assert_eq!(spec, VsockSpec { cid: 3, socket: "/a b=c".into() });
    assert_eq!(spec.names(), ["vsock:/a b=c"]);
    assert!(spec.fits(&VsockShape { cid: 3 }) && !spec.fits(&VsockShape { cid: 4 }));
    for parts in [
        &[""][..],
        &["cid=3"],
        &["socket=/s"],
        &["cid=2", "socket=/s"],
        &["cid=4294967295", "socket=/s"],
        &["cid=x", "socket=/s"],
        &["cid=3", "socket="],
        &["cid=3", "socket=/s", "rings=bypass"],
    ] {
        assert!(VsockSpec::parse(parts).is_err(), "{parts:?}");
    }
}
