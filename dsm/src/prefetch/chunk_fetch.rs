//! Chunk fetch: chunks of other homes that a run goes through are fetched piece by piece, and mapped as one.
//!
//! A page of 4 KiB costs its mapping, a call and KVM's fault. A slice that reads or writes in order soon has all
//! 512 pages of a chunk. So pages that come are kept unmapped until the chunk is full, and then mapped at once. If all
//! of them came for writing, the chunk becomes private ([`crate::mapping`]).
//!
//! ```text
//!             all came for writing              touched
//!   filling ------------------------> full ----------------> private (forgotten here)
//!      |  \--touched: the vCPU waits----^
//!      |
//!      +--a page came for reading, or was taken away, or a vCPU has waited for PATIENCE
//!      v
//!   in pieces: what has come is mapped, as any run
//! ```
//!
//! At most [`IN_FLIGHT_MAX`] pages of all chunks together are on their way, because a page that a vCPU waits for comes
//! behind them. The next piece is asked for when one has come, whatever the guest does.
//! [`dsm_protocol::prediction`] says how far ahead of the guest that may go. The first touch of a chunk tells that the
//! guest has got there.

use super::prefetched::PageRun;
use crate::memory::{CHUNK_PAGES, ChunkId};
use dsm_protocol::{Access, Gfn};
use std::collections::VecDeque;
use wire::RUN_MAX;

/// Pages on their way.
const IN_FLIGHT_MAX: u32 = 8 * RUN_MAX as u32;
/// Chunks followed at a time.
const CHUNKS_MAX: usize = 16;
/// How long a vCPU waits for a chunk to be full that has the page it needs.
const PATIENCE_NS: u64 = 8_000_000;
/// Pages that have not come after so long are not counted as on their way any more.
const LOST_NS: u64 = 50_000_000;

/// A bit for each page of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bits([u64; 8]);

impl Bits {
    fn place(gfn: Gfn) -> (usize, u64) {
        let at = gfn.0 % CHUNK_PAGES;
        (usize::try_from(at / 64).expect("below 8"), 1 << (at % 64))
    }

    fn contains(&self, gfn: Gfn) -> bool {
        let (word, bit) = Self::place(gfn);
        self.0[word] & bit != 0
    }

    fn insert(&mut self, gfn: Gfn) {
        let (word, bit) = Self::place(gfn);
        self.0[word] |= bit;
    }

    fn remove(&mut self, gfn: Gfn) -> bool {
        let (word, bit) = Self::place(gfn);
        let was_in = self.0[word] & bit != 0;
        self.0[word] &= !bit;
        was_in
    }

    fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}

/// A chunk on its way.
#[derive(Debug)]
struct Chunk {
    id: ChunkId,
    want: Access,
    /// Pages of it that were asked for, from its start.
    requested: u64,
    /// Of these, those that have not come.
    in_flight: Bits,
    /// Those that came for writing and are not mapped.
    here: Bits,
    /// They are kept until all are here.
    kept: bool,
    /// Since when a vCPU waits for a page that has come.
    waited_ns: Option<u64>,
    /// No touch was seen.
    untouched: bool,
    /// Somebody waited for the first page before: it is mapped when it comes.
    awaited: bool,
    /// When a page came last, or was asked for.
    since_ns: u64,
}

impl Chunk {
    /// True for the page that stays unmapped until it is touched.
    fn is_marker(&self, gfn: Gfn) -> bool {
        self.untouched && !self.awaited && gfn == self.id.first()
    }

    fn ask(&mut self, now_ns: u64) -> (Gfn, u16, Access) {
        let first = Gfn(self.id.first().0 + self.requested);
        let pages = u64::from(RUN_MAX).min(CHUNK_PAGES - self.requested);
        self.requested += pages;
        self.since_ns = now_ns;
        (first, u16::try_from(pages).expect("a piece"), self.want)
    }

    fn hides_first(&self) -> bool {
        self.here.contains(self.id.first())
    }
}

/// The pages of a chunk, as runs of neighbours.
fn runs(id: ChunkId, pages: &Bits) -> Vec<PageRun> {
    PageRun::gather(id.frames().map(Gfn).filter(|gfn| pages.contains(*gfn)).map(|gfn| (gfn, true)))
}

/// What to do with a page that may be mapped now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is in no chunk fetch.
    Stranger,
    /// It stays unmapped.
    Kept,
    /// It is mapped with its neighbours, for reading.
    Later,
    /// Its chunk is full, and a vCPU waits for it.
    Full(ChunkId),
    /// It is mapped together with all pages of its chunk that have come.
    InPieces(ChunkId),
}

/// State of a page that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requested {
    /// It will come.
    InFlight,
    /// It is here, or nobody sends it.
    No,
}

/// The chunks, oldest first.
#[derive(Debug, Default)]
pub(crate) struct ChunkFetches {
    chunks: VecDeque<Chunk>,
}

impl ChunkFetches {
    fn find(&mut self, gfn: Gfn) -> Option<&mut Chunk> {
        let id = ChunkId::of(gfn);
        self.chunks.iter_mut().rev().find(|chunk| chunk.id == id)
    }

    /// True for a page of a chunk that is fetched.
    pub(crate) fn contains(&self, gfn: Gfn) -> bool {
        let id = ChunkId::of(gfn);
        self.chunks.iter().any(|chunk| chunk.id == id)
    }

    /// True for a page that has come and is not mapped.
    pub(crate) fn hides(&self, gfn: Gfn) -> bool {
        let id = ChunkId::of(gfn);
        self.chunks.iter().any(|chunk| chunk.id == id && chunk.here.contains(gfn))
    }

    /// Begins a chunk fetch. `kept`: the chunk may become private. `awaited`: somebody waits for its first page already,
    /// so that page is no marker: nobody would touch it once more. Returns pages to map, of a chunk that had to make
    /// room for it.
    pub(crate) fn begin(
        &mut self,
        id: ChunkId,
        want: Access,
        (kept, awaited): (bool, bool),
        now_ns: u64,
    ) -> Vec<PageRun> {
        if self.chunks.iter().any(|chunk| chunk.id == id) {
            return Vec::new();
        }
        let full = self.chunks.len() >= CHUNKS_MAX;
        let oldest = full.then(|| self.chunks.pop_front()).flatten();
        self.chunks.push_back(Chunk {
            id,
            want,
            requested: 0,
            in_flight: Bits::default(),
            here: Bits::default(),
            kept,
            waited_ns: None,
            untouched: true,
            awaited,
            since_ns: now_ns,
        });
        oldest.map_or_else(Vec::new, |chunk| runs(chunk.id, &chunk.here))
    }

    /// The next pages to ask for, if there is room for them on the way. Tell [`Self::requested`].
    pub(crate) fn next_piece(&mut self, now_ns: u64) -> Option<(Gfn, u16, Access)> {
        for chunk in &mut self.chunks {
            if now_ns.saturating_sub(chunk.since_ns) > LOST_NS {
                chunk.in_flight = Bits::default();
            }
        }
        let in_flight: u32 = self.chunks.iter().map(|chunk| chunk.in_flight.count()).sum();
        if in_flight + u32::from(RUN_MAX) > IN_FLIGHT_MAX {
            return None;
        }
        let chunk = self.chunks.iter_mut().find(|chunk| chunk.requested < CHUNK_PAGES)?;
        Some(chunk.ask(now_ns))
    }

    /// The next piece of a chunk that is kept, if a vCPU touches a page of that piece. It is asked for at once: the
    /// page alone would come for reading only. Tell [`Self::requested`].
    pub(crate) fn piece_of(&mut self, gfn: Gfn, now_ns: u64) -> Option<(Gfn, u16, Access)> {
        let chunk = self.find(gfn).filter(|chunk| chunk.kept)?;
        let at = gfn.0 - chunk.id.first().0;
        (chunk.requested..chunk.requested + u64::from(RUN_MAX))
            .contains(&at)
            .then(|| chunk.ask(now_ns))
    }

    /// Pages were asked for; `state` tells what became of each.
    pub(crate) fn requested(&mut self, first: Gfn, pages: u16, state: impl Fn(Gfn) -> Requested) {
        let Some(chunk) = self.find(first) else { return };
        for gfn in (first.0..first.0 + u64::from(pages)).map(Gfn) {
            match state(gfn) {
                Requested::InFlight if !chunk.here.contains(gfn) => chunk.in_flight.insert(gfn),
                // Somebody asked before, and it is mapped.
                Requested::No if !chunk.here.contains(gfn) => chunk.kept = false,
                _ => {}
            }
        }
    }

    /// A page may be mapped: it has come, or a vCPU touches it.
    pub(crate) fn mapped(&mut self, gfn: Gfn, writable: bool, now_ns: u64) -> Fate {
        let Some(chunk) = self.find(gfn) else { return Fate::Stranger };
        let came = chunk.in_flight.remove(gfn);
        if came {
            chunk.since_ns = now_ns;
        }
        if !writable {
            chunk.kept = false;
            return match (came, chunk.is_marker(gfn)) {
                (true, true) => Fate::Kept,
                (true, false) => Fate::Later,
                (false, _) => Fate::Stranger,
            };
        }
        let was_here = chunk.here.contains(gfn);
        chunk.here.insert(gfn);
        let full = u64::from(chunk.here.count()) == CHUNK_PAGES;
        match (chunk.kept, full && chunk.waited_ns.is_some()) {
            (true, true) => Fate::Full(chunk.id),
            (true, false) if came || was_here => Fate::Kept,
            // At the end of the batch.
            (false, _) if came => Fate::Kept,
            // Somebody asked for this page alone, or needs it now.
            _ => Fate::InPieces(chunk.id),
        }
    }

    /// A vCPU touches a page. Returns the first page of its chunk, if the chunk was not touched before.
    pub(crate) fn touched(&mut self, gfn: Gfn, now_ns: u64) -> Option<Gfn> {
        let chunk = self.find(gfn)?;
        chunk.waited_ns.get_or_insert(now_ns);
        std::mem::take(&mut chunk.untouched).then(|| chunk.id.first())
    }

    /// A page is taken away, or its write access, so it is not mapped from here any more. True if it was to be mapped: a
    /// vCPU may wait for it.
    pub(crate) fn recalled(&mut self, gfn: Gfn) -> bool {
        self.find(gfn).is_some_and(|chunk| {
            chunk.kept = false;
            chunk.here.remove(gfn)
        })
    }

    /// The chunk is private now.
    pub(crate) fn forget(&mut self, id: ChunkId) {
        self.chunks.retain(|chunk| chunk.id != id);
    }

    /// The chunk does not become private: takes the pages that have come and are to be mapped.
    pub(crate) fn take(&mut self, id: ChunkId) -> Vec<PageRun> {
        let Some(chunk) = self.find(id.first()) else { return Vec::new() };
        chunk.kept = false;
        let mut here = std::mem::take(&mut chunk.here);
        if chunk.is_marker(id.first()) && here.remove(id.first()) {
            chunk.here.insert(id.first());
        }
        if chunk.requested >= CHUNK_PAGES && chunk.in_flight == Bits::default() && !chunk.untouched
        {
            self.forget(id);
        }
        runs(id, &here)
    }

    /// Chunks that are mapped in pieces and have pages to map, and those for which a vCPU has waited for too
    /// long.
    pub(crate) fn due(&self, now_ns: u64) -> Vec<ChunkId> {
        let is_due = |chunk: &&Chunk| {
            let marker = u32::from(chunk.is_marker(chunk.id.first()) && chunk.hides_first());
            match chunk.kept {
                true => chunk.waited_ns.is_some_and(|since| now_ns >= since + PATIENCE_NS),
                false => chunk.here.count() > marker,
            }
        };
        self.chunks.iter().filter(is_due).map(|chunk| chunk.id).collect()
    }

    /// When the next is due for that.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let kept = self.chunks.iter().filter(|chunk| chunk.kept);
        kept.filter_map(|chunk| Some(chunk.waited_ns? + PATIENCE_NS)).min()
    }

    /// True while pages are on their way.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.chunks.iter().any(|chunk| chunk.in_flight != Bits::default())
    }

    /// True while pages of this chunk are on their way, or still to be asked for.
    pub(crate) fn is_coming(&self, id: ChunkId) -> bool {
        let is_coming =
            |chunk: &Chunk| chunk.requested < CHUNK_PAGES || chunk.in_flight != Bits::default();
        self.chunks.iter().any(|chunk| chunk.id == id && is_coming(chunk))
    }

    /// True while a vCPU waits for a chunk to be full.
    pub(crate) fn is_awaited(&self) -> bool {
        self.chunks.iter().any(|chunk| chunk.waited_ns.is_some() && chunk.kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ChunkId = ChunkId(3);
    const FIRST: u64 = 3 * CHUNK_PAGES;

    fn begun(kept: bool) -> ChunkFetches {
        let mut fetches = ChunkFetches::default();
        assert!(fetches.begin(ID, Access::Read, (kept, false), 0).is_empty());
        fetches
    }

    /// Asks for all that there is room for; how many pages that were.
    fn ask(fetches: &mut ChunkFetches, now: u64) -> u64 {
        ask_pieces(fetches, now, usize::MAX)
    }

    /// The same of so many pieces at most.
    fn ask_pieces(fetches: &mut ChunkFetches, now: u64, most: usize) -> u64 {
        let (mut pages, mut left) = (0, most);
        while let Some((first, count, _)) = (left > 0).then(|| fetches.next_piece(now)).flatten() {
            fetches.requested(first, count, |_| Requested::InFlight);
            pages += u64::from(count);
            left -= 1;
        }
        pages
    }

    fn come(fetches: &mut ChunkFetches, pages: std::ops::Range<u64>) -> Vec<Fate> {
        pages.map(|page| fetches.mapped(Gfn(FIRST + page), true, 1)).collect()
    }

    fn spans(runs: &[PageRun]) -> Vec<(u64, u64)> {
        runs.iter().map(|run| (run.first.0 - FIRST, run.pages)).collect()
    }

    #[test]
    fn chunk_comes_in_pieces_and_is_full_for_the_vcpu_that_waits() {
        let mut fetches = begun(true);
        let (mut asked, mut came) = (0, 0);
        while came < CHUNK_PAGES {
            asked += ask(&mut fetches, 0);
            assert!(asked - came <= u64::from(IN_FLIGHT_MAX));
            assert!(came > 0 || fetches.touched(Gfn(FIRST + 1), 0) == Some(Gfn(FIRST)));
            let fates = come(&mut fetches, came..came + 32);
            came += 32;
            let last = if came == CHUNK_PAGES { Fate::Full(ID) } else { Fate::Kept };
            assert_eq!((fates[0], fates[31]), (Fate::Kept, last));
        }
        assert!(fetches.is_awaited() && fetches.touched(Gfn(FIRST), 0).is_none());
        fetches.forget(ID);
        assert!(!fetches.is_awaited() && !fetches.contains(Gfn(FIRST)));
        assert_eq!(fetches.mapped(Gfn(FIRST), true, 1), Fate::Stranger);
    }

    #[test]
    fn full_chunk_stays_unmapped_until_it_is_touched() {
        let mut fetches = begun(true);
        for page in (0..CHUNK_PAGES).step_by(64) {
            ask(&mut fetches, 0);
            assert_eq!(come(&mut fetches, page..page + 64), [Fate::Kept; 64]);
        }
        assert!(fetches.hides(Gfn(FIRST + 9)) && fetches.due(u64::MAX).is_empty());
        assert_eq!(fetches.touched(Gfn(FIRST + 9), 5), Some(Gfn(FIRST)));
        assert_eq!(fetches.mapped(Gfn(FIRST + 9), true, 5), Fate::Full(ID));
    }

    #[test]
    fn first_page_that_somebody_waits_for_is_mapped_when_it_comes() {
        for (awaited, fate) in [(false, Fate::Kept), (true, Fate::Later)] {
            let mut fetches = ChunkFetches::default();
            fetches.begin(ID, Access::Read, (false, awaited), 0);
            ask(&mut fetches, 0);
            assert_eq!(fetches.mapped(Gfn(FIRST), false, 1), fate);
        }
        let mut fetches = ChunkFetches::default();
        fetches.begin(ID, Access::Write, (false, true), 0);
        ask(&mut fetches, 0);
        come(&mut fetches, 0..1);
        assert_eq!(fetches.due(1), [ID]);
        assert_eq!(spans(&fetches.take(ID)), [(0, 1)]);
    }

    #[test]
    fn page_for_reading_has_the_chunk_mapped_in_pieces_but_for_the_first_page() {
        let mut fetches = begun(true);
        ask(&mut fetches, 0);
        come(&mut fetches, 0..10);
        assert_eq!(fetches.mapped(Gfn(FIRST + 10), false, 1), Fate::Later);
        assert_eq!(fetches.due(1), [ID]);
        assert_eq!(spans(&fetches.take(ID)), [(1, 9)]);
        assert!(fetches.due(1).is_empty());
        come(&mut fetches, 11..13);
        assert_eq!(fetches.due(1), [ID], "at the end of the batch");
        assert_eq!(spans(&fetches.take(ID)), [(11, 2)]);

        assert_eq!(fetches.touched(Gfn(FIRST), 2), Some(Gfn(FIRST)));
        assert_eq!(fetches.mapped(Gfn(FIRST), true, 2), Fate::InPieces(ID));
        assert_eq!(spans(&fetches.take(ID)), [(0, 1)]);
    }

    #[test]
    fn page_that_is_taken_away_is_not_mapped() {
        let mut fetches = begun(true);
        ask(&mut fetches, 0);
        come(&mut fetches, 0..10);
        assert!(fetches.recalled(Gfn(FIRST + 4)));
        assert!(!fetches.recalled(Gfn(FIRST + 70)) && !fetches.recalled(Gfn(FIRST + 4)));
        assert_eq!(fetches.due(1), [ID]);
        assert_eq!(spans(&fetches.take(ID)), [(1, 3), (5, 5)]);
    }

    #[test]
    fn vcpu_waits_no_longer_than_its_patience() {
        let mut fetches = begun(true);
        ask(&mut fetches, 0);
        assert_eq!(fetches.due_ns(), None);
        come(&mut fetches, 0..10);
        fetches.touched(Gfn(FIRST + 3), 100);
        assert_eq!(fetches.mapped(Gfn(FIRST + 3), true, 100), Fate::Kept);
        assert_eq!(fetches.due_ns(), Some(100 + PATIENCE_NS));
        assert!(fetches.due(99 + PATIENCE_NS).is_empty());
        assert_eq!(fetches.due(100 + PATIENCE_NS), [ID]);
        assert_eq!(spans(&fetches.take(ID)), [(0, 10)]);
        assert!(fetches.due(u64::MAX).is_empty() && fetches.due_ns().is_none());
    }

    #[test]
    fn page_asked_for_by_itself_ends_the_wait_for_its_chunk() {
        let mut fetches = begun(true);
        ask_pieces(&mut fetches, 0, 1);
        come(&mut fetches, 0..10);
        assert_eq!(fetches.mapped(Gfn(FIRST + 400), true, 1), Fate::InPieces(ID));
        assert_eq!(spans(&fetches.take(ID)), [(1, 9), (400, 1)]);
        let mut begun = begun(true);
        let (first, pages, _) = begun.next_piece(0).unwrap();
        begun.requested(first, pages, |gfn| {
            if gfn.0 == FIRST + 7 { Requested::No } else { Requested::InFlight }
        });
        come(&mut begun, 0..7);
        assert_eq!(begun.due(1), [ID], "one was here already");
    }

    #[test]
    fn next_piece_is_asked_for_at_once_when_a_vcpu_touches_it() {
        let mut fetches = begun(true);
        ask_pieces(&mut fetches, 0, 4);
        assert_eq!(fetches.piece_of(Gfn(FIRST + 100), 0), None, "on its way");
        assert_eq!(fetches.piece_of(Gfn(FIRST + 400), 0), None, "not the next");
        assert_eq!(
            fetches.piece_of(Gfn(FIRST + 260), 0),
            Some((Gfn(FIRST + 256), 64, Access::Read))
        );
    }

    #[test]
    fn pages_that_never_come_do_not_stop_the_run() {
        let mut fetches = begun(true);
        assert!(fetches.begin(ChunkId(4), Access::Read, (true, false), 0).is_empty());
        let most = u64::from(IN_FLIGHT_MAX);
        assert!(most < 2 * CHUNK_PAGES && !fetches.is_in_flight());
        assert_eq!(ask(&mut fetches, 0), most);
        assert!(fetches.is_in_flight());
        assert_eq!(ask(&mut fetches, LOST_NS), 0);
        assert_eq!(ask(&mut fetches, LOST_NS + 1), most.min(2 * CHUNK_PAGES - most));
    }

    #[test]
    fn chunk_is_coming_whatever_becomes_of_others() {
        let mut fetches = begun(true);
        fetches.begin(ChunkId(4), Access::Read, (true, false), 0);
        assert!(fetches.is_coming(ID), "nothing of it was asked for");
        ask(&mut fetches, 0);
        come(&mut fetches, 0..CHUNK_PAGES);
        assert!(!fetches.is_coming(ID) && fetches.is_coming(ChunkId(4)));
        assert!(!fetches.is_coming(ChunkId(5)), "nobody fetches it");
    }

    #[test]
    fn chunks_are_bounded_and_the_oldest_is_mapped() {
        let mut fetches = begun(false);
        ask(&mut fetches, 0);
        come(&mut fetches, 0..2);
        for id in 10..10 + CHUNKS_MAX as u64 - 1 {
            assert!(fetches.begin(ChunkId(id), Access::Read, (true, false), 0).is_empty());
        }
        assert!(
            fetches.begin(ChunkId(10), Access::Read, (true, false), 0).is_empty(),
            "it is there"
        );
        assert_eq!(spans(&fetches.begin(ChunkId(90), Access::Read, (true, false), 0)), [(0, 2)]);
        assert_eq!(fetches.chunks.len(), CHUNKS_MAX);
    }
}
