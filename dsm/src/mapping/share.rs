//! Chunks between private and shared: carries out what [`super::chunks`] decides.
//!
//! ```text
//!   share:  (brought into the file) -> registered -> the page asked for is taken or protected, with
//!           it goes the huge mapping -> the first local fault maps the other pages, in one go
//!   settle: not registered any more -> `huge` collapses the chunk, in its own time
//! ```

use super::chunks::ChunkCounts;
use super::store::Store;
use crate::error::EngineError;
use crate::kernel::FaultWatch;
use crate::memory::{CHUNK_PAGES, ChunkId, Place};
use crate::planted::PlantedBug;
use crate::prefetch::Fate;
use dsm_protocol::{Access, Gfn};
use std::sync::atomic::Ordering;

const PAGE: u64 = 4096;
const CHUNK_BYTES: u64 = CHUNK_PAGES * PAGE;
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
        self.loaded(chunk)?;
        let place = self.ram.place(chunk);
        if place == Place::OffFile {
            self.before_move(chunk);
            self.ram.bring_into_file(chunk, &self.uffd)?;
            self.chunks.counts.copied += 1;
        }
        self.ram.set_place(chunk, Place::Watched);
        // The same watch as its neighbours of the same home, so that the kernel merges them into one part.
        let how =
            if self.chunks.is_own(chunk) { FaultWatch::GivenAway } else { FaultWatch::Everything };
        self.uffd.register(self.address(chunk.first()), CHUNK_BYTES, how)?;
        if matches!(place, Place::OffFile | Place::Huge) {
            // Taking one page takes the mapping of all.
            self.chunks.set_unmapped(chunk);
        }
        Ok(())
    }

    /// A chunk is here, and watched by nobody else. Whoever watches one calls this first.
    pub(super) fn loaded(&self, chunk: ChunkId) -> Result<(), EngineError> {
        if let Some(offset) = self.ram.offset(chunk.first()) {
            self.ram.ensure(offset);
        }
        self.ram.missed().map_or(Ok(()), |failure| Err(EngineError::Load(failure)))
    }

    /// Maps the pages of a chunk that lost their mapping together with another page.
    pub(crate) fn map_rest(&mut self, chunk: ChunkId) -> Result<(), EngineError> {
        for run in self.chunks.take_unmapped(chunk) {
            self.about_to_be_written(run);
            self.uffd.install_missing(self.address(run.first), run.pages * PAGE)?;
        }
        Ok(())
    }

    /// Begins a chunk fetch. `kept`: the chunk may become private. `awaited`: somebody waits for its first page.
    pub(crate) fn begin_chunk_fetch(
        &mut self,
        chunk: ChunkId,
        want: Access,
        (kept, awaited): (bool, bool),
        now_ns: u64,
    ) -> Result<(), EngineError> {
        let runs = self.chunk_fetches.begin(chunk, want, (kept, awaited), now_ns);
        runs.into_iter().try_for_each(|run| self.map_run(run))
    }

    /// Maps a page together with its chunk, if that is in a chunk fetch. False for any other page.
    pub(crate) fn map_with_chunk(&mut self, gfn: Gfn, access: Access) -> Result<bool, EngineError> {
        let now = self.chunks.now_ns();
        match self.chunk_fetches.mapped(gfn, access == Access::Write, now) {
            Fate::Stranger => return Ok(false),
            Fate::Kept => {}
            Fate::Later => self.prefetched.pend(gfn),
            Fate::InPieces(chunk) => self.map_chunk_in_pieces(chunk)?,
            Fate::Full(chunk) => self.take_exclusive_grant(chunk)?,
        }
        Ok(true)
    }

    fn map_chunk_in_pieces(&mut self, chunk: ChunkId) -> Result<(), EngineError> {
        self.write_staged()?;
        self.chunk_fetches.take(chunk).into_iter().try_for_each(|run| self.map_run(run))
    }

    /// Maps what has come of chunks that do not become private.
    pub(crate) fn map_pieces(&mut self, now_ns: u64) -> Result<(), EngineError> {
        self.chunk_fetches
            .due(now_ns)
            .into_iter()
            .try_for_each(|chunk| self.map_chunk_in_pieces(chunk))
    }

    /// This slice has an exclusive grant of all pages of a chunk of another home, and none is mapped: the chunk becomes
    /// private.
    fn take_exclusive_grant(&mut self, chunk: ChunkId) -> Result<(), EngineError> {
        self.write_staged()?;
        let has_twin = self.twins.any_in(&chunk.frames());
        if has_twin
            || self.probe_pages.any_in(&chunk.frames())
            || self.protection.is_some()
            || !self.chunks.exclusive_grant(chunk)
        {
            return self.map_chunk_in_pieces(chunk);
        }
        let huge = self.ram.is_prepared(chunk);
        self.chunk_fetches.forget(chunk);
        self.unwatch(chunk, if huge { Place::Huge } else { Place::Plain })
    }

    /// A chunk is private from now on. Linux takes the right to write from its pages together with the watch
    /// (`uffd_wp_range`, `mm/userfaultfd.c`). KVM would then map each page by itself, to be read, and a vCPU that reads in
    /// order would exit for each: 25 us a page on one machine, where 4 KiB come in 6. So the pages that are there are
    /// mapped to be written, by one call for a run of them.
    fn unwatch(&mut self, chunk: ChunkId, place: Place) -> Result<(), EngineError> {
        self.uffd.unregister(self.address(chunk.first()), CHUNK_BYTES)?;
        if place == Place::Plain {
            self.map_unwatched(chunk);
        }
        self.ram.set_place(chunk, place);
        Ok(())
    }

    /// Maps, to be written, what is there of a chunk that is not watched any more.
    pub(super) fn map_unwatched(&self, chunk: ChunkId) {
        if let Err(error) = self.ram.populate_present(chunk) {
            // Faults map them.
            tracing::debug!("mapping a private chunk: {error}");
        }
    }

    /// Makes chunks private whose pages have all been here for a while.
    pub(crate) fn tend(&mut self, now_ns: u64) -> Result<(), EngineError> {
        let quiet = self.chunks.quiet(now_ns);
        if !self.mechanisms.private_again || self.protection.is_some() {
            return Ok(());
        }
        for chunk in quiet {
            let frames = chunk.frames();
            let has_twin = self.twins.any_in(&frames);
            if has_twin || self.probe_pages.any_in(&frames) {
                self.chunks.postpone(chunk);
            } else if self.chunks.settle(chunk) {
                self.unwatch(chunk, Place::Plain)?;
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
