//! The experiments of `./x bench`.

pub mod faults;
pub mod npb;
pub mod scan;
pub mod sharing;
pub mod solo;
pub mod writes;

use crate::outcome::Outcome;
use anyhow::{Result, bail};
use std::path::Path;
use std::time::{Duration, Instant};

/// What all experiments are told.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// The microguest.
    pub image: &'a Path,
    /// Fewer rounds: for a look, not for a claim.
    pub quick: bool,
}

/// Names of the experiments.
pub const NAMES: [&str; 6] = ["faults", "sharing", "writes", "scan", "solo", "npb"];

/// Runs one.
///
/// # Errors
/// No such experiment, or it cannot be made on this machine.
pub fn run(name: &str, setting: Setting<'_>) -> Result<Outcome> {
    match name {
        "faults" => faults::run(setting),
        "sharing" => sharing::run(setting),
        "writes" => writes::run(setting),
        "npb" => npb::run(setting),
        "scan" => scan::run(setting),
        "solo" => solo::run(setting),
        _ => bail!("no experiment {name:?}; there are: {}", NAMES.join(", ")),
    }
}

/// Cycles of the time-stamp counter in a nanosecond.
#[must_use]
pub fn cycles_per_ns() -> f64 {
    let (start, first) = (Instant::now(), microguest::job::now());
    while start.elapsed() < Duration::from_millis(50) {
        std::hint::spin_loop();
    }
    let cycles = microguest::job::now().wrapping_sub(first);
    #[expect(clippy::cast_precision_loss, reason = "some hundred million")]
    let cycles = cycles as f64;
    cycles / (start.elapsed().as_secs_f64() * 1e9)
}
