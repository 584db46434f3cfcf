//! The companion slices of a scenario.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Command, Event, ExitStatus, Host, HostNumber, RemoteProcess, Signals, Stream};

use super::console::Console;
use super::output::Output;
use crate::progress::Progress;

/// Port the companions listen on.
pub(crate) const PORT: u16 = 7100;
const LISTEN_LIMIT: Duration = Duration::from_secs(60);
/// How long companions may go on after the bootstrap slice ended.
const COMPANION_LIMIT: Duration = Duration::from_secs(15);
/// To look at one that does not end.
const LOOK_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(200);

/// Waits until a companion listens, by looking at the host's table of sockets.
pub(crate) fn wait_for_port(host: &Host<'_>) -> Result<()> {
    let line = format!(
        "until grep -q ':{PORT:04X} 00000000:0000 0A' /proc/net/tcp /proc/net/tcp6; \
         do sleep 0.1; done"
    );
    let limit = format!("{}", LISTEN_LIMIT.as_secs());
    let wait = Command::new(["timeout", &limit, "sh", "-c", &line]);
    let (status, _) = host.run(&wait, LISTEN_LIMIT * 2)?;
    ensure!(status.success(), "the companion on host {} does not listen", host.number());
    Ok(())
}

/// A companion and the thread that takes what it says, and the guest's serial line if it coordinates.
#[derive(Debug)]
pub(crate) struct Companion {
    host: HostNumber,
    stop: Arc<AtomicBool>,
    /// Beside its process: a lock that the printer takes again at once is one that nobody else gets.
    signals: Signals,
    /// How it ended, before the printer does.
    end: Arc<OnceLock<ExitStatus>>,
    /// The last line that it said.
    words: Arc<Mutex<String>>,
    printer: JoinHandle<RemoteProcess>,
}

impl Companion {
    pub(crate) fn new(
        mut process: RemoteProcess,
        host: HostNumber,
        progress: &Arc<Progress>,
        output: &Arc<Output>,
        loud: bool,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (signals, end) = (process.handle(), Arc::new(OnceLock::new()));
        let words = Arc::new(Mutex::new(String::new()));
        let (seen, ended, last) = (Arc::clone(&stop), Arc::clone(&end), Arc::clone(&words));
        let (progress, output) = (Arc::clone(progress), Arc::clone(output));
        let printer = thread::spawn(move || {
            let mut errors = Console::default();
            while !seen.load(Ordering::SeqCst) {
                let lines = match process.next_event(POLL) {
                    None => continue,
                    Some(Event::Output(Stream::Out, bytes)) => {
                        output.serial(host, &bytes);
                        continue;
                    }
                    Some(Event::Output(Stream::Error, bytes)) => errors.take(&bytes),
                    Some(Event::Exit(status)) => {
                        let _ = ended.set(status);
                        break;
                    }
                    Some(Event::Lost(_)) => break,
                };
                for text in lines {
                    if loud {
                        progress.say(&format!("host {host} tessera: {text}"));
                    }
                    *last.lock().unwrap_or_else(PoisonError::into_inner) = text;
                }
            }
            process
        });
        Self { host, stop, signals, end, words, printer }
    }

    /// Sends a signal by its number.
    pub(crate) fn signal(&self, number: i32) -> Result<()> {
        self.signals.signal(number)
    }

    /// Whether it has ended, and all that it said was taken.
    pub(crate) fn is_over(&self) -> bool {
        self.printer.is_finished()
    }

    /// Waits for its end by itself.
    pub(crate) fn wait(&self, limit: Duration) -> Result<ExitStatus> {
        let until = Instant::now() + limit;
        while !self.is_over() {
            ensure!(Instant::now() < until, "the companion on host {} does not end", self.host);
            thread::sleep(Duration::from_millis(20));
        }
        let end = self.end.get().copied();
        end.with_context(|| format!("the companion on host {} was lost", self.host))
    }

    /// The last line that it said.
    pub(crate) fn last_words(&self) -> String {
        self.words.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Kills the companion's process.
    pub(crate) fn kill(&self) -> Result<()> {
        self.signals.kill()
    }

    /// Waits as long as it may go on after the VM.
    pub(crate) fn settle(&self) {
        let until = Instant::now() + COMPANION_LIMIT;
        while !self.is_over() && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the end; a companion that goes on after the VM is a problem.
    pub(crate) fn finish(self, problems: &mut Vec<String>) {
        self.settle();
        self.stop.store(true, Ordering::SeqCst);
        let Ok(mut process) = self.printer.join() else {
            problems.push(format!("what the companion on host {} said was not taken", self.host));
            return;
        };
        if process.is_over() {
            return;
        }
        let last = self.words.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let threads = self.signals.threads_of("tessera", LOOK_LIMIT);
        let threads = threads.unwrap_or_else(|error| format!("no threads: {error:#}"));
        let host = self.host;
        problems.push(format!("the companion on host {host} did not end: {last}\n{threads}"));
        drop(process.kill());
        drop(process.wait(Duration::from_secs(10)));
    }

    /// The same of a VM that has ended well: whoever coordinated has, and so have all others.
    pub(crate) fn finish_well(self, problems: &mut Vec<String>) {
        self.settle();
        // One that goes on is told of next.
        if let Ok(status) = self.wait(Duration::ZERO)
            && status != ExitStatus::Code(0)
        {
            let (host, last) = (self.host, self.last_words());
            problems.push(format!("the companion on host {host} ended with {status}: {last}"));
        }
        self.finish(problems);
    }
}
