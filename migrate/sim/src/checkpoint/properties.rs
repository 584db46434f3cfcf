//! What must hold in each state.

use super::cluster::{Cluster, Moment, Parts};
use super::scenario::Scenario;
use stateright::Property;
use wire::SliceId;

pub(super) fn all() -> Vec<Property<Scenario>> {
    vec![
        Property::always(names::MOMENT, |_, state: &Cluster| {
            state.manifests.iter().all(|(number, parts)| {
                let moment = state.moments.get(number);
                moment.is_some_and(|moment| are_of(*number, parts, moment))
            })
        }),
        Property::always(names::KEPT, |_, state: &Cluster| {
            let has = |number: &u64, slice: SliceId, part: &[u8]| {
                let file = state.slices[usize::from(slice.0)].disk.get(number);
                file.is_some_and(|file| *file == part[1..])
            };
            let kept = |(number, parts): (&u64, &Parts)| {
                parts.iter().all(|(slice, part)| has(number, *slice, part))
            };
            state.manifests.iter().all(kept)
        }),
        Property::always(names::NO_FILE, |_, state: &Cluster| {
            let mut files = state.living().flat_map(|slice| slice.disk.keys());
            let over = state.is_quiet() && state.checkpoints.is_idle();
            !over || files.all(|number| state.manifests.contains_key(number))
        }),
        Property::always(names::STANDS_STILL, |_, state: &Cluster| {
            let written = state.captured && !state.checkpoints.is_idle();
            let is_lost = state.slices.iter().any(|slice| slice.lost);
            !written || is_lost || state.live || state.slices.iter().all(|slice| slice.rests)
        }),
        Property::always(names::PREPARED, |_, state: &Cluster| !state.unprepared),
        Property::always(names::RUNS, |_, state: &Cluster| {
            !state.is_quiet() || state.living().all(|slice| !slice.rests)
        }),
        Property::always(names::ENDS, |_, state: &Cluster| {
            !state.is_quiet() || state.checkpoints.is_idle() && state.cuts.is_idle()
        }),
        Property::always(names::ONCE, |_, state: &Cluster| {
            let going = i8::from(!state.checkpoints.is_idle());
            state.open == going && (0..=going).contains(&state.open_cuts)
        }),
        Property::always(names::PAUSE, |_, state: &Cluster| !state.resumed),
        Property::always(names::REASON, |_, state: &Cluster| !state.groundless),
        Property::always(names::NOT_HELD, |_, state: &Cluster| {
            !state.live || state.committing.is_none() || state.open_cuts == 0
        }),
        Property::sometimes(names::RUNS_ON, |scenario: &Scenario, state: &Cluster| {
            let written = state.captured && !state.checkpoints.is_idle();
            !scenario.live || written && state.slices.iter().all(|slice| !slice.rests)
        }),
        Property::sometimes(names::COMMITS, |_, state: &Cluster| !state.manifests.is_empty()),
        Property::sometimes(names::DISCARDS, |scenario: &Scenario, state: &Cluster| {
            !scenario.may_fail() || state.slices.iter().any(|slice| slice.discarded)
        }),
    ]
}

/// Whether these are the parts of all slices, as they were, and of this checkpoint.
fn are_of(number: u64, parts: &[(SliceId, Vec<u8>)], moment: &Moment) -> bool {
    let is_part = |(slice, part): &(SliceId, Vec<u8>)| {
        let memory = moment.memory.get(&slice.0);
        u64::from(part[0]) == number && memory.is_some_and(|memory| *memory == part[1..])
    };
    parts.len() == moment.memory.len() && parts.iter().all(is_part)
}

/// The properties.
pub mod names {
    /// All slices are in it, none at another moment or of another checkpoint.
    pub const MOMENT: &str = "a checkpoint has a part of each slice, all of one moment";
    /// Nobody removes a part of a checkpoint.
    pub const KEPT: &str = "a checkpoint keeps its parts";
    /// Nothing is left of what is no checkpoint.
    pub const NO_FILE: &str = "a checkpoint that was given up leaves no file";
    /// The guest is where the checkpoint is until it exists.
    pub const STANDS_STILL: &str = "the guest stands still until the checkpoint exists";
    /// The guest does not stand still for a slice that cannot begin.
    pub const PREPARED: &str = "the guest is stopped when all slices can begin";
    /// The guest goes on.
    pub const RUNS: &str = "the guest runs after each checkpoint";
    /// No checkpoint waits for ever.
    pub const ENDS: &str = "each checkpoint exists, or is given up";
    /// Whoever asked is told once, and each cut ends once.
    pub const ONCE: &str = "each checkpoint, and each of its cuts, ends once";
    /// Whoever has the VM pause has it go on.
    pub const PAUSE: &str = "a checkpoint ends no pause of somebody else";
    /// What is late does not harm the next one.
    pub const REASON: &str = "a checkpoint is given up only for a reason of its own";
    /// It does not stand still for longer than it must.
    pub const NOT_HELD: &str = "the guest does not wait for the manifest of a live checkpoint";
    /// The model has it run meanwhile.
    pub const RUNS_ON: &str = "the guest runs while a live checkpoint is written";
    /// The model does come to a checkpoint.
    pub const COMMITS: &str = "a checkpoint comes to exist";
    /// The model does give one up.
    pub const DISCARDS: &str = "a part is removed";
}
