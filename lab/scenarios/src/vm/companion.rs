//! The companion slices of a scenario.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::{Command, ExitStatus, Host, HostNumber, RemoteProcess};

use crate::progress::{Progress, printable};

/// Port the companions listen on.
pub(crate) const PORT: u16 = 7100;
const LISTEN_LIMIT: Duration = Duration::from_secs(60);
/// How long companions may go on after the bootstrap slice ended.
const COMPANION_LIMIT: Duration = Duration::from_secs(15);
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

/// A companion and the thread that prints what it says.
#[derive(Debug)]
pub(crate) struct Companion {
    host: HostNumber,
    stop: Arc<AtomicBool>,
    process: Arc<Mutex<RemoteProcess>>,
    /// The last line that it said.
    words: Arc<Mutex<String>>,
    printer: JoinHandle<()>,
}

impl Companion {
    pub(crate) fn new(
        process: RemoteProcess,
        host: HostNumber,
        progress: &Arc<Progress>,
        loud: bool,
    ) -> Self {
        let (stop, process) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(process)));
        let (seen, own, progress) = (Arc::clone(&stop), Arc::clone(&process), Arc::clone(progress));
        let words = Arc::new(Mutex::new(String::new()));
        let last = Arc::clone(&words);
        let printer = thread::spawn(move || {
            while !seen.load(Ordering::SeqCst) {
                let mut process = own.lock().unwrap_or_else(PoisonError::into_inner);
                let line = process.next_line(POLL);
                let over = process.is_over();
                drop(process);
                match line {
                    Some(line) => {
                        let text = printable(&line.text);
                        if loud {
                            progress.say(&format!("host {host} tessera: {text}"));
                        }
                        *last.lock().unwrap_or_else(PoisonError::into_inner) = text;
                    }
                    None if over => return,
                    None => {}
                }
            }
        });
        Self { host, stop, process, words, printer }
    }

    /// Sends a signal by its number.
    pub(crate) fn signal(&self, number: i32) -> Result<()> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).handle().signal(number)
    }

    /// Waits for its end by itself.
    pub(crate) fn wait(&self, limit: Duration) -> Result<ExitStatus> {
        let until = Instant::now() + limit;
        while !self.printer.is_finished() {
            ensure!(Instant::now() < until, "the companion on host {} does not end", self.host);
            thread::sleep(Duration::from_millis(20));
        }
        self.process.lock().unwrap_or_else(PoisonError::into_inner).wait(Duration::ZERO)
    }

    /// The last line that it said.
    pub(crate) fn last_words(&self) -> String {
        self.words.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Kills the companion's process.
    pub(crate) fn kill(&self) -> Result<()> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).kill()
    }

    /// Waits for the end; a companion that goes on after the VM is a problem.
    pub(crate) fn finish(self, problems: &mut Vec<String>) {
        let until = Instant::now() + COMPANION_LIMIT;
        while !self.printer.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
        self.stop.store(true, Ordering::SeqCst);
        // The printer only prints; what it had to say is said.
        drop(self.printer.join());
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        if process.is_over() {
            return;
        }
        problems.push(format!("the companion on host {} did not end", self.host));
        drop(process.kill());
        drop(process.wait(Duration::from_secs(10)));
    }
}
