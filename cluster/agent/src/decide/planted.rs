//! Bugs that a test may plant to prove that the model would catch them.

/// One way to break the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    not(feature = "planted-bugs"),
    expect(unreachable_pub, reason = "only tests plant them")
)]
pub enum PlantedBug {
    /// A deposed orchestrator is obeyed.
    TermIgnored,
    /// A new term is not recorded.
    TermNotRecorded,
    /// A slice that is there is started once more.
    StartedTwice,
    /// A process is started before the journal knows of it.
    StartedFirst,
    /// A life that was fenced starts.
    FenceIgnored,
    /// A fence is not recorded.
    FenceNotRecorded,
    /// A fence is confirmed while a process runs.
    FencedEarly,
    /// A fence does not reach a slice that is being started.
    FenceMissesStarts,
    /// A later life starts beside an earlier one.
    LivesOverlap,
    /// Reservations are not counted.
    ReservationIgnored,
    /// Reservations are kept for ever.
    NeverExpires,
    /// After a restart a slice whose start was under way is taken to have ended.
    StartForgotten,
    /// After a restart what was fenced is left alone.
    FenceNotResumed,
    /// A slice that runs is forgotten.
    RunningRemoved,
    /// A slice gets more than there is.
    ResizeUnchecked,
}

/// One bug, or none; always none without the feature `planted-bugs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Planted(Option<PlantedBug>);

impl Planted {
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn some(bug: PlantedBug) -> Self {
        Self(Some(bug))
    }

    pub(crate) fn has(self, bug: PlantedBug) -> bool {
        cfg!(feature = "planted-bugs") && self.0 == Some(bug)
    }
}
