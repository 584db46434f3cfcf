//! Accesses of one processor: each timed by itself, or all together.

use crate::job::{Job, Memory, PAGE_WORDS, index, now};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

/// The page that comes at some place of a scattered order: every page once, no two neighbours in a
/// row (for powers of two from 8 on).
#[must_use]
pub fn scattered(at: usize, pages: usize) -> usize {
    let step = (pages / 8 * 5) | 1;
    at.wrapping_mul(step).wrapping_add(pages / 3) & (pages - 1)
}

fn pages(memory: &Memory) -> usize {
    memory.words().len() / PAGE_WORDS
}

/// Reads a word of each page; a sample per page.
pub fn read(job: &mut Job, memory: &Memory) {
    timed(job, memory, |page, word| memory.word(page, word).load(SeqCst));
}

/// Writes a word of each page; a sample per page.
pub fn write(job: &mut Job, memory: &Memory) {
    timed(job, memory, |page, word| {
        memory.word(page, word).store(7, SeqCst);
        1
    });
}

fn timed(job: &mut Job, memory: &Memory, touch: impl Fn(usize, usize) -> u64) {
    let (all, word) = (pages(memory), index(job.word));
    let start = now();
    for at in 0..index(job.rounds).min(all) {
        let page = scattered(at, all);
        let before = now();
        job.sum = job.sum.wrapping_add(touch(page, word));
        let after = now();
        memory.sample(job, after.wrapping_sub(before));
        job.count += 1;
    }
    job.elapsed = now().wrapping_sub(start);
}

/// Reads or writes everything in order, or a word of each page in scattered order (`stride` 0; of that, part
/// `own` of `all` parts).
pub fn scan(job: &mut Job, memory: &Memory) {
    let start = now();
    if job.write == 0 {
        // In a local, so that no compiler keeps it in memory: that would be slower than what is read.
        let mut sum = job.sum;
        scan_with(job, memory, |word, _| sum = sum.wrapping_add(word.load(Relaxed)));
        job.sum = sum;
    } else {
        scan_with(job, memory, |word, count| word.store(count, Relaxed));
    }
    job.elapsed = now().wrapping_sub(start);
}

/// Touches every word in turn, with the number of words before it.
fn scan_with(job: &mut Job, memory: &Memory, mut touch: impl FnMut(&AtomicU64, u64)) {
    let (words, all, first) = (memory.words(), pages(memory), index(job.word));
    let scattered_part = job.part(all);
    let mut count = job.count;
    for _ in 0..job.rounds {
        if job.stride == 0 {
            for at in scattered_part.clone() {
                touch(&words[scattered(at, all) * PAGE_WORDS + first], count);
                count += 1;
            }
        } else {
            for word in words.iter().skip(first).step_by(index(job.stride)) {
                touch(word, count);
                count += 1;
            }
        }
    }
    job.count = count;
}

/// Follows the chain that [`lay_chain`] laid: each step waits for the one before.
pub fn chase(job: &mut Job, memory: &Memory) {
    let mut at = index(job.word);
    let start = now();
    for _ in 0..job.rounds {
        at = index(memory.words()[at].load(Relaxed));
        job.count += 1;
    }
    job.elapsed = now().wrapping_sub(start);
    job.sum = u64::try_from(at).unwrap_or(0);
}

/// Lays a chain through one word of every cache line and back to its start: from line to line as a linear
/// congruential generator of full period goes (Knuth, The Art of Computer Programming, vol. 2, 3.2.1.2,
/// theorem A), so that neither caches nor TLB see a pattern in its pages. The number of words must be a
/// power of two.
pub fn lay_chain(words: &mut [u64]) {
    const LINE: usize = 8;
    const MULTIPLIER: usize = 6_364_136_223_846_793_005;
    const INCREMENT: usize = 1_442_695_040_888_963_407;
    let lines = words.len() / LINE;
    for line in 0..lines {
        let next = line.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT) & (lines - 1);
        words[line * LINE] = u64::try_from(next * LINE).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;

    #[test]
    fn scattered_order_names_every_page_once() {
        for pages in [8, 64, 4096] {
            let mut seen = vec![false; pages];
            let mut last = pages;
            for at in 0..pages {
                let page = scattered(at, pages);
                assert!(!seen[page] && page != last + 1 && page + 1 != last);
                (seen[page], last) = (true, page);
            }
        }
    }

    #[test]
    fn chain_visits_every_line_and_ends_at_its_start() {
        let mut words = vec![0; 4096];
        lay_chain(&mut words);
        let start = scattered(0, 512) * 8;
        let mut at = start;
        let mut steps = 0;
        loop {
            at = index(words[at]);
            steps += 1;
            if at == start {
                break;
            }
        }
        assert_eq!(steps, 512);
    }
}
