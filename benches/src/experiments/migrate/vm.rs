//! A VM of two slices, each in a process, with the guest whose vCPU moves.
//!
//! ```text
//!   Companion::fork --> another process: slice 1, once it is called
//!   Vm::start --------> a thread here: slice 0 --console--> Line
//!      move_to, move_to, ... --control socket--> slice 0
//!   Vm::end: power button --> the guest tells all, and powers off
//! ```
use super::Setup;
use crate::real_vm::{Companion, LIMIT, bootstrap_options};
use anyhow::{Context, Result, anyhow, bail, ensure};
use microguest::job::now;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use vmm::control::{Answer, Client, MoveVcpuRequest, Request};
use vmm::slice::{Ending, Memory, RunReport, SliceSpec, StopHandle, bootstrap, one_line};

/// Memory that each slice is home of. The guest knows where the second part begins.
const SLICE_BYTES: u64 = 16 << 20;
/// The vCPU that moves.
const MOVER: u32 = 1;

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
pub(super) struct Vm {
    line: Line,
    stop: StopHandle,
    folder: PathBuf,
    thread: Option<JoinHandle<Result<(Ending, RunReport)>>>,
    /// Ends with it.
    _companion: Companion,
}

/// What is left of it.
#[derive(Debug)]
pub(super) struct Told {
    /// What the guest has written.
    pub(super) text: String,
    /// The counter of this host when each line with the guest's own began.
    pub(super) arrived: Vec<u64>,
    /// What the slices say.
    pub(super) report: RunReport,
}

impl Vm {
    /// Starts it, and waits until both vCPUs work.
    ///
    /// # Errors
    /// KVM, userfaultfd or the transport refuse, or the guest does not start.
    pub(super) fn start(guest: &Path, setup: Setup, companion: Companion) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("tessera-bench-{}", companion.child.id()));
        fs::create_dir(&folder).context("make a folder")?;
        companion.wait_until_it_listens()?;
        let line = Line::default();
        let slices = vec![SliceSpec { vcpus: 1, spare_vcpus: 0, memory: SLICE_BYTES }; 2];
        let local = (Memory::Memfd, folder.join("socket"));
        let mut options = bootstrap_options(guest, slices, Box::new(line.clone()), local)?;
        options.spec.interrupts = setup.interrupts;
        options.companions = vec![companion.address];
        options.carriers = vec![setup.kind()];
        let stop = options.stop.clone();
        let run = move || bootstrap(options).map_err(|error| anyhow!("{}", one_line(&error)));
        let thread = Some(thread::Builder::new().name("slice0".into()).spawn(run)?);
        let mut vm = Self { line, stop, folder, thread, _companion: companion };
        vm.wait_for(20)?;
        Ok(vm)
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

    /// Moves the vCPU; the counter of this host at the beginning and at the end.
    ///
    /// # Errors
    /// It was not moved.
    pub(super) fn move_to(&self, slice: u16) -> Result<(u64, u64)> {
        let mut client = Client::connect(&self.folder.join("socket"))?;
        let request = Request::MoveVcpu(MoveVcpuRequest { vcpu: MOVER, slice });
        let begin = now();
        let answer = client.ask(&request).context("move a vCPU")?;
        ensure!(matches!(answer, Answer::Done(_)), "a move is answered by {answer:?}");
        Ok((begin, now()))
    }

    /// Presses the power button, and waits for the end.
    ///
    /// # Errors
    /// The VM has not ended as it should.
    pub(super) fn end(mut self) -> Result<Told> {
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
