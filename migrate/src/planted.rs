//! What of a machine's bugs is planted. Which ones there are, each machine says itself.

/// One bug of `B`, or none; always none without the feature `planted-bugs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Planted<B>(Option<B>);

impl<B> Default for Planted<B> {
    fn default() -> Self {
        Self(None)
    }
}

impl<B: Copy + PartialEq> Planted<B> {
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn some(bug: B) -> Self {
        Self(Some(bug))
    }

    pub(crate) fn has(self, bug: B) -> bool {
        cfg!(feature = "planted-bugs") && self.0 == Some(bug)
    }
}
