//! A VM whose guest notes what it sees, and tells it in the end.
//!
//! ```text
//!   Companion::fork --> another process: slice 1, once it is called
//!   Vm::start --------> a thread here: slice 0 --console--> Line
//!      ask, ask, ... --control socket--> slice 0
//!   Vm::end: power button --> the guest tells all, and powers off
//! ```
use crate::real_vm::{Companion, LIMIT, bootstrap_options};
use anyhow::{Context, Result, anyhow, bail, ensure};
use microguest::job::now;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use transport::CarrierKind;
use vmm::control::{Answer, Client, Request};
use vmm::slice::{
    BootstrapOptions, Ending, Interrupts, Memory, RestoreOptions, RestoredClock, RunReport,
    SliceSpec, Start, StopHandle, bootstrap, one_line, saved_spec,
};

/// Lines with the guest's counter that it writes at the start.
const FIRST_LINES: usize = 20;

/// What the VM consists of.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) slices: Vec<SliceSpec>,
    pub(crate) interrupts: Interrupts,
    pub(crate) carrier: CarrierKind,
    /// What the guest may take from the power button to its end.
    pub(crate) telling: Duration,
}

/// What the guest has written to its serial line.
#[derive(Debug, Default)]
struct Text {
    bytes: Vec<u8>,
    /// The counter of this host when each line with the guest's own began.
    arrived: Vec<u64>,
}

#[derive(Clone, Debug, Default)]
struct Line(Arc<(Mutex<Text>, Condvar)>);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut text = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        for byte in bytes {
            if *byte == b'T' && text.bytes.last().is_none_or(|last| *last == b'\n') {
                text.arrived.push(now());
            }
            text.bytes.push(*byte);
        }
        self.0.1.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The VM, while it runs.
#[derive(Debug)]
pub(crate) struct Vm {
    line: Line,
    stop: StopHandle,
    folder: PathBuf,
    thread: Option<JoinHandle<Result<(Ending, RunReport)>>>,
    /// Ends with it.
    _companion: Option<Companion>,
}

/// What is left of it.
#[derive(Debug)]
pub(crate) struct Told {
    /// What the guest has written.
    pub(crate) text: String,
    /// The counter of this host when each line with the guest's own began.
    pub(crate) arrived: Vec<u64>,
    /// What the slices say.
    pub(crate) report: RunReport,
}

fn new_folder() -> Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("tessera-bench-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    fs::create_dir(&folder).context("make a folder")?;
    Ok(folder)
}

impl Vm {
    /// Starts it, with a second slice if there is a companion, and waits until the guest works.
    ///
    /// # Errors
    /// KVM, userfaultfd or the transport refuse, or the guest does not start.
    pub(crate) fn start(guest: &Path, shape: Shape, companion: Option<Companion>) -> Result<Self> {
        let folder = new_folder()?;
        companion.iter().try_for_each(Companion::wait_until_it_listens)?;
        let line = Line::default();
        let local = (Memory::Memfd, folder.join("socket"));
        let mut options = bootstrap_options(guest, shape.slices, Box::new(line.clone()), local)?;
        options.spec.interrupts = shape.interrupts;
        options.companions = companion.iter().map(|it| it.address).collect();
        options.carriers = vec![shape.carrier];
        options.stop_limit = shape.telling;
        let mut vm = Self::run(options, (line, folder), companion)?;
        vm.wait_for(FIRST_LINES)?;
        Ok(vm)
    }

    fn run(
        options: BootstrapOptions,
        (line, folder): (Line, PathBuf),
        companion: Option<Companion>,
    ) -> Result<Self> {
        let stop = options.stop.clone();
        let run = move || bootstrap(options).map_err(|error| anyhow!("{}", one_line(&error)));
        let thread = Some(thread::Builder::new().name("slice0".into()).spawn(run)?);
        Ok(Self { line, stop, folder, thread, _companion: companion })
    }

    /// Goes on from a checkpoint on one slice. Its power button is pressed as soon as that is possible; how long it takes until the guest
    /// has said something to that.
    ///
    /// # Errors
    /// The VM does not go on.
    pub(crate) fn restore(checkpoint: &Path, lazy: bool) -> Result<(Self, Duration)> {
        let (line, folder) = (Line::default(), new_folder()?);
        let local = (Memory::Memfd, folder.join("socket"));
        let console = Box::new(line.clone());
        let mut options = bootstrap_options(checkpoint, Vec::new(), console, local)?;
        options.spec = saved_spec(checkpoint, None)?;
        options.start = Start::Restore(RestoreOptions {
            path: checkpoint.to_owned(),
            clock: RestoredClock::Keep,
            unauthenticated: false,
            no_disk_guarantee: false,
            lazy,
            clone: None,
            fenced_at: None,
            lives: None,
        });
        let begun = Instant::now();
        let mut vm = Self::run(options, (line, folder), None)?;
        while !vm.stop.ask() {
            ensure!(vm.runs(begun)?, "the VM does not go on");
            thread::sleep(Duration::from_micros(100));
        }
        while vm.line.0.0.lock().unwrap_or_else(PoisonError::into_inner).bytes.is_empty() {
            ensure!(vm.runs(begun)?, "its guest says nothing");
            thread::sleep(Duration::from_micros(100));
        }
        let took = begun.elapsed();
        Ok((vm, took))
    }

    /// Whether it may still do what it was asked for at this time.
    fn runs(&mut self, since: Instant) -> Result<bool> {
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            bail!("the VM is over: {:?}", self.join());
        }
        Ok(since.elapsed() < LIMIT)
    }

    /// Waits for so many of its first lines.
    fn wait_for(&mut self, lines: usize) -> Result<()> {
        let end = Instant::now() + LIMIT;
        loop {
            let text = self.line.0.0.lock().unwrap_or_else(PoisonError::into_inner);
            if text.arrived.len() >= lines {
                return Ok(());
            }
            let so_far = String::from_utf8_lossy(&text.bytes).into_owned();
            let wait = self.line.0.1.wait_timeout(text, Duration::from_millis(100));
            drop(wait.unwrap_or_else(PoisonError::into_inner));
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                bail!("the VM is over: {:?}; the guest has told {so_far:?}", self.join());
            }
            let has_failed = so_far.contains('E') && so_far.ends_with('\n');
            ensure!(!has_failed && Instant::now() < end, "the guest does not start: {so_far:?}");
        }
    }

    fn join(&mut self) -> Result<(Ending, RunReport)> {
        let thread = self.thread.take().context("the VM is over")?;
        thread.join().map_err(|_| anyhow!("slice 0 has panicked"))?
    }

    /// Asks the coordinator for something; its answer, and the counter of this host at the beginning and at the end.
    ///
    /// # Errors
    /// It is refused, or there is no answer.
    pub(crate) fn ask(&self, request: &Request) -> Result<(Answer, (u64, u64))> {
        let mut client = Client::connect(&self.folder.join("socket"))?;
        let begin = now();
        let answer = client.ask(request)?;
        Ok((answer, (begin, now())))
    }

    /// Presses the power button, and waits for the end.
    ///
    /// # Errors
    /// The VM has not ended as it should.
    pub(crate) fn end(mut self) -> Result<Told> {
        let _ = self.stop.ask();
        let (ending, report) = self.join()?;
        let text = self.line.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = String::from_utf8_lossy(&text.bytes).into_owned();
        ensure!(ending == Ending::PowerOff, "the VM has ended: {}; {told:?}", ending.describe());
        Ok(Told { text: told, arrived: text.arrived.clone(), report })
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        if self.thread.is_some() {
            // Asked twice, the guest is not waited for.
            let _ = (self.stop.ask(), self.stop.ask());
            drop(self.join());
        }
        // A folder that stays behind is no reason to fail.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
