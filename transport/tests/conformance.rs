//! One contract, three carriers: every test here runs over TCP, over shared memory and, where there is
//! an RDMA port, over queue pairs. Where there is none, those are skipped; `./x lab rdma` runs them on a lab
//! host with soft-RoCE, and insists. They run again over meshes that started with one slice and grew.
#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

mod growing;

use needs::Need;
use rustix::time::{ClockId, clock_gettime};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::thread;
use std::time::{Duration, Instant};
use tessera_transport::tcp::mesh as tcp_mesh;
use tessera_transport::{
    CarrierKind, Class, Config, Event, FRAME_BYTES_MAX, MeshTransport, RUN_BYTES_MAX,
    RdmaTransport, SendError, ShmTransport, TcpTransport, Transport, rdma as verbs, shm,
};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use wire::SliceId;

const A: SliceId = SliceId(0);
const B: SliceId = SliceId(1);
/// Far beyond anything a healthy run needs; it only turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// Something that makes connected slices `0..n`.
trait Backend {
    type Carrier: Transport + 'static;
    /// What was sent is there when `send` returns. An adapter takes its time.
    const AT_ONCE: bool;
    fn mesh(n: u16, config: &Config) -> Vec<Self::Carrier>;
}

struct Tcp;
struct Shm;
struct Rdma;

impl Backend for Tcp {
    type Carrier = TcpTransport;
    const AT_ONCE: bool = true;

    fn mesh(n: u16, config: &Config) -> Vec<TcpTransport> {
        tcp_mesh(n, config).unwrap()
    }
}

impl Backend for Shm {
    type Carrier = ShmTransport;
    const AT_ONCE: bool = true;

    fn mesh(n: u16, config: &Config) -> Vec<ShmTransport> {
        shm::mesh(n, config).unwrap()
    }
}

impl Backend for Rdma {
    type Carrier = RdmaTransport;
    const AT_ONCE: bool = false;

    fn mesh(n: u16, config: &Config) -> Vec<RdmaTransport> {
        verbs::mesh(n, config).unwrap()
    }
}

struct GrownTcp;
struct GrownShm;

impl Backend for GrownTcp {
    type Carrier = Grown;
    const AT_ONCE: bool = true;

    fn mesh(n: u16, config: &Config) -> Vec<Grown> {
        grown(n, config, CarrierKind::Tcp)
    }
}

impl Backend for GrownShm {
    type Carrier = Grown;
    const AT_ONCE: bool = true;

    fn mesh(n: u16, config: &Config) -> Vec<Grown> {
        grown(n, config, CarrierKind::Shm)
    }
}

fn grown(n: u16, config: &Config, kind: CarrierKind) -> Vec<Grown> {
    let config = Config { carriers: vec![kind], ..config.clone() };
    let mesh = growing::grown(n, config);
    assert!(mesh.iter().all(|slice| slice.kind == kind));
    mesh.into_iter().map(Grown).collect()
}

/// A slice of a mesh that grew.
struct Grown(MeshTransport);

impl Transport for Grown {
    fn local(&self) -> SliceId {
        self.0.transport.local()
    }

    fn peers(&self) -> &[SliceId] {
        self.0.transport.peers()
    }

    fn send(
        &mut self,
        to: SliceId,
        class: Class,
        head: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.0.transport.send(to, class, head, payload)
    }

    fn cork(&mut self, on: bool) {
        self.0.transport.cork(on);
    }

    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        self.0.transport.poll(budget, sink)
    }

    fn take_heard(&mut self, sink: &mut dyn FnMut(SliceId, u64)) {
        self.0.transport.take_heard(sink);
    }

    fn readiness(&self) -> BorrowedFd<'_> {
        self.0.transport.readiness()
    }

    fn limit_runs(&mut self, frames: usize) {
        self.0.transport.limit_runs(frames);
    }

    fn has_remote_write(&self, peer: SliceId) -> bool {
        self.0.transport.has_remote_write(peer)
    }

    fn remote_write(
        &mut self,
        to: SliceId,
        class: Class,
        head: &[u8],
        offset: u64,
        pages: u16,
    ) -> Result<(), SendError> {
        self.0.transport.remote_write(to, class, head, offset, pages)
    }
}

fn has_rdma() -> bool {
    needs::has(Need::Rdma, verbs::available())
}

/// What a poll reported, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Frame(SliceId, Class, Vec<u8>),
    Lost(SliceId, String),
}

fn poll(transport: &mut dyn Transport, budget: usize) -> Vec<Seen> {
    let mut seen = Vec::new();
    let count = transport.poll(budget, &mut |event| {
        seen.push(match event {
            Event::Frame { from, class, bytes } => Seen::Frame(from, class, bytes.to_vec()),
            Event::Lost { peer, cause } => Seen::Lost(peer, cause),
            Event::Head { .. } | Event::DirectlyReceived { .. } => panic!("no memory was exposed"),
        });
    });
    assert_eq!(count, seen.len());
    assert!(count <= budget);
    seen
}

/// Sleeps until `transport` has something to do. False at the deadline.
fn wait(transport: &dyn Transport, limit: Duration) -> bool {
    let epoll = Epoll::new().unwrap();
    let fd = transport.readiness().as_raw_fd();
    epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(EventSet::IN, 0)).unwrap();
    let mut events = [EpollEvent::default()];
    let limit = i32::try_from(limit.as_millis()).unwrap();
    matches!(epoll.wait(limit, &mut events), Ok(1))
}

/// Polls `transport` by its readiness only, until it reported `count` events.
fn gather(transport: &mut dyn Transport, count: usize) -> Vec<Seen> {
    let end = Instant::now() + PATIENCE;
    let mut seen = Vec::new();
    while seen.len() < count {
        assert!(Instant::now() < end, "only {} of {count} events came", seen.len());
        wait(transport, PATIENCE);
        seen.extend(poll(transport, count - seen.len()));
    }
    seen
}

/// The same while the sender is polled too: what finds no room in the carrier goes out by its polls.
fn gather_from(from: &mut dyn Transport, to: &mut dyn Transport, count: usize) -> Vec<Seen> {
    let end = Instant::now() + PATIENCE;
    let mut seen = Vec::new();
    while seen.len() < count {
        assert!(Instant::now() < end, "only {} of {count} events came", seen.len());
        poll(from, 16);
        wait(to, Duration::from_millis(5));
        seen.extend(poll(to, count - seen.len()));
    }
    seen
}

fn pair<T: Backend>(config: &Config) -> (T::Carrier, T::Carrier) {
    let mut mesh = T::mesh(2, config);
    let second = mesh.pop().unwrap();
    (mesh.pop().unwrap(), second)
}

/// The smallest bounds, so that they are reached soon.
fn tight() -> Config {
    Config {
        window: [160 * 1024, 160 * 1024, 640 * 1024, 160 * 1024],
        queue_frames: 4096,
        ..Config::default()
    }
}

fn members_are_known<T: Backend>() {
    let mesh = T::mesh(3, &Config::default());

    assert_eq!(mesh[1].local(), SliceId(1));
    assert_eq!(mesh[1].peers(), &[SliceId(0), SliceId(2)]);
}

fn order_within_a_class_is_kept<T: Backend>() {
    let (mut a, mut b) = pair::<T>(&Config::default());
    for n in 0..300u32 {
        for class in Class::ALL {
            a.send(B, class, &n.to_le_bytes(), &[9]).unwrap();
        }
    }

    let seen = gather_from(&mut a, &mut b, 1200);

    for class in Class::ALL {
        let numbers: Vec<Vec<u8>> = seen
            .iter()
            .filter_map(|event| match event {
                Seen::Frame(from, got, bytes) if *got == class && *from == A => Some(bytes.clone()),
                _ => None,
            })
            .collect();
        let sent: Vec<Vec<u8>> =
            (0..300u32).map(|n| [&n.to_le_bytes()[..], &[9]].concat()).collect();
        assert_eq!(numbers, sent);
    }
}

/// Corked, only interrupts are written; uncorked, everything comes in the order in which it was sent.
fn corked_frames_come_together_and_in_order<T: Backend>() {
    let (mut a, mut b) = pair::<T>(&Config::default());
    a.send(B, Class::Coherence, &[0], &[]).unwrap();
    assert_eq!(gather(&mut b, 1).len(), 1);
    a.cork(true);
    // More than one ring or socket buffer takes at once.
    for n in 1..=200u8 {
        a.send(B, Class::Coherence, &[n], &[n; 4096]).unwrap();
    }
    a.send(B, Class::Interrupt, &[7], &[]).unwrap();
    let interrupt = Seen::Frame(A, Class::Interrupt, vec![7]);
    assert_eq!(gather(&mut b, 1), [interrupt], "an interrupt does not wait for pages");
    assert_eq!(poll(&mut b, 300), [], "nothing else is written while corked");
    a.cork(false);
    a.send(B, Class::Coherence, &[201], &[]).unwrap();

    let end = Instant::now() + PATIENCE;
    let mut heads = Vec::new();
    while heads.len() < 201 {
        assert!(Instant::now() < end, "only {} frames came", heads.len());
        for seen in poll(&mut b, 64) {
            match seen {
                Seen::Frame(_, Class::Coherence, bytes) => heads.push(bytes[0]),
                other => panic!("{other:?}"),
            }
        }
        poll(&mut a, 1);
    }
    assert_eq!(heads, (1..=201).collect::<Vec<u8>>());
}

fn more_urgent_classes_come_first<T: Backend>() {
    let (mut a, mut b) = pair::<T>(&Config::default());
    a.send(B, Class::Bulk, b"bulk", &[]).unwrap();
    a.send(B, Class::Run, b"pages", &[]).unwrap();
    a.send(B, Class::Coherence, b"page", &[]).unwrap();
    a.send(B, Class::Interrupt, b"irq", &[]).unwrap();

    let mut classes = Vec::new();
    let end = Instant::now() + PATIENCE;
    while classes.len() < Class::COUNT {
        assert!(Instant::now() < end, "only {classes:?} came");
        wait(&b, PATIENCE);
        let batch: Vec<Class> = poll(&mut b, 3)
            .into_iter()
            .map(|event| match event {
                Seen::Frame(_, class, _) => class,
                Seen::Lost(_, cause) => panic!("{cause}"),
            })
            .collect();
        // An adapter may bring one later than another; of what is there, the more urgent comes first.
        assert!(batch.is_sorted(), "{batch:?}");
        classes.extend(batch);
    }
    classes.sort();
    assert_eq!(classes, Class::ALL);
}

fn full_stream_does_not_delay_what_is_more_urgent<T: Backend>() {
    for [full, urgent] in [[Class::Bulk, Class::Interrupt], [Class::Run, Class::Coherence]] {
        let (mut a, mut b) = pair::<T>(&tight());
        let page = [3; 4096];
        let mut sent = 0;
        while a.send(B, full, &[], &page).is_ok() {
            sent += 1;
        }

        a.send(B, urgent, b"now", &[]).unwrap();

        let overtaken = |event: &Seen| matches!(event, Seen::Frame(A, class, _) if *class == full);
        let mut before = 0;
        let mut next = gather(&mut b, 1);
        while next.iter().all(overtaken) {
            before += 1;
            assert!(before < sent, "{urgent:?} came after all of {full:?}");
            next = gather(&mut b, 1);
        }
        assert_eq!(next, vec![Seen::Frame(A, urgent, b"now".to_vec())]);
        assert!(!T::AT_ONCE || before == 0, "{before} frames of {full:?} came first");
    }
}

fn runs_are_handed_over_a_few_at_a_time<T: Backend>() {
    let (mut a, mut b) = pair::<T>(&Config::default());
    b.limit_runs(2);
    for n in 0..7u8 {
        a.send(B, Class::Run, &[n], &[]).unwrap();
    }
    let mut seen = Vec::new();
    let end = Instant::now() + PATIENCE;
    while seen.len() < 7 {
        assert!(Instant::now() < end, "only {seen:?} came");
        assert!(wait(&b, PATIENCE), "what is left wakes the owner");
        let some = poll(&mut b, 64);
        assert!(some.len() <= 2, "{some:?}");
        seen.extend(some);
    }
    assert!((0..7).zip(seen).all(|(n, seen)| seen == Seen::Frame(A, Class::Run, vec![n])));
    for class in [Class::Coherence, Class::Bulk] {
        (0..7u8).for_each(|n| a.send(B, class, &[n], &[]).unwrap());
        assert_eq!(gather(&mut b, 7).len(), 7);
    }
}

fn receiver_that_does_not_poll_is_not_flooded<T: Backend>() {
    let config = tight();
    let (mut a, mut b) = pair::<T>(&config);
    let page = [3; 4096];
    let mut sent = 0;
    while a.send(B, Class::Coherence, &[], &page).is_ok() {
        sent += 1;
        poll(&mut a, 16);
    }

    assert_eq!(a.send(B, Class::Coherence, &[], &page), Err(SendError::Full));
    assert_eq!(sent, usize::try_from(config.window[1]).unwrap() / (4096 + 8));
    // Nothing but the receiver's polling frees credit again, and its sender is woken for it.
    assert_eq!(gather_both(&mut a, &mut b, sent), sent);
    let end = Instant::now() + PATIENCE;
    while a.send(B, Class::Coherence, &[], &page).is_err() {
        assert!(Instant::now() < end);
        wait(&a, PATIENCE);
        poll(&mut a, 16);
    }
}

/// Polls both ends until `to` got `count` frames; returns how many it got.
fn gather_both(from: &mut dyn Transport, to: &mut dyn Transport, count: usize) -> usize {
    let end = Instant::now() + PATIENCE;
    let mut seen = 0;
    while seen < count && Instant::now() < end {
        poll(from, 16);
        seen += poll(to, 16).len();
    }
    seen
}

fn waiting_frames_are_bounded<T: Backend>() {
    let config = Config { window: [64 << 20; Class::COUNT], queue_frames: 3, ..Config::default() };
    let (mut a, _b) = pair::<T>(&config);
    let large = vec![1; FRAME_BYTES_MAX];

    let sent = (0..1000).take_while(|_| a.send(B, Class::Bulk, &[], &large).is_ok()).count();

    // The socket or ring takes some; then three wait, and no more.
    assert!((3..1000).contains(&sent), "{sent}");
    assert_eq!(a.send(B, Class::Bulk, &[], &[1]), Err(SendError::Full));
}

fn too_large_and_unknown_are_refused<T: Backend>() {
    let (mut a, _b) = pair::<T>(&Config::default());
    let large = vec![0; FRAME_BYTES_MAX];

    assert_eq!(a.send(B, Class::Bulk, &[1], &large), Err(SendError::TooLarge));
    let run = vec![0; RUN_BYTES_MAX];
    assert_eq!(a.send(B, Class::Run, &[1], &run), Err(SendError::TooLarge));
    assert_eq!(a.send(B, Class::Run, &[], &run), Ok(()));
    assert_eq!(a.send(B, Class::Coherence, &[], &run), Err(SendError::TooLarge));
    assert_eq!(a.send(SliceId(7), Class::Bulk, &[], &[]), Err(SendError::Gone));
    assert_eq!(a.send(A, Class::Bulk, &[], &[]), Err(SendError::Gone));
}

fn nothing_is_written_into_memory_that_is_not_exposed<T: Backend>() {
    let (mut a, mut b) = pair::<T>(&Config::default());

    for peer in [A, B, SliceId(9)] {
        assert!(!a.has_remote_write(peer));
    }
    assert_eq!(a.remote_write(B, Class::Coherence, b"head", 0, 1), Err(SendError::Full));
    // Nothing of it was sent, and the next frame is the first.
    a.send(B, Class::Coherence, b"after", &[]).unwrap();
    let seen = gather_from(&mut a, &mut b, 1);
    assert_eq!(seen, vec![Seen::Frame(A, Class::Coherence, b"after".to_vec())]);
}

fn frames_of_all_sizes_survive_partial_writes<T: Backend>() {
    let (mut a, mut b) = pair::<T>(&tight());
    let sizes: Vec<usize> = [0, 1, 7, 8, 9, 4095, 4096, 4097, FRAME_BYTES_MAX, RUN_BYTES_MAX]
        .into_iter()
        .cycle()
        .take(200)
        .collect();
    let fill = |n: usize| u8::try_from(n % 251).unwrap();
    let plan = sizes.clone();
    let sender = thread::spawn(move || {
        for (n, size) in plan.into_iter().enumerate() {
            let frame = vec![fill(n); size];
            let (head, payload) = frame.split_at(size / 3);
            while let Err(error) = a.send(B, Class::Run, head, payload) {
                assert_eq!(error, SendError::Full);
                wait(&a, PATIENCE);
                poll(&mut a, 16);
            }
        }
        a
    });

    let mut seen = Vec::new();
    let mut sender = Some(sender);
    let mut kept = None;
    while seen.len() < sizes.len() {
        if sender.as_ref().is_some_and(thread::JoinHandle::is_finished) {
            kept = sender.take().map(|sender| sender.join().unwrap());
        }
        if let Some(a) = &mut kept {
            poll(a, 16);
        }
        wait(&b, Duration::from_millis(1));
        seen.extend(poll(&mut b, 3));
    }

    for (n, (event, size)) in seen.iter().zip(&sizes).enumerate() {
        assert!(*event == Seen::Frame(A, Class::Run, vec![fill(n); *size]), "frame {n}");
    }
}

fn loss_is_reported_once_after_what_was_sent<T: Backend>() {
    let (mut a, mut b) = pair::<T>(&Config::default());
    b.send(A, Class::Coherence, b"last", b" words").unwrap();
    drop(b);

    let seen = gather(&mut a, 2);

    assert_eq!(seen[0], Seen::Frame(B, Class::Coherence, b"last words".to_vec()));
    let Seen::Lost(B, cause) = &seen[1] else { panic!("{seen:?}") };
    assert!(cause.starts_with("slice1 at "), "{cause}");
    assert_eq!(a.send(B, Class::Interrupt, &[], &[]), Err(SendError::Gone));
    for _ in 0..5 {
        assert_eq!(poll(&mut a, 16), vec![]);
    }
    assert_eq!(a.peers(), &[B]);
}

fn one_loss_leaves_the_others<T: Backend>() {
    let mut mesh = T::mesh(3, &Config::default());
    let mut c = mesh.pop().unwrap();
    drop(mesh.pop());
    let mut a = mesh.pop().unwrap();

    let seen = gather(&mut a, 1);
    c.send(A, Class::Bulk, b"still", b" here").unwrap();

    assert!(matches!(&seen[..], [Seen::Lost(SliceId(1), _)]), "{seen:?}");
    let next = gather(&mut a, 1);
    assert_eq!(next, vec![Seen::Frame(SliceId(2), Class::Bulk, b"still here".to_vec())]);
    assert!(matches!(&gather(&mut c, 1)[..], [Seen::Lost(SliceId(1), _)]));
}

fn silent_peer_loses_its_lease<T: Backend>() {
    let config = Config { lease: Duration::from_millis(40), ..Config::default() };
    let (mut a, _b) = pair::<T>(&config);

    let seen = gather(&mut a, 1);

    let [Seen::Lost(B, cause)] = &seen[..] else { panic!("{seen:?}") };
    assert!(cause.contains("was silent for its lease of 40ms"), "{cause}");
}

/// Who was there later than was known, and when.
fn heard(transport: &mut impl Transport) -> Vec<(SliceId, u64)> {
    let mut heard = Vec::new();
    transport.take_heard(&mut |peer, at| heard.push((peer, at)));
    heard
}

fn boot_time_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

fn who_was_heard_is_told_once<T: Backend>() {
    let config = Config { lease: Duration::from_millis(400), ..Config::default() };
    let mut mesh = T::mesh(3, &config);
    let start = boot_time_ns();
    assert_eq!(heard(&mut mesh[0]), [], "nobody has sent anything back");
    // Slice 1 says nothing but that it is there, slice 2 not even that.
    let mut last = start;
    let mut times = 0;
    let seen = loop {
        let seen = poll(&mut mesh[0], 64);
        poll(&mut mesh[1], 64);
        for (peer, at) in heard(&mut mesh[0]) {
            assert_eq!(peer, SliceId(1));
            assert!(last < at && at <= boot_time_ns(), "{last} {at}");
            (last, times) = (at, times + 1);
        }
        assert_eq!(heard(&mut mesh[0]), [], "it was told");
        if !seen.is_empty() {
            break seen;
        }
    };
    assert!(matches!(&seen[..], [Seen::Lost(SliceId(2), _)]), "{seen:?}");
    assert!(times > 0);
}

/// What a peer has said may wait here, or on its way, for as long as it likes.
fn peer_was_there_when_it_is_said_to_have_been<T: Backend>() {
    let config = Config { lease: Duration::from_millis(400), ..Config::default() };
    let (mut a, mut b) = pair::<T>(&config);
    let (mut count, mut taken) = (0, Vec::new());
    while count < 2 {
        poll(&mut a, 64);
        poll(&mut b, 64);
        taken = heard(&mut a);
        count += taken.len();
    }
    let mut last = taken.pop().unwrap().1;
    // B fills what A does not read, says once more that it is there, and is gone.
    while b.send(A, Class::Coherence, &[7; 1000], &[]) == Ok(()) {}
    thread::sleep(config.lease / 3);
    poll(&mut b, 64);
    let gone = boot_time_ns();
    thread::sleep(config.lease / 3);
    let seen = loop {
        let seen = poll(&mut a, 4);
        for (_, at) in heard(&mut a) {
            assert!(last < at && at < gone, "{last} {at} {gone}");
            last = at;
        }
        if seen.iter().any(|it| matches!(it, Seen::Lost(..))) {
            break seen;
        }
    };
    assert!(matches!(&seen.last(), Some(Seen::Lost(B, _))), "{seen:?}");
}

fn idle_peers_keep_their_lease<T: Backend>() {
    let config = Config { lease: Duration::from_secs(1), ..Config::default() };
    let (mut a, mut b) = pair::<T>(&config);
    let end = Instant::now() + 5 * config.lease / 2;
    let other = thread::spawn(move || {
        let mut seen = Vec::new();
        while Instant::now() < end {
            wait(&b, Duration::from_millis(200));
            seen.extend(poll(&mut b, 16));
        }
        (b, seen)
    });

    let mut seen = Vec::new();
    while Instant::now() < end {
        wait(&a, Duration::from_millis(200));
        seen.extend(poll(&mut a, 16));
    }

    let (_b, others) = other.join().unwrap();
    assert_eq!((seen, others), (vec![], vec![]));
}

fn readiness_wakes_a_sleeper<T: Backend>() {
    let (mut a, mut b) = pair::<T>(&Config::default());
    poll(&mut b, 16);
    let sleeper = thread::spawn(move || gather(&mut b, 1));

    a.send(B, Class::Interrupt, b"wake", b" up").unwrap();

    let seen = sleeper.join().unwrap();
    assert_eq!(seen, vec![Seen::Frame(A, Class::Interrupt, b"wake up".to_vec())]);
}

fn readiness_stays_while_the_budget_left_work<T: Backend>() {
    let (mut a, mut b) = pair::<T>(&Config::default());
    for n in 0..5u8 {
        a.send(B, Class::Bulk, &[n], &[]).unwrap();
    }
    let first = gather(&mut b, 2);

    assert!(wait(&b, Duration::ZERO));
    let rest = gather(&mut b, 3);

    assert_eq!(first[0], Seen::Frame(A, Class::Bulk, vec![0]));
    assert_eq!(rest[2], Seen::Frame(A, Class::Bulk, vec![4]));
    poll(&mut b, 16);
    assert!(!wait(&b, Duration::ZERO), "nothing is left to do");
}

fn poll_without_budget_hands_nothing_over<T: Backend>() {
    let (mut a, mut b) = pair::<T>(&Config::default());
    a.send(B, Class::Interrupt, b"x", &[]).unwrap();

    assert_eq!(poll(&mut b, 0), vec![]);
    assert_eq!(gather(&mut b, 1), vec![Seen::Frame(A, Class::Interrupt, b"x".to_vec())]);
}

macro_rules! conformance {
    ($($name:ident),+ $(,)?) => {
        mod tcp {
            $(#[test] fn $name() { super::$name::<super::Tcp>(); })+
        }
        mod shared_memory {
            $(#[test] fn $name() { super::$name::<super::Shm>(); })+
        }
        mod tcp_grown {
            $(#[test] fn $name() { super::$name::<super::GrownTcp>(); })+
        }
        mod shared_memory_grown {
            $(#[test] fn $name() { super::$name::<super::GrownShm>(); })+
        }
        mod rdma {
            $(#[test] fn $name() {
                if super::has_rdma() {
                    super::$name::<super::Rdma>();
                }
            })+
        }
    };
}

conformance!(
    members_are_known,
    order_within_a_class_is_kept,
    corked_frames_come_together_and_in_order,
    more_urgent_classes_come_first,
    full_stream_does_not_delay_what_is_more_urgent,
    runs_are_handed_over_a_few_at_a_time,
    receiver_that_does_not_poll_is_not_flooded,
    waiting_frames_are_bounded,
    too_large_and_unknown_are_refused,
    nothing_is_written_into_memory_that_is_not_exposed,
    frames_of_all_sizes_survive_partial_writes,
    loss_is_reported_once_after_what_was_sent,
    one_loss_leaves_the_others,
    silent_peer_loses_its_lease,
    who_was_heard_is_told_once,
    peer_was_there_when_it_is_said_to_have_been,
    idle_peers_keep_their_lease,
    readiness_wakes_a_sleeper,
    readiness_stays_while_the_budget_left_work,
    poll_without_budget_hands_nothing_over,
);
