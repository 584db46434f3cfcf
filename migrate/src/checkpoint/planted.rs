//! Bugs that a test may plant to prove that the model would catch them.

/// One way to break a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    not(feature = "planted-bugs"),
    expect(unreachable_pub, reason = "only tests plant them")
)]
pub enum PlantedBug {
    /// It is committed when one slice has written its part.
    CommitsEarly,
    /// The guest goes on before all parts are written.
    GoesOnEarly,
    /// The guest goes on when all parts are written, and before there is a manifest.
    GoesOnUncommitted,
    /// The guest stands still until a live checkpoint exists.
    LiveStandsStill,
    /// The cut of a live checkpoint ends once more when all is written.
    GoesOnTwice,
    /// The next checkpoint after one that was given up has its number.
    NumberAgain,
    /// What a slice says of an earlier checkpoint counts.
    NumberIgnored,
    /// A slice that is lost is done without.
    LostForgotten,
    /// A checkpoint that was given up leaves its parts.
    NotDiscarded,
    /// The guest does not go on after a checkpoint that was given up.
    StaysAtRest,
    /// The guest is stopped before all slices can begin.
    CutsUnprepared,
    /// One that is given up while it is being committed is discarded, although it may be a checkpoint already.
    CommitNotAwaited,
}
