//! Bugs that a test may plant to prove that the model would catch them.

/// One way to break the store, or those who write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    not(feature = "planted-bugs"),
    expect(unreachable_pub, reason = "only tests plant them")
)]
pub enum PlantedBug {
    /// Terms are not compared.
    TermNotCompared,
    /// A leader is deposed only when somebody else leads, however long its lease has been over.
    DeposedAccepted,
    /// Each leader has the term of the one before.
    TermNotAdvanced,
    /// Only the first comparison counts.
    OneCompared,
    /// Writes before the one that finds no room stay.
    HalfWritten,
    /// A commit whose result is unknown is taken for one that failed.
    UnknownIsFailure,
    /// What is not there when its writer looks is taken for what will never be.
    NotVoided,
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
