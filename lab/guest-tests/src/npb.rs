//! Kernels of the NAS benchmarks as programs of this machine, for `./x bench workloads`.
//!
//! ```text
//!   npb KERNEL COPIES THREADS ROUNDS PAGES:   COPIES processes at once, each with memory of its own and THREADS threads on it
//! ```
//! Several copies with a thread each are what the papers call serial sets. Each program verifies what it found.
#![expect(unsafe_code, reason = "the kernels name their memory by address")]
// UNSAFETY: the address is that of a vector that outlives the threads.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use microguest::{Job, Kind, Memory, Waiting, run_with};

use crate::programs;
use crate::sys::{self, Forked};

/// The argument that stands for it.
pub(crate) const VERB: &str = "npb";
const PAGE: usize = 4096;
/// Most processes, and most threads of one.
const MOST: u64 = 16;
/// Most pages of a process: 1 GiB.
const PAGES_MAX: u64 = 1 << 18;

/// Runs all copies, and waits for them.
///
/// # Errors
/// Wrong words, or a copy whose results are not what they should be.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let [kernel, numbers @ ..] = words else { bail!("no kernel is named") };
    let [copies, threads, rounds, pages] =
        programs::numbers(numbers, "KERNEL COPIES THREADS ROUNDS PAGES")?;
    ensure!((1..=MOST).contains(&copies) && (1..=MOST).contains(&threads), "use 1 to {MOST}");
    ensure!((1..=PAGES_MAX).contains(&pages), "use 1 to {PAGES_MAX} pages");
    for _ in 0..copies {
        if let Forked::Child = sys::fork().context("cannot fork")? {
            let found = one(kernel, Job { all: threads, rounds, pages, ..Job::default() });
            if let Err(error) = &found {
                eprintln!("guest-tests: {kernel}: {error:#}");
            }
            sys::exit_now(i32::from(found.is_err()));
        }
    }
    // All of them, also if one fails.
    let ended: Vec<_> = (0..copies).map(|_| programs::wait()).collect();
    ended.into_iter().collect()
}

/// One copy.
fn one(kernel: &str, job: Job) -> Result<()> {
    let pages = usize::try_from(job.pages).context("pages")?;
    let mut words = vec![0_u64; (pages + 1) * PAGE / 8];
    let address = words.as_mut_ptr().expose_provenance().next_multiple_of(PAGE);
    let job = Job { memory: u64::try_from(address).context("an address")?, ..job };
    let of = |kind: Kind| together(Job { kind: kind as u64, ..job });
    let counts = |jobs: &[Job]| jobs.iter().map(|job| job.count).sum::<u64>();
    let good = match kernel {
        "ep" => {
            let found = of(Kind::Ep);
            // Of the pairs pi/4 lie in the circle.
            let pairs = job.rounds * microguest::npb::BATCH;
            found.iter().all(|job| (78 * pairs..79 * pairs).contains(&(100 * job.count)))
        }
        "is" => {
            of(Kind::IsKeys);
            let ranked = counts(&of(Kind::Is));
            let alone = Job { kind: Kind::IsCheck as u64, all: 1, ..job };
            let [check] = together(alone)[..] else { bail!("one processor checks") };
            ranked > 0 && ranked == job.rounds * check.count && check.sum == 0
        }
        "cg" => of(Kind::Cg).iter().all(|found| found.count == job.rounds),
        "mg" => of(Kind::Mg).iter().all(|found| found.count == job.rounds),
        "ft" => {
            // All points of a cube with a side of 4 to 64.
            let points = counts(&of(Kind::Ft));
            (2..=6).any(|bits| points == 1 << (3 * bits))
        }
        _ => bail!("the kernels are ep, is, cg, ft and mg"),
    };
    drop(words);
    ensure!(good, "its results are not what they should be");
    Ok(())
}

/// As OpenMP does by default: threads look for a moment, and then sleep.
const SLEEPING: Waiting = Waiting { wait, wake: |word| sys::futex_wake(sys::low_half(word)) };
const LOOKS: usize = 1000;

fn wait(word: &AtomicU64, seen: u64) {
    for _ in 0..LOOKS {
        if word.load(Ordering::Acquire) != seen {
            return;
        }
        spin_loop();
    }
    #[expect(clippy::cast_possible_truncation, reason = "the half that a futex looks at")]
    let low = seen as u32;
    sys::futex_wait(sys::low_half(word), low, Duration::from_secs(1));
}

/// A job by all its processors, as threads.
fn together(job: Job) -> Vec<Job> {
    let own = |own| {
        let mut job = Job { own, ..job };
        // SAFETY: the pages are inside the vector that the caller keeps, and no one else touches them.
        let memory = unsafe { Memory::new(&job) }.waiting_by(SLEEPING);
        run_with(&mut job, &memory);
        job
    };
    if job.all == 1 {
        return vec![own(0)];
    }
    thread::scope(|scope| {
        let threads: Vec<_> = (0..job.all).map(|number| scope.spawn(move || own(number))).collect();
        let end = |thread: thread::ScopedJoinHandle<'_, Job>| match thread.join() {
            Ok(job) => job,
            // The others wait for it.
            Err(_) => sys::exit_now(1),
        };
        threads.into_iter().map(end).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_verify_what_threads_find_and_refuse_what_they_do_not() {
        let job = |threads, rounds, pages| Job { all: threads, rounds, pages, ..Job::default() };
        for threads in [1, 2] {
            one("ep", job(threads, 2, 16)).unwrap();
            one("is", job(threads, 1, 512)).unwrap();
            one("cg", job(threads, 1, 256)).unwrap();
            one("ft", job(threads, 1, 64)).unwrap();
            one("mg", job(threads, 1, 300)).unwrap();
        }
        // Too little memory: nothing is found.
        assert!(one("ft", job(1, 1, 2)).is_err());
        assert!(one("lu", job(1, 1, 64)).is_err());
    }

    #[test]
    fn words_that_are_no_numbers_or_too_large_are_refused() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for text in ["", "ep", "ep 1 1 x 1", "ep 0 1 1 1", "ep 1 99 1 1", "ep 1 1 1 99999999"] {
            assert!(run(&words(text)).is_err(), "{text:?}");
        }
    }
}
