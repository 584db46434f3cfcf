//! The hold windows of pages that came lately, in the order in which they end. So a step looks only at windows that end
//! in it, however many pages have just come.

use std::collections::{BTreeMap, BTreeSet};
use wire::Gfn;

/// What this slice did with a page when it was here last and another slice asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum HoldHistory {
    /// Wrote it until the window was over.
    Busy,
    /// Wrote it once.
    Brief,
}

/// The window of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HoldWindow {
    pub(crate) since: u64,
    pub(crate) until: u64,
    /// The longest that it may become.
    pub(crate) busy: u64,
    /// Contents when another slice asked, or when they were looked at last.
    pub(crate) contents: Option<u64>,
    /// How often in a row they were found changed.
    pub(crate) changes: u32,
}

impl HoldWindow {
    /// One that ends then, and does not grow.
    pub(crate) fn until(until: u64) -> Self {
        Self { since: 0, until, busy: 0, contents: None, changes: 0 }
    }
}

/// The hold windows of pages that came lately.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct HoldWindows {
    pages: BTreeMap<Gfn, HoldWindow>,
    ends: BTreeSet<(u64, Gfn)>,
}

impl HoldWindows {
    pub(crate) fn get(&self, gfn: Gfn) -> Option<&HoldWindow> {
        self.pages.get(&gfn)
    }

    /// Opens a window, or changes it.
    pub(crate) fn set(&mut self, gfn: Gfn, window: HoldWindow) {
        if let Some(before) = self.pages.insert(gfn, window) {
            self.ends.remove(&(before.until, gfn));
        }
        self.ends.insert((window.until, gfn));
    }

    pub(crate) fn remove(&mut self, gfn: Gfn) {
        if let Some(window) = self.pages.remove(&gfn) {
            self.ends.remove(&(window.until, gfn));
        }
    }

    /// Forgets the windows that are over.
    pub(crate) fn expire(&mut self, now: u64) {
        while let Some((_, gfn)) = self.ends.first().copied().filter(|(end, _)| *end <= now) {
            self.remove(gfn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_expire_in_the_order_of_their_ends() {
        let mut windows = HoldWindows::default();
        for (gfn, end) in [(1, 30), (2, 10), (3, 20), (4, 10)] {
            windows.set(Gfn(gfn), HoldWindow::until(end));
        }
        windows.set(Gfn(2), HoldWindow::until(40));
        windows.remove(Gfn(3));
        windows.expire(9);
        assert_eq!(windows.pages.len(), 3);
        windows.expire(30);
        assert_eq!(windows.pages.keys().collect::<Vec<_>>(), [&Gfn(2)]);
        assert_eq!(windows.ends.len(), 1);
    }
}
