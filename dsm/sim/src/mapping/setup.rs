//! What a run is made from.

use crate::simulator::random::Random;
use crate::simulator::saves::Saves;
use dsm::simulate::PlantedBug;
use dsm_protocol::{Mechanism, Mechanisms};

/// What a run is made from.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Seed of everything random.
    pub seed: u64,
    /// Operations per vCPU.
    pub steps: u32,
    /// All is saved and restored now and then.
    pub save_restore: bool,
    /// Homes of frames move.
    pub moves: bool,
    /// Slices leave, one after another.
    pub leaves: bool,
    /// Only some slices are there at the start, and others join; those that have left too.
    pub joins: bool,
    /// Snapshots are read while the guests run.
    pub snapshots: bool,
    /// Memory has contents that come while the guests run.
    pub loads: bool,
    /// A bug to plant.
    pub planted: Option<PlantedBug>,
}

impl Setup {
    /// Operations per vCPU where nothing else is said.
    pub const STEPS: u32 = 60;

    /// A seed with as many operations as usual.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        Self {
            seed,
            steps: Self::STEPS,
            save_restore: false,
            moves: false,
            leaves: false,
            joins: false,
            snapshots: false,
            loads: false,
            planted: None,
        }
    }

    /// The command that repeats the run.
    #[must_use]
    pub fn replay(&self) -> String {
        let Self { seed, steps, .. } = self;
        let save = if self.save_restore { " --save-restore" } else { "" };
        let moves = if self.moves { " --move-homes" } else { "" };
        let leaves = if self.leaves { " --leave" } else { "" };
        let joins = if self.joins { " --join" } else { "" };
        let snapshots = if self.snapshots { " --snapshots" } else { "" };
        let loads = if self.loads { " --loads" } else { "" };
        format!(
            "cargo run --release -p tessera-dsm-sim -- --mapping --seed {seed} --steps {steps}{save}{moves}{leaves}{joins}{snapshots}{loads}"
        )
    }

    /// The optional mechanisms of a slice. With every third seed each slice leaves some out.
    pub(super) fn mechanisms(&self, slice: u16) -> Mechanisms {
        if !self.seed.is_multiple_of(3) {
            return Mechanisms::ALL;
        }
        let mut random = Random::new(self.seed ^ u64::from(slice) << 32);
        let left_out = Mechanism::ALL.iter().filter(|_| random.one_in(3));
        left_out.copied().fold(Mechanisms::ALL, Mechanisms::without)
    }

    pub(super) fn saves(&self) -> Option<Saves> {
        self.save_restore.then(|| Saves::new(self.seed))
    }

    pub(super) fn random(&self) -> Random {
        Random::new(self.seed ^ 0x006d_6170)
    }
}
