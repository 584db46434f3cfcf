//! Bugs that a test may plant to prove that the model would catch them.

/// One way to break the cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    not(feature = "planted-bugs"),
    expect(unreachable_pub, reason = "only tests plant them")
)]
pub enum PlantedBug {
    /// What slices count is not compared.
    NotCompared,
    /// The next step begins when one slice has taken the one before.
    NotAllTaken,
    /// All slices bring their devices to rest at once.
    DevicesAtOnce,
    /// The next cut begins before all slices run.
    NotAwaited,
    /// Slices part with one that leaves, or take one in, without having been asked whether they can.
    NobodyAsked,
    /// The VM goes on although only some slices have parted with one that leaves, or taken in one that joins.
    GoesOnHalfParted,
    /// A VM that is restored goes on before all slices have begun.
    GoesOnUnbegun,
    /// A newcomer is asked before all others can reach it.
    NewcomerAtOnce,
    /// A slice that coordinates now begins a cut before all run.
    BeginsUntold,
    /// A slice coordinates before all slices know.
    HandedOverEarly,
    /// A device is opened at its next place before it is closed at the former one.
    OpensUnclosed,
    /// A device is opened again at its former place while the next one may have it open.
    AllGoOnAtOnce,
}
