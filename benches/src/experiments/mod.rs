//! The experiments of `./x bench`.

pub mod ablation;
pub mod chains;
pub mod checkpoint;
pub mod faults;
pub mod migrate;
pub mod npb;
pub mod scan;
pub mod sharing;
pub mod solo;
pub mod writes;

use crate::carrier::Carrier;
use crate::paging::GuestPages;
use crate::placement::Place;
use crate::plan::Plan;
use crate::worker_pool::WorkerPool;
use anyhow::{Result, bail};
use dsm::{HoldPolicy, Mechanisms, Memory};
use microguest::Job;
use outcome::Outcome;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// What all experiments are told.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// The microguest.
    pub image: &'a Path,
    /// Fewer rounds: for a look, not for a claim.
    pub quick: bool,
}

type Experiment = fn(Setting<'_>) -> Result<Outcome>;

/// The experiments by name.
const EXPERIMENTS: [(&str, Experiment); 8] = [
    ("faults", faults::run),
    ("sharing", sharing::run),
    ("writes", writes::run),
    ("scan", scan::run),
    ("solo", solo::run),
    ("npb", npb::run),
    ("migrate", migrate::run),
    ("checkpoint", checkpoint::run),
];

/// Runs one.
///
/// # Errors
/// No such experiment, or it cannot be made on this machine.
pub fn run(name: &str, setting: Setting<'_>) -> Result<Outcome> {
    let Some((_, experiment)) = EXPERIMENTS.iter().find(|(known, _)| *known == name) else {
        bail!(
            "no experiment {name:?}; there are: {}",
            EXPERIMENTS.map(|(name, _)| name).join(", ")
        );
    };
    experiment(setting)
}

/// Cores of slices 0 and 1.
const CORES: [Place; 2] = [Place::Core(0), Place::Core(1)];

impl<'a> Setting<'a> {
    /// A plan of two slices with a vCPU and a core each, the engine beside its vCPU, and pages by home.
    fn two_slices(self, carrier: Carrier, homes: &'a [u64; 2]) -> Plan<'a> {
        Plan {
            image: self.image,
            carrier,
            homes,
            places: &[&[CORES[0]], &[CORES[1]]],
            engines: &CORES,
            hold: HoldPolicy::default(),
            mechanisms: Mechanisms::ALL,
            page_by_page: &[],
            memory: Memory::default(),
            guest_pages: GuestPages::Small,
        }
    }
}

/// What one worker counts while the others do nothing.
fn alone(pool: &mut dyn WorkerPool, worker: usize, job: Job) -> Result<u64> {
    pool.start(worker, job)?;
    Ok(pool.wait(worker)?.job.count)
}

/// Cycles of the time-stamp counter in a nanosecond. Measured once.
#[must_use]
pub fn cycles_per_ns() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(measure_cycles_per_ns)
}

fn measure_cycles_per_ns() -> f64 {
    let (start, first) = (Instant::now(), microguest::job::now());
    while start.elapsed() < Duration::from_millis(50) {
        std::hint::spin_loop();
    }
    let cycles = microguest::job::now().wrapping_sub(first);
    #[expect(clippy::cast_precision_loss, reason = "some hundred million")]
    let cycles = cycles as f64;
    cycles / (start.elapsed().as_secs_f64() * 1e9)
}
