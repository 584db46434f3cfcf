//! The memory of a slice that nobody shares it with any more, until another slice joins.
//!
//! ```text
//!   private chunks, shared chunks, parts of chunks --Store::end_watch, at rest--> nothing is watched, all of it private
//!   private chunks, watched parts of chunks <--Store::begin_watch, at rest-------/
//! ```
//!
//! When a slice joins, only parts of chunks are watched again. Chunks stay private, and are shared one by one as ever.
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
use crate::planted::PlantedBug;
use crate::prefetch::{ChunkFetches, Prefetched};
use dsm_protocol::{Gfn, PageSet, frame_pieces};
use std::ops::Range;

const PAGE: u64 = 4096;
/// Frames whose watch ends by one call, 128 MiB: that takes some milliseconds, in which the engine does nothing else (decision 42).
const PIECE: u64 = 32768;

impl Store {
    /// The frames that have memory.
    pub(super) fn memory(&self) -> Vec<Range<u64>> {
        let slots = self.ram.slots().into_iter();
        slots.map(|(start, _, bytes)| start / PAGE..(start + bytes) / PAGE).collect()
    }

    /// All pages are here, for writing, and nobody else will ask for one: no touch of guest memory is told any more. No
    /// vCPU runs.
    pub(crate) fn end_watch(&mut self) -> Result<(), EngineError> {
        for frames in self.begin_to_end_watch()? {
            self.end_watch_over(&frames)?;
        }
        self.watch_has_ended();
        Ok(())
    }

    /// The first of three steps of [`Self::end_watch`], for who has other things to do between: over which frames the watch is
    /// to end, one after the other.
    pub(crate) fn begin_to_end_watch(&mut self) -> Result<Vec<Range<u64>>, EngineError> {
        self.write_staged()?;
        self.spoil_snapshot();
        self.prefetched = Prefetched::default();
        self.chunk_fetches = ChunkFetches::default();
        self.readable = PageSet::new(end_of(&self.ram));
        for gfn in std::mem::take(&mut self.probe_pages).all() {
            self.set_writable(gfn, true)?;
        }
        // They end where a huge page may end: Linux splits one that is watched in part.
        Ok(self.memory().iter().flat_map(|range| frame_pieces(range, PIECE)).collect())
    }

    /// The second step.
    pub(crate) fn end_watch_over(&mut self, frames: &Range<u64>) -> Result<(), EngineError> {
        // What is not loaded yet is not the engine's to open.
        for frames in self.ram.without_absent(frames) {
            let bytes = (frames.end - frames.start) * PAGE;
            self.uffd.unregister(self.address(Gfn(frames.start)), bytes)?;
        }
        Ok(())
    }

    /// The last step.
    pub(crate) fn watch_has_ended(&mut self) {
        for chunk in self.chunks.settle_all(&whole_chunks(&self.memory())) {
            self.ram.set_place(chunk, Place::Plain);
        }
        self.is_alone = true;
    }

    /// Pages may be given away from now on, as another slice joins. No vCPU runs.
    pub(crate) fn begin_watch(&mut self) -> Result<(), EngineError> {
        if !self.is_alone || self.has_bug(PlantedBug::LoneForEver) {
            return Ok(());
        }
        self.is_alone = false;
        for rest in self.memory().iter().flat_map(edges).filter(|rest| !rest.is_empty()) {
            let (start, bytes) = (self.address(Gfn(rest.start)), (rest.end - rest.start) * PAGE);
            self.uffd.register(start, bytes, FaultWatch::GivenAway)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::pending_invalidations::Invalidation;
    use super::*;
    use crate::kernel::fake::{FakeKernel, Touch};
    use crate::memory::{ChunkId, GuestRam, Memory};
    use dsm_protocol::{Access, Mechanisms};
    use std::slice::from_ref;
    use std::sync::{Arc, Mutex};
    use wire::{PAGE_SIZE, PageBody};

    /// Three chunks and a part of one. The second is of both homes, the third of another slice's.
    const FRAMES: Range<u64> = 0..3 * 512 + 100;
    const OWN: Range<u64> = 0..700;

    fn store(memory: Memory) -> (Store, FakeKernel) {
        let made = Mutex::new(None);
        let ram =
            GuestRam::with_mapping(from_ref(&FRAMES), from_ref(&OWN), memory, |span, file| {
                let kernel = FakeKernel::new(span, file, 1, 0)?;
                *made.lock().unwrap() = Some(kernel.clone());
                Ok(Box::new(kernel))
            });
        let ram = Arc::new(ram.unwrap());
        let uffd = ram.userfaultfd().unwrap();
        let others = OWN.end..FRAMES.end;
        let store = Store::new(uffd, ram, from_ref(&OWN), from_ref(&others), Mechanisms::ALL);
        (store.unwrap(), made.into_inner().unwrap().unwrap())
    }

    fn places(store: &Store) -> [Place; 3] {
        [0, 1, 2].map(|chunk| store.ram.place(ChunkId(chunk)))
    }

    #[test]
    fn all_is_private_until_a_slice_joins_and_gets_a_page() {
        let kinds = [(Memory::Memfd, Place::Plain), (Memory::Anonymous, Place::OffFile)];
        for (memory, unshared) in kinds {
            let (mut store, kernel) = store(memory);
            let watched = |frames| kernel.is_watched(&frames);
            assert!(!watched(0..512) && watched(512..1024) && watched(1536..1636));
            store.probe(Gfn(1030)).unwrap();

            store.end_watch().unwrap();

            assert!(!watched(FRAMES));
            assert_eq!(places(&store), [unshared, Place::Plain, Place::Plain]);
            assert!((0..3).all(|chunk| store.chunks.is_private(ChunkId(chunk))));
            assert_eq!(kernel.touch(0, 0, 1030, true), Touch::Done);
            assert_eq!(kernel.touch(0, 0, 1600, true), Touch::Done);

            store.begin_watch().unwrap();
            assert!(watched(1536..1636) && !watched(0..1536), "chunks are private");
            store.pending_invalidations.push(Gfn(1030), Invalidation::All);
            store.take_away().unwrap();
            assert!(watched(1024..1025) && watched(1535..1536) && watched(1536..1537));
            assert!(!watched(0..1024), "chunks are shared one by one");
        }
    }

    #[test]
    fn chunks_that_were_shared_are_shared_no_longer() {
        let (mut store, kernel) = store(Memory::Anonymous);
        store.pending_invalidations.push(Gfn(5), Invalidation::All);
        store.take_away().unwrap();
        assert_eq!((store.chunk_counts().shared_now, places(&store)[0]), (1, Place::Watched));

        store.end_watch().unwrap();

        assert!(!kernel.is_watched(&FRAMES));
        // It lies in the file now, and the next pass puts it on a huge page if it is full.
        assert_eq!((store.chunk_counts().shared_now, places(&store)[0]), (0, Place::Plain));
    }

    #[test]
    fn pages_that_came_ahead_are_in_memory() {
        let (mut store, _kernel) = store(Memory::Memfd);
        for gfn in [1100, 1101].map(Gfn) {
            store.prefetched.expect(gfn, gfn.0 == 1100);
            store.fill(gfn, Some(PageBody::Bytes(&[7; PAGE_SIZE]))).unwrap();
            store.try_map(gfn, Access::Write).unwrap();
        }
        store.end_watch().unwrap();
        let mut byte = [0];
        assert!([1100, 1101].map(Gfn).iter().all(|gfn| store.ram.peek(*gfn, 0, &mut byte)));
        assert_eq!(byte, [7]);
        // Faults of the time before are answered, and need no mapping.
        store.try_map(Gfn(1600), Access::Write).unwrap();
    }
}
