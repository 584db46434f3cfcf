//! The store of a slice that goes on from a saved node, which only tests and simulators do (decision 55).
//!
//! ```text
//!   as at the start: all of this home private, nothing of others mapped
//!     page that others have, or may read too --> its chunk is shared, and the page unmapped (not in the guest any more)
//!     page that may only be read here        --> mapped read-only
//!     page that may be written               --> mapped by its first touch, out of the memory file
//! ```
//!
//! So a restored store is a new one that has given away what the saved node does not have, by the same calls as ever.
//! A chunk of this home of which nobody else has a page needs no watch, and stays private.
//!
//! Pages to read are mapped at once: a worker that faults on one which the node holds for reading would be taken for one
//! that stores ([`crate::async_faults`]).

use super::pending_invalidations::Invalidation;
use super::store::Store;
use crate::error::EngineError;
use crate::memory::ChunkId;
use crate::planted::PlantedBug;
use crate::prefetch::PageRun;
use dsm_protocol::{Access, Gfn};
use std::ops::Range;

impl Store {
    /// Brings a store that was just made into the state of a node that was restored. Replicas have their twins already.
    /// `access` says what the node may do with a page.
    pub(crate) fn restore(
        &mut self,
        own: &[Range<u64>],
        others: &[Range<u64>],
        access: &dyn Fn(Gfn) -> Access,
    ) -> Result<(), EngineError> {
        self.ram.note_contents();
        for range in others {
            self.ram
                .zap(Gfn(range.start), range.end - range.start)
                .map_err(|source| EngineError::Zap { gfn: Gfn(range.start), source })?;
        }
        for (ranges, is_own) in [(own, true), (others, false)] {
            for range in ranges {
                for (chunk, frames) in ChunkId::pieces(Gfn(range.start), range.end - range.start) {
                    self.restore_piece(chunk, &frames, is_own, access)?;
                }
            }
        }
        Ok(())
    }

    /// The same for the frames of one home range in one chunk.
    fn restore_piece(
        &mut self,
        chunk: ChunkId,
        frames: &Range<u64>,
        is_own: bool,
        access: &dyn Fn(Gfn) -> Access,
    ) -> Result<(), EngineError> {
        let pages = || frames.clone().map(Gfn);
        let away = pages().filter(|gfn| access(*gfn) != Access::Write);
        if is_own && !self.has_bug(PlantedBug::RestoredPagesLeft) {
            away.for_each(|gfn| self.pending_invalidations.push(gfn, Invalidation::All));
            if self.twins.any_in(frames) {
                self.watch(chunk);
            }
            self.take_away()?;
        }
        self.take_failure().map_or(Ok(()), Err)?;
        let readable = pages().filter(|gfn| access(*gfn) == Access::Read);
        for run in PageRun::gather(readable.map(|gfn| (gfn, false))) {
            self.map_run(run)?;
        }
        // The first touch maps the others that are here.
        self.chunks.set_unmapped(chunk);
        Ok(())
    }
}
