//! Chunks between private and shared, on every kind of memory: two engines in one process, real
//! userfaultfd, threads of the test in the role of vCPUs.

use crate::support::{Contest, LIMIT, Silent, Slice, report_of, start, stop};
use std::fs;
use std::slice::from_ref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};
use tessera_dsm::{GuestRam, HugePages, Memory, RamError, Replicate};
use wire::Gfn;

/// Four chunks; slice 0 is home of the first two.
const FRAMES: u64 = 2048;
const OWN: u64 = FRAMES / 2;
const CHUNK: u64 = 512;

fn two_slices(memory: Memory) -> Option<[Slice; 2]> {
    start(FRAMES, memory, Replicate::Nothing, |_| Box::new(Silent))
}

/// The host's pool of huge pages, enlarged as long as this lives, where that is permitted.
struct Pool {
    before: Option<u64>,
    _alone: MutexGuard<'static, ()>,
}

const POOL: &str = "/proc/sys/vm/nr_hugepages";
static ALONE: Mutex<()> = Mutex::new(());

impl Pool {
    fn with(more: u64) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let before = fs::read_to_string(POOL).ok().and_then(|text| text.trim().parse().ok());
        let before = before.filter(|before| fs::write(POOL, (before + more).to_string()).is_ok());
        Self { before, _alone: alone }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            let _ = fs::write(POOL, before.to_string());
        }
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LIMIT, "waited in vain until {what}");
        sleep(Duration::from_millis(10));
    }
}

/// The home's threads never stop storing to all pages of a chunk while the other slice shares it.
fn no_store_is_lost(memory: Memory) {
    let Some(slices) = two_slices(memory) else { return };
    let [home, other] = &slices;
    // Some pages stay untouched, some are touched by the VMM only.
    home.handle.write(CHUNK * 4096, vec![9; 8], LIMIT).unwrap();
    let stored_to = |page: u64| !page.is_multiple_of(5);
    let contest = Contest { hammered: home, taker: other, pages: 0..CHUNK, stored_to };
    contest.loses_no_store(memory, |round| [round, 200, CHUNK - 1 - round]);
    assert_eq!(other.word(CHUNK, 0).load(Ordering::SeqCst), 0x0909_0909_0909_0909);
    assert_eq!(other.word(CHUNK + 1, 0).load(Ordering::SeqCst), 0, "never touched");
    let chunks = report_of(home).chunks;
    let copied = if memory == Memory::Memfd { 0 } else { 2 };
    assert_eq!((chunks.own, chunks.shared, chunks.copied), (2, 2, copied), "{memory}");
    stop(slices);
}

#[test]
fn uffd_stores_during_sharing_are_kept_on_memfd() {
    no_store_is_lost(Memory::Memfd);
}

#[test]
fn uffd_stores_during_sharing_are_kept_on_anonymous_memory() {
    no_store_is_lost(Memory::Anonymous);
}

#[test]
fn uffd_stores_during_sharing_are_kept_on_hugetlbfs() {
    let _pool = Pool::with(4);
    no_store_is_lost(Memory::Hugetlbfs);
}

#[test]
fn uffd_private_memory_never_faults_and_the_vmm_sees_it() {
    let _pool = Pool::with(4);
    for memory in [Memory::Memfd, Memory::Anonymous, Memory::Hugetlbfs] {
        let Some(slices) = two_slices(memory) else { continue };
        let home = &slices[0];
        for page in 0..OWN {
            home.word(page, 1).store(page + 1, Ordering::SeqCst);
        }
        let bytes = home.handle.read(700 * 4096 + 8, 8, LIMIT).unwrap();
        assert_eq!(bytes, 701u64.to_le_bytes(), "{memory}");
        home.handle.write(701 * 4096 + 8, vec![0xff; 8], LIMIT).unwrap();
        assert_eq!(home.word(701, 1).load(Ordering::SeqCst), u64::MAX, "{memory}");
        if memory == Memory::Hugetlbfs {
            assert_eq!(home.ram.huge_bytes().unwrap(), OWN * 4096);
        }
        let report = report_of(home);
        assert_eq!((report.faults_local, report.chunks.shared), (0, 0), "{memory}");
        stop(slices);
    }
}

#[test]
fn uffd_chunk_is_huge_until_shared_and_huge_again_when_sharing_ends() {
    let Some(slices) = two_slices(Memory::Memfd) else { return };
    let [home, other] = &slices;
    let _thread = HugePages::start(Arc::clone(&home.ram)).unwrap();
    for page in 0..CHUNK {
        home.word(page, 0).store(page, Ordering::SeqCst);
    }
    let huge = || home.ram.huge_bytes().unwrap() / 4096;
    let start = Instant::now();
    while huge() != CHUNK {
        if start.elapsed() > Duration::from_secs(10) {
            needs::skip("this kernel gives memory files no huge pages");
            stop(slices);
            return;
        }
        sleep(Duration::from_millis(10));
    }

    assert_eq!(other.word(17, 0).fetch_add(100, Ordering::SeqCst), 17);
    assert_eq!(huge(), 0, "the mapping is one of small pages now");
    for page in (0..CHUNK).filter(|page| *page != 17) {
        assert_eq!(home.word(page, 0).load(Ordering::SeqCst), page);
    }
    let report = report_of(home);
    assert!(report.faults_local < 10, "one fault maps the other pages: {report:?}");
    assert_eq!((report.chunks.shared_now, report.faults.read), (1, 0));

    // While the other slice has the page, the chunk stays shared; then it does not.
    assert_eq!(home.word(17, 0).fetch_add(1000, Ordering::SeqCst), 117);
    until("the chunk is huge again", || huge() == CHUNK);
    let chunks = report_of(home).chunks;
    assert_eq!((chunks.shared_now, chunks.private_again, chunks.collapsed), (0, 1, 2));

    // And once more.
    home.word(18, 0).store(5, Ordering::SeqCst);
    assert_eq!(other.word(17, 0).load(Ordering::SeqCst), 1117);
    assert_eq!(other.word(18, 0).load(Ordering::SeqCst), 5);
    home.word(18, 0).store(6, Ordering::SeqCst);
    assert_eq!(other.word(18, 0).load(Ordering::SeqCst), 6);
    assert_eq!(report_of(home).chunks.shared, 2);
    stop(slices);
}

/// The same while sharing ends: a chunk is unregistered, collapsed, and shared again under its writers.
#[test]
fn uffd_stores_are_kept_while_sharing_ends_and_begins() {
    const ROUNDS: u64 = 2;
    let Some(slices) = two_slices(Memory::Memfd) else { return };
    let [home, other] = &slices;
    let _thread = HugePages::start(Arc::clone(&home.ram)).unwrap();
    let over = AtomicBool::new(false);
    let settled = || report_of(home).chunks.private_again;
    let stored = scope(|threads| {
        let hammers = [3, 4].map(|index| {
            let over = &over;
            threads.spawn(move || {
                let mut stored = 0;
                while !over.load(Ordering::Relaxed) {
                    // A page that the other slice has read comes back by these stores.
                    for page in 0..CHUNK {
                        let word = home.word(page, index);
                        word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                        stored += 1;
                    }
                }
                stored
            })
        });
        for round in 0..ROUNDS {
            for page in 0..20 {
                other.word(page * 25 + round, 5).fetch_add(1, Ordering::SeqCst);
            }
            until("the chunk is private again", || settled() == round + 1);
            // In the midst of the collapse, at its end, or after it.
            sleep(Duration::from_millis(5 * round));
        }
        over.store(true, Ordering::Relaxed);
        hammers.map(|hammer| hammer.join().unwrap())
    });

    let sum = |slice: &Slice, index| -> u64 {
        (0..CHUNK).map(|page| slice.word(page, index).load(Ordering::SeqCst)).sum()
    };
    for slice in &slices {
        assert_eq!([sum(slice, 3), sum(slice, 4)], stored);
        assert_eq!(sum(slice, 5), 20 * ROUNDS);
    }
    stop(slices);
}

#[test]
fn hugetlbfs_without_pages_is_refused() {
    let many = 0..1u64 << 33;
    let error =
        GuestRam::with_memory(from_ref(&(0..512)), from_ref(&many), Memory::Hugetlbfs).unwrap_err();
    assert!(matches!(error, RamError::HugePages { .. }), "{error}");
}

#[test]
fn populated_private_memory_is_read_through_the_alias() {
    let ram = GuestRam::with_memory(from_ref(&(0..1024)), from_ref(&(0..1024)), Memory::Anonymous)
        .unwrap();
    ram.write(Gfn(600), 16, &[1, 2, 3]);
    ram.populate(Gfn(512), 512).unwrap();
    let mut bytes = [0; 3];
    ram.read(Gfn(600), 16, &mut bytes);
    assert_eq!(bytes, [1, 2, 3]);
}
