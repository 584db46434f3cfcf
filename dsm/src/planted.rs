//! Bugs that a test may plant below the protocol, to prove that the simulator would catch them.

/// One way to break the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "simulate"), expect(unreachable_pub, reason = "for the simulator"))]
pub enum PlantedBug {
    /// A run over several parts of the address space is given up, as it was before it was mapped in halves.
    RunOverParts,
    /// A page is sent before the guest has lost it.
    TakenLate,
    /// Pages of a private chunk are given away, and userfaultfd does not watch the chunk.
    GivenUnwatched,
    /// A page that came in a run and is staged is taken as if it were in the file.
    StagedPagesLost,
    /// A page that has come and is taken before it is mapped wakes nobody, as it was before the simulator found it.
    WaiterForgotten,
    /// A probed page stays read-only.
    NeverAnswered,
    /// A page that another slice has stays present when this one goes on from a saved node.
    RestoredPagesLeft,
    /// A slice that was alone goes on as if it were, though another one has joined.
    LoneForEver,
    /// The guest stores to a page of a snapshot, and nobody copies it before.
    StoredUnkept,
    /// A page of a snapshot goes to another slice, and nobody copies it before.
    TakenUnkept,
    /// What the guest stored to while memory was being protected is not protected once more at the moment of the snapshot.
    WrittenUnprotected,
    /// A page that is not loaded yet is given to another slice, or to a device, as it is.
    GivenUnloaded,
    /// Memory is loaded once more when the guest has it, and takes the place of what that has stored.
    #[cfg_attr(
        not(feature = "simulate"),
        expect(dead_code, reason = "only the simulator loads twice")
    )]
    LoadedOverStores,
}
