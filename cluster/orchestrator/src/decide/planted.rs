//! Bugs that a test may plant to prove that the model would catch them.

/// One way to break the orchestrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    not(feature = "planted-bugs"),
    expect(unreachable_pub, reason = "only tests plant them")
)]
pub enum PlantedBug {
    /// Agents are called before what they are called for is recorded.
    CalledFirst,
    /// A new life begins where the one before was not proven to be over.
    FenceSkipped,
    /// A host that does not answer is taken for one that has fenced.
    SilenceIsProof,
    /// What was kept for a start that failed is kept.
    RoomKept,
    /// A start that failed is begun again before its slices are over.
    UndoForgotten,
    /// The bootstrap is started twice: on each host of the VM.
    TwoBootstraps,
    /// A request that is made again is done again.
    RequestForgotten,
    /// After a leader is killed its operations are not gone on with.
    OperationForgotten,
    /// A deposed leader does not hear that it is.
    DeposedGoesOn,
    /// Parts of a VM go where no room was taken for them.
    MovedUnreserved,
    /// A move that has failed keeps the room that it has taken.
    MoveKeepsRoom,
    /// A move that was done in part is undone as if nothing had been done.
    PartlyUndone,
    /// Slices are taken to have stopped before they have noticed that another one has.
    LeaseIgnored,
    /// A slice that has left its VM is taken for one that the others miss.
    LeaverIsMissed,
    /// A checkpoint is recorded before it was written.
    RecordedFirst,
    /// The newest checkpoints are deleted, and not the oldest.
    NewestDiscarded,
    /// A VM that has lost a slice begins anew, whatever was written of it.
    LossBeginsAnew,
    /// Checkpoints of a VM that is to be no more are given up when one host refuses to delete them.
    RefusalDecides,
    /// The host that a slice has left is not fenced with the others.
    FormerForgotten,
    /// A slice is asked to end again and again while it is being asked.
    SweptAgain,
    /// A companion that could not join its VM is not ended when its host is back.
    StrayLeft,
    /// A host is silent while nobody listens.
    DeafnessCounted,
    /// A VM with a slice on a host that does not answer is taken to be lost.
    SilenceIsLoss,
    /// A host that obeys another orchestrator is used like the others.
    ForeignAsked,
    /// What hosts say of a VM that has no place in the store is not heard.
    OlderStoreBelieved,
    /// An agent that has lost its journal is believed.
    NewJournalBelieved,
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
