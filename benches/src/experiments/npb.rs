//! What a second slice buys: two NAS kernels over two slices with a vCPU and a core each, against the
//! same two vCPUs overcommitted on one core of one host; as one serial process per vCPU, and as one
//! program that shares its memory.
//!
//! What a second core of this machine buys is measured in the same rounds, with the same programs as
//! ordinary threads: cores that share their units, or a host that has other guests, give less than 2.
//!
//! A host that has other guests gives two whole cores in some rounds and not in others. The gain is judged by those in
//! which ordinary threads gain what is asked just before and just after; rounds go on until there are enough of them, or
//! [`MORE`] times as many were run. Where there are none, all rounds are judged.

use super::{CORES, Setting, cycles_per_ns};
use crate::carrier::Carrier;
use crate::cluster::Cluster;
use crate::microvm::{Alone, MicroVm};
use crate::native::Native;
use crate::noise;
use crate::placement::{Place, go_before_workers};
use crate::samples::{median, ratios};
use crate::worker_pool::{WorkerPool, cycles};
use anyhow::{Context, Result, ensure};
use microguest::layout::SHARED;
use microguest::{Job, Kind};
use outcome::{Bar, Conditions, Outcome, Row};

/// 16 MiB for each vCPU, in its own slice.
const PAGES: u64 = 4096;
/// What a second core buys at best.
const IDEAL: f64 = 2.0;
/// So many times as many rounds are run where the machine does not give two whole cores.
const MORE: u32 = 4;
/// No barrier waits longer, in cycles: some ten seconds.
const PATIENCE: u64 = 30_000_000_000;

/// Where a program runs.
const PLACES: [&str; 6] = [
    "one core",
    "two slices",
    "native, one core",
    "native, two cores",
    "native, one of the two",
    "native, two cores again",
];
/// Of them, the two slices.
const SLICES: usize = 1;
/// In which order: threads take the two cores just before the slices do, and just after.
const ORDER: [usize; 6] = [0, 3, SLICES, 5, 2, 4];

/// One program, as two jobs.
struct Program {
    name: &'static str,
    kind: Kind,
    jobs: [Job; 2],
    /// How much faster two slices must be, if anything is asked.
    bound: Option<f64>,
}

/// IS serial has the size of class W of NAS: 2^20 keys, ten times. EP has half of class S: 2^23 pairs.
fn programs(quick: bool) -> [Program; 4] {
    let part = if quick { 2 } else { 1 };
    let job = |kind: Kind, rounds| Job { kind: kind as u64, rounds, ..Job::default() };
    let (ep, is) = (job(Kind::Ep, 128 / part), job(Kind::Is, 10 / part));
    // One program has less to do: it is not judged, and IS waits for pages most of the time.
    let (shared_ep, shared_is) = (job(Kind::Ep, 64 / part), job(Kind::Is, 1));
    [
        Program { name: "EP", kind: Kind::Ep, jobs: serial(ep), bound: Some(1.95) },
        Program { name: "IS", kind: Kind::Is, jobs: serial(is), bound: Some(1.8) },
        Program { name: "EP as one program", kind: Kind::Ep, jobs: shared(shared_ep), bound: None },
        Program { name: "IS as one program", kind: Kind::Is, jobs: shared(shared_is), bound: None },
    ]
}

/// A serial process per vCPU, with numbers and memory of its own.
fn serial(job: Job) -> [Job; 2] {
    let memory = |number| SHARED + number * PAGES * 4096;
    [0, 1].map(|number| Job { all: 1, word: number, memory: memory(number), pages: PAGES, ..job })
}

/// One program over both vCPUs.
fn shared(job: Job) -> [Job; 2] {
    // From the middle of slice 0's memory to the middle of slice 1's.
    let (memory, pages) = (SHARED + PAGES / 2 * 4096, PAGES);
    [0, 1].map(|own| Job { own, all: 2, memory, pages, cycles: PATIENCE, ..job })
}

/// The pools, as in [`PLACES`].
struct WorkerPools {
    cluster: Cluster,
    one_core: MicroVm,
    natives: [Native; 2],
}

impl WorkerPools {
    fn new(setting: Setting<'_>) -> Result<Self> {
        // First: it wants to be alone.
        let cluster = Cluster::new(&setting.two_slices(Carrier::Shm, &[PAGES, PAGES]))?;
        let together = [CORES[0]; 2];
        let one_core = MicroVm::without_dsm(setting.image, &Alone::of(2 * PAGES), &together)?;
        let native = |places: [Place; 2]| Native::new(2 * PAGES, &places);
        Ok(Self { cluster, one_core, natives: [native(together)?, native(CORES)?] })
    }

    fn faults(&mut self) -> Result<u64> {
        Ok(self.cluster.faults(0)? + self.cluster.faults(1)?)
    }

    fn at(&mut self, place: usize) -> &mut dyn WorkerPool {
        match place {
            0 => &mut self.one_core,
            SLICES => &mut self.cluster,
            2 => &mut self.natives[0],
            _ => &mut self.natives[1],
        }
    }
}

/// What was found of one program at one place.
#[derive(Default)]
struct Found {
    milliseconds: Vec<f64>,
    /// Of all cores, in seconds.
    stolen: f64,
    /// Of all workers, for their cores, in seconds.
    waited: f64,
    /// Of the two slices, that needed the other.
    faults: u64,
}

/// Runs the experiment.
///
/// # Errors
/// This machine has no KVM or userfaultfd, or a guest failed.
pub fn run(setting: Setting<'_>) -> Result<Outcome> {
    let rounds = if setting.quick { 5 } else { 15 };
    let mut conditions = Conditions::now();
    conditions.notes.push(format!(
        "medians of {rounds} runs or more in turns, ratios of the runs of one round; from the first vCPU's \
         start to the last one's end; barriers spin; stolen by the host, waited for the core, in % of \
         one core; judged by the rounds in which ordinary threads gain what is asked just before and just after the slices, whatever these \
         did in them: up to {} rounds are run to have {rounds} of these",
        rounds * MORE
    ));
    go_before_workers();
    let mut pools = WorkerPools::new(setting)?;
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for program in programs(setting.quick) {
        let found = measure(&mut pools, &program, rounds)?;
        let gain = ratios(&found[0].milliseconds, &found[1].milliseconds);
        let native = ratios(&found[2].milliseconds, &found[3].milliseconds);
        let (all, machine) = (median(gain.clone()), median(native.clone()));
        let gains = [None, Some(all), None, Some(machine), None, None];
        for ((found, place), gain) in found.iter().zip(PLACES).zip(gains) {
            if let Some(row) = row(&program, place, found, gain) {
                rows.push(row);
            }
        }
        if let Some(bound) = program.bound {
            let bar = |what: &str, found, bound| {
                let what = format!("{}: {what}", program.name);
                Bar { what, found: median(found), bound, at_most: false }
            };
            let share = ratios(&gain, &native);
            let whole = whole_rounds(&gain, &found, bound);
            // Whoever reads the bar must know what the machine gave.
            let what = format!(
                "one core / two slices, {} of {} rounds (all {all:.3}, ordinary threads {machine:.3})",
                whole.len(),
                gain.len()
            );
            bars.push(bar(&what, if whole.is_empty() { gain } else { whole }, bound));
            bars.push(bar("(the same) / native", share, bound / IDEAL));
        }
    }
    Ok(Outcome { name: "npb".into(), conditions, rows, bars, shown: "ms".into() })
}

/// Of the gains of all rounds, those in which ordinary threads gained so much just before and just after.
fn whole_rounds(gain: &[f64], found: &[Found; 6], bound: f64) -> Vec<f64> {
    let native = |place: usize| ratios(&found[2].milliseconds, &found[place].milliseconds);
    let rounds = gain.iter().zip(native(3)).zip(native(5));
    let whole = rounds.filter(|((_, before), after)| *before >= bound && *after >= bound);
    whole.map(|((gain, _), _)| *gain).collect()
}

fn row(program: &Program, place: &str, found: &Found, gain: Option<f64>) -> Option<Row> {
    let total: f64 = found.milliseconds.iter().sum();
    if found.milliseconds.is_empty() {
        return None;
    }
    let of_a_core = |seconds: f64| seconds * 1000.0 / total * 100.0;
    let mut figures = vec![
        ("ms".to_owned(), median(found.milliseconds.clone())),
        ("stolen %".to_owned(), of_a_core(found.stolen)),
        ("waited %".to_owned(), of_a_core(found.waited)),
    ];
    if place == PLACES[SLICES] {
        #[expect(clippy::cast_precision_loss, reason = "small counts")]
        figures.push(("faults".into(), found.faults as f64 / found.milliseconds.len() as f64));
    }
    figures.extend(gain.map(|gain| ("gain".to_owned(), gain)));
    Some(Row { name: format!("{}, {place}", program.name), figures })
}

/// One program at all places in turns.
fn measure(pools: &mut WorkerPools, program: &Program, rounds: u32) -> Result<[Found; 6]> {
    let mut found = <[Found; 6]>::default();
    let serial = program.jobs[0].all == 1;
    let expected = expected(pools, program)?;
    for place in 0..4 {
        if program.kind == Kind::Is {
            pools.at(place).together(&program.jobs.map(|job| of_kind(job, Kind::IsKeys)))?;
        }
        // Backs the memory.
        pools.at(place).together(&program.jobs)?;
    }
    let enough = usize::try_from(rounds)?;
    for round in 0..rounds * MORE {
        let gain = ratios(&found[0].milliseconds, &found[SLICES].milliseconds);
        let whole = |bound| whole_rounds(&gain, &found, bound).len();
        if round >= rounds && program.bound.is_none_or(|bound| whole(bound) >= enough) {
            break;
        }
        for place in ORDER.into_iter().filter(|place| serial || *place < 4) {
            let found = &mut found[place];
            let jobs = if place == 4 { &program.jobs[..1] } else { &program.jobs[..] };
            let faults = if place == SLICES { pools.faults()? } else { 0 };
            let before = noise::stolen();
            let done = pools.at(place).together(jobs)?;
            found.stolen += noise::stolen() - before;
            found.waited += done.iter().map(|done| done.span.waited).sum::<f64>();
            #[expect(clippy::cast_precision_loss, reason = "cycles of seconds")]
            found.milliseconds.push(cycles(&done) as f64 / cycles_per_ns() / 1e6);
            if place == SLICES {
                found.faults += pools.faults()? - faults;
            }
            for (done, expected) in done.iter().zip(&expected) {
                let result = (done.job.count, done.job.sum);
                ensure!(
                    program.kind != Kind::Ep || result == *expected,
                    "{}: {result:?} instead of {expected:?}",
                    program.name
                );
                ensure!(done.job.count > 0, "{} gave up: {:?}", program.name, done.job);
            }
        }
    }
    if program.kind == Kind::Is {
        (0..4).try_for_each(|place| verify(pools.at(place), program))?;
    }
    Ok(found)
}

fn of_kind(job: Job, kind: Kind) -> Job {
    Job { kind: kind as u64, ..job }
}

/// Results of EP as a serial run of an ordinary thread finds them, by job.
fn expected(pools: &mut WorkerPools, program: &Program) -> Result<Vec<(u64, u64)>> {
    let mut expected = Vec::new();
    for job in program.jobs.iter().filter(|_| program.kind == Kind::Ep) {
        let serial = Job { own: 0, all: 1, ..*job };
        let done = pools.natives[1].run(0, serial)?.job;
        expected.push((done.count, done.sum));
    }
    expected.resize(2, (0, 0));
    Ok(expected)
}

/// The ranks that IS left are those of a sorted sequence of all keys.
fn verify(pool: &mut dyn WorkerPool, program: &Program) -> Result<()> {
    let serial = program.jobs[0].all == 1;
    let jobs = if serial { &program.jobs[..] } else { &program.jobs[..1] };
    for (worker, job) in jobs.iter().enumerate() {
        pool.start(worker, of_kind(Job { all: 1, ..*job }, Kind::IsCheck))?;
        let done = pool.wait(worker).context("verify the ranks")?.job;
        ensure!(
            done.count > 0 && done.sum == 0,
            "{}: {} keys out of order",
            program.name,
            done.sum
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_judged_by_what_threads_gain_beside_them() {
        let at = |milliseconds: [f64; 4]| Found {
            milliseconds: milliseconds.into(),
            ..Found::default()
        };
        let mut found = <[Found; 6]>::default();
        found[2] = at([400.0; 4]);
        found[3] = at([200.0, 205.0, 300.0, 200.0]);
        found[5] = at([205.0, 200.0, 200.0, 300.0]);
        assert_eq!(whole_rounds(&[1.0, 1.9, 2.0, 2.0], &found, 1.95), [1.0, 1.9]);
        assert_eq!(whole_rounds(&[1.0, 1.9, 2.0, 2.0], &found, 2.1), [0.0; 0]);
    }
}
