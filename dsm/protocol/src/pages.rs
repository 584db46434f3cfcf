//! What one slice may do with each page, and the directory of the pages it is home of.

use crate::homes::HomeTable;
use std::collections::BTreeMap;
use wire::{Access, Gfn, Held, SliceId};

/// This slice's copy of a page. One byte per page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Copy {
    /// None.
    Invalid,
    /// May be read.
    Shared,
    /// The only copy.
    Exclusive,
    /// A replica received, but not everyone has it yet.
    Forming,
    /// A replica in use.
    Replica,
}

impl Copy {
    pub(crate) fn access(self) -> Access {
        match self {
            Self::Invalid | Self::Forming => Access::None,
            Self::Shared => Access::Read,
            Self::Exclusive | Self::Replica => Access::Write,
        }
    }
}

/// Who holds a page, as its home knows it. Packed into 8 bytes: one bit per slice and two for the
/// kind. Of a replicated page everyone is a holder; a bit then says that a request was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holders(u64);

/// The most slices of one VM: a bit each beside the two bits of the kind.
pub(crate) const SLICES_MAX: u16 = 62;
const EXCLUSIVE: u64 = 1 << 63;
const REPLICATED: u64 = 1 << 62;

impl Holders {
    pub(crate) fn exclusive(slice: SliceId) -> Self {
        Self(EXCLUSIVE | 1 << slice.0)
    }
    pub(crate) fn replicated() -> Self {
        Self(REPLICATED)
    }
    /// Notes that a request of this slice was dropped because the page is replicated.
    pub(crate) fn with_dropped(self, slice: SliceId) -> Self {
        Self(self.0 | 1 << slice.0)
    }
    pub(crate) fn is_replicated(self) -> bool {
        self.0 & REPLICATED != 0
    }
    pub(crate) fn contains(self, slice: SliceId) -> bool {
        self.0 & (1 << slice.0) != 0
    }
    /// Adds a reader; the page is shared afterwards.
    pub(crate) fn with_reader(self, slice: SliceId) -> Self {
        Self((self.0 & !EXCLUSIVE) | 1 << slice.0)
    }
    /// The slices, ascending.
    pub(crate) fn iter(self) -> impl Iterator<Item = SliceId> {
        (0..SLICES_MAX).map(SliceId).filter(move |slice| self.contains(*slice))
    }
}

/// The copies and the directory of one slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pages {
    copies: Vec<Copy>,
    /// Directory by home range: first frame, then one entry per frame.
    directory: BTreeMap<u64, Vec<Holders>>,
}

impl Pages {
    /// Every page starts exclusive at its home.
    pub(crate) fn new(local: SliceId, homes: &HomeTable) -> Self {
        let frames = usize::try_from(homes.end()).expect("guest memory fits the address space");
        let mut copies = vec![Copy::Invalid; frames];
        let mut directory = BTreeMap::new();
        for range in homes.ranges().iter().filter(|range| range.home == local) {
            let count = range.frames.end - range.frames.start;
            let count = usize::try_from(count).expect("a range fits the address space");
            let start = usize::try_from(range.frames.start).expect("a range fits");
            copies[start..start + count].fill(Copy::Exclusive);
            directory.insert(range.frames.start, vec![Holders::exclusive(local); count]);
        }
        Self { copies, directory }
    }

    pub(crate) fn copy(&self, gfn: Gfn) -> Copy {
        index(gfn).and_then(|at| self.copies.get(at)).copied().unwrap_or(Copy::Invalid)
    }

    pub(crate) fn set_copy(&mut self, gfn: Gfn, copy: Copy) {
        let at = index(gfn).expect("a checked frame");
        self.copies[at] = copy;
    }

    /// The directory entry, where this slice is home.
    pub(crate) fn holders(&self, gfn: Gfn) -> Option<Holders> {
        let (start, entries) = self.directory.range(..=gfn.0).next_back()?;
        entries.get(index(Gfn(gfn.0 - start))?).copied()
    }

    pub(crate) fn set_holders(&mut self, gfn: Gfn, holders: Holders) {
        let (start, entries) =
            self.directory.range_mut(..=gfn.0).next_back().expect("this slice is home");
        let at = index(Gfn(gfn.0 - start)).expect("a checked frame");
        entries[at] = holders;
    }

    /// Directory entry after a requester confirmed.
    pub(crate) fn confirmed(&mut self, gfn: Gfn, requester: SliceId, held: Held) {
        let holders = match held {
            Held::Shared => self.holders(gfn).expect("this slice is home").with_reader(requester),
            Held::Exclusive => Holders::exclusive(requester),
            Held::Replica => Holders::replicated(),
        };
        self.set_holders(gfn, holders);
    }
}

fn index(gfn: Gfn) -> Option<usize> {
    usize::try_from(gfn.0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::homes::HomeRange;

    /// A VM of 1 TiB on 16 slices costs each of them 4 bytes at most for every page, and 16 at most for
    /// every page that it is home of. (The rest of a node grows with what is on its way, not with memory.)
    #[test]
    fn states_of_a_tebibyte_stay_within_bounds() {
        const PAGES: u64 = 1 << 28;
        const SHARE: u64 = PAGES / 16;
        let ranges = (0..16).map(|slice| {
            let home = SliceId(u16::try_from(slice).unwrap());
            HomeRange { frames: slice * SHARE..(slice + 1) * SHARE, home }
        });
        let homes = HomeTable::new(ranges.collect()).unwrap();

        let pages = Pages::new(SliceId(3), &homes);

        let copies = pages.copies.capacity() * size_of::<Copy>();
        let entries: usize = pages.directory.values().map(Vec::capacity).sum();
        let directory = entries * size_of::<Holders>();
        assert!(copies <= 4 * usize::try_from(PAGES).unwrap(), "{copies} bytes of states");
        assert!(
            directory <= 12 * usize::try_from(SHARE).unwrap(),
            "{directory} bytes of directory"
        );
        assert_eq!(pages.holders(Gfn(4 * SHARE - 1)), Some(Holders::exclusive(SliceId(3))));
    }
}
