//! What one slice may do with each page, and the directory of the pages it is home of.

use crate::cells::Cells;
use crate::homes::HomeTable;
use std::ops::Range;
use wire::{Access, DirectoryEntry, Gfn, HOME_MOVE_MAX, HolderKind, SLICES_MAX, SliceId};

/// This slice's copy of a page. One byte per page at most.
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

// A bit for each slice.
const _: () = assert!(SLICES_MAX as u32 <= u64::BITS);

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
    /// What a home tells the next one of the holders.
    pub(crate) fn to_entry(self) -> DirectoryEntry {
        let Self { slices, kind, widely_shared } = self;
        let kind = match kind {
            Kind::Shared => HolderKind::Shared,
            Kind::Exclusive => HolderKind::Exclusive,
            Kind::ExclusiveGrant => HolderKind::ExclusiveGrant,
            Kind::Replicated => HolderKind::Replicated,
        };
        DirectoryEntry { holders: slices, kind, widely_shared, never_replica: false, late_runs: 0 }
    }
    /// The holders that another home told of; none if it cannot be. `members`: a bit for each slice.
    pub(crate) fn from_entry(entry: DirectoryEntry, members: u64) -> Option<Self> {
        let DirectoryEntry { holders: slices, widely_shared, .. } = entry;
        let known = (slices | entry.late_runs) & !members == 0;
        let (kind, fits) = match entry.kind {
            HolderKind::Shared => (Kind::Shared, slices != 0),
            HolderKind::Exclusive => (Kind::Exclusive, slices.is_power_of_two()),
            HolderKind::ExclusiveGrant => (Kind::ExclusiveGrant, slices.is_power_of_two()),
            HolderKind::Replicated => (Kind::Replicated, !widely_shared),
        };
        (known && fits).then_some(Self { slices, kind, widely_shared })
    }
    /// The holders without a slice that is no member any more. None: nobody is left.
    pub(crate) fn without(self, slice: SliceId) -> Option<Self> {
        let slices = self.slices & !(1 << slice.0);
        if slices == self.slices {
            return Some(self);
        }
        // What a page of readers is depends on how many there are, as for `with_owner`.
        let widely_shared = self.widely_shared && slices.count_ones() >= WIDELY_SHARED;
        (slices != 0 || self.is_replicated()).then_some(Self { slices, widely_shared, ..self })
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

/// Who holds the pages of one chunk that this slice is home of: 10 bytes per page at most.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Directory {
    /// The first frame that has a place here. Frames up to the last one have places too, and some of them may have
    /// their home elsewhere.
    first: u64,
    slices: Cells<u64>,
    kinds: Cells<Kind>,
    widely_shared: Cells<bool>,
}

/// How a place of a page looks whose home is elsewhere: held by nobody.
const ELSEWHERE: Holders = Holders { slices: 0, kind: Kind::Shared, widely_shared: false };

impl Directory {
    fn new(first: u64, pages: usize, holders: Holders) -> Self {
        let Holders { slices, kind, widely_shared } = holders;
        Self {
            first,
            slices: Cells::new(slices, pages),
            kinds: Cells::new(kind, pages),
            widely_shared: Cells::new(widely_shared, pages),
        }
    }

    fn get(&self, gfn: Gfn) -> Option<Holders> {
        let at = index(Gfn(gfn.0.checked_sub(self.first)?))?;
        self.at(at).filter(|holders| *holders != ELSEWHERE)
    }

    /// By its place.
    fn at(&self, at: usize) -> Option<Holders> {
        let (slices, kind) = (self.slices.get(at)?, self.kinds.get(at)?);
        Some(Holders { slices, kind, widely_shared: self.widely_shared.get(at)? })
    }

    /// A page that has a place.
    fn set(&mut self, gfn: Gfn, holders: Holders) {
        let at = index(Gfn(gfn.0 - self.first)).expect("a checked frame");
        self.slices.set(at, holders.slices);
        self.kinds.set(at, holders.kind);
        self.widely_shared.set(at, holders.widely_shared);
    }

    /// Pages that have a place.
    fn set_run(&mut self, frames: &Range<u64>, holders: Holders) {
        if *frames == self.range(0, self.slices.len()) {
            *self = Self::new(self.first, self.slices.len(), holders);
        } else {
            frames.clone().for_each(|gfn| self.set(Gfn(gfn), holders));
        }
    }

    /// All pages of this home, ascending.
    fn iter(&self) -> impl Iterator<Item = (Gfn, Holders)> + '_ {
        let frames = (self.first..).map(Gfn).take(self.slices.len());
        frames.filter_map(|gfn| self.get(gfn).map(|holders| (gfn, holders)))
    }

    /// The same as runs of pages that are held alike, ascending. Memory that nobody else has asked for is one.
    fn runs(&self) -> impl Iterator<Item = (Range<u64>, Holders)> + '_ {
        let mut at = 0;
        let all = std::iter::from_fn(move || {
            let holders = self.at(at)?;
            let pages = self.slices.alike(at).min(self.kinds.alike(at));
            let pages = pages.min(self.widely_shared.alike(at));
            let run = self.range(at, pages);
            at += pages;
            Some((run, holders))
        });
        all.filter(|(_, holders)| *holders != ELSEWHERE)
    }

    /// Frames by their places.
    fn range(&self, at: usize, pages: usize) -> Range<u64> {
        let number = |places| u64::try_from(places).expect("a chunk at most");
        let first = self.first + number(at);
        first..first + number(pages)
    }

    /// Gives frames a place.
    fn widen(&mut self, frames: &Range<u64>) {
        let end = self.first + u64::try_from(self.slices.len()).expect("a chunk at most");
        let all = if self.slices.len() == 0 {
            frames.clone()
        } else {
            self.first.min(frames.start)..end.max(frames.end)
        };
        if all == (self.first..end) {
            return;
        }
        let pages = usize::try_from(all.end - all.start).expect("a chunk at most");
        let before = std::mem::replace(self, Self::new(all.start, pages, ELSEWHERE));
        before.iter().for_each(|(gfn, holders)| self.set(gfn, holders));
    }
}

/// The copies and the directory of one slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pages {
    /// Of each chunk.
    copies: Vec<Cells<PageCopy>>,
    /// Of each chunk.
    directory: Vec<Directory>,
}

impl Pages {
    /// Every page starts exclusive at its home.
    pub(crate) fn new(local: SliceId, homes: &HomeTable) -> Self {
        let size = |frames: Range<u64>| {
            usize::try_from(frames.end - frames.start).expect("a chunk at most")
        };
        let chunks = || chunk_pieces(&(0..homes.end()));
        let mut pages = Self {
            copies: chunks().map(|piece| Cells::new(PageCopy::Invalid, size(piece))).collect(),
            directory: chunks().map(|_| Directory::new(0, 0, ELSEWHERE)).collect(),
        };
        for range in homes.ranges().iter().filter(|range| range.home == local) {
            for piece in chunk_pieces(&range.frames) {
                pages.fill(&piece, PageCopy::Exclusive);
                pages.places(&piece).set_run(&piece, Holders::exclusive(local));
            }
        }
        pages
    }

    pub(crate) fn copy(&self, gfn: Gfn) -> PageCopy {
        let cells = chunk(gfn).and_then(|chunk| self.copies.get(chunk));
        cells.and_then(|cells| cells.get(in_chunk(gfn))).unwrap_or(PageCopy::Invalid)
    }

    pub(crate) fn set_copy(&mut self, gfn: Gfn, copy: PageCopy) {
        let chunk = chunk(gfn).expect("a checked frame");
        self.copies[chunk].set(in_chunk(gfn), copy);
    }

    /// The same for pages of one chunk.
    fn fill(&mut self, piece: &Range<u64>, copy: PageCopy) {
        let cells = &mut self.copies[chunk(Gfn(piece.start)).expect("a checked frame")];
        let pages = usize::try_from(piece.end - piece.start).expect("a chunk at most");
        if pages == cells.len() {
            *cells = Cells::new(copy, pages);
        } else {
            piece.clone().map(Gfn).for_each(|gfn| cells.set(in_chunk(gfn), copy));
        }
    }

    /// The pages of which this slice has a copy, ascending.
    pub(crate) fn copies(&self) -> impl Iterator<Item = (Gfn, PageCopy)> + '_ {
        let all = (0..).map(Gfn).zip(self.copies.iter().flat_map(Cells::iter));
        all.filter(|(_, copy)| *copy != PageCopy::Invalid)
    }

    /// The same as runs of pages that are held alike, ascending.
    pub(crate) fn copy_runs(&self) -> impl Iterator<Item = (Range<u64>, PageCopy)> + '_ {
        let firsts = (0..).step_by(usize::from(HOME_MOVE_MAX));
        let all = firsts.zip(&self.copies).flat_map(|(first, cells): (u64, _)| {
            let mut at = 0;
            std::iter::from_fn(move || {
                let copy = cells.get(at)?;
                let number = |places| first + u64::try_from(places).expect("a chunk at most");
                let begin = number(at);
                at += cells.alike(at);
                Some((begin..number(at), copy))
            })
        });
        all.filter(|(_, copy)| *copy != PageCopy::Invalid)
    }

    /// The directory of this home, in runs of pages that are held alike, ascending.
    pub(crate) fn directory_runs(&self) -> impl Iterator<Item = (Range<u64>, Holders)> + '_ {
        self.directory.iter().flat_map(Directory::runs)
    }

    /// The directory of this home, ascending.
    pub(crate) fn directory(&self) -> impl Iterator<Item = (Gfn, Holders)> + '_ {
        self.directory.iter().flat_map(Directory::iter)
    }

    /// The directory entry, where this slice is home.
    pub(crate) fn holders(&self, gfn: Gfn) -> Option<Holders> {
        self.directory.get(chunk(gfn)?)?.get(gfn)
    }

    pub(crate) fn set_holders(&mut self, gfn: Gfn, holders: Holders) {
        let chunk = chunk(gfn).expect("a checked frame");
        self.directory[chunk].set(gfn, holders);
    }

    /// Gives pages of one chunk places in its directory.
    fn places(&mut self, frames: &Range<u64>) -> &mut Directory {
        let directory = &mut self.directory[chunk(Gfn(frames.start)).expect("a checked frame")];
        directory.widen(frames);
        directory
    }

    /// This slice becomes home of pages of one chunk, from the first on.
    pub(crate) fn add_home(&mut self, first: u64, holders: &[Holders]) {
        let end = first + u64::try_from(holders.len()).expect("a chunk at most");
        let directory = self.places(&(first..end));
        let mut next = first;
        for alike in holders.chunk_by(PartialEq::eq) {
            let run = next..next + u64::try_from(alike.len()).expect("a chunk at most");
            next = run.end;
            directory.set_run(&run, alike[0]);
        }
    }

    /// A slice holds none of the pages of this home. Each of them has another holder, or is replicated.
    pub(crate) fn remove_holder(&mut self, slice: SliceId) {
        for directory in &mut self.directory {
            let with: Vec<(Gfn, Holders)> =
                directory.iter().filter(|(_, holders)| holders.contains(slice)).collect();
            for (gfn, holders) in with {
                directory.set(gfn, holders.without(slice).unwrap_or(ELSEWHERE));
            }
        }
    }

    /// Each page of this home is this slice's alone.
    pub(crate) fn take_all(&mut self, local: SliceId) {
        let own: Vec<Range<u64>> = self.directory_runs().map(|(run, _)| run).collect();
        for run in own {
            let chunk = chunk(Gfn(run.start)).expect("a checked frame");
            self.directory[chunk].set_run(&run, Holders::exclusive(local));
            self.fill(&run, PageCopy::Exclusive);
        }
    }

    /// This slice is home of these pages of one chunk no longer, and forgets who holds them.
    pub(crate) fn remove_home(&mut self, frames: Range<u64>) {
        let directory = &mut self.directory[chunk(Gfn(frames.start)).expect("a checked frame")];
        directory.set_run(&frames, ELSEWHERE);
        if directory.runs().next().is_none() {
            *directory = Directory::new(0, 0, ELSEWHERE);
        }
    }
}

fn index(gfn: Gfn) -> Option<usize> {
    usize::try_from(gfn.0).ok()
}

fn chunk(gfn: Gfn) -> Option<usize> {
    index(Gfn(gfn.0 / u64::from(HOME_MOVE_MAX)))
}

/// The place of a page in its chunk.
fn in_chunk(gfn: Gfn) -> usize {
    usize::try_from(gfn.0 % u64::from(HOME_MOVE_MAX)).expect("a chunk at most")
}

/// Frames, cut where chunks end.
pub(crate) fn chunk_pieces(frames: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    frame_pieces(frames, u64::from(HOME_MOVE_MAX))
}

/// Frames in pieces that end at multiples of `size`, a number of frames that is not 0.
pub fn frame_pieces(frames: &Range<u64>, size: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let (mut start, end) = (frames.start, frames.end);
    std::iter::from_fn(move || {
        let piece = start..end.min((start / size + 1).saturating_mul(size));
        start = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::homes::HomeRange;
    use crate::outstanding_requests::OutstandingRequests;

    /// Bytes of what is kept for copies, and for the directory.
    fn bytes(pages: &Pages) -> (usize, usize) {
        let copies = pages.copies.iter().map(Cells::bytes).sum::<usize>();
        let of = |part: &Directory| {
            part.slices.bytes() + part.kinds.bytes() + part.widely_shared.bytes()
        };
        let directory = pages.directory.iter().map(of).sum::<usize>();
        let copies = copies + pages.copies.capacity() * size_of::<Cells<PageCopy>>();
        (copies, directory + pages.directory.capacity() * size_of::<Directory>())
    }

    /// A VM of 1 TiB on 16 slices costs each of them one byte for every page while chunks are of one kind. (The rest of a node
    /// grows with what is on its way, not with memory.)
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
        let (copies, directory) = bytes(&pages);
        let all = copies + directory + waits;
        assert!(all <= usize::try_from(PAGES).unwrap(), "{all} bytes of states");
        assert_eq!(pages.holders(Gfn(4 * SHARE - 1)), Some(Holders::exclusive(SliceId(3))));
    }

    /// A page whose neighbours are held in other ways costs one byte, and 10 more where its home is.
    #[test]
    fn states_of_mixed_pages_stay_within_bounds() {
        const CHUNK: u64 = HOME_MOVE_MAX as u64;
        let range = HomeRange { frames: 0..2 * CHUNK, home: SliceId(0) };
        let mut pages = Pages::new(SliceId(0), &HomeTable::new(vec![range]).unwrap());
        let (copies, directory) = bytes(&pages);
        for frame in (0..CHUNK).step_by(2).map(Gfn) {
            pages.set_copy(frame, PageCopy::Shared);
            let holders = Holders::exclusive(SliceId(0)).with_reader(SliceId(1));
            pages.set_holders(frame, holders.with_reader(SliceId(2)));
        }
        let chunk = usize::from(HOME_MOVE_MAX);
        assert_eq!(bytes(&pages), (copies + chunk, directory + 10 * chunk));

        pages.take_all(SliceId(0));
        assert!(pages.directory_runs().all(|(_, holders)| holders.is_exclusive()));
        pages.remove_home(0..CHUNK);
        assert_eq!(pages.directory_runs().next().unwrap().0, CHUNK..2 * CHUNK);
    }

    #[test]
    fn runs_are_the_pages() {
        let ranges = [(0..70, 0), (70..1100, 1), (1100..1500, 0)];
        let range = |(frames, home)| HomeRange { frames, home: SliceId(home) };
        let homes = HomeTable::new(ranges.map(range).to_vec()).unwrap();
        let mut pages = Pages::new(SliceId(0), &homes);
        for frame in [3, 64, 65, 66, 69, 1163, 1300, 1499] {
            pages.set_copy(Gfn(frame), PageCopy::Shared);
            pages.set_holders(Gfn(frame), Holders::exclusive(SliceId(0)).with_reader(SliceId(1)));
        }
        pages.set_copy(Gfn(700), PageCopy::Exclusive);
        pages.set_copy(Gfn(1200), PageCopy::Replica);
        pages.set_holders(Gfn(1200), Holders::replicated());
        pages.set_holders(Gfn(1201), Holders::exclusive(SliceId(1)));

        fn each<T: Copy>(runs: impl Iterator<Item = (Range<u64>, T)>) -> Vec<(Gfn, T)> {
            runs.flat_map(|(run, how)| run.map(move |frame| (Gfn(frame), how))).collect()
        }
        assert_eq!(each(pages.copy_runs()), pages.copies().collect::<Vec<_>>());
        assert_eq!(each(pages.directory_runs()), pages.directory().collect::<Vec<_>>());
        assert_eq!(pages.copy_runs().next(), Some((0..3, PageCopy::Exclusive)));
    }
}
