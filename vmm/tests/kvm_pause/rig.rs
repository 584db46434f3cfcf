//! A VM of two slices in this process, and what can be seen of it from outside.

use crate::guest::{self, EXCEPTION, LOOPS, PAGES, SENT, SLICE_BYTES};
use dsm::Mechanisms;
use needs::Need;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::id;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;
use tessera_vmm::cmdline::GuestPreset;
use tessera_vmm::control::{
    Answer, Client, ClientError, PauseRequest, ReportAnswer, ReportRequest, Request, ResumeRequest,
};
use tessera_vmm::slice::{
    BootstrapOptions, ClockTest, CompanionOptions, Ending, Interrupts, LocalOptions, Memory,
    OnFull, PageTables, SliceSpec, StopHandle, VmSpec, bootstrap, companion, one_line,
};
use transport::{CarrierKind, Credential, RdmaMemory, Secret};

/// Patience with a loaded machine; nothing depends on its value.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) const PAUSE: Request = Request::Pause(PauseRequest {});
pub(crate) const RESUME: Request = Request::Resume(ResumeRequest {});

/// A folder that goes away with its test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tessera-pause-{}-{number}", id()));
        fs::create_dir(&path).expect("make a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays behind is no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What the guest has written to its serial line.
#[derive(Clone, Default)]
struct Line(Arc<(Mutex<Vec<u8>>, Condvar)>);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.0.lock().expect("no test panics here").extend_from_slice(bytes);
        self.0.1.notify_all();
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Line {
    fn text(&self) -> Vec<u8> {
        self.0.0.lock().expect("as above").clone()
    }

    /// Waits until the text is so, or the time is over.
    fn wait_until(&self, so: impl Fn(&[u8]) -> bool) -> bool {
        let text = self.0.0.lock().expect("as above");
        let waited = self.0.1.wait_timeout_while(text, LIMIT, |text| !so(text));
        !waited.expect("as above").1.timed_out()
    }
}

/// How a slice has ended, in a line if it has not run.
type End = Result<Ending, String>;

/// A VM that runs.
pub(crate) struct Vm {
    line: Line,
    stop: StopHandle,
    ends: [Receiver<End>; 2],
    folder: Folder,
}

/// Whether this machine can run it.
pub(crate) fn is_possible() -> bool {
    needs::kvm() && needs::has(Need::Uffd, dsm::check_host())
}

impl Vm {
    /// Starts it, and waits until all of it moves.
    pub(crate) fn start(interrupts: Interrupts, carrier: CarrierKind) -> Self {
        let (folder, line, stop) = (Folder::new(), Line::default(), StopHandle::new());
        let kernel = folder.0.join("kernel");
        fs::write(&kernel, guest::image()).expect("write the kernel");
        let secret = Secret::from_bytes(b"a secret of tests, and of no use").expect("long enough");
        let address = free_address();
        let lent = CompanionOptions {
            listen: address,
            credential: Credential::Secret(secret.clone()),
            local: local(&folder.0, 1),
            lend: Vec::new(),
            stop: StopHandle::new(),
        };
        let options = BootstrapOptions {
            spec: spec(interrupts),
            companions: vec![address],
            secret: Some(secret),
            kernel,
            initrd: None,
            cmdline: String::new(),
            guest_preset: GuestPreset::None,
            node_distance: 40,
            console: Box::new(line.clone()),
            limit: None,
            stop: stop.clone(),
            stop_limit: LIMIT,
            lease: Duration::from_secs(20),
            carriers: vec![carrier],
            rdma_memory: RdmaMemory::Pool,
            local: local(&folder.0, 0),
        };
        // Threads of a VM that hangs stay behind: the test fails without waiting for them.
        let companion = run(move || companion(&lent).map_err(|error| one_line(&error)));
        let first = move || bootstrap(options).map_err(|error| one_line(&error));
        let vm = Self { line, stop, ends: [run(move || Ok(first()?.0)), companion], folder };
        vm.moves_on();
        vm
    }

    /// Waits until each vCPU has gone around and had interrupts counted once more.
    pub(crate) fn moves_on(&self) {
        let count = |text: &[u8], letter| text.iter().filter(|byte| **byte == letter).count();
        let letters = [LOOPS, SENT].concat();
        let before = self.line.text();
        let moved = self.line.wait_until(|text| {
            text.contains(&EXCEPTION)
                || letters.iter().all(|letter| count(text, *letter) > count(&before, *letter))
        });
        let text = self.line.text();
        assert!(!text.contains(&EXCEPTION), "an exception in the guest: {}", self.state());
        let counts = |text| letters.iter().map(|letter| count(text, *letter)).collect::<Vec<_>>();
        assert!(
            moved,
            "the guest hangs, it came from {:?} to {:?} only: {}",
            counts(&before),
            counts(&text),
            self.state()
        );
    }

    /// For messages.
    fn state(&self) -> String {
        let text = self.line.text();
        let tail = String::from_utf8_lossy(&text[text.len().saturating_sub(80)..]).into_owned();
        let ends = self.ends.each_ref().map(|end| end.try_recv().ok());
        format!("the console ends in {tail:?}, the slices have ended with {ends:?}")
    }

    /// Asks a slice.
    pub(crate) fn ask(&self, slice: u16, request: Request) -> Result<Answer, ClientError> {
        Client::connect(&socket(&self.folder.0, slice))?.ask(&request)
    }

    /// The same of the bootstrap slice, where it must be done.
    pub(crate) fn must(&self, request: Request) {
        match self.ask(0, request) {
            Ok(Answer::Done(_)) => {}
            other => panic!("{request:?}: {other:?}; {}", self.state()),
        }
    }

    /// The same where it must be refused; why.
    pub(crate) fn refusal(&self, slice: u16, request: Request) -> String {
        match self.ask(slice, request) {
            Err(ClientError::Refused(why)) => why,
            other => panic!("{request:?}: {other:?}; {}", self.state()),
        }
    }

    /// Takes the saved forms of both slices; there are none afterwards.
    pub(crate) fn take_forms(&self) -> Vec<Vec<u8>> {
        let take = |slice: u16| {
            let path = forms(&self.folder.0, slice).join(format!("slice-{slice}"));
            let bytes = fs::read(&path).expect("read a form");
            fs::remove_file(&path).expect("remove a form");
            bytes
        };
        [0, 1].map(take).to_vec()
    }

    /// What moves while the guest does: the text, the counters of both memory engines, and the pages that the guest
    /// writes, in the memory of both slices.
    pub(crate) fn look(&self) -> Look {
        let report = |slice| match self.ask(slice, Request::Report(ReportRequest {})) {
            Ok(Answer::Report(report)) => *report,
            other => panic!("{other:?}; {}", self.state()),
        };
        Look { text: self.line.text().len(), reports: [0, 1].map(report), pages: pages() }
    }

    /// Presses the power button, and waits for the end; what the guest has found.
    pub(crate) fn power_off(self) -> u8 {
        assert!(self.stop.ask(), "it runs");
        let found = |text: &[u8]| text.iter().copied().find(|byte| b"!?".contains(byte));
        assert!(
            self.line.wait_until(|text| found(text).is_some()),
            "interrupts are lost: {}",
            self.state()
        );
        let ends = self.ends.each_ref().map(|end| end.recv_timeout(LIMIT));
        assert!(matches!(&ends[0], Ok(Ok(Ending::PowerOff))), "{ends:?}");
        assert!(matches!(&ends[1], Ok(Ok(Ending::Told(_)))), "{ends:?}");
        found(&self.line.text()).expect("it was there")
    }
}

/// See [`Vm::look`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Look {
    text: usize,
    reports: [ReportAnswer; 2],
    pages: Vec<Vec<u8>>,
}

/// The pages that the guest writes, in the memory files of all slices in this process.
fn pages() -> Vec<Vec<u8>> {
    let open = fs::read_dir("/proc/self/fd").expect("Linux lists them");
    let mut files: Vec<PathBuf> = open.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| is_guest_memory(path));
    files.sort();
    let mut pages = Vec::new();
    for path in files {
        let file = File::open(path).expect("open a memory file");
        for page in PAGES {
            let mut bytes = vec![0; 4096];
            file.read_exact_at(&mut bytes, page.into()).expect("the file has all memory");
            pages.push(bytes);
        }
    }
    pages
}

fn is_guest_memory(path: &Path) -> bool {
    fs::read_link(path).is_ok_and(|name| name.to_string_lossy().contains("tessera-guest-ram"))
}

fn spec(interrupts: Interrupts) -> VmSpec {
    VmSpec {
        slices: vec![SliceSpec { vcpus: 1, memory: SLICE_BYTES }; 2],
        interrupts,
        page_tables: PageTables::Auto,
        sample: None,
        clock_rate: 1.0,
        timer_spacing: "off".into(),
        hold_us: (20, 500),
        devices: Vec::new(),
    }
}

fn local(folder: &Path, slice: u16) -> LocalOptions {
    let forms = forms(folder, slice);
    fs::create_dir(&forms).expect("make a folder");
    LocalOptions {
        engine_core: None,
        memory: Memory::Memfd,
        trace: false,
        mechanisms: Mechanisms::ALL,
        control: Some(socket(folder, slice)),
        on_full: OnFull::Report,
        clock_test: ClockTest::default(),
        forms: Some(forms),
    }
}

fn socket(folder: &Path, slice: u16) -> PathBuf {
    folder.join(format!("{slice}.sock"))
}

fn forms(folder: &Path, slice: u16) -> PathBuf {
    folder.join(format!("forms-{slice}"))
}

/// An address that was free a moment ago.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    listener.local_addr().expect("it listens")
}

fn run(work: impl FnOnce() -> End + Send + 'static) -> Receiver<End> {
    let (sender, end) = channel();
    // Nobody may wait any more.
    thread::spawn(move || drop(sender.send(work())));
    end
}
