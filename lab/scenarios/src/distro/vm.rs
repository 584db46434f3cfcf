//! The bootstrap slice of a VM that boots a whole system, while somebody looks at the guest.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use lab::{Event, ExitStatus, RemoteProcess, Stream};

use crate::distro::console::Console;
use crate::progress::Progress;

const POLL: Duration = Duration::from_millis(200);
/// Lines of tessera and console that a failed run shows again.
const TAIL: usize = 12;

/// What is known about the bootstrap slice; a thread of its own keeps reading what it says.
#[derive(Debug)]
pub(crate) struct Vm {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    console: Mutex<Console>,
    tail: Mutex<Vec<String>>,
    end: Mutex<Option<Result<ExitStatus, String>>>,
    stop: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Vm {
    pub(crate) fn watch(process: RemoteProcess, progress: &Arc<Progress>) -> Self {
        let shared = Arc::new(Shared::default());
        let (own, progress) = (Arc::clone(&shared), Arc::clone(progress));
        let reader = thread::spawn(move || own.read(process, &progress));
        Self { shared, reader: Some(reader) }
    }

    pub(crate) fn prompted(&self) -> bool {
        lock(&self.shared.console).prompted()
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        lock(&self.shared.console).trouble().map(str::to_owned)
    }

    pub(crate) fn tail(&self) -> Vec<String> {
        lock(&self.shared.tail).clone()
    }

    /// An error when the VM has ended.
    pub(crate) fn alive(&self) -> Result<()> {
        match &*lock(&self.shared.end) {
            None => Ok(()),
            Some(Ok(status)) => bail!("tessera bootstrap ended early with {status}"),
            Some(Err(why)) => bail!("tessera bootstrap: {why}"),
        }
    }

    /// Kills the bootstrap slice.
    pub(crate) fn stop(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
    }

    /// Waits for the end.
    pub(crate) fn end(&mut self, limit: Duration) -> Result<ExitStatus> {
        let until = Instant::now() + limit;
        let over = || self.reader.as_ref().is_none_or(JoinHandle::is_finished);
        while !over() && Instant::now() < until {
            thread::sleep(POLL);
        }
        match lock(&self.shared.end).take() {
            Some(Ok(status)) => Ok(status),
            Some(Err(why)) => Err(anyhow!(why)),
            None if self.shared.stop.load(Ordering::SeqCst) => Err(anyhow!("it was stopped")),
            None => Err(anyhow!("it did not end within {limit:?} of the guest's power-off")),
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.stop();
        if let Some(reader) = self.reader.take() {
            // It only reads; what it had to say is said.
            drop(reader.join());
        }
    }
}

impl Shared {
    /// Reads until the slice ends or is to be stopped; it is killed when the handle is dropped.
    fn read(&self, mut process: RemoteProcess, progress: &Progress) {
        let mut errors = Console::default();
        while !self.stop.load(Ordering::SeqCst) {
            let (mark, lines) = match process.next_event(POLL) {
                None => continue,
                Some(Event::Output(Stream::Out, bytes)) => {
                    ("console", lock(&self.console).take(&bytes))
                }
                Some(Event::Output(Stream::Error, bytes)) => ("tessera", errors.take(&bytes)),
                Some(Event::Exit(status)) => {
                    *lock(&self.end) = Some(Ok(status));
                    return;
                }
                Some(Event::Lost(why)) => {
                    *lock(&self.end) = Some(Err(why));
                    return;
                }
            };
            for line in lines {
                let line = format!("host 1 {mark}: {line}");
                progress.say(&line);
                let mut tail = lock(&self.tail);
                tail.push(line);
                if tail.len() > TAIL {
                    tail.remove(0);
                }
            }
        }
    }
}
