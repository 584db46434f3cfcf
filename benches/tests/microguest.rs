//! The microguest on this machine's KVM, over one and over two slices. A program of its own, since a
//! cluster begins with one thread.
//!
//! Skipped as a whole where /dev/kvm or userfaultfd cannot be used.
#![expect(clippy::unwrap_used, reason = "a test fails like a test")]

use dsm::{HoldPolicy, Mechanisms, Memory, Touch};
use microguest::layout::{IMAGE, SHARED, stack_end};
use microguest::{Job, Kind};
use needs::Need;
use std::path::{Path, PathBuf};
use std::process::Command;
use tessera_benches::carrier::Carrier;
use tessera_benches::cluster::Cluster;
use tessera_benches::local::Local;
use tessera_benches::microvm::{Alone, MicroVm};
use tessera_benches::paging::GuestPages;
use tessera_benches::placement::Place;
use tessera_benches::plan::Plan;
use tessera_benches::pool::Pool;

const ANYWHERE: &[Place] = &[Place::Anywhere];

type Test = (&'static str, fn(&Path));

fn main() {
    if !needs::kvm() || !needs::has(Need::Uffd, dsm::check_host()) {
        return;
    }
    let image = image();
    let tests: [Test; 10] = [
        ("jobs_of_a_guest_without_dsm", jobs_of_a_guest_without_dsm),
        ("exception_is_told", exception_is_told),
        ("local_faults_are_counted", local_faults_are_counted),
        ("slices_take_turns", slices_take_turns),
        ("counter_of_two_slices_is_exact", counter_of_two_slices_is_exact),
        ("run_is_read_right", run_is_read_right),
        ("three_slices_read_parts_and_end", three_slices_read_parts_and_end),
        ("store_of_a_running_guest_is_never_lost", store_of_a_running_guest_is_never_lost),
        ("store_to_a_granted_chunk_is_never_lost", store_to_a_granted_chunk_is_never_lost),
        ("sample_names_code_and_address", sample_names_code_and_address),
    ];
    for (name, test) in tests {
        test(&image);
        println!("test {name} ... ok");
    }
    // The line that the harness of other tests closes with; a test that fails ends the program.
    println!("test result: ok. {} passed; 0 failed; 0 ignored", tests.len());
}

/// Builds the guest, which has a profile of its own.
fn image() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("microguest");
    let status = Command::new(env!("CARGO"))
        .args(["build", "-q", "--locked", "-p", "tessera-microguest"])
        .args(["--features", "guest", "--profile", "guest", "--target-dir"])
        .arg(&target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .unwrap();
    assert!(status.success(), "the microguest cannot be built");
    target.join("guest/microguest")
}

fn job(kind: Kind) -> Job {
    Job { kind: kind as u64, memory: SHARED, pages: 64, rounds: 64, ..Job::default() }
}

fn plan(image: &Path, carrier: Carrier) -> Plan<'_> {
    Plan {
        image,
        carrier,
        homes: &[512, 512],
        places: &[ANYWHERE, ANYWHERE],
        engines: &[],
        hold: HoldPolicy::default(),
        mechanisms: Mechanisms::ALL,
        page_by_page: &[],
        memory: Memory::default(),
        guest_pages: GuestPages::Small,
    }
}

fn alone(guest_pages: GuestPages) -> Alone {
    Alone { guest_pages, ..Alone::of(512) }
}

fn jobs_of_a_guest_without_dsm(image: &Path) {
    for pages in [GuestPages::Small, GuestPages::Large] {
        let vm = MicroVm::without_dsm(image, &alone(pages), &[Place::Anywhere; 2]).unwrap();
        let done = vm.run(1, job(Kind::Write)).unwrap();
        assert_eq!((done.job.count, done.job.taken, done.samples.len()), (64, 64, 64));
        let done = vm.run(0, job(Kind::Read)).unwrap();
        assert_eq!(done.job.sum, 7 * 64, "what the other vCPU wrote");
        let done = vm.run(0, Job { stride: 1, rounds: 1, ..job(Kind::Scan) }).unwrap();
        assert_eq!((done.job.sum, done.job.count), (7 * 64, 64 * 512));
    }
}

fn exception_is_told(image: &Path) {
    let vm = MicroVm::without_dsm(image, &alone(GuestPages::Small), ANYWHERE).unwrap();
    let error = vm.run(0, Job { memory: 0x20_0000_0000, ..job(Kind::Read) }).unwrap_err();
    assert!(error.to_string().contains("exception Some(14)"), "a page fault: {error}");
}

fn local_faults_are_counted(image: &Path) {
    let local = Local::new(image, 64, Place::Anywhere, Place::Anywhere).unwrap();
    local.vm.run(0, job(Kind::Write)).unwrap();
    assert_eq!(local.pager.answered().unwrap(), 64);
    local.pager.recall(64, true).unwrap();
    local.vm.run(0, job(Kind::Read)).unwrap();
    assert_eq!(local.pager.answered().unwrap(), 64, "reading is still permitted");
    local.vm.run(0, job(Kind::Write)).unwrap();
    assert_eq!(local.pager.answered().unwrap(), 128);
}

fn slices_take_turns(image: &Path) {
    for carrier in [Carrier::Shm, Carrier::Tcp] {
        let mut cluster = Cluster::new(&plan(image, carrier)).unwrap();
        let turns = |own| Job { own, all: 2, cycles: u64::MAX, rounds: 50, ..job(Kind::PingPong) };
        cluster.start(1, 0, turns(1)).unwrap();
        let counts = [cluster.run(0, 0, turns(0)).unwrap(), cluster.wait(1, 0).unwrap()];
        assert_eq!(counts.map(|done| done.job.count), [50, 50]);
        assert!(cluster.faults(0).unwrap() > 0 && cluster.faults(1).unwrap() > 0);
    }
}

fn counter_of_two_slices_is_exact(image: &Path) {
    let mut cluster = Cluster::new(&plan(image, Carrier::Shm)).unwrap();
    // A page of each slice, both raised by both.
    for page in [0, 1000] {
        let add =
            |cycles| Job { write: 2, cycles, memory: SHARED + page * 4096, ..job(Kind::Count) };
        let add = |cycles| Job { pages: 1, rounds: u64::MAX, ..add(cycles) };
        cluster.start(1, 0, add(300_000_000)).unwrap();
        let here = cluster.run(0, 0, add(300_000_000)).unwrap().job.count;
        let there = cluster.wait(1, 0).unwrap().job.count;
        let read = Job { memory: SHARED + page * 4096, pages: 1, rounds: 1, ..job(Kind::Read) };
        let total = cluster.run(0, 0, read).unwrap().job.sum;
        assert_eq!(total, here + there);
        assert!(here > 0 && there > 0);
    }
}

fn run_is_read_right(image: &Path) {
    let mut cluster = Cluster::new(&plan(image, Carrier::Tcp)).unwrap();
    let memory = SHARED + 512 * 4096;
    let scan = Job { memory, pages: 512, stride: 1, rounds: 1, ..job(Kind::Scan) };
    // The n-th word is n.
    cluster.run(1, 0, Job { write: 1, ..scan }).unwrap();
    let done = cluster.run(0, 0, scan).unwrap();
    let words = 512 * 512;
    assert_eq!((done.job.count, done.job.sum), (words, words * (words - 1) / 2));
    let report = cluster.report(0).unwrap();
    assert_eq!(report.pages_in, 512);
    assert!(report.prefetches > 256, "most of a run is fetched ahead: {report:?}");
}

/// The guest of the home raises a word of a private chunk all the time; the other slice asks for the
/// chunk in the midst of it, with 2 MiB pages in both guests.
fn store_of_a_running_guest_is_never_lost(image: &Path) {
    let _pool = Pool::enlarged(2);
    for memory in [Memory::Memfd, Memory::Anonymous, Memory::Hugetlbfs] {
        if let Err(error) = memory.check(std::slice::from_ref(&(0..1024))) {
            needs::leave_out(&error.to_string());
            continue;
        }
        let plan = Plan { memory, guest_pages: GuestPages::Large, ..plan(image, Carrier::Shm) };
        let mut cluster = Cluster::new(&plan).unwrap();
        let add =
            |word, cycles| Job { write: 2, word, cycles, rounds: u64::MAX, ..job(Kind::Count) };
        cluster.start(0, 0, add(3, 500_000_000)).unwrap();
        let theirs = cluster.run(1, 0, add(4, 100_000_000)).unwrap().job.count;
        let ours = cluster.wait(0, 0).unwrap().job.count;
        for slice in [0, 1] {
            for (word, count) in [(3, ours), (4, theirs)] {
                let read = Job { word, pages: 1, rounds: 1, ..job(Kind::Read) };
                let sum = cluster.run(slice, 0, read).unwrap().job.sum;
                assert_eq!(sum, count, "{memory}, word {word} on slice {slice}");
            }
        }
        let chunks = cluster.report(0).unwrap().chunks;
        assert_eq!((chunks.shared, chunks.own), (1, 1), "{memory}");
    }
}

/// Two readers of one home, of which one fetches page by page; both are forked, and end with the cluster.
fn three_slices_read_parts_and_end(image: &Path) {
    let homes = [512, 512, 512];
    let three = Plan {
        homes: &homes,
        places: &[ANYWHERE, ANYWHERE, ANYWHERE],
        page_by_page: &[2],
        ..plan(image, Carrier::Tcp)
    };
    let mut cluster = Cluster::new(&three).unwrap();
    let scan = Job { pages: 512, rounds: 1, ..job(Kind::Scan) };
    cluster.run(0, 0, Job { write: 1, stride: 1, ..scan }).unwrap();
    for slice in [1, 2] {
        let part = |own| Job { own, all: 2, ..scan };
        let [first, second] = [0, 1].map(|own| cluster.run(slice, 0, part(own)).unwrap().job);
        assert_eq!((first.count, second.count), (256, 256));
        // The first word of each page was written with the number of words before it.
        assert_eq!(first.sum + second.sum, (0..512).map(|page| page * 512).sum::<u64>());
        assert_eq!(cluster.report(slice).unwrap().pages_in, 512);
    }
}

/// A guest reads memory of another slice in order and goes on to raise a word in the last chunk, which is
/// its own by then; the home asks for the page in the midst of it.
fn store_to_a_granted_chunk_is_never_lost(image: &Path) {
    for memory in [Memory::Memfd, Memory::MemfdPrealloc] {
        let homes = [512, 2048];
        let plan = Plan {
            memory,
            homes: &homes,
            guest_pages: GuestPages::Large,
            ..plan(image, Carrier::Shm)
        };
        let mut cluster = Cluster::new(&plan).unwrap();
        let theirs = SHARED + 512 * 4096;
        let scan = Job { memory: theirs, pages: 2048, stride: 1, rounds: 1, ..job(Kind::Scan) };
        cluster.run(1, 0, Job { write: 1, ..scan }).unwrap();
        let words = 2048 * 512;
        let done = cluster.run(0, 0, scan).unwrap();
        assert_eq!((done.job.count, done.job.sum), (words, words * (words - 1) / 2), "{memory}");

        let last = Job { memory: theirs + 1536 * 4096, ..job(Kind::Count) };
        let before = |word| {
            let read = Job { word, pages: 1, rounds: 1, ..last };
            Job { kind: Kind::Read as u64, ..read }
        };
        let starts: Vec<u64> =
            [3, 4].map(|word| cluster.run(0, 0, before(word)).unwrap().job.sum).into();
        let add = |word, cycles| Job { write: 2, word, cycles, rounds: u64::MAX, ..last };
        cluster.start(0, 0, add(3, 500_000_000)).unwrap();
        let theirs = cluster.run(1, 0, add(4, 100_000_000)).unwrap().job.count;
        let ours = cluster.wait(0, 0).unwrap().job.count;
        for slice in [0, 1] {
            for ((word, count), start) in [(3, ours), (4, theirs)].into_iter().zip(&starts) {
                let sum = cluster.run(slice, 0, before(word)).unwrap().job.sum;
                assert_eq!(sum, start + count, "{memory}, word {word} on slice {slice}");
            }
        }
    }
}

/// The first fault is always sampled; how many more are depends on the time they take.
fn sample_names_code_and_address(image: &Path) {
    for (kind, word) in [(Kind::Read, 5), (Kind::Write, 300)] {
        let mut cluster = Cluster::new(&plan(image, Carrier::Shm)).unwrap();
        let there = Job { memory: SHARED + 512 * 4096, word, ..job(kind) };
        for _ in 0..20 {
            cluster.run(1, 0, Job { kind: Kind::Write as u64, ..there }).unwrap();
            cluster.run(0, 0, there).unwrap();
        }
        let trace = cluster.trace().unwrap();
        assert!(trace.samples_kept > 0, "{} were asked", trace.samples_asked);
        let mut kept = 0;
        for page in &trace.pages {
            for site in &page.sites {
                let address = page.gfn * 4096 + word * 8;
                assert_eq!((site.touch, site.address), (Touch::Data, Some(address)), "{site:x?}");
                assert!((IMAGE..stack_end(0)).contains(&site.rip) && site.user, "{site:x?}");
                kept += u64::from(site.count);
            }
        }
        assert_eq!(kept, trace.samples_kept);
    }
}
