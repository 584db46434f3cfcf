//! The network in a round of `soak chaos`: a tap on the host with the devices, and datagrams through it to both vCPUs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use lab::{Command, Host, Lab, RemoteProcess};

use crate::soak::disks::WRITERS;

const TAP: &str = "tap9";
const HOST: &str = "192.168.79.1/24";
const GUEST: &str = "192.168.79.2";
const END_LIMIT: Duration = Duration::from_secs(20);
/// Between two looks whether it is wanted no more.
const POLL: Duration = Duration::from_millis(200);

/// Words for `tessera bootstrap`, for a companion that lends the tap, and for the guest's command line.
pub(crate) fn device(slice: usize) -> Vec<String> {
    vec!["--net".to_owned(), format!("{TAP},slice={slice}")]
}

pub(crate) fn lent() -> String {
    format!("tap:{TAP}")
}

pub(crate) fn cmdline() -> String {
    format!("tessera.net={GUEST}/24")
}

/// Datagrams that came back, by vCPU.
pub(crate) type Returned = [u64; WRITERS];

/// All that is told of the echoes, by vCPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Echoed {
    pub(crate) returned: Returned,
    /// Of these, those that came after their successor was sent.
    pub(crate) late: [u64; WRITERS],
    /// The longest time without one, after the first.
    pub(crate) longest: [Duration; WRITERS],
}

impl std::fmt::Display for Echoed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { returned, late, longest } = self;
        write!(f, "{returned:?}, of these late {late:?}, at longest none for {longest:.1?}")
    }
}

/// What was heard so far.
#[derive(Debug, Default)]
struct Heard {
    echoed: Echoed,
    /// Why the rest does not count.
    problem: Option<String>,
}

/// What sends and judges them, and the thread that hears what it tells. It tells all the time, and lines that nobody takes would hold up
/// whatever else its host says.
#[derive(Debug)]
pub(crate) struct NetLoad {
    heard: Arc<Mutex<Heard>>,
    stop: Arc<AtomicBool>,
    listener: Option<JoinHandle<RemoteProcess>>,
}

impl NetLoad {
    /// Makes the tap and begins; the guest may come later.
    pub(crate) fn start(lab: &Lab, host: &Host<'_>, run: u32) -> Result<Self> {
        host.tap(TAP, HOST)?;
        let program = lab.own_program()?;
        let program = program.to_str().context("the path of this program is not UTF-8")?;
        let run = run.to_string();
        let process = host.spawn(&Command::new([program, "echo", GUEST, "--run", &run]))?;
        let (heard, stop) = (Arc::<Mutex<Heard>>::default(), Arc::<AtomicBool>::default());
        let (hears, stopped) = (Arc::clone(&heard), Arc::clone(&stop));
        let listener = thread::spawn(move || listen(process, &hears, &stopped));
        Ok(Self { heard, stop, listener: Some(listener) })
    }

    /// What has come back so far.
    ///
    /// # Errors
    /// Bytes came back that were not sent, or the sender has ended.
    pub(crate) fn returned(&self) -> Result<Returned> {
        let heard = lock(&self.heard);
        heard.problem.as_ref().map_or(Ok(heard.echoed.returned), |why| bail!("{why}"))
    }

    /// Ends it.
    ///
    /// # Errors
    /// As for [`Self::returned`].
    pub(crate) fn finish(mut self) -> Result<Echoed> {
        self.stop.store(true, Ordering::SeqCst);
        let listener = self.listener.take().context("it was begun")?;
        let mut process = listener.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        process.kill()?;
        let _killed = process.wait(END_LIMIT)?;
        while let Some(line) = process.next_line(Duration::ZERO) {
            take(&mut lock(&self.heard).echoed, &line.text)?;
        }
        self.returned()?;
        Ok(lock(&self.heard).echoed)
    }
}

impl Drop for NetLoad {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // The process is killed with its handle.
        drop(self.listener.take().map(JoinHandle::join));
    }
}

fn lock(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes what the sender tells until it is not wanted any more.
fn listen(mut process: RemoteProcess, heard: &Mutex<Heard>, stop: &AtomicBool) -> RemoteProcess {
    while !stop.load(Ordering::SeqCst) {
        let problem = match process.next_line(POLL) {
            Some(line) => take(&mut lock(heard).echoed, &line.text).err(),
            None if process.is_over() => Some(anyhow!("the sender of datagrams has ended")),
            None => None,
        };
        if let Some(problem) = problem {
            lock(heard).problem = Some(format!("{problem:#}"));
            // Nothing it tells counts any more.
            drop(process.kill());
            break;
        }
    }
    process
}

/// Takes a line of the sender.
fn take(echoed: &mut Echoed, line: &str) -> Result<()> {
    let words: Vec<_> = line.split_whitespace().collect();
    ensure!(words.first() == Some(&"ECHO"), "the sender of datagrams: {line}");
    let ["ECHO", port, ref counts @ ..] = words[..] else {
        bail!("the guest's network is wrong: {line}")
    };
    let wrong = || format!("the guest's network is wrong: {line}");
    let port: usize = port.parse().with_context(wrong)?;
    ensure!(port < WRITERS, "a port that nobody asked for: {line}");
    let counts: Result<Vec<u64>, _> = counts.iter().map(|count| count.parse()).collect();
    let [returned, late, longest] = counts.with_context(wrong)?[..] else {
        bail!("the sender of datagrams: {line}")
    };
    echoed.returned[port] = returned;
    echoed.late[port] = late;
    echoed.longest[port] = Duration::from_millis(longest);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_sender_are_taken_and_others_are_problems() {
        let mut echoed = Echoed::default();
        take(&mut echoed, "ECHO 1 30 2 400").unwrap();
        assert_eq!((echoed.returned, echoed.late), ([0, 30], [0, 2]));
        assert_eq!(echoed.longest[1], Duration::from_millis(400));
        let wrong = ["ECHO wrong bytes", "ECHO 2 1 1 1", "ECHO 1 1", "tessera: no tap", ""];
        for line in wrong {
            assert!(take(&mut echoed, line).is_err(), "{line}");
        }
    }
}
