//! What happens in a model, and how it is explored.

use migrate::supervise::{DeviceReach, Plan, PlantedBug, Policy, Room, Share, Shelf, Supervisor};

/// How far a mutant is explored.
const MUTANT_STATES: usize = 2_000_000;
/// Memory of a slice of the model.
const MEMORY: u64 = 4 << 20;
const LEASE_MS: u64 = 1000;
const CLOCK_ERROR_MS: u64 = 10;

/// A VM of two slices, and so much that may happen to it.
#[derive(Clone, Debug, Default)]
pub struct Scenario {
    /// The VM was restored from a checkpoint that was given.
    pub given: bool,
    /// A supervisor of the VM has just ended without its end, and left so many checkpoints.
    pub former: Option<u64>,
    /// One host more may take a slice.
    pub spare: bool,
    /// What is left may have all of it.
    pub folds: bool,
    /// How often a process is lost or cannot begin.
    pub losses: u8,
    /// Checkpoints that are written.
    pub writes: u8,
    /// Checkpoints that cannot be.
    pub failures: u8,
    /// How often it takes long until one is written, or fails.
    pub lates: u8,
    /// Whether most are increments of the one before.
    pub increments: bool,
    /// Checkpoints that are damaged on the disk.
    pub damages: u8,
    /// How often not all hosts answer.
    pub silences: u8,
    /// The guest or the user may end it, in all ways.
    pub ends: bool,
    /// Something may stop the process from outside, once, and have it go on.
    pub halts: bool,
    /// How often a user restores it elsewhere.
    pub takeovers: u8,
    /// Panics are losses.
    pub on_panic: bool,
    /// The VM runs before all memory of a checkpoint was read.
    pub lazy: bool,
    /// A bug to be found.
    pub planted: Option<PlantedBug>,
}

impl Scenario {
    /// How many checkpoints are kept.
    pub(super) const KEEP: usize = 2;
    /// With increments.
    pub(super) const FULL_EVERY: u32 = 3;
    /// Starts again without a new checkpoint.
    pub(super) const RESTARTS_MAX: usize = 3;

    pub(super) fn plan(&self) -> Plan {
        let share = Share { vcpus: 1, spare_vcpus: 1, memory: MEMORY };
        let room = Room { vcpus: 4, memory: 2 * MEMORY };
        Plan {
            slices: vec![share; 2],
            spares: u16::from(self.spare),
            room: self.folds.then_some(room),
            devices: vec![DeviceReach { slice: 1, standby: vec![0] }],
        }
    }

    /// With the bug, if there is one.
    pub(super) fn supervisor(&self) -> Supervisor {
        let policy = Policy {
            every_ms: 5000,
            keep: Self::KEEP,
            full_every: if self.increments { Self::FULL_EVERY } else { 1 },
            lease_ms: LEASE_MS,
            clock_error_ms: CLOCK_ERROR_MS,
            gather_ms: 1500,
            restarts_max: Self::RESTARTS_MAX,
            window_ms: 3_600_000,
            on_panic: self.on_panic,
            lazy: self.lazy,
        };
        let mut shelf = if self.given { Shelf::given(0, self.lazy) } else { Shelf::default() };
        let former = 1..=self.former.unwrap_or(0);
        let next = former.end() + 1;
        former.for_each(|number| shelf.found(number, None, true));
        let supervisor = Supervisor::new(policy, self.plan(), shelf, next);
        match self.planted {
            Some(bug) => supervisor.plant(bug),
            None => supervisor,
        }
    }
}

/// When the last slice of a VM that lost one at this time has stopped at the latest: it has just looked, and counts five silent
/// quarters of a lease by a clock that is as slow as may be.
pub(super) fn all_stopped(lost: u64) -> u64 {
    lost + 5 * (LEASE_MS / 4) + CLOCK_ERROR_MS
}

/// Tries every order and prints how many states there are.
///
/// # Panics
/// When a property does not hold, with the shortest way there.
pub fn prove(label: &str, scenario: Scenario) {
    model_check::prove(&format!("supervise, {label}"), scenario);
}

/// Looks for a counterexample and returns the properties that it breaks.
#[must_use]
pub fn refute(scenario: Scenario) -> Vec<&'static str> {
    model_check::refute(&format!("supervise, {:?}", scenario.planted), scenario, MUTANT_STATES)
}
