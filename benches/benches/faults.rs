//! Faults through real engines and real userfaultfd, without KVM: two engines in this process, joined by a
//! transport, and a thread each that touches pages. Beside them faults that one thread answers from
//! this process: the least that any engine must do.
//!
//! Only the touches are timed. Every page is touched once and then left behind, for an engine learns
//! what a slice does with a page; when all are used up, new engines take over.

use criterion::{Criterion, criterion_group, criterion_main};
use dsm::GuestRam;
use microguest::layout::SHARED;
use microguest::{Job, Kind};
use std::sync::Arc;
use std::time::Duration;
use tessera_benches::carrier::Carrier;
use tessera_benches::engines::Engines;
use tessera_benches::experiments::cycles_per_ns;
use tessera_benches::local::Pager;
use tessera_benches::native::Native;
use tessera_benches::placement::Place;

const CORES: [Place; 2] = [Place::Core(0), Place::Core(1)];
/// Pages that are touched in one go, in scattered order: no run that would be fetched ahead.
const CHUNK: u64 = 512;
/// Chunks of slice 1's memory.
const CHUNKS: u64 = 64;

/// Who touches the pages of a chunk, and how: first what comes before, then what is timed.
type Steps = &'static [(usize, Kind)];

const FAULTS: [(&str, Steps); 4] = [
    ("read miss", &[(1, Kind::Write), (0, Kind::Read)]),
    ("write miss", &[(1, Kind::Write), (0, Kind::Write)]),
    ("upgrade", &[(1, Kind::Write), (0, Kind::Read), (0, Kind::Write)]),
    // The home takes back what another slice wrote.
    ("recall", &[(1, Kind::Write), (0, Kind::Write), (1, Kind::Write)]),
];

fn job(kind: Kind, chunk: u64, pages: u64) -> Job {
    let memory = SHARED + chunk * CHUNK * 4096;
    Job { kind: kind as u64, memory, pages: CHUNK, rounds: pages, ..Job::default() }
}

fn time(samples: &[u32]) -> Duration {
    let cycles: u64 = samples.iter().map(|cycles| u64::from(*cycles)).sum();
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    Duration::from_secs_f64(cycles as f64 / cycles_per_ns() / 1e9)
}

/// Engines, and the first chunk that nobody has touched.
struct Fresh {
    carrier: Carrier,
    engines: Option<Engines>,
    next: u64,
}

impl Fresh {
    /// Time of so many faults.
    fn faults(&mut self, steps: Steps, mut count: u64) -> Duration {
        let mut total = Duration::ZERO;
        while count > 0 {
            // Chunk 0 is slice 0's.
            if self.engines.is_none() || self.next > CHUNKS {
                self.engines = None;
                let homes = [CHUNK, CHUNK * CHUNKS];
                let engines = Engines::new(self.carrier, &homes, &CORES);
                self.engines = Some(engines.expect("two engines"));
                self.next = 1;
            }
            let engines = self.engines.as_mut().expect("just made");
            let (last, before) = steps.split_last().expect("a fault has a step");
            for (slice, kind) in before {
                engines.run(*slice, job(*kind, self.next, CHUNK)).expect("a chunk is touched");
            }
            let pages = count.min(CHUNK);
            let timed = engines.run_counted(last.0, job(last.1, self.next, pages));
            let (done, faults) = timed.expect("a chunk is touched");
            assert_eq!(faults, pages, "every touch is a fault");
            total += time(&done.samples);
            count -= pages;
            self.next += 1;
        }
        total
    }
}

fn remote(criterion: &mut Criterion) {
    for carrier in [Carrier::Shm, Carrier::Tcp] {
        let mut group = criterion.benchmark_group(format!("fault {}", carrier.name()));
        for (name, steps) in FAULTS {
            let mut fresh = Fresh { carrier, engines: None, next: 1 };
            group.bench_function(name, |bencher| {
                bencher.iter_custom(|count| fresh.faults(steps, count));
            });
        }
        group.finish();
    }
}

/// Memory, who answers its faults, and who takes them, on one core.
struct Local {
    thread: Native,
    pager: Pager,
}

impl Local {
    fn new() -> Self {
        let first = SHARED / 4096;
        let ram = GuestRam::new(std::slice::from_ref(&(first..first + CHUNK)));
        let ram = Arc::new(ram.expect("memory"));
        let pager = Pager::new(Arc::clone(&ram), CORES[0]).expect("a pager");
        let thread = Native::over(&ram, &CORES[..1]).expect("a thread");
        Self { thread, pager }
    }

    fn faults(&mut self, kind: Kind, upgrade: bool, mut count: u64) -> Duration {
        let mut total = Duration::ZERO;
        while count > 0 {
            if upgrade {
                self.thread.run(0, job(Kind::Write, 0, CHUNK)).expect("a chunk is touched");
            }
            self.pager.recall(CHUNK, upgrade).expect("pages go away");
            let before = self.pager.answered().expect("a pager");
            let pages = count.min(CHUNK);
            let done = self.thread.run(0, job(kind, 0, pages)).expect("a chunk is touched");
            let answered = self.pager.answered().expect("a pager") - before;
            assert_eq!(answered, pages, "every touch is a fault");
            total += time(&done.samples);
            count -= pages;
        }
        total
    }
}

fn local(criterion: &mut Criterion) {
    let cases = [
        ("read miss", Kind::Read, false),
        ("write miss", Kind::Write, false),
        ("upgrade", Kind::Write, true),
    ];
    let mut group = criterion.benchmark_group("fault local");
    for (name, kind, upgrade) in cases {
        let mut local = None;
        group.bench_function(name, |bencher| {
            let local = local.get_or_insert_with(Local::new);
            bencher.iter_custom(|count| local.faults(kind, upgrade, count));
        });
    }
    group.finish();
}

/// Nothing where the machine permits no userfaultfd.
fn faults(criterion: &mut Criterion) {
    if let Err(error) = dsm::check_host() {
        println!("skipped: {error}");
        return;
    }
    local(criterion);
    remote(criterion);
}

fn short() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3))
        .sample_size(20)
}

criterion_group! { name = benches; config = short(); targets = faults }
criterion_main!(benches);
