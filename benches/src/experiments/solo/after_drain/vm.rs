//! A VM in processes of its own, which rests while its companion in the comparison runs.
//!
//! ```text
//!   fork --> "P": all memory is touched --[drain: slice 1 ends]--> rest --> stopped <--turn--> runs
//! ```

use super::host::{self, GivenBack, State};
use super::rounds::{Line, Round, Text};
use crate::child::Child;
use crate::real_vm::{Companion, DRAINED, LIMIT, bootstrap_options};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use vmm::control::{Answer, Client, DrainRequest, Request};
use vmm::slice::{Memory, SliceSpec, bootstrap, one_line};

/// Memory of the VM. The guest knows it.
pub(super) const BYTES: u64 = 256 << 20;
const MEMORY: Memory = Memory::Memfd;
/// Huge pages that stay so for so long are not waited for any longer, nor those that never stay.
const STAYS: Duration = Duration::from_secs(3);
const MOMENT: Duration = Duration::from_millis(5);
const REST_LIMIT: Duration = Duration::from_secs(120);

/// A folder that goes away.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tessera-bench-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).context("make a folder")?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays behind is no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How a VM came to rest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rest {
    pub(super) first: State,
    pub(super) state: State,
    /// Until the last change.
    pub(super) seconds: f64,
    /// How many times as long as the last one the first whole round took.
    pub(super) first_round: f64,
}

/// What a drain did.
#[derive(Clone, Debug, Default)]
pub(super) struct Drained {
    pub(super) given_back: GivenBack,
    /// Shared memory of the machine before, and once the process has ended.
    pub(super) shared_kib: [u64; 2],
    /// From the request to its answer, and from then to the end of the process.
    pub(super) seconds: f64,
    pub(super) seconds_to_end: f64,
}

/// A whole round.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) round: Round,
    /// By this host's clock.
    pub(super) whole_ns: f64,
    /// What threads besides vCPUs ran, of what time.
    pub(super) beside_ns: f64,
    pub(super) run_ns: f64,
}

/// The VM.
#[derive(Debug)]
pub(super) struct Vm {
    console: UnixStream,
    text: Text,
    child: Child,
    companion: Option<Companion>,
    folder: Folder,
}

impl Vm {
    /// Starts it on one slice, and waits until all its memory has been touched.
    ///
    /// # Errors
    /// KVM refuses, or the guest does not start.
    pub(super) fn on_one_slice(guest: &Path) -> Result<Self> {
        Self::start(guest, vec![SliceSpec { vcpus: 2, spare_vcpus: 0, memory: BYTES }], None)
    }

    /// The same on two slices with half of all each.
    ///
    /// # Errors
    /// As above, or userfaultfd or the transport refuse.
    pub(super) fn on_two_slices(guest: &Path) -> Result<Self> {
        let companion = Companion::fork(MEMORY, None)?;
        companion.wait_until_it_listens()?;
        let slices = vec![SliceSpec { vcpus: 1, spare_vcpus: 0, memory: BYTES / 2 }; 2];
        Self::start(guest, slices, Some(companion))
    }

    fn start(guest: &Path, slices: Vec<SliceSpec>, companion: Option<Companion>) -> Result<Self> {
        let folder = Folder::new()?;
        let (console, far) = UnixStream::pair().context("make a console")?;
        console.set_read_timeout(Some(LIMIT))?;
        let control = folder.0.join("socket");
        let mut options = bootstrap_options(guest, slices, Box::new(far), (MEMORY, control))?;
        options.companions = companion.iter().map(|it| it.address).collect();
        let child = Child::fork(|| match bootstrap(options) {
            Ok((ending, _)) => {
                eprintln!("slice 0 has ended: {}", ending.describe());
                0
            }
            Err(error) => {
                eprintln!("slice 0: {}", one_line(&error));
                1
            }
        })?;
        let mut vm = Self { console, text: Text::default(), child, companion, folder };
        match vm.line()? {
            Line::Prepared => Ok(vm),
            line @ Line::Round(_) => bail!("the guest begins with {line:?}"),
        }
    }

    fn line(&mut self) -> Result<Line> {
        loop {
            if let Some(line) = self.text.take() {
                return Line::read(&line);
            }
            let mut bytes = [0; 4096];
            let read = self.console.read(&mut bytes).context("the guest says nothing")?;
            ensure!(read > 0, "the VM has ended");
            self.text.add(&bytes[..read]);
        }
    }

    fn round(&mut self) -> Result<Round> {
        match self.line()? {
            Line::Round(round) => Ok(round),
            line @ Line::Prepared => bail!("the guest begins anew: {line:?}"),
        }
    }

    /// Drains slice 1, and waits until its process has ended.
    ///
    /// # Errors
    /// It is refused or fails, or the process does not end as one that was drained.
    pub(super) fn drain(&mut self) -> Result<Drained> {
        let mut companion = self.companion.take().context("a VM on two slices")?;
        let given_back = host::given_back(companion.child.id())?;
        let shared_kib = host::shared_kib()?;
        let begin = Instant::now();
        let mut client = Client::connect(&self.folder.0.join("socket"))?;
        let answer =
            client.ask(&Request::Drain(DrainRequest { slice: 1, stay: false, to: None }))?;
        ensure!(matches!(answer, Answer::Done(_)), "a drain is answered by {answer:?}");
        let seconds = begin.elapsed().as_secs_f64();
        let code = companion.child.wait(LIMIT)?;
        let seconds_to_end = begin.elapsed().as_secs_f64() - seconds;
        ensure!(code == DRAINED, "the drained slice's process has ended with {code}");
        // What stays learns of the end a moment later.
        let end = Instant::now() + LIMIT;
        while given_back.inodes.iter().any(|inode| host::holds(self.child.id(), *inode)) {
            ensure!(Instant::now() < end, "the memory of the drained slice is still held");
            sleep(MOMENT);
        }
        let shared_kib = [shared_kib, host::shared_kib()?];
        Ok(Drained { given_back, shared_kib, seconds, seconds_to_end })
    }

    /// Runs it until its huge pages stay as they are.
    ///
    /// # Errors
    /// The guest or the VM has failed.
    pub(super) fn rest(&mut self) -> Result<Rest> {
        let begin = Instant::now();
        let first = host::state(self.child.id())?;
        let (mut state, mut since) = (first, begin);
        // The first is cut by what was before.
        self.forget()?;
        self.round()?;
        let mut first_round = None;
        let last = loop {
            let last = ticks(&self.round()?);
            first_round.get_or_insert(last);
            let now = host::state(self.child.id())?;
            if now != state {
                (state, since) = (now, Instant::now());
            }
            if since.elapsed() > STAYS || begin.elapsed() > REST_LIMIT {
                break last;
            }
        };
        let first_round = first_round.unwrap_or(last) / last;
        Ok(Rest { first, state, seconds: (since - begin).as_secs_f64(), first_round })
    }

    /// Stops it.
    ///
    /// # Errors
    /// Its console is gone.
    pub(super) fn stop(&mut self) -> Result<()> {
        self.child.stop();
        self.forget()
    }

    /// Reads what is there, and forgets all whole lines.
    fn forget(&mut self) -> Result<()> {
        self.console.set_nonblocking(true)?;
        let mut bytes = [0; 4096];
        loop {
            match self.console.read(&mut bytes) {
                Ok(0) => bail!("the VM has ended"),
                Ok(read) => self.text.add(&bytes[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("read the console"),
            }
        }
        while self.text.take().is_some() {}
        Ok(self.console.set_nonblocking(false)?)
    }

    /// Runs it for a whole round.
    ///
    /// # Errors
    /// The guest or the VM has failed.
    pub(super) fn turn(&mut self) -> Result<Done> {
        let process = self.child.id();
        let (spent, start) = (host::beside_ns(process)?, Instant::now());
        self.child.go_on();
        let cut = self.round()?;
        let begin = Instant::now();
        let round = self.round()?;
        let end = Instant::now();
        self.stop()?;
        let of = |cut: &Round, round: &Round| round.number == cut.number + 1;
        ensure!(of(&cut, &round), "rounds {} and {}", cut.number, round.number);
        let nanoseconds = |time: Duration| time.as_secs_f64() * 1e9;
        Ok(Done {
            round,
            whole_ns: nanoseconds(end - begin),
            beside_ns: host::beside_ns(process)? - spent,
            run_ns: nanoseconds(end - start),
        })
    }
}

fn ticks(round: &Round) -> f64 {
    super::count(round.times.iter().flatten().sum())
}
