//! What must hold in each state.

use super::scenario::Scenario;
use super::world::World;
use migrate::supervise::Reason;
use stateright::Property;

pub(super) fn all() -> Vec<Property<Scenario>> {
    vec![
        Property::always(names::ONE, |_, state: &World| !state.overlapped),
        Property::always(names::NEWEST, |_, state: &World| !state.wrong_choice),
        Property::always(names::PLACES, |_, state: &World| !state.wrong_place),
        Property::always(names::WANTED, |_, state: &World| !state.revived),
        Property::always(names::GONE, |_, state: &World| !state.taken_back),
        Property::always(names::OWN, |_, state: &World| !state.mistaken),
        Property::always(names::NEEDED, |_, state: &World| {
            let base = |number| state.files.contains_key(&number);
            !state.wrong_deletion
                && state.files.values().all(|file| file.is_known || file.base.is_none_or(base))
        }),
        Property::always(names::KEPT, |scenario: &Scenario, state: &World| {
            // Numbers are those of all that were ever written, and the one that was given is no part of the count.
            let written = usize::from(scenario.writes - state.writes);
            let untold = usize::from(state.writing.is_some_and(|(_, _, is_written)| is_written));
            let known = state.files.values().filter(|file| file.is_known).count();
            let usable = state.usable().filter(|(number, _)| **number > 0).count();
            usable + known >= Scenario::KEEP.min(written - untold)
        }),
        Property::always(names::TIDY, |scenario: &Scenario, state: &World| {
            let ours = state.usable().filter(|(number, _)| **number > 0).count();
            let bases = if scenario.increments { Scenario::FULL_EVERY as usize - 1 } else { 0 };
            ours <= Scenario::KEEP + bases
        }),
        Property::always(names::CHAINS, |scenario: &Scenario, state: &World| {
            let most = if scenario.increments { Scenario::FULL_EVERY as usize } else { 1 };
            !state.wrong_base && state.files.keys().all(|number| state.chain(*number) <= most)
        }),
        Property::sometimes(names::INCREMENTS, |scenario: &Scenario, state: &World| {
            state.files.values().any(|file| file.base.is_some())
                || !scenario.increments
                || scenario.writes < 2
        }),
        Property::always(names::BOUND, |_, state: &World| state.restarts <= Scenario::RESTARTS_MAX),
        Property::always(names::COUNTED, |_, state: &World| {
            // One that is written, and not told of, is one too.
            let too_often = matches!(state.over, Some(Reason::TooOften(_)));
            !too_often || state.restarts == Scenario::RESTARTS_MAX || state.writing.is_some()
        }),
        Property::always(names::ENDED, |_, state: &World| {
            !(state.unlived && state.over.is_some_and(Reason::is_end))
        }),
        Property::always(names::FOUND, |_, state: &World| {
            state.files.values().all(|file| file.bad_lives <= 1)
        }),
        Property::always(names::SAID, |_, state: &World| !state.unsaid),
        Property::always(names::GOES_ON, |_, state: &World| {
            let waits = state.machine.due().is_some() || state.asked || state.writing.is_some();
            state.over.is_some() || state.process.is_some() || waits
        }),
        Property::sometimes(names::RESTORES, |scenario: &Scenario, state: &World| {
            state.restored || (!scenario.given && scenario.writes == 0)
        }),
        Property::sometimes(names::ELSEWHERE, |scenario: &Scenario, state: &World| {
            state.elsewhere || !scenario.spare || scenario.silences < 4
        }),
        Property::sometimes(names::GIVES_UP, |scenario: &Scenario, state: &World| {
            let given_up = matches!(state.over, Some(Reason::TooOften(_) | Reason::NoCheckpoint));
            given_up || usize::from(scenario.losses) <= Scenario::RESTARTS_MAX
        }),
    ]
}

/// The properties.
pub mod names {
    /// No two generations (lives) write a disk: slices of the life before may do so until they have surely stopped.
    pub const ONE: &str = "the VM uses disks when all slices of before have surely stopped";
    /// No less is lost than need be, and nothing is begun anew over a disk that went on.
    pub const NEWEST: &str =
        "the VM goes on from its newest checkpoint that is not known to be of no use";
    /// All of the VM is on hosts that answer.
    pub const PLACES: &str = "all of the VM is started, on hosts that answer";
    /// Whoever ends a VM has ended it.
    pub const WANTED: &str = "a VM that was ended on purpose is not started again";
    /// What was done elsewhere since would be lost.
    pub const GONE: &str = "a VM that was restored elsewhere is not taken back";
    /// A start that was refused leaves its number beside the disk.
    pub const OWN: &str = "what a start has left is not taken for another's";
    /// Increments stay whole.
    pub const NEEDED: &str = "nothing is deleted that another checkpoint needs, or that was given";
    /// There is always something to go on from.
    pub const KEPT: &str = "as many checkpoints are kept as were asked for";
    /// Disks do not fill up.
    pub const TIDY: &str = "no more checkpoints are kept than were asked for";
    /// An increment is asked for only over the last checkpoint of this life, and a chain has a bounded length.
    pub const CHAINS: &str =
        "an increment is of the last checkpoint of this life, and chains are short";
    /// The model does write increments.
    pub const INCREMENTS: &str = "a checkpoint is an increment";
    /// A VM that cannot live is given up.
    pub const BOUND: &str = "a VM is started again so many times and no more without a checkpoint";
    /// What keeps a VM from beginning may last as long as it likes.
    pub const COUNTED: &str = "a VM is given up for starts that were not refused";
    /// Whoever starts it the next time would begin it anew.
    pub const ENDED: &str = "a VM that was to go on and never did has not ended";
    /// What is damaged is found in time.
    pub const FOUND: &str = "no VM runs twice from a checkpoint that is damaged";
    /// Nobody is left without checkpoints unknowingly.
    pub const SAID: &str = "who waits for a checkpoint that holds others up is told";
    /// It is never stuck.
    pub const GOES_ON: &str = "a VM runs, is waited for, or is given up";
    /// The model does restore.
    pub const RESTORES: &str = "a VM goes on from a checkpoint";
    /// The model does take a spare.
    pub const ELSEWHERE: &str = "a VM goes on on a spare";
    /// The model does give up.
    pub const GIVES_UP: &str = "a VM is given up";
}
