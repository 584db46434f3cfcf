//! Two kernels of the NAS parallel benchmarks (NAS Technical Report RNR-94-007), written anew: EP, which
//! only computes, and IS, which sorts integers and mostly touches memory.
//!
//! Each runs as one program over `all` processors that share its memory, or, with `all` 1, as a
//! serial program. The results are the same to the bit.
//!
//! ```text
//!   EP:  pages 0 | 1.. results of the batches, each processor's on pages of its own
//!   IS:  pages 0 | 1..17 counts of buckets, a page per processor | 17..145 ranks | keys | keys by bucket
//! ```
//! Word 0 of page 0 is the barrier. It must be a multiple of `all` at the start, as in fresh memory
//! and after every run that came to its end.

use crate::job::{Job, Memory, PAGE_WORDS, index, now};
use crate::layout::CPUS_MAX;
use crate::share::barrier;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// 5^13, the multiplier of the generator; its modulus is 2^46.
const MULTIPLIER: u64 = 1_220_703_125;
const MODULUS_BITS: u32 = 46;
const MASK: u64 = (1 << MODULUS_BITS) - 1;
const SEED: u64 = 271_828_183;

/// The generator of the NAS benchmarks.
struct Random(u64);

impl Random {
    /// The job's generator after so many numbers. Jobs differ by `word`.
    fn of(job: &Job, numbers: u64) -> Self {
        let (mut state, mut power, mut left) = (SEED + 2 * job.word, MULTIPLIER, numbers);
        while left > 0 {
            if left & 1 == 1 {
                state = state.wrapping_mul(power) & MASK;
            }
            power = power.wrapping_mul(power) & MASK;
            left >>= 1;
        }
        Self(state)
    }

    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(MULTIPLIER) & MASK;
        #[expect(clippy::cast_precision_loss, reason = "46 bits are exact")]
        let value = self.0 as f64;
        const MODULUS: f64 = (1u64 << MODULUS_BITS) as f64;
        value / MODULUS
    }
}

fn word(value: usize) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Pairs of a batch of EP.
pub const BATCH: u64 = 1 << 16;
/// Square annuli that the deviates are counted in.
const ANNULI: usize = 10;
/// Words of a batch's result: annuli, both sums, room.
const RESULT: usize = 16;

/// What EP finds: deviates by annulus, and the sums of both coordinates.
#[derive(Default)]
struct Deviates {
    annuli: [u64; ANNULI],
    x: f64,
    y: f64,
}

impl Deviates {
    fn of_batch(random: &mut Random) -> Self {
        let mut found = Self::default();
        for _ in 0..BATCH {
            let (x, y) = (2.0 * random.next() - 1.0, 2.0 * random.next() - 1.0);
            let t = x * x + y * y;
            if t <= 1.0 && t > 0.0 {
                let factor = libm::sqrt(-2.0 * libm::log(t) / t);
                let (x, y) = (x * factor, y * factor);
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "0 to 8"
                )]
                let annulus = libm::fmax(libm::fabs(x), libm::fabs(y)) as usize;
                found.annuli[annulus.min(ANNULI - 1)] += 1;
                found.x += x;
                found.y += y;
            }
        }
        found
    }

    fn words(&self) -> impl Iterator<Item = u64> {
        self.annuli.into_iter().chain([self.x.to_bits(), self.y.to_bits()])
    }

    fn add(&mut self, words: &[AtomicU64]) {
        for (annulus, word) in self.annuli.iter_mut().zip(words) {
            *annulus += word.load(Relaxed);
        }
        self.x += f64::from_bits(words[ANNULI].load(Relaxed));
        self.y += f64::from_bits(words[ANNULI + 1].load(Relaxed));
    }
}

/// EP: Gaussian deviates from `rounds` batches of [`BATCH`] uniform pairs. Afterwards `count` is how
/// many pairs lay in the circle and `sum` a digest of counts and sums, of all processors' batches.
pub fn ep(job: &mut Job, memory: &Memory) {
    let (batches, all) = (index(job.rounds), index(job.all).max(1));
    let pages = (batches.div_ceil(all) * RESULT).div_ceil(PAGE_WORDS);
    let Some(results) = memory.words().get(PAGE_WORDS..(1 + all * pages) * PAGE_WORDS) else {
        return;
    };
    let start = now();
    let of = |own: usize| &results[own * pages * PAGE_WORDS..];
    let own = job.part(batches);
    let mut random = Random::of(job, word(own.start) * BATCH * 2);
    for (_, slot) in own.zip(of(index(job.own)).chunks_exact(RESULT)) {
        for (word, value) in slot.iter().zip(Deviates::of_batch(&mut random).words()) {
            word.store(value, Relaxed);
        }
    }
    if !barrier(job, memory) {
        return;
    }
    let mut found = Deviates::default();
    for own in 0..all {
        let theirs = Job { own: word(own), ..*job }.part(batches);
        for (_, slot) in theirs.zip(of(own).chunks_exact(RESULT)) {
            found.add(slot);
        }
    }
    job.elapsed = now().wrapping_sub(start);
    job.count = found.annuli.iter().sum();
    // FNV-1a over words.
    let mix = |digest: u64, word: u64| (digest ^ word).wrapping_mul(0x100_0000_01b3);
    job.sum = found.words().fold(0xcbf2_9ce4_8422_2325, mix);
}

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

#[cfg(test)]
mod tests {
    extern crate std;
    use super::{BATCH, Random};
    use crate::{Job, Kind, run};
    use std::thread::scope;
    use std::vec::Vec;
    use std::{assert, assert_eq, vec};

    /// Fresh memory, and its first whole page as an address.
    fn memory(pages: usize) -> (Vec<u64>, usize) {
        let words = vec![0; (pages + 1) * 512];
        let address = words.as_ptr().expose_provenance().next_multiple_of(4096);
        (words, address)
    }

    /// Runs the job on so many processors.
    #[expect(unsafe_code, reason = "a job names its memory by address")]
    fn together(all: u64, address: usize, job: Job) -> Vec<Job> {
        // UNSAFETY: the memory outlives the threads.
        let one = |own| {
            let mut job = Job { own, all, memory: u64::try_from(address).unwrap(), ..job };
            // SAFETY: the pages are inside the vector that the caller keeps.
            unsafe { run(&mut job) };
            job
        };
        scope(|threads| {
            let running: Vec<_> = (0..all).map(|own| threads.spawn(move || one(own))).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn generator_jumps_to_where_it_would_walk() {
        let job = Job { word: 3, ..Job::default() };
        let mut walking = Random::of(&job, 0);
        for _ in 0..1000 {
            walking.next();
        }
        assert_eq!(walking.0, Random::of(&job, 1000).0);
    }

    #[test]
    fn ep_of_several_processors_equals_the_serial_run() {
        let job = Job { kind: Kind::Ep as u64, rounds: 7, pages: 8, ..Job::default() };
        let (words, address) = memory(8);
        let serial = together(1, address, job)[0];
        // A quarter of pi.
        let pairs = 7 * BATCH;
        assert!((78 * pairs..79 * pairs).contains(&(100 * serial.count)), "{}", serial.count);
        // Of the deviates two thirds squared lie within one standard deviation.
        let first = (address - words.as_ptr().addr()) / 8 + 512;
        let innermost: u64 = (0..7).map(|batch| words[first + batch * 16]).sum();
        assert!((45 * serial.count..49 * serial.count).contains(&(100 * innermost)));
        for all in [2, 3] {
            let (_words, address) = memory(8);
            for shared in together(all, address, job) {
                assert_eq!((shared.count, shared.sum), (serial.count, serial.sum));
            }
        }
        let other = together(1, address, Job { word: 1, ..job })[0];
        assert!(other.sum != serial.sum, "another seed, other deviates");
    }

    #[test]
    fn is_of_several_processors_ranks_as_the_serial_run() {
        let job = |kind: Kind| Job { kind: kind as u64, rounds: 2, pages: 512, ..Job::default() };
        let mut ranks = Vec::new();
        for all in [1, 2, 3] {
            let (words, address) = memory(512);
            together(all, address, job(Kind::IsKeys));
            let ranked = together(all, address, job(Kind::Is));
            let first = (address - words.as_ptr().addr()) / 8 + 17 * 512;
            ranks.push(words[first..first + (1 << 16)].to_vec());
            let check = together(1, address, job(Kind::IsCheck))[0];
            assert_eq!((check.count, check.sum), (11 * 16 * 512, 0));
            assert_eq!(ranked.iter().map(|job| job.count).sum::<u64>(), 2 * check.count);
        }
        assert!(ranks.iter().all(|found| *found == ranks[0]));
        assert_eq!(ranks[0].last(), Some(&(11 * 16 * 512)));
    }

    #[test]
    fn check_of_is_sees_a_wrong_rank() {
        let job = |kind: Kind| Job { kind: kind as u64, rounds: 1, pages: 512, ..Job::default() };
        let (mut words, address) = memory(512);
        together(1, address, job(Kind::IsKeys));
        together(1, address, job(Kind::Is));
        let first = (address - words.as_ptr().addr()) / 8;
        words[first + 17 * 512 + 30_000] += 1;
        assert!(together(1, address, job(Kind::IsCheck))[0].sum > 0);
    }

    #[test]
    fn memory_that_is_too_small_does_nothing() {
        for kind in [Kind::Ep, Kind::IsKeys, Kind::Is, Kind::IsCheck] {
            let (_words, address) = memory(8);
            let job = Job { kind: kind as u64, rounds: 10_000, pages: 8, ..Job::default() };
            assert_eq!(together(1, address, job)[0].count, 0);
        }
    }

    #[test]
    fn barrier_gives_up_at_the_time_limit() {
        let (_words, address) = memory(512);
        let job = Job { kind: Kind::Is as u64, rounds: 1, pages: 512, ..Job::default() };
        let mut alone =
            Job { all: 2, cycles: 1_000_000, memory: u64::try_from(address).unwrap(), ..job };
        #[expect(unsafe_code, reason = "a job names its memory by address")]
        // UNSAFETY: as above.
        // SAFETY: the pages are inside the vector.
        unsafe {
            run(&mut alone);
        }
        assert_eq!(alone.count, 0);
    }
}
