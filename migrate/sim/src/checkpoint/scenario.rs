//! What happens in a model, and how it is explored.

use migrate::checkpoint::{Coordinator, PlantedBug};

/// Slices of the largest model.
pub(super) const SLICES: u16 = 3;
/// How far a mutant is explored.
const MUTANT_STATES: usize = 2_000_000;

/// Two slices, or three; the first one coordinates, and is not lost.
#[derive(Clone, Debug, Default)]
pub struct Scenario {
    /// One slice more.
    pub three: bool,
    /// Checkpoints that are begun, each when the one before is over.
    pub checkpoints: u8,
    /// Tokens that each slice's vCPU moves.
    pub moves: [u8; SLICES as usize],
    /// How often a slice cannot make its file or write to it, a cut is given up, or a manifest cannot be written.
    pub failures: u8,
    /// A checkpoint may be given up at any time, once.
    pub give_up: bool,
    /// The last slice may be lost at any time.
    pub lose: bool,
    /// A user has the VM pause at any time, once, and go on.
    pub pause: bool,
    /// Whoever brings cuts about has the VM go on whosever cut it is: a bug that is not the coordinator's.
    pub blunt: bool,
    /// A slice that goes on before its part is written writes on: that of the slices, and not of the coordinator, is a bug.
    pub careless: bool,
    /// Checkpoints are live: the guest runs on while they are written.
    pub live: bool,
    /// A slice does not copy what changes before it is written: a bug of the slices.
    pub unkept: bool,
    /// A bug to be found.
    pub planted: Option<PlantedBug>,
}

impl Scenario {
    /// With the bug, if there is one.
    pub(super) fn coordinator(&self) -> Coordinator {
        match self.planted {
            Some(bug) => Coordinator::new(0).plant(bug),
            None => Coordinator::new(0),
        }
    }

    pub(super) fn slices(&self) -> u16 {
        if self.three { SLICES } else { SLICES - 1 }
    }

    /// Whether a checkpoint may come to nothing.
    pub(super) fn may_fail(&self) -> bool {
        self.failures > 0 || self.give_up || self.lose || self.pause
    }
}

/// Tries every interleaving and prints how many states there are.
///
/// # Panics
/// When a property does not hold, with the shortest way there.
pub fn prove(label: &str, scenario: Scenario) {
    model_check::prove(&format!("checkpoint, {label}"), scenario);
}

/// Looks for a counterexample and returns the properties that it breaks.
#[must_use]
pub fn refute(scenario: Scenario) -> Vec<&'static str> {
    model_check::refute(&format!("checkpoint, {:?}", scenario.planted), scenario, MUTANT_STATES)
}
