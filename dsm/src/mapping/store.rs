//! The protocol's port to guest memory: userfaultfd and the two mappings.
//!
//! Chunks of this slice's home stay unwatched until another slice asks for one of their pages, see
//! [`super::chunks`]: memory that only its home uses costs nothing.

use super::chunks::Chunks;
use super::first_watch::{end_of, watch_at_start};
use super::pending_invalidations::{Invalidation, InvalidationRun, PendingInvalidations};
use super::protection::Protection;
use super::staged_pages::StagedPages;
use super::twins::Twins;
use crate::async_faults::ProbePages;
use crate::error::EngineError;
use crate::kernel::{Installed, Uffd};
use crate::memory::{ChunkId, GuestRam};
use crate::planted::PlantedBug;
use crate::prefetch::{ChunkFetches, PageRun, Prefetched};
use dsm_protocol::PageSet;
use dsm_protocol::prediction::WritePrediction;
use dsm_protocol::{Access, Gfn, Mechanisms};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;
use wire::{PAGE_SIZE, PageBody};
use xxhash_rust::xxh3::xxh3_64;

const PAGE: u64 = 4096;

/// Guest memory as the protocol sees it.
#[derive(Debug)]
pub(crate) struct Store {
    pub(super) mechanisms: Mechanisms,
    pub(crate) uffd: Uffd,
    pub(crate) ram: Arc<GuestRam>,
    /// Chunks of this slice's home.
    pub(crate) chunks: Chunks,
    pub(crate) twins: Twins,
    /// Pages mapped without write access: giving it takes one call.
    pub(crate) readable: PageSet,
    /// Pages whose guest mapping is read-only so that a worker fails.
    pub(crate) probe_pages: ProbePages,
    /// Pages that were prefetched.
    pub(crate) prefetched: Prefetched,
    /// Chunks that are fetched to be mapped at once.
    pub(crate) chunk_fetches: ChunkFetches,
    /// Pages that came and are not in the file yet.
    pub(super) staged: RefCell<StagedPages>,
    /// Which pages this slice writes soon after it reads them.
    pub(crate) write_prediction: WritePrediction,
    /// Access that the step in hand takes away at its end.
    pub(super) pending_invalidations: PendingInvalidations,
    /// Nobody shares this memory: nothing of it is watched.
    pub(super) is_alone: bool,
    /// Memory that is protected, so that a snapshot of it can be read.
    pub(crate) protection: Option<Protection>,
    failure: Option<EngineError>,
    #[cfg(feature = "simulate")]
    pub(crate) planted: Option<PlantedBug>,
}

impl Store {
    /// What is left of it: those who wait for pages wait on it.
    pub(crate) fn into_uffd(self) -> Uffd {
        self.uffd
    }

    /// Watches everything whose home is elsewhere.
    pub(crate) fn new(
        uffd: Uffd,
        ram: Arc<GuestRam>,
        own: &[Range<u64>],
        others: &[Range<u64>],
        mechanisms: Mechanisms,
    ) -> Result<Self, EngineError> {
        let chunks = watch_at_start(&uffd, &ram, own, others)?;
        let end = end_of(&ram);
        Ok(Self {
            mechanisms,
            uffd,
            ram,
            chunks,
            twins: Twins::default(),
            readable: PageSet::new(end),
            probe_pages: ProbePages::default(),
            prefetched: Prefetched::default(),
            chunk_fetches: ChunkFetches::default(),
            staged: RefCell::default(),
            write_prediction: WritePrediction::default(),
            pending_invalidations: PendingInvalidations::default(),
            is_alone: false,
            protection: None,
            failure: None,
            #[cfg(feature = "simulate")]
            planted: None,
        })
    }

    /// Whether the simulator has planted a bug.
    #[cfg(feature = "simulate")]
    pub(crate) fn has_bug(&self, bug: PlantedBug) -> bool {
        self.planted == Some(bug)
    }

    #[cfg(not(feature = "simulate"))]
    #[expect(clippy::unused_self, reason = "the simulator's looks")]
    pub(crate) const fn has_bug(&self, _: PlantedBug) -> bool {
        false
    }

    /// The first call that failed, once; or that memory has not come which the engine has looked at.
    pub(crate) fn take_failure(&mut self) -> Option<EngineError> {
        self.failure.take().or_else(|| self.ram.missed().map(EngineError::Load))
    }

    pub(crate) fn note(&mut self, result: Result<(), EngineError>) {
        if let Err(error) = result {
            self.failure.get_or_insert(error);
        }
    }

    pub(crate) fn address(&self, gfn: Gfn) -> u64 {
        self.ram.guest_address(gfn).expect("the protocol checks frames")
    }

    /// Begins to probe a page: workers that wait for it fail.
    pub(crate) fn probe(&mut self, gfn: Gfn) -> Result<(), EngineError> {
        if !self.probe_pages.contains(gfn) {
            if let Some(oldest) = self.probe_pages.push(gfn) {
                self.set_writable(oldest, true)?;
            }
            self.set_writable(gfn, false)?;
        }
        Ok(self.uffd.wake(self.address(gfn), PAGE)?)
    }

    /// Ends a probe. Tells whether the page was probed.
    pub(crate) fn end_probe(&mut self, gfn: Gfn) -> Result<bool, EngineError> {
        let probed = self.probe_pages.remove(gfn);
        if probed && !self.has_bug(PlantedBug::NeverAnswered) {
            self.set_writable(gfn, true)?;
        }
        Ok(probed)
    }

    /// Ends the probes of pages that have been readable for a while.
    pub(crate) fn end_expired_probes(&mut self, now_ns: u64) -> Result<(), EngineError> {
        let expired = self.probe_pages.expired(now_ns);
        expired.into_iter().try_for_each(|gfn| self.set_writable(gfn, true))
    }

    pub(super) fn set_writable(&self, gfn: Gfn, on: bool) -> Result<(), EngineError> {
        self.ram.set_writable(gfn, on).map_err(|source| EngineError::Access { gfn, source })
    }

    /// Writes staged pages into the file. Whoever looks at contents calls this first.
    pub(crate) fn write_staged(&self) -> Result<(), EngineError> {
        self.staged.borrow_mut().write(&self.ram).map_err(EngineError::Fill)
    }

    /// Hash of a page's contents as they are now.
    pub(super) fn hash(&self, gfn: Gfn) -> u64 {
        hash(up_to_date(&self.ram, &self.staged), gfn)
    }

    /// The contents of a page have come.
    pub(super) fn fill(&mut self, gfn: Gfn, body: Option<PageBody<'_>>) -> Result<(), EngineError> {
        match body {
            // It is there.
            Some(PageBody::RemoteWritten) => {}
            Some(body) if self.is_staged(gfn) => {
                let page: &[u8] = match &body {
                    PageBody::Bytes(bytes) => bytes,
                    PageBody::Zero | PageBody::RemoteWritten => &[0; PAGE_SIZE],
                };
                let mut staged = self.staged.borrow_mut();
                return staged.push(&self.ram, gfn, page).map_err(EngineError::Fill);
            }
            Some(PageBody::Bytes(bytes)) => self.ram.write(gfn, 0, bytes),
            Some(PageBody::Zero) if self.ram.is_hole(gfn) => self.ram.back(gfn),
            _ => self.ram.clear(gfn),
        }
        self.ram.note_had(gfn);
        Ok(())
    }

    /// True for a page that was asked for before anybody touched it, and is not in the file.
    fn is_staged(&self, gfn: Gfn) -> bool {
        let is_prefetched = self.prefetched.is_untouched(gfn) || self.chunk_fetches.contains(gfn);
        self.mechanisms.staged_pages && is_prefetched && self.ram.is_new(gfn)
    }

    /// The page is about to be taken away, or its write access.
    pub(super) fn before_recall(&mut self, gfn: Gfn) {
        if self.chunk_fetches.recalled(gfn) && !self.has_bug(PlantedBug::WaiterForgotten) {
            // Whoever waits for it asks again.
            let woken = self.uffd.wake(self.address(gfn), PAGE);
            self.note(woken.map_err(EngineError::from));
        }
        let pending = self.prefetched.recalled(gfn);
        if self.has_bug(PlantedBug::StagedPagesLost) {
            return;
        }
        let result = if pending { self.map_pending() } else { self.write_staged() };
        self.note(result);
    }

    /// Carries out the invalidations that were put off.
    pub(super) fn take_away(&mut self) -> Result<(), EngineError> {
        if self.pending_invalidations.is_empty() {
            return Ok(());
        }
        let runs = self.pending_invalidations.take();
        for run in &runs {
            ChunkId::pieces(run.first, run.pages).for_each(|(chunk, _)| self.watch(chunk));
            // By themselves: each waits for memory, and so they wait together.
            run.iter().for_each(|gfn| self.ram.back(gfn));
            if run.what == Invalidation::All {
                run.iter().for_each(|gfn| self.about_to_go(gfn));
            }
            self.take_run(*run)?;
            self.chunks.took(run.first, run.pages);
            run.iter().for_each(|gfn| self.goes(gfn));
        }
        self.pending_invalidations.recycle(runs);
        Ok(())
    }

    /// Takes access away from a run. If its pages lie in different blocks of memory they go one by one.
    fn take_run(&self, run: InvalidationRun) -> Result<(), EngineError> {
        let last = Gfn(run.first.0 + run.pages - 1);
        let (start, bytes) = (self.address(run.first), run.pages * PAGE);
        if self.address(last) != start + bytes - PAGE {
            return run.iter().try_for_each(|gfn| {
                self.take_run(InvalidationRun { first: gfn, pages: 1, what: run.what })
            });
        }
        match run.what {
            Invalidation::Write => Ok(self.uffd.protect(start, bytes, true)?),
            Invalidation::All => {
                let zapped = self.ram.zap(run.first, run.pages);
                zapped.map_err(|source| EngineError::Zap { gfn: run.first, source })
            }
        }
    }

    /// The guest can no longer write the page.
    fn goes(&mut self, gfn: Gfn) {
        self.write_prediction.goes(gfn, || hash(&self.ram, gfn));
    }

    /// Gives the guest access to a page. A page of a chunk fetch, or a prefetched one, may be mapped later.
    pub(super) fn try_map(&mut self, gfn: Gfn, access: Access) -> Result<(), EngineError> {
        self.take_away()?;
        match access {
            Access::Write => {
                self.end_probe(gfn)?;
                let Self { write_prediction, staged, ram, .. } = self;
                write_prediction.came(gfn, || hash(up_to_date(ram, staged), gfn));
            }
            _ => self.probe_pages.readable(gfn),
        }
        if self.map_with_chunk(gfn, access)?
            || !self.prefetched.maps_now(gfn, access == Access::Write)
        {
            return Ok(());
        }
        self.map_now(gfn, access)
    }

    /// Maps prefetched pages that have arrived.
    pub(crate) fn map_pending(&mut self) -> Result<(), EngineError> {
        self.write_staged()?;
        let runs = self.prefetched.take();
        runs.into_iter().try_for_each(|run| self.map_run(run))
    }

    pub(crate) fn map_run(&mut self, run: PageRun) -> Result<(), EngineError> {
        self.about_to_be_written(run);
        let (start, bytes) = (self.address(run.first), run.pages * PAGE);
        let mut whole = false;
        if run.pages > 1 && self.is_watched(run) {
            match self.uffd.install(start, bytes, run.writable)? {
                Installed::Done => whole = true,
                Installed::Parted if self.has_bug(PlantedBug::RunOverParts) => {
                    return Err(EngineError::CannotMap { gfn: run.first });
                }
                Installed::Parted => {
                    let half = run.pages / 2;
                    self.map_run(PageRun { pages: half, ..run })?;
                    let first = Gfn(run.first.0 + half);
                    return self.map_run(PageRun { first, pages: run.pages - half, ..run });
                }
                Installed::Absent | Installed::Mapped => {}
            }
        }
        let mut pages = (run.first.0..run.first.0 + run.pages).map(Gfn);
        let access = if run.writable { Access::Write } else { Access::Read };
        if !whole {
            pages.try_for_each(|gfn| self.map_now(gfn, access))?;
        } else if run.writable {
            pages.for_each(|gfn| self.chunks.gave(gfn));
        } else {
            self.readable.extend(pages);
        }
        Ok(())
    }

    /// True when userfaultfd knows all pages of a run, and none is mapped read-only.
    fn is_watched(&self, run: PageRun) -> bool {
        let mut pages = (run.first.0..run.first.0 + run.pages).map(Gfn);
        let is_private = |gfn| self.is_alone || self.chunks.is_private(ChunkId::of(gfn));
        pages.all(|gfn| !is_private(gfn) && !self.readable.contains(gfn))
    }

    fn map_now(&mut self, gfn: Gfn, access: Access) -> Result<(), EngineError> {
        let writable = access == Access::Write;
        if self.is_alone || self.chunks.is_private(ChunkId::of(gfn)) {
            return Ok(());
        }
        if writable {
            self.chunks.gave(gfn);
        }
        self.map_watched(gfn, writable)?;
        self.map_rest(ChunkId::of(gfn))
    }

    fn map_watched(&mut self, gfn: Gfn, writable: bool) -> Result<(), EngineError> {
        self.about_to_be_written(PageRun { first: gfn, pages: 1, writable });
        let address = self.address(gfn);
        if writable && self.readable.remove(gfn) {
            // It wakes the waiters too. Should the mapping be gone, they fault again.
            return Ok(self.uffd.protect(address, PAGE, false)?);
        }
        if !writable {
            self.readable.insert(gfn);
        }
        for _ in 0..3 {
            match self.uffd.install(address, PAGE, writable)? {
                Installed::Done => return Ok(()),
                // One page is of one part; it is tried again, a bounded number of times.
                Installed::Parted => {}
                Installed::Absent => self.ram.back(gfn),
                Installed::Mapped => {
                    self.uffd.protect(address, PAGE, !writable)?;
                    self.uffd.wake(address, PAGE)?;
                    return Ok(());
                }
            }
        }
        Err(EngineError::CannotMap { gfn })
    }
}

/// Guest memory with all that has come. What cannot be written now is tried again at the end of the batch,
/// and fails there.
pub(super) fn up_to_date<'a>(ram: &'a GuestRam, staged: &RefCell<StagedPages>) -> &'a GuestRam {
    if let Err(error) = staged.borrow_mut().write(ram) {
        tracing::error!("pages that came cannot be kept: {error}");
    }
    ram
}

/// Hash of a page's contents.
fn hash(ram: &GuestRam, gfn: Gfn) -> u64 {
    let mut bytes = [0; PAGE_SIZE];
    ram.read(gfn, 0, &mut bytes);
    xxh3_64(&bytes)
}

#[cfg(test)]
mod tests;
