//! Looks at a VM while somebody else acts: requests to the guest's web server, counters of all slices, and where everything is.
//!
//! ```text
//!   host 1: xtask http seconds ─────────────────┐
//!   host 1: tessera counters, vm show, sleep ───┼─ lines ─> one thread: when, what ─> Vec<Seen>
//!   host n: tessera counters, sleep ────────────┘
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lab::distro::{HTTP_PORT, OBJECTS};
use lab::http_seconds::Second;
use lab::{Command, Host, Mode, RemoteProcess, Stream};

use super::series::{Fact, Seen, read};
use crate::distro::guest::Guest;
use crate::vm::scenario::Scenario;

const CONNECTIONS: &str = "2";
const POLL: Duration = Duration::from_millis(20);

/// The thread that looks.
#[derive(Debug)]
pub(super) struct Sampler {
    began: Instant,
    stop: Arc<AtomicBool>,
    /// Why there is nothing more to see, or the first request that failed.
    trouble: Arc<Mutex<Option<String>>>,
    thread: JoinHandle<Vec<Seen>>,
}

impl Sampler {
    /// Begins.
    pub(super) fn start(scenario: &Scenario<'_>, guest: &Guest<'_>) -> Result<Self> {
        let mut hosts = Vec::new();
        for host in scenario.hosts() {
            hosts.push(host.spawn(&Command::new(["sh", "-c", &line(scenario, &host)?]))?);
        }
        let first = scenario.lab.hosts().next().context("a first host")?;
        let url = guest.url(HTTP_PORT, OBJECTS[0].name)?;
        let words = [&guest.program, "http", "seconds", "--connections", CONNECTIONS, &url];
        let mut looks =
            Looks { http: first.spawn(&Command::new(words))?, hosts, errors: Vec::new() };
        let (began, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let trouble = Arc::new(Mutex::new(None));
        let (stopped, found) = (Arc::clone(&stop), Arc::clone(&trouble));
        let thread = thread::spawn(move || {
            let mut seen = Vec::new();
            while !stopped.load(Ordering::SeqCst) {
                if let Err(error) = looks.look(began, &mut seen) {
                    let mut trouble = found.lock().unwrap_or_else(PoisonError::into_inner);
                    trouble.get_or_insert_with(|| format!("{error:#}"));
                    return seen;
                }
                thread::sleep(POLL);
            }
            seen
        });
        Ok(Self { began, stop, trouble, thread })
    }

    /// Seconds since the start.
    pub(super) fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Fails once something is wrong with what is looked at.
    pub(super) fn check(&self) -> Result<()> {
        match &*self.trouble.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(why) => bail!("{why}"),
            None => Ok(()),
        }
    }

    /// Ends it; all that was seen, and whether all was well with it.
    pub(super) fn end(self) -> (Vec<Seen>, Result<()>) {
        let well = self.check();
        self.stop.store(true, Ordering::SeqCst);
        let seen = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (seen, well)
    }
}

/// What a host runs; each turn takes part of the time of an emulated one.
fn line(scenario: &Scenario<'_>, host: &Host<'_>) -> Result<String> {
    let (program, control) = (scenario.program()?, scenario.control(host.number()));
    let show = format!("{program} vm show --control {control} --json; ");
    // That slice stays.
    let show = if host.number().get() == 1 { &show } else { "" };
    let rest = if scenario.lab.mode() == Mode::Machines { 3 } else { 1 };
    // A slice that has left answers nothing more.
    Ok(format!("while :; do {show}{program} counters --control {control}; sleep {rest}; done"))
}

/// Those that say something.
struct Looks {
    http: RemoteProcess,
    hosts: Vec<RemoteProcess>,
    /// What hosts last said on standard error.
    errors: Vec<String>,
}

impl Looks {
    /// Takes all lines that are there.
    fn look(&mut self, began: Instant, seen: &mut Vec<Seen>) -> Result<()> {
        let at = |began: Instant| began.elapsed().as_secs_f64();
        while let Some(line) = self.http.next_line(Duration::ZERO) {
            if line.stream == Stream::Error {
                self.errors.push(line.text);
                continue;
            }
            let second: Second = serde_json::from_str(&line.text).context("read the load")?;
            if let Some(error) = &second.first_error {
                bail!("{} requests failed: {error}", second.errors);
            }
            seen.push(Seen { at: at(began), fact: Fact::Http(second) });
        }
        if self.http.is_over() {
            bail!("the load has ended: {}", self.errors.join("; "));
        }
        for host in &mut self.hosts {
            while let Some(line) = host.next_line(Duration::ZERO) {
                if line.stream == Stream::Out {
                    seen.push(Seen { at: at(began), fact: read(&line.text)? });
                }
            }
        }
        Ok(())
    }
}
