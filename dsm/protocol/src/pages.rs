//! What one slice may do with each page, and the directory of the pages it is home of.

use crate::homes::HomeTable;
use wire::{Access, Gfn, SliceId};

/// This slice's copy of a page. One byte per page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PageCopy {
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

impl PageCopy {
    pub(crate) fn access(self) -> Access {
        match self {
            Self::Invalid | Self::Forming => Access::None,
            Self::Shared => Access::Read,
            Self::Exclusive | Self::Replica => Access::Write,
        }
    }
}

/// How the holders hold a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// To read, all of them.
    Shared,
    /// One of them, to write.
    Exclusive,
    /// One of them, to write, although it asked to read (exclusive-on-read grant).
    ExclusiveGrant,
    /// Everyone has a replica.
    Replicated,
}

/// Who holds a page, as its home knows it: one bit per slice, and how. Of a replicated page everyone
/// is a holder; a bit then says that a request was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Holders {
    slices: u64,
    kind: Kind,
    /// Many slices read the page between two writes. The home of such a page keeps a copy, which saves every reader but
    /// the first a message.
    widely_shared: bool,
}

/// So many readers make a page widely shared.
const WIDELY_SHARED: u32 = 3;

/// The most slices of one VM: a bit each.
pub(crate) const SLICES_MAX: u16 = 64;

impl Holders {
    pub(crate) fn exclusive(slice: SliceId) -> Self {
        Self { slices: 1 << slice.0, kind: Kind::Exclusive, widely_shared: false }
    }
    pub(crate) fn replicated() -> Self {
        Self { slices: 0, kind: Kind::Replicated, widely_shared: false }
    }
    /// Holders as they were written down.
    pub(crate) fn of(kind: Kind, slices: &[SliceId], widely_shared: bool) -> Self {
        let slices = slices.iter().fold(0, |all, slice| all | 1 << slice.0);
        Self { slices, kind, widely_shared }
    }
    pub(crate) fn kind(self) -> Kind {
        self.kind
    }
    /// Notes that a request of this slice was dropped because the page is replicated.
    pub(crate) fn with_dropped(self, slice: SliceId) -> Self {
        Self { slices: self.slices | 1 << slice.0, ..self }
    }
    pub(crate) fn is_replicated(self) -> bool {
        self.kind == Kind::Replicated
    }
    pub(crate) fn contains(self, slice: SliceId) -> bool {
        self.slices & (1 << slice.0) != 0
    }
    /// Adds a reader; the page is shared afterwards.
    pub(crate) fn with_reader(self, slice: SliceId) -> Self {
        let slices = self.slices | 1 << slice.0;
        let widely_shared = self.widely_shared || slices.count_ones() >= WIDELY_SHARED;
        Self { slices, kind: Kind::Shared, widely_shared }
    }
    /// Gives the page to one slice. Readers of the time before tell whether it stays widely shared.
    pub(crate) fn with_owner(self, slice: SliceId) -> Self {
        let widely_shared = self.widely_shared && self.slices.count_ones() >= WIDELY_SHARED;
        Self { widely_shared, ..Self::exclusive(slice) }
    }
    /// Gives the page for writing to a slice that asked to read it.
    pub(crate) fn with_exclusive_grant(self, slice: SliceId) -> Self {
        Self { kind: Kind::ExclusiveGrant, ..self.with_owner(slice) }
    }
    pub(crate) fn is_exclusive(self) -> bool {
        matches!(self.kind, Kind::Exclusive | Kind::ExclusiveGrant)
    }
    /// True while one slice has the page for writing and asked to write it, or has had it from the start.
    pub(crate) fn is_written(self) -> bool {
        self.kind == Kind::Exclusive
    }
    pub(crate) fn is_widely_shared(self) -> bool {
        self.widely_shared
    }
    /// The slices, ascending.
    pub(crate) fn iter(self) -> impl Iterator<Item = SliceId> {
        let mut left = self.slices;
        std::iter::from_fn(move || {
            let lowest = u16::try_from(left.trailing_zeros()).expect("64 at most");
            left &= left.checked_sub(1)?;
            Some(SliceId(lowest))
        })
    }
}

/// Who holds the pages of one home range: 10 bytes per page.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Directory {
    slices: Vec<u64>,
    kinds: Vec<Kind>,
    widely_shared: Vec<bool>,
}

impl Directory {
    fn new(pages: usize, holders: Holders) -> Self {
        let Holders { slices, kind, widely_shared } = holders;
        Self {
            slices: vec![slices; pages],
            kinds: vec![kind; pages],
            widely_shared: vec![widely_shared; pages],
        }
    }

    fn get(&self, at: usize) -> Option<Holders> {
        let widely_shared = *self.widely_shared.get(at)?;
        Some(Holders { slices: *self.slices.get(at)?, kind: *self.kinds.get(at)?, widely_shared })
    }

    fn set(&mut self, at: usize, holders: Holders) {
        (self.slices[at], self.kinds[at]) = (holders.slices, holders.kind);
        self.widely_shared[at] = holders.widely_shared;
    }
}

/// The copies and the directory of one slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pages {
    copies: Vec<PageCopy>,
    /// With the first frame of each home range, ascending.
    directory: Vec<(u64, Directory)>,
}

impl Pages {
    /// Every page starts exclusive at its home.
    pub(crate) fn new(local: SliceId, homes: &HomeTable) -> Self {
        let frames = usize::try_from(homes.end()).expect("guest memory fits the address space");
        let mut copies = vec![PageCopy::Invalid; frames];
        let mut directory = Vec::new();
        for range in homes.ranges().iter().filter(|range| range.home == local) {
            let count = range.frames.end - range.frames.start;
            let count = usize::try_from(count).expect("a range fits the address space");
            let start = usize::try_from(range.frames.start).expect("a range fits");
            copies[start..start + count].fill(PageCopy::Exclusive);
            directory.push((range.frames.start, Directory::new(count, Holders::exclusive(local))));
        }
        Self { copies, directory }
    }

    pub(crate) fn copy(&self, gfn: Gfn) -> PageCopy {
        index(gfn).and_then(|at| self.copies.get(at)).copied().unwrap_or(PageCopy::Invalid)
    }

    pub(crate) fn set_copy(&mut self, gfn: Gfn, copy: PageCopy) {
        let at = index(gfn).expect("a checked frame");
        self.copies[at] = copy;
    }

    /// The pages of which this slice has a copy, ascending.
    pub(crate) fn copies(&self) -> impl Iterator<Item = (Gfn, PageCopy)> + '_ {
        let all = (0..).map(Gfn).zip(self.copies.iter().copied());
        all.filter(|(_, copy)| *copy != PageCopy::Invalid)
    }

    /// The directory of this home, ascending.
    pub(crate) fn directory(&self) -> impl Iterator<Item = (Gfn, Holders)> + '_ {
        self.directory.iter().flat_map(|(start, part)| {
            let entries = (0..part.slices.len()).filter_map(|at| part.get(at));
            (*start..).map(Gfn).zip(entries)
        })
    }

    /// The directory entry, where this slice is home.
    pub(crate) fn holders(&self, gfn: Gfn) -> Option<Holders> {
        let (start, entries) = &self.directory[self.part(gfn)?];
        entries.get(index(Gfn(gfn.0 - start))?)
    }

    /// Which home range a page would be in.
    fn part(&self, gfn: Gfn) -> Option<usize> {
        self.directory.partition_point(|(start, _)| *start <= gfn.0).checked_sub(1)
    }

    pub(crate) fn set_holders(&mut self, gfn: Gfn, holders: Holders) {
        let part = self.part(gfn).expect("this slice is home");
        let (start, entries) = &mut self.directory[part];
        let at = index(Gfn(gfn.0 - *start)).expect("a checked frame");
        entries.set(at, holders);
    }
}

fn index(gfn: Gfn) -> Option<usize> {
    usize::try_from(gfn.0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::homes::HomeRange;
    use crate::outstanding_requests::OutstandingRequests;

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

        let waits = OutstandingRequests::new(homes.end()).bytes();
        let copies = pages.copies.capacity() * size_of::<PageCopy>() + waits;
        let directory: usize = pages
            .directory
            .iter()
            .map(|(_, part)| {
                part.slices.capacity() * 8 + part.kinds.capacity() + part.widely_shared.capacity()
            })
            .sum();
        assert!(copies <= 4 * usize::try_from(PAGES).unwrap(), "{copies} bytes of states");
        assert!(
            directory <= 12 * usize::try_from(SHARE).unwrap(),
            "{directory} bytes of directory"
        );
        assert_eq!(pages.holders(Gfn(4 * SHARE - 1)), Some(Holders::exclusive(SliceId(3))));
    }
}
