//! IS: it sorts integers, and mostly touches memory.

use super::random::Random;
use super::word;
use crate::job::{Job, Memory, PAGE_WORDS, index, now};
use crate::layout::CPUS_MAX;
use crate::share::barrier;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// IS: keys are below this.
const KEYS: usize = 1 << 16;
const BUCKETS: usize = 256;

/// The memory of IS.
struct Sort<'a> {
    counts: &'a [AtomicU64],
    /// By key: how many keys are not greater.
    ranks: &'a [AtomicU64],
    keys: &'a [AtomicU64],
    by_bucket: &'a [AtomicU64],
}

impl<'a> Sort<'a> {
    fn new(memory: &'a Memory) -> Option<Self> {
        let cpus = index(CPUS_MAX);
        let rest = memory.words().get(PAGE_WORDS..)?;
        let (counts, rest) = rest.split_at_checked(cpus * PAGE_WORDS)?;
        let (ranks, rest) = rest.split_at_checked(KEYS)?;
        // Every processor's keys begin on a page.
        let unit = cpus * PAGE_WORDS;
        let (keys, rest) = rest.split_at(rest.len() / 2 / unit * unit);
        Some(Self { counts, ranks, keys, by_bucket: &rest[..keys.len()] })
    }

    fn count(&self, own: usize, bucket: usize) -> &AtomicU64 {
        &self.counts[own * PAGE_WORDS + bucket]
    }
}

fn raise(counter: &AtomicU64) -> u64 {
    let value = counter.load(Relaxed);
    counter.store(value + 1, Relaxed);
    value
}

fn bucket(key: u64) -> usize {
    index(key) % KEYS / (KEYS / BUCKETS)
}

/// Lays this processor's part of the keys: sums of four uniform numbers each.
pub fn is_keys(job: &mut Job, memory: &Memory) {
    let Some(sort) = Sort::new(memory) else { return };
    let own = job.part(sort.keys.len());
    let mut random = Random::of(job, word(own.start) * 4);
    for key in &sort.keys[own] {
        let four = random.next() + random.next() + random.next() + random.next();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to KEYS")]
        let value = (four * KEYS as f64 / 4.0) as u64;
        key.store(value, Relaxed);
        job.count += 1;
    }
}

/// IS: ranks the keys that [`is_keys`] laid, `rounds` times. `count` is how many keys this processor ranked.
pub fn is(job: &mut Job, memory: &Memory) {
    let Some(sort) = Sort::new(memory) else { return };
    let start = now();
    let mut ranked = 0;
    for _ in 0..job.rounds {
        count_buckets(job, &sort);
        if !barrier(job, memory) {
            return;
        }
        let starts = fill_buckets(job, &sort);
        if !barrier(job, memory) {
            return;
        }
        ranked += rank(job, &sort, &starts);
    }
    // Nobody leaves before all ranks are there.
    if barrier(job, memory) {
        job.count = word(ranked);
        job.elapsed = now().wrapping_sub(start);
    }
}

fn count_buckets(job: &Job, sort: &Sort<'_>) {
    let own = index(job.own);
    for bucket in 0..BUCKETS {
        sort.count(own, bucket).store(0, Relaxed);
    }
    for key in &sort.keys[job.part(sort.keys.len())] {
        raise(sort.count(own, bucket(key.load(Relaxed))));
    }
}

/// Brings this processor's keys to their buckets; where each bucket starts, and the end.
fn fill_buckets(job: &Job, sort: &Sort<'_>) -> [usize; BUCKETS + 1] {
    let (mut starts, mut next) = ([0; BUCKETS + 1], [0; BUCKETS]);
    let mut at = 0;
    for bucket in 0..BUCKETS {
        starts[bucket] = at;
        for cpu in 0..index(job.all).max(1) {
            if cpu == index(job.own) {
                next[bucket] = at;
            }
            at += index(sort.count(cpu, bucket).load(Relaxed));
        }
    }
    starts[BUCKETS] = at;
    for key in &sort.keys[job.part(sort.keys.len())] {
        let key = key.load(Relaxed);
        let next = &mut next[bucket(key)];
        if let Some(place) = sort.by_bucket.get(*next) {
            place.store(key, Relaxed);
        }
        *next += 1;
    }
    starts
}

/// Ranks the keys of the buckets that begin in this processor's part; how many.
fn rank(job: &Job, sort: &Sort<'_>, starts: &[usize; BUCKETS + 1]) -> usize {
    let own = job.part(sort.keys.len());
    let mut ranked = 0;
    // Empty buckets may begin at the end of all keys.
    let mine =
        |start: usize| own.contains(&start) || start == own.end && own.end == sort.keys.len();
    for bucket in (0..BUCKETS).filter(|bucket| mine(starts[*bucket])) {
        let span = KEYS / BUCKETS;
        let ranks = &sort.ranks[bucket * span..(bucket + 1) * span];
        for rank in ranks {
            rank.store(0, Relaxed);
        }
        let keys = sort.by_bucket.get(starts[bucket]..starts[bucket + 1]).unwrap_or(&[]);
        for key in keys {
            raise(&ranks[index(key.load(Relaxed)) % span]);
        }
        let mut before = word(starts[bucket]);
        for rank in ranks {
            before += rank.load(Relaxed);
            rank.store(before, Relaxed);
        }
        ranked += keys.len();
    }
    ranked
}

/// The full verification of IS by one processor: every key goes to the place that its rank names, over the keys by
/// bucket. `count` is the number of keys, `sum` the number of places that stay empty, are out of
/// order or beyond the end: 0.
pub fn is_check(job: &mut Job, memory: &Memory) {
    const EMPTY: u64 = u64::MAX;
    let Some(sort) = Sort::new(memory) else { return };
    for place in sort.by_bucket {
        place.store(EMPTY, Relaxed);
    }
    for key in sort.keys {
        let key = key.load(Relaxed);
        let rank = &sort.ranks[index(key) % KEYS];
        let place = rank.load(Relaxed).wrapping_sub(1);
        rank.store(place, Relaxed);
        match usize::try_from(place).ok().and_then(|place| sort.by_bucket.get(place)) {
            Some(place) => place.store(key, Relaxed),
            None => job.sum += 1,
        }
        job.count += 1;
    }
    let mut last = 0;
    for place in sort.by_bucket {
        let key = place.load(Relaxed);
        job.sum += u64::from(key == EMPTY || key < last);
        last = key;
    }
}
