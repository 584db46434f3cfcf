//! The control socket as a client sees it: who may have it, what it refuses, what it tells.
#![expect(unsafe_code, reason = "the test touches guest memory as a vCPU would")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]
// UNSAFETY: guest memory is reached by address, as KVM reaches it.

use devices::delegate::Counts;
use dsm::{
    Engine, EngineConfig, EngineError, GuestRam, Handle, HomeRange, HomeTable, NodeConfig, Tracing,
    Uplink,
};
use migrate::PlacementView;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::id;
use std::ptr::with_exposed_provenance;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};
use tessera_vmm::control::{
    Answer, Client, ClientError, ControlSocket, Desk, REQUEST_MAX, ReportRequest, Request, Since,
    SocketError, TraceAnswer, TraceRequest, TuneRequest,
};
use transport::{Class, Config, shm};
use wire::{Epoch, SliceId};

const LIMIT: Duration = Duration::from_secs(30);

/// A folder that goes away with its test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tessera-control-{}-{number}", id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("vm.sock")
    }

    fn names(&self) -> usize {
        fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays behind is no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn ask(since: Since) -> Request {
    Request::Trace(TraceRequest { top: 5, since })
}

#[test]
fn socket_is_its_owners_and_goes_with_it() {
    let folder = Folder::new();
    let socket = ControlSocket::open(&folder.socket(), Desk::new()).unwrap();
    let mode = fs::metadata(folder.socket()).unwrap().permissions().mode();
    assert_eq!((mode & 0o777, folder.names()), (0o600, 1));

    let mut client = Client::connect(&folder.socket()).unwrap();
    let error = client.ask(&ask(Since::Start)).unwrap_err();
    assert!(error.to_string().contains("no memory engine runs here"), "{error}");
    drop(socket);
    assert_eq!(folder.names(), 0);
    assert!(client.ask(&ask(Since::Start)).is_err());
    assert!(matches!(Client::connect(&folder.socket()), Err(ClientError::Connect { .. })));
}

#[test]
fn name_in_use_is_refused_and_a_stale_one_replaced() {
    let folder = Folder::new();
    let path = folder.socket();
    let first = ControlSocket::open(&path, Desk::new()).unwrap();
    assert!(
        matches!(ControlSocket::open(&path, Desk::new()), Err(SocketError::Taken(at)) if at == path)
    );
    assert!(Client::connect(&path).is_ok(), "the first is still there");
    drop(first);

    // A process that is gone leaves its name.
    drop(UnixListener::bind(&path).unwrap());
    let second = ControlSocket::open(&path, Desk::new()).unwrap();
    // A name that another took over is not ours to remove.
    fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    drop(second);
    assert_eq!(folder.names(), 1);
    drop(other);
    fs::remove_file(&path).unwrap();

    fs::write(&path, "mine").unwrap();
    assert!(matches!(ControlSocket::open(&path, Desk::new()), Err(SocketError::NoSocket(_))));
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    let nowhere = folder.0.join("no/vm.sock");
    assert!(matches!(ControlSocket::open(&nowhere, Desk::new()), Err(SocketError::Listen { .. })));
}

#[test]
fn garbage_is_answered_and_an_endless_line_ends_the_connection() {
    let folder = Folder::new();
    let _socket = ControlSocket::open(&folder.socket(), Desk::new()).unwrap();
    let stream = UnixStream::connect(folder.socket()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut refused = || {
        let answer: Answer = serde_json::from_str(&lines.next()?.unwrap()).unwrap();
        Some(matches!(answer, Answer::Refused(_)))
    };
    for line in ["\n", "no json\n", "{\"destroy\":1}\n", "\u{0}\u{ff}\n"] {
        (&stream).write_all(line.as_bytes()).unwrap();
        assert_eq!(refused(), Some(true), "{line:?}");
    }
    (&stream).write_all(&vec![b' '; REQUEST_MAX + 1]).unwrap();
    assert_eq!(refused(), Some(true));
    assert_eq!(refused(), None);
}

#[test]
fn clients_are_bounded_and_make_room() {
    let folder = Folder::new();
    let _socket = ControlSocket::open(&folder.socket(), Desk::new()).unwrap();
    // Whoever has an answer to a request is in.
    let join = || {
        let mut client = Client::connect(&folder.socket()).unwrap();
        let error = client.ask(&ask(Since::Start)).unwrap_err();
        (client, error.to_string().contains("no memory engine"))
    };
    let mut inside = Vec::new();
    let start = Instant::now();
    loop {
        let (client, joined) = join();
        if !joined {
            break;
        }
        inside.push(client);
        assert!(inside.len() < 100, "clients are not bounded");
    }
    inside.pop();
    while !join().1 {
        assert!(start.elapsed() < LIMIT, "a client that went makes no room");
        sleep(Duration::from_millis(5));
    }
}

struct Silent;

impl Uplink for Silent {
    fn frame(&mut self, _: SliceId, _: Class, _: &[u8]) {}
    fn lost(&mut self, _: SliceId, _: String) {}
    fn fatal(&mut self, error: EngineError) {
        panic!("the engine failed: {error:?}");
    }
    fn sample_roots(&mut self) {}
}

/// Two engines over 64 pages, all at home on slice 0.
fn engines() -> Vec<(Handle, JoinHandle<()>, Arc<GuestRam>)> {
    let start = |(id, transport): (u16, transport::ShmTransport)| {
        let ram = Arc::new(GuestRam::new(std::slice::from_ref(&(0..64))).unwrap());
        let homes = HomeTable::new(vec![HomeRange { frames: 0..64, home: SliceId(0) }]).unwrap();
        let node = NodeConfig::new(SliceId(id), vec![SliceId(0), SliceId(1)], homes, Epoch(1));
        let config = EngineConfig {
            bystanders: Vec::new(),
            wait_limit: Duration::from_secs(60),
            core: None,
            node,
            ram: Arc::clone(&ram),
            transport: Box::new(transport),
            uplink: Box::new(Silent),
            trace: Tracing::On,
        };
        let (handle, thread) = Engine::start(config).unwrap();
        (handle, thread, ram)
    };
    let mesh = shm::mesh(2, &Config::default()).unwrap();
    (0u16..).zip(mesh).map(start).collect()
}

#[test]
fn uffd_trace_of_a_slice_is_told_in_all_and_by_difference() {
    if !needs::has(needs::Need::Uffd, dsm::check_host()) {
        return;
    }
    let engines = engines();
    let word = |frame: usize| {
        let address = engines[1].2.slots()[0].1 + frame * 4096;
        // SAFETY: inside the guest mapping, which lives until the engines are joined; aligned.
        unsafe { &*with_exposed_provenance::<AtomicU64>(address) }
    };
    let folder = Folder::new();
    let desk = Desk::new();
    let socket = ControlSocket::open(&folder.socket(), desk.clone()).unwrap();
    let counts = Counts { disk_requests: 7, ..Counts::default() };
    let placement = PlacementView::fixed(SliceId(1), &[SliceId(0), SliceId(1)]).unwrap();
    desk.attach(placement, engines[1].0.clone(), move || Some(counts));
    let mut client = Client::connect(&folder.socket()).unwrap();
    let mut trace = |since| -> TraceAnswer {
        match client.ask(&ask(since)).unwrap() {
            Answer::Trace(trace) => trace,
            answer => panic!("{answer:?}"),
        }
    };
    word(3).store(1, Ordering::SeqCst);
    word(9).load(Ordering::SeqCst);

    let all = trace(Since::Last);
    let kinds: Vec<_> = all.pages.iter().map(|page| (page.gfn, page.read, page.write)).collect();
    assert_eq!(kinds, [(3, 0, 1), (9, 1, 0)]);
    assert_eq!((all.slice, all.on, all.faults, all.pages_known), (1, true, 2, 2));
    word(20).store(1, Ordering::SeqCst);
    let news = trace(Since::Last);
    assert_eq!(news.pages.iter().map(|page| page.gfn).collect::<Vec<_>>(), [20]);
    assert!(news.seconds < all.seconds + 30.0 && news.seconds > 0.0);
    assert_eq!(trace(Since::Start).faults, 3);
    match client.ask(&Request::Report(ReportRequest {})).unwrap() {
        Answer::Report(report) => {
            assert_eq!(report.delegated, Some(counts));
            let faults = report.memory.faults;
            assert_eq!((report.slice, report.process), (1, id()));
            assert_eq!((faults.read, faults.write), (1, 2));
        }
        answer => panic!("{answer:?}"),
    }
    let tune = |hold_us| Request::Tune(TuneRequest { hold_us, correlation: None });
    match client.ask(&tune(Some((700, 800)))).unwrap() {
        Answer::Report(report) => {
            assert!((700_000..=800_000).contains(&report.memory.hold_window_ns));
        }
        answer => panic!("{answer:?}"),
    }
    let error = client.ask(&tune(Some((800, 700)))).unwrap_err();
    assert!(error.to_string().contains("800 to 700"), "{error}");

    for (handle, ..) in &engines {
        handle.stop();
    }
    for (_, thread, ram) in engines {
        thread.join().unwrap();
        drop(ram);
    }
    let error = client.ask(&ask(Since::Start)).unwrap_err();
    assert!(error.to_string().contains("the memory engine does not answer"), "{error}");
    drop(socket);
}
