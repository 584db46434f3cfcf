//! What may happen, and what must hold.

use migrate::borrowed::{Adaptive, Load, PlantedBug, Side};
use stateright::{Model, Property};
use std::time::Duration;

/// States that are enough to find a planted bug.
const MUTANT_STATES: usize = 200_000;
/// What the rule promises: windows in a row, windows after a move that do not count, hold-offs, and what a try must last.
const ROW: u32 = 3;
const SETTLE: u32 = 4;
const HOLD_OFFS: (u32, u32) = (8, 512);
const SOON: u32 = 32;

/// Names of properties.
pub mod names {
    /// They move only when three windows in a row say so, the first after a move not counted.
    pub const ROW: &str = "windows in a row that have settled say the same";
    /// They are at home for the hold-off.
    pub const HOLD_OFF: &str = "they are at home for the hold-off";
    /// A try that failed doubles it, and one that paid resets it.
    pub const DOUBLES: &str = "the hold-off follows the last try";
    /// Both sides can be reached.
    pub const GOES: &str = "they go";
    /// And they come back.
    pub const COMES: &str = "they come";
}

/// What a window says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// The other side would be better.
    Other,
    /// It would not.
    Same,
}

/// One move of all, and what was seen before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flip {
    from: Side,
    windows: u32,
    row: u32,
    hold_offs: (u32, u32),
}

/// The rule, and what it has seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    policy: Adaptive,
    windows: u32,
    row: u32,
    last: Option<Flip>,
}

/// What is tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scenario {
    /// The VM begins with its vCPUs away.
    pub away: bool,
    /// A bug to be found.
    pub planted: Option<PlantedBug>,
}

fn load(side: Side, window: Window) -> Load {
    let percent = |run: u64, delayed: u64, waited: u64| Load {
        length: Duration::from_secs(1),
        run: Duration::from_millis(10 * run),
        delayed: Duration::from_millis(10 * delayed),
        waited: Duration::from_millis(10 * waited),
    };
    match (side, window) {
        (Side::Home, Window::Other) => percent(100, 60, 0),
        (Side::Home, Window::Same) => percent(90, 5, 0),
        (Side::Away, Window::Other) => percent(40, 0, 150),
        (Side::Away, Window::Same) => percent(170, 0, 25),
    }
}

impl Model for Scenario {
    type State = World;
    type Action = Window;

    fn init_states(&self) -> Vec<World> {
        let side = if self.away { Side::Away } else { Side::Home };
        let policy = Adaptive::new(side, 1);
        let policy = match self.planted {
            Some(bug) => policy.plant(bug),
            None => policy,
        };
        vec![World { policy, windows: 0, row: 0, last: None }]
    }

    fn actions(&self, _: &World, actions: &mut Vec<Window>) {
        actions.extend([Window::Other, Window::Same]);
    }

    fn next_state(&self, state: &World, window: Window) -> Option<World> {
        let mut next = state.clone();
        let (from, before) = (state.policy.side(), state.policy.hold_off());
        next.windows = (next.windows + 1).min(HOLD_OFFS.1);
        let counts = window == Window::Other && next.windows > SETTLE;
        next.row = if counts { (next.row + 1).min(ROW) } else { 0 };
        next.last = None;
        if next.policy.observe(&load(from, window)) {
            let hold_offs = (before, next.policy.hold_off());
            next.last = Some(Flip { from, windows: next.windows, row: next.row, hold_offs });
            (next.windows, next.row) = (0, 0);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn holds(state: &World, rule: fn(&Flip) -> bool) -> bool {
            state.last.as_ref().is_none_or(rule)
        }
        vec![
            Property::always(names::ROW, |_, state| holds(state, |flip| flip.row == ROW)),
            Property::always(names::HOLD_OFF, |_, state| {
                holds(state, |flip| flip.from == Side::Away || flip.windows >= flip.hold_offs.0)
            }),
            Property::always(names::DOUBLES, |_, state| {
                holds(state, |&Flip { from, windows, hold_offs: (before, after), .. }| {
                    after
                        == match from {
                            Side::Home => before,
                            Side::Away if windows < SOON => (2 * before).min(HOLD_OFFS.1),
                            Side::Away => HOLD_OFFS.0,
                        }
                })
            }),
            Property::sometimes(names::GOES, |_, state: &World| {
                state.last.is_some_and(|flip| flip.from == Side::Home)
            }),
            Property::sometimes(names::COMES, |_, state: &World| {
                state.last.is_some_and(|flip| flip.from == Side::Away)
            }),
        ]
    }
}

/// Tries every sequence of windows and prints how many states there are.
///
/// # Panics
/// When a property does not hold, with the shortest way there.
pub fn prove(label: &str, scenario: Scenario) {
    model_check::prove(&format!("borrowed vCPUs, {label}"), scenario);
}

/// Looks for a counterexample and returns the properties that it breaks.
#[must_use]
pub fn refute(scenario: Scenario) -> Vec<&'static str> {
    let label = format!("borrowed vCPUs, {:?}", scenario.planted);
    model_check::refute(&label, scenario, MUTANT_STATES)
}
