//! Asks for the pages that will be touched next: windows at once, chunks piece by piece.

use super::event_loop::Engine;
use crate::error::EngineError;
use crate::memory::{CHUNK_PAGES, ChunkId};
use crate::prefetch::Requested;
use dsm_protocol::prediction::{Miss, Touch, Window};
use dsm_protocol::{Access, Gfn, Input};

/// Misses within so many transfer times are correlated: each miss takes one.
const TOGETHER: u64 = 32;

impl Engine {
    /// A vCPU touches a page. Returns the page whose touch asks for more, if the page is in a chunk fetch that was not
    /// touched before.
    pub(crate) fn touch_chunk_fetch(&mut self, gfn: Gfn) -> Result<Option<Gfn>, EngineError> {
        let now = self.now();
        let marker = self.store.chunk_fetches.touched(gfn, now);
        if let Some(piece) = self.store.chunk_fetches.piece_of(gfn, now) {
            self.fetch_piece(piece)?;
        }
        Ok(marker)
    }

    /// Asks for the pages that will be touched next. Their requests go out with this one's. `missed`: the page was
    /// neither here nor on its way.
    pub(crate) fn prefetch(&mut self, miss: Miss, missed: bool) -> Result<(), EngineError> {
        let touch = self.touch(miss, missed);
        let windows = self.prefetcher.windows(touch);
        self.ask_for(windows)?;
        self.fetch_on()
    }

    /// Asks for the correlated pages of a miss. Their requests go out with this one's.
    pub(crate) fn prefetch_correlated(&mut self, miss: Miss) -> Result<(), EngineError> {
        let touch = self.touch(miss, true);
        let Self { prefetcher, node, .. } = self;
        let windows = prefetcher.correlated(touch, &|Miss { gfn, want }| {
            node.access(gfn) < want && !node.is_waiting(gfn) && node.table(gfn).is_none()
        });
        self.ask_for(windows)
    }

    /// What predictors are told.
    fn touch(&self, miss: Miss, missed: bool) -> Touch {
        let (gfn, ram) = (miss.gfn, &self.store.ram);
        let is_own = self.node.home(gfn) == Some(self.outbound.transport.local());
        let had = missed && if is_own { !ram.is_hole(gfn) } else { ram.had_come(gfn) };
        let together_ns = TOGETHER * self.node.mean_transfer_ns();
        Touch { miss, missed, had, now_ns: self.now(), together_ns }
    }

    fn ask_for(&mut self, windows: Vec<Window>) -> Result<(), EngineError> {
        for window in windows {
            if window.is_chunk() {
                self.begin_chunk(ChunkId::of(window.first), window.want)?;
            } else if window.alone && self.node.access(window.first) != Access::None {
                self.step(Input::UpgradeAhead { gfn: window.first })?;
            } else {
                self.fetch_window(window)?;
            }
        }
        Ok(())
    }

    fn fetch_window(&mut self, window: Window) -> Result<(), EngineError> {
        let asked: Vec<Gfn> = window.frames().filter(|gfn| !self.node.is_waiting(*gfn)).collect();
        for (gfn, pages) in window.requests() {
            self.step(Input::Prefetch { gfn, pages, want: window.want })?;
        }
        for gfn in asked.into_iter().filter(|gfn| self.node.is_waiting(*gfn)) {
            self.store.prefetched.expect(gfn, window.is_marker(gfn));
        }
        Ok(())
    }

    /// Begins a chunk fetch. The chunk may become private if its home is elsewhere and no page of it is here.
    pub(super) fn begin_chunk(&mut self, chunk: ChunkId, want: Access) -> Result<(), EngineError> {
        let node = &self.node;
        let is_free = |gfn| {
            node.access(gfn) == Access::None && !node.is_waiting(gfn) && node.table(gfn).is_none()
        };
        let may_grant = self.store.chunks.may_grant(chunk);
        let kept = may_grant && chunk.frames().map(Gfn).all(is_free);
        let last = Gfn(chunk.first().0 + CHUNK_PAGES - 1);
        if node.home(chunk.first()).is_none() || node.home(last).is_none() {
            // The end of memory.
            let pages = u16::try_from(CHUNK_PAGES).expect("a small constant");
            return self.fetch_window(Window::of_run(chunk.first(), 1, pages, want));
        }
        let now = self.now();
        let awaited = self.node.is_waiting(chunk.first());
        self.store.begin_chunk_fetch(chunk, want, (kept, awaited), now)
    }

    /// Asks for more of the chunks that are on their way, as far as there is room. Not while the engine comes to rest: all
    /// slices would wait for pages that no vCPU waits for.
    pub(crate) fn fetch_on(&mut self) -> Result<(), EngineError> {
        let now = self.now();
        while !self.node.is_resting()
            && let Some(piece) = self.store.chunk_fetches.next_piece(now)
        {
            self.fetch_piece(piece)?;
        }
        Ok(())
    }

    fn fetch_piece(&mut self, (gfn, pages, want): (Gfn, u16, Access)) -> Result<(), EngineError> {
        self.step(Input::Prefetch { gfn, pages, want })?;
        let node = &self.node;
        let state = |gfn| if node.is_waiting(gfn) { Requested::InFlight } else { Requested::No };
        self.store.chunk_fetches.requested(gfn, pages, state);
        Ok(())
    }
}
