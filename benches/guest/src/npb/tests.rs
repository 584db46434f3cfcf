extern crate std;
use super::BATCH;
use super::random::Random;
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

/// Runs a kernel with one, two and three processors: what each of them found.
fn alike(kind: Kind, pages: usize, rounds: u64) -> Vec<Vec<Job>> {
    let count = u64::try_from(pages).unwrap();
    let job = Job { kind: kind as u64, rounds, pages: count, ..Job::default() };
    let run = |all| {
        let (_words, address) = memory(pages);
        together(all, address, job)
    };
    let found: Vec<_> = [1, 2, 3].map(run).into();
    let sum = found[0][0].sum;
    assert!(sum != 0 && found.iter().flatten().all(|job| job.sum == sum), "{found:?}");
    let other = Job { word: 1, ..job };
    let (_words, address) = memory(pages);
    assert!(together(1, address, other)[0].sum != sum, "another seed, another result");
    found
}

#[test]
fn cg_of_several_processors_solves_as_the_serial_run() {
    for job in alike(Kind::Cg, 256, 3).iter().flatten() {
        assert_eq!(job.count, 3);
    }
}

#[test]
fn ft_of_several_processors_transforms_as_the_serial_run() {
    // Room for sides of 16.
    for jobs in alike(Kind::Ft, 64, 2) {
        assert_eq!(jobs.iter().map(|job| job.count).sum::<u64>(), 16 * 16 * 16);
    }
}

#[test]
fn mg_of_several_processors_solves_as_the_serial_run() {
    // Room for sides of 32.
    for job in alike(Kind::Mg, 17 + 256 + 24, 3).iter().flatten() {
        assert_eq!(job.count, 3);
    }
}

#[test]
fn memory_that_is_too_small_does_nothing() {
    for kind in [Kind::Ep, Kind::IsKeys, Kind::Is, Kind::IsCheck, Kind::Cg, Kind::Ft, Kind::Mg] {
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
