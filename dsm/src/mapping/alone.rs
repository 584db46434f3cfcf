//! The memory of a slice that nobody shares it with any more.
//!
//! ```text
//!   private chunks, shared chunks, parts of chunks --Store::end_watch, at rest--> nothing is watched, all of it private
//!                                                                         \--a page is given away again--> as ever
//! ```
//!
//! Chunks stay where they lie: those that were shared once are in the memory file, those that never were may lie outside
//! it ([`crate::memory`]). Huge pages come back in their own time, by the thread that collapses chunks.
//!
//! Linux takes the right to write from pages together with the watch over them, as for one chunk that becomes private
//! (`share`). Here they are not mapped again at once, for that takes a look at each chunk of the whole memory: their next
//! touch maps them, or the huge page that they become part of.

use super::first_watch::{edges, end_of};
use super::store::Store;
use crate::error::EngineError;
use crate::kernel::FaultWatch;
use crate::memory::{Place, whole_chunks};
use crate::prefetch::{ChunkFetches, Prefetched};
use dsm_protocol::{Gfn, PageSet};
use std::ops::Range;

const PAGE: u64 = 4096;

impl Store {
    /// The frames that have memory.
    fn memory(&self) -> Vec<Range<u64>> {
        let slots = self.ram.slots().into_iter();
        slots.map(|(start, _, bytes)| start / PAGE..(start + bytes) / PAGE).collect()
    }

    /// All pages are here, for writing, and nobody else will ask for one: no touch of guest memory is told any more. No
    /// vCPU runs.
    pub(crate) fn end_watch(&mut self) -> Result<(), EngineError> {
        self.write_staged()?;
        self.prefetched = Prefetched::default();
        self.chunk_fetches = ChunkFetches::default();
        self.readable = PageSet::new(end_of(&self.ram));
        for gfn in std::mem::take(&mut self.probe_pages).all() {
            self.set_writable(gfn, true)?;
        }
        let memory = self.memory();
        for frames in &memory {
            let bytes = (frames.end - frames.start) * PAGE;
            self.uffd.unregister(self.address(Gfn(frames.start)), bytes)?;
        }
        for chunk in self.chunks.settle_all(&whole_chunks(&memory)) {
            self.ram.set_place(chunk, Place::Plain);
        }
        self.is_alone = true;
        Ok(())
    }

    /// A page is about to be given away: parts of chunks are watched again. Chunks are, one by one, as they are shared.
    pub(super) fn watch_edges(&mut self) -> Result<(), EngineError> {
        self.is_alone = false;
        for rest in self.memory().iter().flat_map(edges).filter(|rest| !rest.is_empty()) {
            let (start, bytes) = (self.address(Gfn(rest.start)), (rest.end - rest.start) * PAGE);
            self.uffd.register(start, bytes, FaultWatch::GivenAway)?;
        }
        Ok(())
    }
}
