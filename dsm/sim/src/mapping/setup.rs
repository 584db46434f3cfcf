//! What a run is made from.

use crate::simulator::random::Random;
use dsm::simulate::PlantedBug;

/// What a run is made from.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Seed of everything random.
    pub seed: u64,
    /// Operations per vCPU.
    pub steps: u32,
    /// A bug to plant.
    pub planted: Option<PlantedBug>,
}

impl Setup {
    /// Operations per vCPU where nothing else is said.
    pub const STEPS: u32 = 60;

    /// A seed with as many operations as usual.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        Self { seed, steps: Self::STEPS, planted: None }
    }

    /// The command that repeats the run.
    #[must_use]
    pub fn replay(&self) -> String {
        let Self { seed, steps, .. } = self;
        format!("cargo run --release -p tessera-dsm-sim -- --mapping --seed {seed} --steps {steps}")
    }

    pub(super) fn random(&self) -> Random {
        Random::new(self.seed ^ 0x006d_6170)
    }
}
