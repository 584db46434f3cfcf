//! Several processors on the same memory.

use crate::job::{Job, Memory, PAGE_WORDS, Waiting, index, now};
use core::hint::spin_loop;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// One of the pages that [`ping_pong`] writes in a turn: far from one another and at no regular distance.
fn beside(number: usize, pages: usize) -> usize {
    match pages {
        0 | 1 => 0,
        _ => 1 + (31 * number * number + 17 * number + 3) % (pages - 1),
    }
}

/// Raises word 0 of page 0 whenever it is this processor's turn, `rounds` times, and before that a word in each of
/// `stride` more pages, as a kernel does in a tick or a wake-up. A sample is the time from one own turn to the next: a
/// round trip. Gives up at the time limit.
pub fn ping_pong(job: &mut Job, memory: &Memory) {
    let turn = memory.word(0, 0);
    let (more, pages) = (index(job.stride), memory.words().len() / PAGE_WORDS);
    let start = now();
    let mut last = start;
    while job.count < job.rounds {
        let value = turn.load(Acquire);
        if value % job.all.max(1) == job.own {
            for number in 0..more {
                memory.word(beside(number, pages), 1).fetch_add(1, AcqRel);
            }
            turn.store(value + 1, Release);
            let time = now();
            if job.count > 0 {
                memory.sample(job, time.wrapping_sub(last));
            }
            last = time;
            job.count += 1;
        } else {
            spin_loop();
            if now().wrapping_sub(start) > job.cycles {
                break;
            }
        }
    }
    job.elapsed = now().wrapping_sub(start);
}

/// Waits in word 0 of page 0 until all processors of the job are here. False at the time limit, if
/// there is one (`cycles`); the word is then of no more use.
pub fn barrier(job: &Job, memory: &Memory) -> bool {
    if job.all <= 1 {
        return true;
    }
    let arrived = memory.word(0, 0);
    let before = arrived.fetch_add(1, AcqRel);
    let end = (before / job.all + 1) * job.all;
    let Waiting { wait, wake } = memory.waiting();
    if before + 1 == end {
        wake(arrived);
        return true;
    }
    let start = now();
    loop {
        let seen = arrived.load(Acquire);
        if seen >= end {
            return true;
        }
        wait(arrived, seen);
        if job.cycles > 0 && now().wrapping_sub(start) > job.cycles {
            return false;
        }
    }
}

/// Raises one word until the time is over: page `own / stride` for sharing in groups, word `word`.
/// With `write` 2 by an atomic addition, for words that others raise too.
pub fn count(job: &mut Job, memory: &Memory) {
    let page = job.own.checked_div(job.stride).unwrap_or(0);
    let (Ok(page), Ok(word)) = (usize::try_from(page), usize::try_from(job.word)) else { return };
    let counter = memory.word(page, word);
    let start = now();
    let mut last = start;
    loop {
        for _ in 0..64 {
            if job.write == 2 {
                counter.fetch_add(1, AcqRel);
            } else {
                let value = counter.load(Relaxed);
                counter.store(value.wrapping_add(1), Relaxed);
            }
        }
        job.count += 64;
        let time = now();
        // The longest gaps are times without the page.
        let gap = time.wrapping_sub(last);
        if gap > job.rounds {
            memory.sample(job, gap);
            job.sum += gap;
        }
        last = time;
        if time.wrapping_sub(start) >= job.cycles {
            break;
        }
    }
    job.elapsed = last.wrapping_sub(start);
}

#[cfg(test)]
mod tests {
    extern crate std;
    use crate::{Job, Kind, run};
    use std::thread::scope;
    use std::vec;

    #[test]
    fn pages_of_a_turn_are_different_ones() {
        let mut all: vec::Vec<_> = (0..12).map(|number| super::beside(number, 1024)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 12);
        assert!(all.iter().all(|page| (1..1024).contains(page)));
        assert_eq!(super::beside(5, 1), 0);
    }

    #[test]
    #[expect(unsafe_code, reason = "a job names its memory by address")]
    fn two_threads_take_turns() {
        // UNSAFETY: the memory outlives the threads.
        let memory = vec![0u64; 512 * 9];
        let address = memory.as_ptr().expose_provenance().next_multiple_of(4096);
        let job = |own| Job {
            kind: Kind::PingPong as u64,
            memory: u64::try_from(address).unwrap(),
            pages: 8,
            rounds: 100,
            stride: 1,
            own,
            all: 2,
            cycles: u64::MAX,
            ..Job::default()
        };
        let counts = scope(|threads| {
            [0, 1]
                .map(|own| {
                    threads.spawn(move || {
                        let mut job = job(own);
                        // SAFETY: the page is inside the vector, which lives on.
                        unsafe { run(&mut job) };
                        job.count
                    })
                })
                .map(|thread| thread.join().unwrap())
        });
        assert_eq!(counts, [100, 100]);
        let first = (address - memory.as_ptr().addr()) / 8;
        assert_eq!(memory[first], 200);
        assert_eq!(
            memory[first + super::beside(0, 8) * 512 + 1],
            200,
            "each turn writes another page too"
        );
    }
}
