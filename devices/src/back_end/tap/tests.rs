//! Real taps of this machine, with UDP sockets on the host's side. They need the right to make taps.

use super::sys::{self, InterfaceName};
use super::{TapError, TapNic, TapOptions};
use crate::back_end::{Nic, PacketSink};
use rustix::net::{AddressFamily, SocketType, socket};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

const MAC: [u8; 6] = [0x02, 0x54, 0x53, 0, 0, 9];
const HEADER: [u8; 12] = [0; 12];
/// Far beyond what any test needs; it only turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(20);
const GUEST_CSUM: u64 = 1 << 1;

/// A name and a net (198.18.0.0/15 is for such tests) that no other test has.
fn fresh() -> (String, u8) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let net = (process::id().wrapping_mul(8) + count).to_le_bytes()[0];
    (format!("tst{}-{count}", process::id()), net)
}

fn options(name: &str, pairs: u16) -> TapOptions {
    TapOptions { name: name.to_owned(), pairs, mac: MAC, fence: Arc::default() }
}

/// The tap, or nothing with a word why where taps cannot be made.
fn tap(name: &str, pairs: u16) -> Option<Arc<TapNic>> {
    match TapNic::open(&options(name, pairs)) {
        Ok(nic) => Some(Arc::new(nic)),
        Err(error @ (TapError::Permission(_) | TapError::NoDriver(_))) => {
            eprintln!("not tested here: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A guest: answers ARP, and counts UDP datagrams by port and queue.
struct Guest {
    nic: Weak<TapNic>,
    address: [u8; 4],
    /// Port of the guest, queue: datagrams.
    came: Mutex<BTreeMap<(u16, u16), u32>>,
    /// Flags of the headers of datagrams.
    flags: Mutex<Vec<u8>>,
    host: Mutex<Option<[u8; 6]>>,
}

impl PacketSink for Guest {
    fn packet(&self, pair: u16, bytes: Vec<u8>) {
        let (header, frame) = bytes.split_at(12);
        let nic = self.nic.upgrade().expect("the tap lives");
        nic.allow(pair, 1);
        match frame.get(12..14) {
            Some([8, 6]) if frame[20..22] == [0, 1] && frame[38..42] == self.address => {
                let host: [u8; 6] = frame[6..12].try_into().unwrap();
                *self.host.lock().unwrap() = Some(host);
                let arp = [&frame[14..20], &[0, 2], &MAC, &self.address, &frame[22..32]].concat();
                let answer = [&HEADER[..], &host, &MAC, &[8, 6], &arp].concat();
                nic.transmit(pair, vec![answer], Box::new(|| ()));
            }
            Some([8, 0]) if frame[23] == 17 => {
                let port = u16::from_be_bytes(frame[36..38].try_into().unwrap());
                *self.came.lock().unwrap().entry((port, pair)).or_default() += 1;
                self.flags.lock().unwrap().push(header[0]);
            }
            _ => {}
        }
    }
}

/// A datagram of the guest, with headers. Without UDP checksum, which IPv4 permits.
fn datagram(host: [u8; 6], from: ([u8; 4], u16), to: SocketAddr) -> Vec<u8> {
    let SocketAddr::V4(to) = to else { panic!("IPv4") };
    let mut ip = [69, 0, 0, 32, 0, 0, 64, 0, 64, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    ip[12..16].copy_from_slice(&from.0);
    ip[16..20].copy_from_slice(&to.ip().octets());
    let words = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let ports = [from.1.to_be_bytes(), to.port().to_be_bytes()].concat();
    [&HEADER[..], &host, &MAC, &[8, 0], &ip, &ports, &[0, 12, 0, 0], b"ping"].concat()
}

/// A tap with an address on the host, a guest behind it and a socket on the host.
struct Net {
    nic: Arc<TapNic>,
    guest: Arc<Guest>,
    socket: UdpSocket,
}

impl Net {
    fn new(pairs: u16, features: u64) -> Option<Self> {
        let (name, net) = fresh();
        let nic = tap(&name, pairs)?;
        let control = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
        let known = InterfaceName::new(&name).unwrap();
        sys::set_address(control.as_raw_fd(), &known, [198, 18, net, 1]).unwrap();
        let guest = Arc::new(Guest {
            nic: Arc::downgrade(&nic),
            address: [198, 18, net, 2],
            came: Mutex::default(),
            flags: Mutex::default(),
            host: Mutex::default(),
        });
        nic.connect(features, pairs, Some(Arc::<Guest>::clone(&guest)));
        (0..pairs).for_each(|pair| nic.allow(pair, 64));
        let socket = UdpSocket::bind((Ipv4Addr::new(198, 18, net, 1), 0)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let net = Self { nic, guest, socket };
        // The host asks for the guest's hardware address first, by which the guest learns the host's.
        net.host_sends(9);
        net.wait(|came| came.keys().any(|key| key.0 == 9));
        net.guest.came.lock().unwrap().clear();
        Some(net)
    }

    fn host_sends(&self, port: u16) {
        self.socket.send_to(b"pong", (Ipv4Addr::from(self.guest.address), port)).unwrap();
    }

    /// The guest sends from this port through this queue, and the host answers.
    fn exchange(&self, port: u16, queue: u16) {
        let host = self.guest.host.lock().unwrap().expect("the host has asked");
        let to = self.socket.local_addr().unwrap();
        let packet = datagram(host, (self.guest.address, port), to);
        self.nic.transmit(queue, vec![packet], Box::new(|| ()));
        let mut bytes = [0; 16];
        let (count, from) = self.socket.recv_from(&mut bytes).expect("the guest's datagram");
        assert_eq!((&bytes[..count], from.port()), (&b"ping"[..], port));
        self.host_sends(port);
    }

    fn wait(&self, done: impl Fn(&BTreeMap<(u16, u16), u32>) -> bool) {
        let start = Instant::now();
        while !done(&self.guest.came.lock().unwrap()) {
            assert!(start.elapsed() < PATIENCE, "{:?}", self.guest.came.lock().unwrap());
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn answers_come_to_the_queue_that_last_sent_on_their_flow() {
    let Some(net) = Net::new(2, 0) else { return };
    let ports = || 4000..4032_u16;
    for port in ports() {
        net.exchange(port, port % 2);
    }
    net.wait(|came| came.values().sum::<u32>() == 32);
    let came = std::mem::take(&mut *net.guest.came.lock().unwrap());
    assert!(came.keys().all(|(port, queue)| port % 2 == *queue), "{came:?}");

    // Each flow moves to the other queue, as with a thread that moves to another vCPU.
    for port in ports() {
        net.exchange(port, 1 - port % 2);
    }
    net.wait(|came| came.values().sum::<u32>() == 32);
    let came = net.guest.came.lock().unwrap().clone();
    assert!(came.keys().all(|(port, queue)| port % 2 != *queue), "{came:?}");
    assert_eq!(net.nic.dropped(), 0);
}

#[test]
fn queue_out_of_use_gets_nothing() {
    let Some(net) = Net::new(2, 0) else { return };
    net.nic.connect(0, 1, Some(Arc::<Guest>::clone(&net.guest)));
    net.nic.allow(0, 64);
    net.nic.allow(1, 64);

    // Ports whose flows the kernel spreads over all queues in use.
    (5000..5032).for_each(|port| net.host_sends(port));
    net.wait(|came| came.values().sum::<u32>() == 32);

    let came = net.guest.came.lock().unwrap().clone();
    assert!(came.keys().all(|(_, queue)| *queue == 0), "{came:?}");
}

#[test]
fn checksums_are_left_to_a_guest_that_agreed() {
    for (features, flag) in [(0, 0), (GUEST_CSUM, 1)] {
        let Some(net) = Net::new(1, features) else { return };
        net.guest.flags.lock().unwrap().clear();
        net.exchange(6000, 0);
        net.wait(|came| came.contains_key(&(6000, 0)));
        // `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the host did not finish it.
        assert!(net.guest.flags.lock().unwrap().iter().all(|flags| flags & 1 == flag));
    }
}

#[test]
fn only_allowed_packets_come_and_none_after_a_disconnect() {
    let Some(net) = Net::new(1, 0) else { return };
    struct Count(AtomicU32);
    impl PacketSink for Count {
        fn packet(&self, _: u16, _: Vec<u8>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let count = Arc::new(Count(AtomicU32::new(0)));
    net.nic.connect(0, 1, Some(Arc::<Count>::clone(&count)));
    (7000..7010).for_each(|port| net.host_sends(port));
    net.nic.allow(0, 3);
    let start = Instant::now();
    while count.0.load(Ordering::Relaxed) < 3 {
        assert!(start.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(1));
    }
    // Ten wait, three were allowed: the thread has nothing to read for.
    thread::sleep(Duration::from_millis(20));
    assert_eq!(count.0.load(Ordering::Relaxed), 3);

    net.nic.connect(0, 0, None);
    net.nic.allow(0, 100);
    (7010..7020).for_each(|port| net.host_sends(port));
    thread::sleep(Duration::from_millis(20));
    assert_eq!(count.0.load(Ordering::Relaxed), 3);
}

#[test]
fn tap_of_an_operator_is_used_by_one_at_a_time() {
    let (name, _) = fresh();
    let Some(first) = tap(&name, 2) else { return };
    let known = InterfaceName::new(&name).unwrap();
    sys::set_persistent(&first.files[0], true).unwrap();
    let second = TapNic::open(&options(&name, 1));
    assert!(matches!(second, Err(TapError::InUse(_))), "{second:?}");
    drop(first);

    // It is still there, and serves the next one.
    let again = tap(&name, 2).expect("a tap that nobody uses");
    assert_eq!(again.shape().pairs, 2);
    sys::set_persistent(&again.files[0], false).unwrap();
    drop(again);
    let control = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
    assert!(sys::mtu(control.as_raw_fd(), &known).is_err(), "gone with its last queue");
}

#[test]
fn tap_that_cannot_be_used_is_refused_with_its_reason() {
    for name in ["", "with space", "a/b", "tap%d", "sixteen-letters-"] {
        let refused = TapNic::open(&options(name, 1));
        assert!(matches!(refused, Err(TapError::Name(_))), "{refused:?}");
    }
    for pairs in [0, 257] {
        let refused = TapNic::open(&options("tst", pairs));
        assert!(matches!(refused, Err(TapError::Pairs { .. })), "{refused:?}");
    }
    let (name, _) = fresh();
    let Ok(_single) = sys::open_single(&InterfaceName::new(&name).unwrap()) else {
        eprintln!("not tested here: no taps");
        return;
    };
    let refused = TapNic::open(&options(&name, 1));
    assert!(matches!(refused, Err(TapError::NoMultiqueue(_))), "{refused:?}");
    let refused = TapNic::open(&options("lo", 1));
    assert!(matches!(refused, Err(TapError::NoMultiqueue(_) | TapError::Other { .. })));
}
