//! Bugs that a test may plant to prove that the models and the simulator would catch them.

/// One way to break the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlantedBug {
    /// A table becomes a replica while the tables that point to it still become replicas.
    ReplicaBeforeParent,
    /// The home forgets to invalidate one holder.
    DropInvalidation,
    /// The home serves the next request without waiting for the converter's confirm.
    SkipConfirm,
    /// A recall that is for a page on its way is carried out on the copy that is here.
    EarlyRecallTaken,
    /// The home reads a page that many read and does not count itself among them.
    HomeCopyForgotten,
    /// The requester maps the page before the acknowledgements have come.
    GrantEarly,
    /// Messages of another epoch are taken.
    LoseEpochCheck,
    /// A release goes out without flushing replicas.
    ReleaseWithoutFlush,
    /// A release does not wait for the flush to be acknowledged.
    FlushNotAcknowledged,
    /// The home serves a run's request whose sender has the page as the heir of a table.
    LateRunServed,
    /// A page stays replicated after its last parent entry is gone.
    StaleMemberKept,
    /// A merge takes the sender's whole page instead of the changed entries.
    MergeLosesEntry,
    /// An entry that permits writes is shared without its dirty bit. The store has this bug, not
    /// the protocol.
    CleanEntryShared,
    /// The saved form of a home leaves out one of the holders of each page that several may read.
    SavedHolderForgotten,
    /// A restored node makes no twins for its replicas.
    RestoredTwinForgotten,
    /// A home that leaves does not wait until a page has become a replica, or has ended as one.
    HomeLeavesWhileBusy,
    /// A home that leaves does not wait for the answers of the others.
    HomeAnswersNotAwaited,
    /// A home that leaves drops what it was asked for meanwhile.
    HomeQueueForgotten,
    /// A home that leaves does not say of which late runs it knows.
    HomeLateRunsForgotten,
    /// A slice asks the home that leaves.
    HomeAskedWhileAway,
    /// A slice drops what it held back for the next home.
    HomeRequestsDropped,
    /// A slice may leave with the only copy of a page.
    LeaverTakesPages,
    /// A slice that has left still counts as a member.
    LeaverStaysMember,
    /// A slice that has left still counts as a holder.
    LeaverStaysHolder,
    /// The last slice keeps its replicas of page tables.
    LoneReplicasKept,
    /// Replicas stay when a slice joins that has none.
    ReplicasKeptFromNewcomer,
    /// A slice goes on with its copy of a replica that ended when another one joined.
    EndedReplicaUsed,
    /// A slice that has joined is no member to the others.
    NewcomerNoMember,
    /// Messages to and from a slice that has joined are not counted.
    NewcomerNotCounted,
    /// A slice that joins begins an epoch of its own.
    NewcomerOwnEpoch,
}
