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
}

/// What is planted: nothing, unless a test does it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Planted(#[cfg(feature = "planted-bugs")] Option<PlantedBug>);

#[cfg(feature = "planted-bugs")]
impl Planted {
    pub(super) fn some(bug: PlantedBug) -> Self {
        Self(Some(bug))
    }

    pub(super) fn has(self, bug: PlantedBug) -> bool {
        self.0 == Some(bug)
    }
}

#[cfg(not(feature = "planted-bugs"))]
impl Planted {
    #[expect(clippy::unused_self, reason = "with the feature it looks at what is planted")]
    pub(super) fn has(self, _: PlantedBug) -> bool {
        false
    }
}
