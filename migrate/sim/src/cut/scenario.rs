//! What happens in a model, and how it is explored.

use migrate::cut::{Coordinator, PlantedBug};

/// How far a mutant is explored.
const MUTANT_STATES: usize = 2_000_000;

/// Three slices; the first one coordinates and orders changes of devices, at the start at least.
#[derive(Clone, Debug, Default)]
pub struct Scenario {
    /// Cuts that are begun, each when the one before has ended.
    pub cuts: u8,
    /// Interrupts that each slice's vCPU sends to the next slice.
    pub interrupts: [u8; 3],
    /// Calls of devices that each slice's vCPU makes.
    pub calls: [u8; 3],
    /// Broken rings that each slice's queues find; the first slice tells all slices of them.
    pub broken: [u8; 3],
    /// A cut may be given up at any time.
    pub give_up: bool,
    /// The last slice leaves at a cut, unless another one refuses.
    pub leave: bool,
    /// The second slice cannot do without it.
    pub needed: bool,
    /// The last slice is none of the VM at first, and joins at a cut, unless the second one refuses.
    pub join: bool,
    /// The second slice does.
    pub refused: bool,
    /// The second slice comes to coordinate at a cut.
    pub hand_over: bool,
    /// It cannot.
    pub unable: bool,
    /// The last slice has the device, which moves to the second at a cut.
    pub move_device: bool,
    /// The second slice cannot open it.
    pub unopenable: bool,
    /// A checkpoint is captured at a cut, unless the second slice has no room for it.
    pub capture: bool,
    /// The second slice has none.
    pub full: bool,
    /// The VM is restored: all slices begin at rest, and say so.
    pub restored: bool,
    /// A bug to be found.
    pub planted: Option<PlantedBug>,
}

impl Scenario {
    /// With the bug, if there is one.
    pub(super) fn planted(&self, coordinator: Coordinator) -> Coordinator {
        match self.planted {
            Some(bug) => coordinator.plant(bug),
            None => coordinator,
        }
    }
}

/// Tries every interleaving and prints how many states there are.
///
/// # Panics
/// When a property does not hold, with the shortest way there.
pub fn prove(label: &str, scenario: Scenario) {
    model_check::prove(&format!("cut, {label}"), scenario);
}

/// Looks for a counterexample and returns the properties that it breaks.
#[must_use]
pub fn refute(scenario: Scenario) -> Vec<&'static str> {
    model_check::refute(&format!("cut, {:?}", scenario.planted), scenario, MUTANT_STATES)
}
