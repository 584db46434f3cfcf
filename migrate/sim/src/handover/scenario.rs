//! What happens in a model, and how it is explored.

use migrate::handover::PlantedBug;

/// How far a mutant is explored.
const MUTANT_STATES: usize = 2_000_000;

/// What the coordinator is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Move the vCPU there, as soon as no other move goes on.
    Move(u16),
    /// Give up, at any time.
    GiveUp,
}

/// A small cluster: slice 0 coordinates, each slice sends.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where the vCPU is first.
    pub start: u16,
    /// What the coordinator is asked for, in order.
    pub steps: Vec<Step>,
    /// Events that each slice sends.
    pub events: [u8; 3],
    /// Things that may fail.
    pub failures: u8,
    /// Whether what gives a move up may overtake what begins it: threads of the coordinator send.
    pub overtakes: bool,
    /// A bug to be found.
    pub planted: Option<PlantedBug>,
}

impl Scenario {
    /// These steps with a vCPU that starts on slice `start`, and an event of each slice.
    #[must_use]
    pub fn new(start: u16, steps: &[Step]) -> Self {
        let steps = steps.to_vec();
        Self { start, steps, events: [1; 3], failures: 0, overtakes: false, planted: None }
    }
}

/// Tries every interleaving and prints how many states there are.
///
/// # Panics
/// When a property does not hold, with the shortest way there.
pub fn prove(label: &str, scenario: Scenario) {
    model_check::prove(&format!("hand-over, {label}"), scenario);
}

/// Looks for a counterexample and returns the properties that it breaks.
#[must_use]
pub fn refute(scenario: Scenario) -> Vec<&'static str> {
    model_check::refute(&format!("hand-over, {:?}", scenario.planted), scenario, MUTANT_STATES)
}
