//! The bootstrap slice of a VM that boots a whole system, while somebody looks at the guest.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use lab::{Event, ExitStatus, HostNumber, RemoteProcess, Stream};

use crate::vm::output::Output;

const POLL: Duration = Duration::from_millis(200);

/// What is known about the bootstrap slice; a thread of its own keeps reading what it says.
#[derive(Debug)]
pub(crate) struct Vm {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    end: Mutex<Option<Result<ExitStatus, String>>>,
    stop: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Vm {
    /// `output` hears what it says.
    pub(crate) fn watch(process: RemoteProcess, host: HostNumber, output: &Arc<Output>) -> Self {
        let shared = Arc::new(Shared::default());
        let (own, output) = (Arc::clone(&shared), Arc::clone(output));
        let reader = thread::spawn(move || own.read(process, host, &output));
        Self { shared, reader: Some(reader) }
    }

    /// An error when it has ended.
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

    /// Waits for the end of its process.
    pub(crate) fn wait(&self, limit: Duration) -> Result<ExitStatus> {
        let until = Instant::now() + limit;
        let over = || self.reader.as_ref().is_none_or(JoinHandle::is_finished);
        while !over() && Instant::now() < until {
            thread::sleep(POLL);
        }
        match &*lock(&self.shared.end) {
            Some(Ok(status)) => Ok(*status),
            Some(Err(why)) => Err(anyhow!(why.clone())),
            None if self.shared.stop.load(Ordering::SeqCst) => Err(anyhow!("it was stopped")),
            None => Err(anyhow!("it did not end within {limit:?}")),
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
    fn read(&self, mut process: RemoteProcess, host: HostNumber, output: &Output) {
        while !self.stop.load(Ordering::SeqCst) {
            match process.next_event(POLL) {
                None => {}
                Some(Event::Output(Stream::Out, bytes)) => output.serial(host, &bytes),
                Some(Event::Output(Stream::Error, bytes)) => output.bootstrap(host, &bytes),
                Some(Event::Exit(status)) => {
                    *lock(&self.end) = Some(Ok(status));
                    return;
                }
                Some(Event::Lost(why)) => {
                    *lock(&self.end) = Some(Err(why));
                    return;
                }
            }
        }
    }
}
