//! Bugs that a test may plant to prove that the model would catch them.

/// One way to break supervision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    not(feature = "planted-bugs"),
    expect(unreachable_pub, reason = "only tests plant them")
)]
pub enum PlantedBug {
    /// Its next life runs as soon as one process has ended.
    WaitsForNothing,
    /// Its next life runs after a lease: peers count silence in quarters, and clocks differ.
    WaitsOneLease,
    /// Its next life runs as soon as it has read its memory.
    RunsUnfenced,
    /// A VM that has no checkpoint yet begins anew at once.
    BeginsUnfenced,
    /// A VM that its guest or its user ended is started again.
    EndForgotten,
    /// A user who wants the end while nothing runs is forgotten.
    StopForgotten,
    /// The oldest checkpoint is gone on from.
    OldestFirst,
    /// A damaged checkpoint is tried again.
    DamagedAgain,
    /// The VM begins anew when all its checkpoints are damaged.
    BeginsAnew,
    /// What comes of a checkpoint that was being written when the VM was lost is not waited for.
    PendingForgotten,
    /// A checkpoint is deleted when the next one is asked for.
    DeletesEarly,
    /// One checkpoint fewer is kept.
    KeepsFewer,
    /// The base of an increment is deleted.
    DeletesBase,
    /// Nothing bounds how often it is started again.
    NoBound,
    /// Hosts that do not answer are taken too.
    AnswerIgnored,
    /// Once the limit is over, hosts are not asked any more.
    AskedOnce,
    /// All but the first are increments.
    NeverFull,
    /// A VM that was started again is asked for an increment of what its former life has written.
    IncrementOfFormerLife,
    /// One that failed is tried as an increment again.
    IncrementAfterFailure,
    /// A start that was refused counts like a VM that ran and was lost.
    RefusedCounts,
    /// A supervisor that starts where another one has just ended does not wait for slices of before.
    FormerForgotten,
    /// A VM whose user wanted the end before it went on counts as ended.
    EndWithoutLife,
    /// A VM that was restored elsewhere is gone on with here.
    TakesBack,
    /// The same, while nothing ran here.
    LifeForgotten,
    /// What a start that never ran has left is taken for somebody else's.
    TriesForgotten,
    /// Nobody hears of a checkpoint that holds others up.
    LateUnsaid,
    /// A checkpoint that is found to be damaged counts like a VM that ran and was lost.
    DamageCounts,
    /// Memory is never read before the VM goes on.
    AlwaysLazy,
}
