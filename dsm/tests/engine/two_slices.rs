//! Two engines in one process, joined by shared memory, with real userfaultfd. Threads of the test
//! play the vCPUs: they touch the guest mappings.

use crate::support::{LIMIT, Silent, Slice, add_words, report_of, start, start_measuring, stop};
use std::ptr::with_exposed_provenance;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};
use tessera_dsm::{EngineError, Memory, PageTrace, Replicate, Site, Tracing, Tuning, Uplink};
use transport::Class;
use wire::{Gfn, SliceId, VcpuId};

const FRAMES: u64 = 1024;

fn two_slices() -> Option<[Slice; 2]> {
    two_slices_with(Replicate::Nothing)
}

fn two_slices_with(replicate: Replicate) -> Option<[Slice; 2]> {
    start(FRAMES, Memory::default(), replicate, |_| Box::new(Silent))
}

#[test]
fn uffd_counters_of_two_slices_are_exact() {
    let Some(slices) = two_slices() else { return };
    add_words(&slices, [3, FRAMES / 2 + 3, 4, FRAMES - 1]);
    let report = slices[1].handle.report(LIMIT).unwrap();
    assert!(report.faults.write + report.faults.upgrade > 0, "slice 1 had to ask: {report:?}");
    stop(slices);
}

#[test]
fn uffd_messages_through_memory_arrive_in_order() {
    let Some(slices) = two_slices() else { return };
    let (writer, reader) = (&slices[0], &slices[1]);
    const LAST: u64 = 300;

    // Message passing over two pages: whoever sees the flag must see the data behind it.
    scope(|threads| {
        threads.spawn(|| {
            for value in 1..=LAST {
                writer.word(10, 0).store(value, Ordering::Release);
                writer.word(FRAMES - 10, 0).store(value, Ordering::Release);
            }
        });
        threads.spawn(|| {
            loop {
                let flag = reader.word(FRAMES - 10, 0).load(Ordering::Acquire);
                let data = reader.word(10, 0).load(Ordering::Acquire);
                assert!(data >= flag, "flag {flag} came before data {data}");
                if flag == LAST {
                    return;
                }
            }
        });
    });
    stop(slices);
}

#[test]
fn uffd_copies_of_the_vmm_are_coherent() {
    let Some(slices) = two_slices() else { return };
    let text: Vec<u8> = (0..10_000u32).flat_map(u32::to_le_bytes).collect();
    let address = (FRAMES / 2 - 4) * 4096 + 100;

    // Across both homes, written by one slice, then seen by the other's vCPU and VMM.
    slices[0].handle.write(address, text.clone(), LIMIT).unwrap();
    let read = slices[1].handle.read(address, text.len(), LIMIT).unwrap();

    assert_eq!(read, text);
    assert_eq!(slices[1].word(FRAMES / 2 - 4, 13).load(Ordering::SeqCst), 2 << 32 | 1);
    let beyond = slices[0].handle.write(FRAMES * 4096 - 2, vec![1; 4], LIMIT);
    assert!(beyond.is_err(), "the last two bytes have no memory");
    stop(slices);
}

#[test]
fn uffd_correlated_pages_come_together() {
    let Some(slices) = start_measuring(FRAMES) else { return };
    let (writer, reader) = (&slices[0], &slices[1]);
    const ROUNDS: u64 = 400;
    // Far from one another: no run that is prefetched.
    let clock = [20, 70, 45, 90, 160];
    let tick = |round| {
        for page in clock {
            writer.word(page, 1).store(round, Ordering::SeqCst);
        }
        for page in clock {
            assert_eq!(reader.word(page, 1).load(Ordering::SeqCst), round);
        }
    };
    (1..=ROUNDS).for_each(tick);

    let [wrote, read] = [writer, reader].map(report_of);
    let missed = ROUNDS * clock.len() as u64;
    assert!(read.correlated_requests > missed / 4 && read.faults.read < missed * 3 / 4, "{read:?}");
    // The writer's upgrades as well; what is asked for with others is no fault.
    assert!(wrote.correlated_requests > missed / 4, "{wrote:?}");

    for slice in [writer, reader] {
        slice.handle.tune(Tuning { correlation_prefetch: Some(false), ..Tuning::default() });
    }
    let before = [writer, reader].map(report_of);
    (ROUNDS + 1..=ROUNDS + 20).for_each(tick);
    let after = [writer, reader].map(report_of);
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(after.correlated_requests, before.correlated_requests);
        assert!(after.waited_us > before.waited_us && after.held_us <= after.waited_us);
    }
    // Each by itself now.
    assert_eq!(after[1].faults.read - before[1].faults.read, 20 * clock.len() as u64);
    stop(slices);
}

/// Stores to an address of this process from another one, as KVM's workers touch memory in a vCPU's
/// name. True if the store was carried out.
fn store_from_outside(address: usize) -> bool {
    let mut word = 99u64;
    let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: 8 };
    let remote =
        libc::iovec { iov_base: with_exposed_provenance::<u8>(address) as *mut _, iov_len: 8 };
    let this = libc::pid_t::try_from(std::process::id()).unwrap();
    // SAFETY: the call takes no pointers here.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    // SAFETY: the child makes system calls only.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: both vectors are valid; the kernel checks the remote address.
            let count = unsafe { libc::process_vm_writev(this, &local, 1, &remote, 1, 0) };
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(count == 8)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the status is a valid place.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "the child ended with status {status:#x}");
            libc::WEXITSTATUS(status) == 1
        }
    }
}

#[test]
fn uffd_fault_of_a_worker_becomes_what_the_vcpu_wants() {
    let Some(slices) = two_slices() else { return };
    let (home, other) = (&slices[0], &slices[1]);
    home.word(20, 0).store(5, Ordering::SeqCst);
    home.word(21, 0).store(6, Ordering::SeqCst);

    // The vCPU reads: the page is shared, and the worker got no access.
    let wrote = store_from_outside(other.guest + 20 * 4096);
    assert!(!wrote, "the worker was let through");
    assert_eq!(other.word(20, 0).load(Ordering::SeqCst), 5);
    let report = other.handle.report(LIMIT).unwrap();
    assert_eq!((report.worker_faults_probed, report.worker_faults_guessed), (1, 0));
    assert_eq!((report.faults.read, report.faults.write, report.faults.upgrade), (1, 0, 0));
    assert_eq!(home.handle.report(LIMIT).unwrap().invalidations, 0);

    // It writes later. Where KVM would be refused the store, this thread would be killed.
    assert!(other.handle.refused(LIMIT));
    other.word(20, 0).store(7, Ordering::SeqCst);
    assert_eq!(home.word(20, 0).load(Ordering::SeqCst), 7);

    // The vCPU writes: KVM refuses the store, and then it is asked for.
    assert!(!store_from_outside(other.guest + 21 * 4096));
    assert!(other.handle.refused(LIMIT));
    other.word(21, 0).store(8, Ordering::SeqCst);
    assert_eq!(home.word(21, 0).load(Ordering::SeqCst), 8);
    let report = other.handle.report(LIMIT).unwrap();
    assert_eq!((report.faults.read, report.faults.write, report.faults.upgrade), (2, 0, 2));

    // It is known to write there: the page is not probed for the next worker.
    home.word(21, 0).store(9, Ordering::SeqCst);
    assert!(store_from_outside(other.guest + 21 * 4096));
    assert_eq!(home.word(21, 0).load(Ordering::SeqCst), 99);
    assert_eq!(other.handle.report(LIMIT).unwrap().worker_faults_guessed, 1);
    stop(slices);
}

#[test]
fn uffd_table_below_two_roots_becomes_a_replica() {
    let Some(slices) = two_slices_with(Replicate::AllTables) else { return };
    let (roots, table) = ([5, FRAMES - 5], 30);
    // Each slice has a vCPU with a root of its own; both point to one table of the kernel.
    for ((vcpu, slice), root) in (0..).zip(&slices).zip(roots) {
        slice.word(root, 511).store(table << 12 | 0x67, Ordering::SeqCst);
        slice.handle.set_root(VcpuId(vcpu), Gfn(root));
    }

    // Both walk through it, as processors do that set bits in the entries they use.
    let start = Instant::now();
    let (mut quiet, mut before) = (0, 0);
    while quiet < 20 {
        assert!(start.elapsed() < LIMIT, "the table still goes back and forth");
        for (slice, index) in slices.iter().zip(0..) {
            slice.word(table, index).fetch_or(0x20, Ordering::SeqCst);
        }
        let faults =
            |slice: &Slice| slice.handle.report(LIMIT).unwrap().faults_by_class.kernel_page_table;
        let now = slices.iter().map(faults).sum::<u64>();
        let reports = slices.iter().map(|slice| slice.handle.report(LIMIT).unwrap());
        let replicas = reports.map(|report| report.replica_pages).min().unwrap();
        quiet = if now == before && replicas > 0 { quiet + 1 } else { 0 };
        before = now;
        sleep(Duration::from_millis(5));
    }
    stop(slices);
}

#[test]
fn uffd_run_is_prefetched_for_its_reader() {
    let Some(slices) = two_slices() else { return };
    const PAGES: u64 = 400;
    for frame in 0..PAGES {
        slices[0].word(frame, 3).store(frame + 1, Ordering::SeqCst);
    }

    let read = |first: u64| {
        for frame in 0..PAGES {
            assert_eq!(slices[1].word(frame, 3).load(Ordering::SeqCst), frame + first);
        }
    };
    read(1);

    let report = slices[1].handle.report(LIMIT).unwrap();
    let (fetched, asked) = (report.prefetches, report.faults.read);
    // Three faults prove the run; then a window is on its way whenever one is read.
    assert!(fetched + asked >= PAGES, "{report:?}");
    assert!(asked < PAGES / 4, "{asked} of {PAGES} pages were waited for from their request on");
    // Prefetched pages are recalled as all others.
    for frame in 0..PAGES {
        slices[0].word(frame, 3).store(frame + 7, Ordering::SeqCst);
    }
    read(7);
    stop(slices);
}

/// Slice 1 reads every fourth page of slice 0, and then all of them downwards, each twice.
#[test]
fn uffd_runs_of_other_strides_are_prefetched_for_their_reader() {
    let every_fourth: Vec<_> = (0..FRAMES / 2).step_by(4).collect();
    for order in [every_fourth, (0..FRAMES / 2).rev().collect()] {
        let Some(slices) = two_slices() else { return };
        let pages = u64::try_from(order.len()).unwrap();
        let write_and_read = |first: u64| {
            for frame in &order {
                slices[0].word(*frame, 3).store(frame + first, Ordering::SeqCst);
            }
            for frame in &order {
                assert_eq!(slices[1].word(*frame, 3).load(Ordering::SeqCst), frame + first);
            }
        };
        write_and_read(1);

        let report = report_of(&slices[1]);
        let asked = report.faults.read;
        // Four faults prove the run; then a window is on its way whenever one is read.
        assert!(
            asked < pages / 8,
            "{asked} of {pages} pages were waited for from their request on"
        );
        assert_eq!(report.prefetches + asked, pages, "{report:?}");
        assert_eq!(report.pages_in, pages, "none came that was not read");
        // Prefetched pages are recalled as all others.
        write_and_read(7);
        stop(slices);
    }
}

/// What a slice knows of a page.
fn traced(slice: &Slice, frame: u64) -> PageTrace {
    let report = slice.handle.trace(LIMIT).unwrap();
    report.pages.into_iter().find(|page| page.gfn == frame).unwrap_or_default()
}

#[test]
fn uffd_trace_counts_kinds_peers_and_ping_pongs() {
    let Some(slices) = two_slices() else { return };
    let (home, other) = (&slices[0], &slices[1]);
    const ROUNDS: u64 = 6;
    let frame = 40;
    home.word(frame, 0).store(1, Ordering::SeqCst);
    for round in 0..ROUNDS {
        // Read there, written there, written here: the page comes as a copy, then for good, and goes.
        assert_eq!(other.word(frame, 0).load(Ordering::SeqCst), 1 + 2 * round);
        other.word(frame, 0).fetch_add(1, Ordering::SeqCst);
        home.word(frame, 0).fetch_add(1, Ordering::SeqCst);
    }

    let (here, there) = (traced(home, frame), traced(other, frame));
    let rounds = u32::try_from(ROUNDS).unwrap();
    // Once this slice is known to write what it reads, a read asks for all at once.
    assert_eq!((there.read, there.write), (rounds, 0));
    assert!(there.upgrade > 0 && there.upgrade < rounds, "{there:?}");
    assert_eq!((there.taken, there.ping_pongs), (rounds, rounds - 1));
    assert_eq!((here.write, here.read), (rounds, 0));
    // The copy is shared as often as an upgrade follows; the page is taken in each round.
    assert_eq!((here.shared, here.taken), (there.upgrade, rounds));
    assert_eq!(here.ping_pongs, rounds);
    assert_eq!((here.peer, here.peers), (Some(1), 0b10));
    assert_eq!((there.peer, there.peers), (Some(0), 0b01));

    // Written here and read there: only the right to write goes and comes.
    home.word(frame + 1, 0).store(0, Ordering::SeqCst);
    for round in 0..ROUNDS {
        assert_eq!(other.word(frame + 1, 0).load(Ordering::SeqCst), round);
        home.word(frame + 1, 0).fetch_add(1, Ordering::SeqCst);
    }
    let (here, there) = (traced(home, frame + 1), traced(other, frame + 1));
    assert_eq!((here.upgrade, here.shared, here.ping_pongs), (rounds, rounds, rounds));
    assert_eq!((there.read, there.taken, there.ping_pongs), (rounds, rounds, rounds - 1));

    // Off, only faults are counted.
    other.handle.set_trace(Tracing::Off);
    let before = traced(other, frame);
    other.word(frame, 0).fetch_add(1, Ordering::SeqCst);
    home.word(frame, 0).fetch_add(1, Ordering::SeqCst);
    other.word(frame, 0).fetch_add(1, Ordering::SeqCst);
    let change = traced(other, frame).since(&before);
    assert_eq!((change.faults(), change.taken, change.ping_pongs), (2, 0, 0));
    stop(slices);
}

/// Keeps what the engine wants to have sampled.
struct Asking(Arc<Mutex<Vec<(Gfn, u32)>>>);

impl Uplink for Asking {
    fn frame(&mut self, _: SliceId, _: Class, _: &[u8]) {}
    fn lost(&mut self, _: SliceId, _: String) {}
    fn fatal(&mut self, error: EngineError) {
        panic!("the engine failed: {error:?}");
    }
    fn sample_roots(&mut self) {}
    fn sample_fault(&mut self, gfn: Gfn, thread: u32) {
        self.0.lock().unwrap().push((gfn, thread));
    }
}

#[test]
fn uffd_thread_that_waits_is_the_one_that_is_sampled() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let uplink = |id| -> Box<dyn Uplink> {
        if id == 1 { Box::new(Asking(Arc::clone(&asked))) } else { Box::new(Silent) }
    };
    let Some(slices) = start(FRAMES, Memory::default(), Replicate::Nothing, uplink) else { return };
    // SAFETY: the call takes nothing.
    let this = u32::try_from(unsafe { libc::gettid() }).unwrap();
    slices[1].word(50, 0).store(1, Ordering::SeqCst);

    let report = slices[1].handle.trace(LIMIT).unwrap();
    assert_eq!(asked.lock().unwrap()[..], [(Gfn(50), this)]);
    assert_eq!((report.samples_asked, report.samples_kept), (1, 0));

    let site = Site { rip: 0x1234, address: Some(50 << 12), ..Site::default() };
    slices[1].handle.sampled(Gfn(50), site);
    assert_eq!(traced(&slices[1], 50).sites, [Site { count: 1, ..site }]);
    stop(slices);
}
