//! What a run is made from.

use super::random::Random;
use super::workload::Workload;
use dsm_protocol::PlantedBug;

/// What a run is made from.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Seed of everything random.
    pub seed: u64,
    /// Slices, 2 to 8.
    pub slices: u16,
    /// Operations per vCPU.
    pub steps: u32,
    /// What the vCPUs do; chosen by the seed if `None`.
    pub workload: Option<Workload>,
    /// Homes of pages move.
    pub moves: bool,
    /// Slices leave, one after another. Homes move then too.
    pub leaves: bool,
    /// Only some slices are there at the start, and others join; those that have left too.
    pub joins: bool,
    /// A bug to plant.
    pub planted: Option<PlantedBug>,
}

impl Setup {
    /// How many slices a seed has where nothing else is said.
    #[must_use]
    pub fn slices_of(seed: u64) -> u16 {
        2 + u16::try_from(Random::new(!seed).below(7)).expect("small")
    }

    /// The command that repeats the run.
    #[must_use]
    pub fn replay(&self) -> String {
        let Self { seed, slices, steps, .. } = self;
        let workload = self.workload.map_or_else(String::new, |w| format!(" --workload {w}"));
        let moves = if self.moves { " --move-homes" } else { "" };
        let leaves = if self.leaves { " --leave" } else { "" };
        let joins = if self.joins { " --join" } else { "" };
        format!(
            "cargo run -p tessera-dsm-sim -- --seed {seed} --slices {slices} --steps {steps}{workload}{moves}{leaves}{joins}"
        )
    }
}
