//! What the kernel's own work costs when its CPUs are on two hosts, for `./x bench sharing-linux`: kinds of operations, one
//! after the other, each on a CPU of the first memory node, on one of another, or on both.
//!
//! ```text
//!   warm-up ─> TEST sharing-KIND-begin ─> pause ─> N operations ─> TEST sharing-KIND-end n=N ns=T ─> pause ─> next kind
//!                                           ^                                                          ^
//!                                 the host side reads its counters                           and reads them again
//! ```
//! The host side knows how long a pause is and what an idle second costs: that is a kind too.
#![expect(unsafe_code, reason = "memory that is mapped, touched and unmapped")]
// UNSAFETY: pointers into a range that this module maps itself and gives to nobody.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tessera_guest_tests::MOST_SHARING_PAUSE;

use crate::affinity::Topology;
use crate::config::Config;
use crate::pipes::Pipes;
use crate::programs::NOTHING;
use crate::report::Score;
use crate::sys::{self, Ended, Forked, Sharing};
use crate::{network, report};

const PAGE: usize = 4096;
/// Behind the start of the guest there is work that its kernel has put off: memory that is freed late, power management. So long
/// nothing is done before the idle second.
const STARTED: Duration = Duration::from_secs(5);
/// What a small file holds.
const FILE_BYTES: usize = 2 * PAGE;
const FILES: &str = "/sharing";
/// Of so many operations, one is done before counting begins.
const WARM_UP: u64 = 2;

/// CPUs to set against each other.
#[derive(Clone, Copy, Debug)]
struct Places {
    home: usize,
    borrowed: usize,
}

impl Places {
    /// The first CPU, and the first one of another node, or else the last.
    fn of(topology: &Topology) -> Result<Self> {
        let first = topology.cpus.first().context("no cpu")?;
        let other = topology.cpus.iter().find(|cpu| cpu.node != first.node);
        let other = other.or_else(|| topology.cpus.last()).context("no cpu")?;
        Ok(Self { home: first.id, borrowed: other.id })
    }
}

/// A kind of operation, how many of them are counted, and what does them. It begins and ends the counting.
type Kind = (&'static str, u64, fn(Places, &Count) -> Result<()>);
const KINDS: [Kind; 9] = [
    ("idle", 2, idle),
    ("fresh-page", 2048, |places, count| pages(places, count, true)),
    ("unmap", 2048, |places, count| pages(places, count, false)),
    ("file", 60, files),
    ("pipe", 60, pipe),
    ("futex", 60, futex),
    ("tcp", 40, tcp),
    ("fork", 12, fork),
    ("compute", 1, compute),
];

/// The marks around operations.
struct Count {
    kind: &'static str,
    n: u64,
    pause: Duration,
    /// Steps of a task that computes.
    task: u64,
}

impl Count {
    /// Operations that warm up.
    fn warm_up(&self) -> u64 {
        self.n / WARM_UP
    }

    /// Marks, does all operations, and marks again.
    fn around(&self, mut operations: impl FnMut(u64) -> Result<()>) -> Result<()> {
        report::line(&format!("TEST sharing-{}-begin pass", self.kind));
        thread::sleep(self.pause);
        let start = sys::monotonic_ns();
        operations(self.n)?;
        let ns = sys::monotonic_ns() - start;
        report::line(&format!("TEST sharing-{}-end pass n={} ns={ns}", self.kind, self.n));
        thread::sleep(self.pause);
        Ok(())
    }
}

/// Does `rounds` times as many of each kind.
pub(crate) fn run(rounds: u64, config: &Config, topology: &Topology) -> Result<Score> {
    let places = Places::of(topology)?;
    sys::pin_to(places.home).context("pin to the first cpu")?;
    fs::create_dir_all(FILES).with_context(|| format!("make {FILES}"))?;
    if std::process::id() == 1 {
        sys::mount(c"tmpfs", c"/sharing").context("mount a tmpfs")?;
        network::ip(&["link", "set", "lo", "up"])?;
    }
    let mut score = Score::default();
    for (kind, n, does) in KINDS {
        let count = Count { kind, n: n * rounds, pause: config.pause, task: config.task };
        let done = does(places, &count).map(|()| String::new());
        score.add(&format!("sharing-{kind}"), &done);
        sys::pin_to(places.home).context("pin to the first cpu")?;
    }
    score.finish();
    Ok(score)
}

fn idle(_: Places, count: &Count) -> Result<()> {
    thread::sleep(STARTED);
    count.around(|seconds| {
        thread::sleep(Duration::from_secs(seconds));
        Ok(())
    })
}

fn compute(places: Places, count: &Count) -> Result<()> {
    sys::pin_to(places.borrowed).context("pin")?;
    thread::sleep(MOST_SHARING_PAUSE);
    count.around(|tasks| {
        (0..tasks).for_each(|_| crate::programs::compute(count.task));
        Ok(())
    })
}

/// First touches of pages, or their unmapping: one of the two is counted.
fn pages(places: Places, count: &Count, touching: bool) -> Result<()> {
    sys::pin_to(places.borrowed).context("pin")?;
    unmap(touch(count.warm_up())?)?;
    let mut region = None;
    if touching {
        count.around(|n| {
            region = Some(touch(n)?);
            Ok(())
        })?;
        return region.map_or(Ok(()), unmap);
    }
    region = Some(touch(count.n)?);
    count.around(|_| region.take().map_or(Ok(()), unmap))
}

fn touch(pages: u64) -> Result<(NonNull<u8>, usize)> {
    let len = usize::try_from(pages)? * PAGE;
    let base = sys::map(len, Sharing::Private, None).context("map")?;
    for at in (0..len).step_by(PAGE) {
        // SAFETY: within the range that was just mapped.
        let page = unsafe { base.add(at) };
        // SAFETY: nobody else knows the range.
        unsafe { page.write_volatile(1) };
    }
    Ok((base, len))
}

fn unmap((base, len): (NonNull<u8>, usize)) -> Result<()> {
    // SAFETY: the range came from `touch`, and nobody uses it any more.
    unsafe { sys::unmap(base, len) }.context("unmap")
}

/// Creates, writes and removes files of a tmpfs on the borrowed CPU.
fn files(places: Places, count: &Count) -> Result<()> {
    sys::pin_to(places.borrowed).context("pin")?;
    let path = Path::new(FILES).join("file");
    let bytes = [7; FILE_BYTES];
    let some = |n| {
        for _ in 0..n {
            File::create(&path).and_then(|mut file| file.write_all(&bytes)).context("write")?;
            fs::remove_file(&path).context("remove")?;
        }
        Ok(())
    };
    some(count.warm_up())?;
    count.around(some)
}

/// Runs the far end of something in a process on the borrowed CPU.
fn far_end(places: Places, far: impl FnOnce() -> Result<()>) -> Result<sys::Pid> {
    match sys::fork().context("cannot fork")? {
        Forked::Parent(pid) => Ok(pid),
        Forked::Child => {
            let done = sys::pin_to(places.borrowed).context("pin").and_then(|()| far());
            sys::exit_now(i32::from(done.is_err()))
        }
    }
}

fn ended_well(pid: sys::Pid) -> Result<()> {
    let ended = sys::wait_for(pid, true).context("cannot wait")?;
    ensure!(ended == Some(Ended::Exit(0)), "the far end ended with {ended:?}");
    Ok(())
}

/// A number there and back through two pipes.
fn pipe(places: Places, count: &Count) -> Result<()> {
    let pipes = Pipes::new().context("make pipes")?;
    let all = count.warm_up() + count.n;
    let far =
        far_end(places, || (0..all).try_for_each(|_| pipes.back.send(pipes.there.receive()?)))?;
    let trips = |n: u64| {
        (0..n).try_for_each(|trip| {
            pipes.there.send(trip)?;
            ensure!(pipes.back.receive()? == trip, "another number came back");
            Ok(())
        })
    };
    trips(count.warm_up())?;
    count.around(trips)?;
    ended_well(far)
}

/// A word that two threads count up in turns, asleep while it is not theirs.
fn futex(places: Places, count: &Count) -> Result<()> {
    let word = Arc::new(AtomicU32::new(0));
    let all = u32::try_from(count.warm_up() + count.n)?;
    let far = {
        let word = Arc::clone(&word);
        thread::spawn(move || {
            // It takes its turns in any case: the other thread waits for them.
            let pinned = sys::pin_to(places.borrowed);
            (0..all).for_each(|trip| turn(&word, 2 * trip + 1));
            pinned
        })
    };
    let mut trip = 0;
    let mut trips = |n: u64| {
        for _ in 0..n {
            turn(&word, 2 * trip);
            trip += 1;
        }
        Ok(())
    };
    trips(count.warm_up())?;
    count.around(trips)?;
    ensure!(far.join().is_ok_and(|far| far.is_ok()), "the other thread failed");
    Ok(())
}

fn turn(word: &AtomicU32, mine: u32) {
    loop {
        let now = word.load(Ordering::Acquire);
        if now == mine {
            break;
        }
        sys::futex_wait(word, now, Duration::from_secs(3600));
    }
    word.store(mine + 1, Ordering::Release);
    sys::futex_wake(word);
}

/// A byte there and back over a connection of the loopback.
fn tcp(places: Places, count: &Count) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen")?;
    let address = listener.local_addr().context("listen")?;
    let all = count.warm_up() + count.n;
    let far = far_end(places, || {
        let (mut stream, _) = listener.accept().context("accept")?;
        stream.set_nodelay(true).context("set up")?;
        (0..all).try_for_each(|_| {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            stream.write_all(&byte).context("answer")
        })
    })?;
    let mut stream = TcpStream::connect(address).context("connect")?;
    stream.set_nodelay(true).context("set up")?;
    let mut trips = |n: u64| {
        (0..n).try_for_each(|_| {
            let mut byte = [1];
            stream.write_all(&byte)?;
            stream.read_exact(&mut byte).context("receive")
        })
    };
    trips(count.warm_up())?;
    count.around(trips)?;
    ended_well(far)
}

/// Programs that are started from the first CPU, run on the borrowed one, and are waited for.
fn fork(places: Places, count: &Count) -> Result<()> {
    let some = |n: u64| {
        (0..n).try_for_each(|_| {
            let child = far_end(places, || Err(sys::exec_self(&[NOTHING]).into()))?;
            ended_well(child)
        })
    };
    some(count.warm_up())?;
    count.around(some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::Cpu;

    #[test]
    fn places_are_of_two_nodes_where_there_are_two() {
        let topology = |nodes: &[usize]| Topology {
            cpus: nodes.iter().enumerate().map(|(id, &node)| Cpu { id, node }).collect(),
            memory_nodes: vec![0],
        };
        let of = |nodes: &[usize]| {
            Places::of(&topology(nodes)).map(|found| (found.home, found.borrowed))
        };

        assert_eq!(of(&[0, 0, 1, 1]).unwrap(), (0, 2));
        assert_eq!(of(&[0, 0]).unwrap(), (0, 1));
        assert_eq!(of(&[0]).unwrap(), (0, 0));
        assert!(of(&[]).is_err());
    }

    #[test]
    fn operations_do_what_they_say() {
        let here = sys::current_cpu().unwrap();
        let places = Places { home: here, borrowed: here };
        let some = |n| Count { kind: "test", n, pause: Duration::ZERO, task: 1 };
        futex(places, &some(8)).unwrap();
        pages(places, &some(8), true).unwrap();
        pages(places, &some(8), false).unwrap();
    }
}
