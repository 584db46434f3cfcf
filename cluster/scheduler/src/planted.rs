//! Bugs that a test may plant to prove that the model would catch them.

/// One way to break the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    not(feature = "planted-bugs"),
    expect(unreachable_pub, reason = "only tests plant them")
)]
pub enum PlantedBug {
    /// Memory that finds no room beside its cores is forgotten.
    SurplusForgotten,
    /// A VM that has waited too long takes the place of a running one.
    YoungestEvicted,
    /// What a slice has is given away when its move begins.
    SourceReleasedFirst,
    /// Nothing is reserved where a slice moves to.
    DestinationNotReserved,
    /// Reservations are kept for ever.
    NeverExpires,
    /// A move goes on though its reservation has expired.
    ReadyAfterExpiry,
    /// A move is given up after its flip.
    AbortedAfterFlip,
    /// A move that is given up gives back what the slice runs on.
    AbortReleasesSource,
    /// Nothing bounds how long a VM stands still.
    PauseNotBounded,
    /// Moves of a host are not counted.
    HostBudgetIgnored,
    /// Moves of a VM are not counted.
    VmBudgetIgnored,
    /// A slice goes back to where it came from.
    MovesBack,
    /// A VM that ends leaves its reservations behind.
    ReservationLeftBehind,
    /// Others pass a VM that has waited for too long.
    AgeIgnored,
    /// A VM whose start failed is forgotten.
    FailedStartForgotten,
    /// A move that has failed is tried again at once.
    TriedAtOnce,
    /// A VM whose reservation has expired starts, and waits too.
    StartedLate,
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
