//! Bugs that a test may plant to prove that the model would catch them.

/// One way to break the rule of borrowed vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    not(feature = "planted-bugs"),
    expect(unreachable_pub, reason = "only tests plant them")
)]
pub enum PlantedBug {
    /// One window is enough.
    OneWindow,
    /// Windows right after a move count.
    Unsettled,
    /// vCPUs go although the hold-off is not over.
    HoldOffIgnored,
    /// A try that failed does not double the hold-off.
    TriesForgotten,
    /// One that paid leaves the hold-off as it was.
    PayForgotten,
}
