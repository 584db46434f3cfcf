//! Chunks of another home that one slice reads or writes in order: private to it until the home wants a page
//! back. Two engines in one process, real userfaultfd, threads of the test in the role of vCPUs.

use crate::support::{Contest, LIMIT, Silent, Slice, report_of, start, stop};
use std::sync::atomic::Ordering;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};
use tessera_dsm::{Memory, Replicate};

const CHUNK: u64 = 512;
/// Eight chunks; slice 1 is home of the last four.
const FRAMES: u64 = 8 * CHUNK;
const THEIRS: u64 = FRAMES / 2;
const MEMORIES: [Memory; 2] = [Memory::Memfd, Memory::MemfdPrealloc];

fn two_slices(memory: Memory) -> Option<[Slice; 2]> {
    start(FRAMES, memory, Replicate::Nothing, |_| Box::new(Silent))
}

/// Slice 0 visits all pages of slice 1 in order. At the end of each chunk it waits until the next has come,
/// so that how many are granted does not depend on the machine.
fn visit_in_order(reader: &Slice, mut visit: impl FnMut(u64)) {
    let before = report_of(reader).pages_in;
    for page in THEIRS..FRAMES {
        visit(page);
        let done = page + 1 - THEIRS;
        let more = (done + CHUNK).min(FRAMES - THEIRS);
        let start = Instant::now();
        while done.is_multiple_of(CHUNK) && report_of(reader).pages_in - before < more {
            assert!(start.elapsed() < LIMIT, "the next chunk does not come");
            sleep(Duration::from_millis(1));
        }
    }
}

/// Slice 1 has written its memory, and slice 0 reads it in order.
fn granted(memory: Memory) -> Option<[Slice; 2]> {
    let slices = two_slices(memory)?;
    let [reader, home] = &slices;
    for page in (THEIRS..FRAMES).filter(|page| !page.is_multiple_of(7)) {
        home.word(page, 1).store(page, Ordering::SeqCst);
    }
    visit_in_order(reader, |page| {
        let expected = if page.is_multiple_of(7) { 0 } else { page };
        assert_eq!(reader.word(page, 1).load(Ordering::SeqCst), expected, "{memory}");
    });
    let report = report_of(reader);
    assert_eq!(report.pages_in, FRAMES - THEIRS, "{memory}: {report:?}");
    assert_eq!(
        report.chunks.exclusive_grants, 3,
        "{memory}: the first is where the run begins: {report:?}"
    );
    assert!(report.faults.read < 20 && report.faults_local < 40, "{memory}: {report:?}");
    Some(slices)
}

#[test]
fn uffd_chunks_read_in_order_are_private_until_their_home_wants_a_page() {
    for memory in MEMORIES {
        let Some(slices) = granted(memory) else { return };
        let [reader, home] = &slices;
        // Only memory that was made ready has huge pages here: the reader's own and those granted.
        match (memory, reader.ram.huge_bytes().unwrap() / (CHUNK * 4096)) {
            (Memory::MemfdPrealloc, 0) => {
                needs::leave_out("this kernel gives memory files no huge pages");
            }
            (Memory::MemfdPrealloc, huge) => {
                assert_eq!(huge, THEIRS / CHUNK + report_of(reader).chunks.exclusive_grants);
            }
            (_, huge) => assert_eq!(huge, 0, "{memory}"),
        }
        // A store needs nobody's leave.
        let last = FRAMES - 1;
        reader.word(last, 2).store(42, Ordering::SeqCst);
        let report = report_of(reader);
        assert_eq!((report.faults.upgrade, report.faults.write), (0, 0), "{memory}");

        assert_eq!(home.word(last, 2).load(Ordering::SeqCst), 42, "{memory}");
        let chunks = report_of(reader).chunks;
        assert_eq!((chunks.shared, chunks.shared_now), (1, 1), "{memory}");
        // The other pages are still here.
        let before = report_of(reader).pages_in;
        for page in FRAMES - CHUNK..last {
            reader.word(page, 3).store(page, Ordering::SeqCst);
        }
        assert_eq!(report_of(reader).pages_in, before, "{memory}");
        assert_eq!(home.word(last - 1, 3).load(Ordering::SeqCst), last - 1, "{memory}");
        stop(slices);
    }
}

/// The borrower's threads never stop storing to all pages while the home takes some of them back.
#[test]
fn uffd_stores_to_granted_chunks_are_kept_when_their_home_wants_pages() {
    for memory in MEMORIES {
        let Some(slices) = granted(memory) else { return };
        let [borrower, home] = &slices;
        let pages = FRAMES - 2 * CHUNK..FRAMES;
        let (first, last) = (pages.start, pages.end - 1);
        let contest = Contest { hammered: borrower, taker: home, pages, stored_to: |_| true };
        contest.loses_no_store(memory, |round| [first + round, first + 700, last - round]);
        assert_eq!(report_of(borrower).chunks.shared, 2, "{memory}");
        stop(slices);
    }
}

/// Both go through the memory in turns and raise a word of each page: chunks are granted again and again,
/// and go back page by page.
#[test]
fn uffd_chunks_that_go_back_and_forth_keep_all_stores() {
    const ROUNDS: u64 = 4;
    for memory in MEMORIES {
        let Some(slices) = two_slices(memory) else { return };
        let [other, home] = &slices;
        for _ in 0..ROUNDS {
            for slice in [home, other] {
                for page in THEIRS..FRAMES {
                    slice.word(page, 0).fetch_add(1, Ordering::SeqCst);
                }
            }
        }
        for slice in [other, home] {
            for page in THEIRS..FRAMES {
                assert_eq!(slice.word(page, 0).load(Ordering::SeqCst), 2 * ROUNDS, "{memory}");
            }
        }
        stop(slices);
    }
}

/// Two threads of one slice read in order from different places, another one scattered.
#[test]
fn uffd_several_runs_and_a_scattered_reader_see_the_same() {
    for memory in MEMORIES {
        let Some(slices) = two_slices(memory) else { return };
        let [reader, home] = &slices;
        for page in THEIRS..FRAMES {
            home.word(page, 1).store(page, Ordering::SeqCst);
        }
        scope(|threads| {
            for first in [THEIRS, THEIRS + CHUNK + 100] {
                threads.spawn(move || {
                    for page in first..FRAMES {
                        assert_eq!(reader.word(page, 1).load(Ordering::SeqCst), page);
                    }
                });
            }
            for n in 0..500 {
                let page = THEIRS + n * 977 % (FRAMES - THEIRS);
                assert_eq!(reader.word(page, 1).load(Ordering::SeqCst), page);
                // Some are taken back in the midst.
                home.word(page, 2).fetch_add(1, Ordering::SeqCst);
            }
        });
        let sum: u64 =
            (THEIRS..FRAMES).map(|page| reader.word(page, 2).load(Ordering::SeqCst)).sum();
        assert_eq!(sum, 500, "{memory}");
        stop(slices);
    }
}
