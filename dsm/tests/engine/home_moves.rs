//! Homes of chunks move from slice to slice while threads read and write their pages. Two engines in one process, real
//! userfaultfd, threads of the test in the role of vCPUs.

use crate::support::{
    LIMIT, Mesh, Silent, Slice, over_shm, over_tcp, report_of, saved, start_over, stop,
};
use dsm_protocol::saved::NodeState;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;
use tessera_dsm::{GuestRam, HomeMoveError, Memory, Replicate};
use wire::{Epoch, Gfn, SliceId};

const CHUNK: u64 = 512;
/// Eight chunks; slice 1 is home of the last four.
const FRAMES: u64 = 8 * CHUNK;
const HALF: u64 = FRAMES / 2;
const SLICES: [SliceId; 2] = [SliceId(0), SliceId(1)];

fn two_slices(mesh: fn(&[Arc<GuestRam>]) -> Mesh) -> Option<[Slice; 2]> {
    start_over(FRAMES, Memory::Memfd, Replicate::Nothing, |_| Box::new(Silent), mesh)
}

fn home_of(state: &NodeState, frame: u64) -> Option<SliceId> {
    let mut ranges = state.homes.iter();
    ranges
        .find(|range| (range.first..range.first + range.pages).contains(&frame))
        .map(|range| range.home)
}

/// Threads of both slices raise words of all pages, and of a few pages again and again, while slice 0 has homes move
/// there and back. No addition is lost, and each home is where it was put.
#[test]
fn uffd_homes_move_there_and_back_and_no_store_is_lost() {
    for mesh in [over_shm as fn(&[Arc<GuestRam>]) -> Mesh, over_tcp] {
        let Some(slices) = two_slices(mesh) else { return };
        let over = AtomicBool::new(false);
        let added: Vec<u64> = scope(|threads| {
            let adders: Vec<_> = (0..4_usize)
                .map(|at| {
                    let (slice, over) = (&slices[at % 2], &over);
                    threads.spawn(move || add(slice, at, over))
                })
                .collect();
            for (round, placement) in (0..12).zip(2..) {
                let (frames, to) = next_move(round);
                slices[0].handle.move_home(frames, to, Epoch(placement), LIMIT).unwrap();
                sleep(Duration::from_millis(5));
            }
            over.store(true, Ordering::SeqCst);
            adders.into_iter().map(|adder| adder.join().unwrap()).collect()
        });
        for slice in &slices {
            for (at, added) in added.iter().enumerate() {
                let words = (0..FRAMES).map(|page| slice.word(page, at).load(Ordering::SeqCst));
                assert_eq!(words.sum::<u64>(), *added);
            }
        }
        let (first, second) = (report_of(&slices[0]).homes, report_of(&slices[1]).homes);
        assert!(first.moves >= 30 && first.moves == second.moves, "{first:?} {second:?}");
        assert_eq!((first.pages_in, first.pages_out), (second.pages_out, second.pages_in));
        let states = saved(&slices);
        slices.iter().for_each(|slice| slice.handle.go_on());
        for frame in [0, HALF - 1, HALF, FRAMES - 1] {
            let mut moved = (0..12).map(next_move).filter(|(frames, _)| frames.contains(&frame));
            let (_, last) = moved.next_back().unwrap();
            assert!(states.iter().all(|state| home_of(state, frame) == Some(last)), "{frame}");
        }
        stop(slices);
    }
}

/// Whole halves, all of it, and parts of chunks.
fn next_move(round: u64) -> (Range<u64>, SliceId) {
    let to = |at: u64| SLICES[usize::try_from(at % 2).unwrap()];
    match round % 4 {
        0 => (HALF..FRAMES, to(round / 4)),
        1 => (0..FRAMES, SLICES[1]),
        2 => (100..HALF + 700, SLICES[0]),
        _ => (0..HALF, to(1 + round / 4)),
    }
}

/// Raises word `at` of pages until it is told to stop: of all pages in order, of pages far from each other, of a few.
fn add(slice: &Slice, at: usize, over: &AtomicBool) -> u64 {
    let mut added = 0;
    let mut one = |page: u64| {
        slice.word(page, at).fetch_add(1, Ordering::SeqCst);
        added += 1;
    };
    for round in 0_u64.. {
        for page in (round * 300..round * 300 + 300).map(|page| page % FRAMES) {
            one(page);
        }
        (0..50).for_each(|n| one((round + n) * 977 % FRAMES));
        [0, 1, HALF, FRAMES - 1].into_iter().for_each(&mut one);
        if over.load(Ordering::SeqCst) {
            break;
        }
    }
    added
}

/// A slice that is to be empty: another one becomes home of its memory, and fetches all of it. Chunks that it gets as a
/// whole are private there.
#[test]
fn uffd_pulled_pages_leave_nothing_behind() {
    for mesh in [over_shm as fn(&[Arc<GuestRam>]) -> Mesh, over_tcp] {
        let Some(slices) = two_slices(mesh) else { return };
        let [left, next] = &slices;
        // Of the second chunk the next home has some pages already, one of them to read.
        for page in (0..HALF).filter(|page| page % 5 > 0) {
            left.word(page, 1).store(page + 1, Ordering::SeqCst);
        }
        for page in [CHUNK, CHUNK + 100, CHUNK + 307] {
            next.word(page, 2).fetch_add(7, Ordering::SeqCst);
        }
        assert_eq!(next.word(CHUNK + 404, 1).load(Ordering::SeqCst), CHUNK + 405);

        left.handle.move_home(0..HALF, SLICES[1], Epoch(2), LIMIT).unwrap();
        next.handle.pull_home(0..HALF, SLICES[0], LIMIT).unwrap();

        let states = saved(&slices);
        slices.iter().for_each(|slice| slice.handle.go_on());
        assert!((0..HALF).all(|frame| home_of(&states[0], frame) == Some(SLICES[1])));
        let behind = |frame: &u64| {
            states[0].exclusive.contains(Gfn(*frame)) || states[0].shared.contains(Gfn(*frame))
        };
        assert_eq!((0..HALF).find(behind), None);
        let report = report_of(next);
        assert_eq!(report.homes.pages_in, HALF, "{report:?}");
        assert!(report.homes.pages_pulled >= CHUNK / 2, "{report:?}");

        for page in 0..HALF {
            let expected = if page % 5 > 0 { page + 1 } else { 0 };
            assert_eq!(next.word(page, 1).load(Ordering::SeqCst), expected, "page {page}");
            next.word(page, 3).store(page, Ordering::SeqCst);
        }
        let report = report_of(next);
        assert!(report.chunks.exclusive_grants >= 2, "{:?}", report.chunks);
        assert_eq!(left.word(HALF - 1, 3).load(Ordering::SeqCst), HALF - 1);
        stop(slices);
    }
}

#[test]
fn uffd_homes_that_cannot_move_stay() {
    let Some(slices) = two_slices(over_shm) else { return };
    let ask = |frames, to| slices[0].handle.move_home(frames, to, Epoch(2), LIMIT);
    assert_eq!(ask(0..4, SliceId(2)), Err(HomeMoveError::NotAMember(SliceId(2))));
    assert_eq!(ask(FRAMES - 4..FRAMES + 4, SLICES[1]), Err(HomeMoveError::NoMemory(FRAMES)));
    // It is there.
    assert_eq!(ask(0..HALF, SLICES[0]), Ok(()));
    assert_eq!(report_of(&slices[0]).homes.moves, 0);
    stop(slices);
}
