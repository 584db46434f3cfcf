//! A seeded simulator of whole engines: faults, frames and chunks, over a kernel of state machines.
//!
//! Each slice is an engine as in a VM (`dsm::simulate`), a turn at a time in virtual time. vCPUs run random programs
//! between the turns, and between the engine's calls to the kernel, as threads do. A vCPU reaches memory only as the fake
//! kernel's page tables let it; every load is compared with one flat memory, nobody may write what another can read, and
//! every operation must end. A run is a pure function of its [`Setup`].
//!
//! ```text
//!   vcpus ---touch--> fake kernel --fault--> engine --frames--> carrier --later--> engine of another slice
//!     ^                   ^                     |
//!     |                   +------calls----------+
//!     +--woken, between the calls too
//! ```

mod carrier;
mod guests;
mod programs;
mod world;

pub use dsm::simulate::PlantedBug;
pub use world::{Failure, Report, run};

use crate::simulator::random::Random;

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

    fn random(&self) -> Random {
        Random::new(self.seed ^ 0x006d_6170)
    }
}
