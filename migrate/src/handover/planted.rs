//! Bugs that a test may plant to prove that the model would catch them.

/// One way to break the hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    not(feature = "planted-bugs"),
    expect(unreachable_pub, reason = "only tests plant them")
)]
pub enum PlantedBug {
    /// The target runs as soon as the state is restored.
    RunBeforeFlip,
    /// The source goes on when it has sent the state.
    RunAfterState,
    /// The source drops at the flip what came while the vCPU was stopped.
    KeptDropped,
    /// The source also delivers what comes while the vCPU is stopped.
    KeptDelivered,
    /// The source drops what comes after the flip.
    StragglerDropped,
    /// The target takes what comes straight without waiting for its sender's marker.
    NothingHeld,
    /// The target says that all is settled when it begins to run.
    SettledEarly,
    /// A frame of a move that was given up counts for the next one.
    NumberIgnored,
    /// The target does not say that all is settled.
    NotSettled,
    /// A move that is given up leaves the source stopped.
    NoResume,
    /// What begins a move counts although the move was undone before.
    LateObeyed,
}
