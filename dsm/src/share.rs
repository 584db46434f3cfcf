//! Chunks between private and shared: what [`crate::chunks`] decides, carried out.
//!
//! ```text
//!   share:  (brought into the file) -> registered -> the page asked for is taken or protected, with
//!           it goes the huge mapping -> the first local fault maps the other pages, in one go
//!   settle: not registered any more -> `huge` collapses the chunk, in its own time
//! ```

use crate::chunks::{CHUNK_PAGES, ChunkCounts, ChunkId, Chunks, whole};
use crate::error::EngineError;
use crate::mapping::{Uffd, Watch};
use crate::planted::PlantedBug;
use crate::ram::{GuestRam, Place};
use crate::store::Store;
use crate::whole::Fate;
use dsm_protocol::{Access, Gfn};
use std::fs;
use std::ops::Range;
use std::sync::atomic::Ordering;

const PAGE: u64 = 4096;
const CHUNK_BYTES: u64 = CHUNK_PAGES * PAGE;
/// Parts of the address space that are left to everything else: pages asked about, threads, libraries.
const MAPS_LEFT: u64 = 8192;
/// `vm.max_map_count` of a kernel that does not tell.
const MAPS_DEFAULT: u64 = 65_530;

/// The first frame beyond all memory.
pub(crate) fn end_of(ram: &GuestRam) -> u64 {
    ram.slots().last().map_or(0, |(start, _, bytes)| (start + bytes) / PAGE)
}

/// Watches what is not in a private chunk: all whose home is elsewhere, and parts of chunks.
pub(crate) fn watch_at_start(
    uffd: &Uffd,
    ram: &GuestRam,
    own: &[Range<u64>],
    others: &[Range<u64>],
) -> Result<Chunks, EngineError> {
    let watch = |range: &Range<u64>, how| {
        if range.is_empty() {
            return Ok(());
        }
        let start = ram.guest_address(Gfn(range.start)).ok_or(EngineError::Layout)?;
        Ok::<_, EngineError>(uffd.register(start, (range.end - range.start) * PAGE, how)?)
    };
    for range in others {
        for chunk in (range.start / CHUNK_PAGES..range.end.div_ceil(CHUNK_PAGES)).map(ChunkId) {
            if ram.place(chunk) == Place::Apart {
                return Err(EngineError::Layout);
            }
            ram.set_place(chunk, Place::Outside);
        }
        watch(range, Watch::Everything)?;
    }
    for range in own {
        let inner = whole(std::slice::from_ref(range)).pop();
        let inner = inner.map(|chunks| chunks.start * CHUNK_PAGES..chunks.end * CHUNK_PAGES);
        let inner = inner.unwrap_or(range.end..range.end);
        for rest in [range.start..inner.start, inner.end..range.end] {
            watch(&rest, Watch::GivenAway)?;
        }
    }
    let seams_max = maps_max().saturating_sub(MAPS_LEFT);
    Ok(Chunks::new(own, others, end_of(ram), seams_max, ram.has_apart()))
}

/// How many parts the kernel permits in an address space.
fn maps_max() -> u64 {
    let text = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(MAPS_DEFAULT)
}

impl Store {
    /// Watches the chunk of pages that are about to be given away.
    pub(crate) fn watch(&mut self, chunk: ChunkId) {
        if !self.chunks.is_private(chunk) {
            return;
        }
        for chunk in self.chunks.share(chunk).map(ChunkId) {
            let result = self.watch_chunk(chunk);
            self.note(result);
        }
    }

    fn watch_chunk(&mut self, chunk: ChunkId) -> Result<(), EngineError> {
        if self.has_bug(PlantedBug::GivenUnwatched) {
            return Ok(());
        }
        let place = self.ram.place(chunk);
        if place == Place::Apart {
            self.ram.bring_into_file(chunk, &self.uffd)?;
            self.chunks.counts.copied += 1;
        }
        self.ram.set_place(chunk, Place::Watched);
        // As its neighbours of the same home, so that the kernel makes one part of them.
        let how = if self.chunks.is_own(chunk) { Watch::GivenAway } else { Watch::Everything };
        self.uffd.register(self.address(chunk.first()), CHUNK_BYTES, how)?;
        if matches!(place, Place::Apart | Place::Huge) {
            // Taking one page takes the mapping of all.
            self.chunks.set_unmapped(chunk);
        }
        Ok(())
    }

    /// Maps the pages of a chunk that lost their mapping with another one's, if there are.
    pub(crate) fn map_rest(&mut self, chunk: ChunkId) -> Result<(), EngineError> {
        for (first, pages) in self.chunks.take_unmapped(chunk) {
            self.uffd.install_missing(self.address(first), pages * PAGE)?;
        }
        Ok(())
    }

    /// Begins to fetch a chunk; `kept` says that it may become private.
    pub(crate) fn begin_whole(
        &mut self,
        chunk: ChunkId,
        want: Access,
        kept: bool,
        now_ns: u64,
    ) -> Result<(), EngineError> {
        let runs = self.whole.begin(chunk, want, kept, now_ns);
        runs.into_iter().try_for_each(|run| self.map_run(run))
    }

    /// Maps a page together with its chunk, if that is fetched as a whole; false if it is a page as any.
    pub(crate) fn map_with_chunk(&mut self, gfn: Gfn, access: Access) -> Result<bool, EngineError> {
        let now = self.chunks.now_ns();
        match self.whole.mapped(gfn, access == Access::Write, now) {
            Fate::Stranger => return Ok(false),
            Fate::Kept => {}
            Fate::Later => self.ahead.pend(gfn),
            Fate::InPieces(chunk) => self.map_chunk_in_pieces(chunk)?,
            Fate::Full(chunk) => self.borrow_chunk(chunk)?,
        }
        Ok(true)
    }

    fn map_chunk_in_pieces(&mut self, chunk: ChunkId) -> Result<(), EngineError> {
        self.write_arrivals()?;
        self.whole.take(chunk).into_iter().try_for_each(|run| self.map_run(run))
    }

    /// Maps what has come of chunks that do not become private.
    pub(crate) fn map_pieces(&mut self, now_ns: u64) -> Result<(), EngineError> {
        self.whole.due(now_ns).into_iter().try_for_each(|chunk| self.map_chunk_in_pieces(chunk))
    }

    /// All pages of a chunk of another home are here for writing, and none is mapped: it becomes private.
    fn borrow_chunk(&mut self, chunk: ChunkId) -> Result<(), EngineError> {
        self.write_arrivals()?;
        let has_twin = self.twins.range(chunk.first()..Gfn(chunk.frames().end)).next().is_some();
        if has_twin || self.asked.any_in(&chunk.frames()) || !self.chunks.borrow(chunk) {
            return self.map_chunk_in_pieces(chunk);
        }
        let (start, huge) = (self.address(chunk.first()), self.ram.is_prepared(chunk));
        if !huge {
            // One call for 512 pages, where the kernel's own faults would be as many.
            self.uffd.install_missing(start, CHUNK_BYTES)?;
        }
        self.whole.forget(chunk);
        self.provided = self.whole.is_flying();
        self.uffd.unregister(start, CHUNK_BYTES)?;
        self.ram.set_place(chunk, if huge { Place::Huge } else { Place::Plain });
        Ok(())
    }

    /// Takes note of the time, and makes chunks private whose pages have all been here for a while.
    pub(crate) fn tend(&mut self, now_ns: u64) -> Result<(), EngineError> {
        for chunk in self.chunks.quiet(now_ns) {
            let frames = chunk.frames();
            let first = Gfn(frames.start);
            let has_twin = self.twins.range(first..Gfn(frames.end)).next().is_some();
            if has_twin || self.asked.any_in(&frames) {
                self.chunks.postpone(chunk);
            } else if self.chunks.settle(chunk) {
                self.uffd.unregister(self.address(first), CHUNK_BYTES)?;
                self.ram.set_place(chunk, Place::Plain);
            }
        }
        Ok(())
    }

    /// What became of chunks.
    pub(crate) fn chunk_counts(&self) -> ChunkCounts {
        let collapsed = self.ram.collapsed.load(Ordering::Relaxed);
        let collapse_ns = self.ram.collapse_ns.load(Ordering::Relaxed);
        ChunkCounts { collapsed, collapse_ns, ..self.chunks.counts }
    }
}
