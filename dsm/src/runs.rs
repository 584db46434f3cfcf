//! Pages that will be touched next, asked for: windows at once, chunks piece by piece.

use crate::chunks::{CHUNK_PAGES, ChunkId};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::whole::Asked;
use dsm_protocol::foresight::{Lack, Window};
use dsm_protocol::{Access, Gfn, Input};

/// Faults within so many times a page's way belong together: each is a way.
const TOGETHER: u64 = 8;

impl Engine {
    /// A vCPU touches a page. The page whose touch asks for more, if this one's chunk is fetched as a whole and
    /// was not touched before.
    pub(crate) fn touch_whole(&mut self, gfn: Gfn) -> Result<Option<Gfn>, EngineError> {
        let now = self.now();
        let marker = self.store.whole.touched(gfn, now);
        if let Some(piece) = self.store.whole.piece_of(gfn, now) {
            self.fetch_piece(piece)?;
        }
        Ok(marker)
    }

    /// Asks for the pages that will be touched next. Their requests go out with this one's. `missed` says that the page
    /// was neither here nor on its way.
    pub(crate) fn fetch_ahead(
        &mut self,
        gfn: Gfn,
        want: Access,
        missed: bool,
    ) -> Result<(), EngineError> {
        let is_own = self.node.home(gfn) == Some(self.transport.local());
        let Some(runs) = &mut self.runs else { return self.fetch_on() };
        let ram = &self.store.ram;
        let had = || if is_own { !ram.is_hole(gfn) } else { ram.had_come(gfn) };
        let windows = if missed && had() {
            runs.fault_again(gfn, want)
        } else {
            runs.fault(gfn, want, missed)
        };
        for window in windows {
            if window.is_chunk() {
                self.begin_chunk(ChunkId::of(window.first), window.want)?;
            } else {
                self.fetch_window(window)?;
            }
        }
        self.fetch_on()
    }

    /// Asks for what is lacked whenever this page is. Those requests go out with this one's.
    pub(crate) fn fetch_companions(&mut self, lack: Lack) -> Result<(), EngineError> {
        let now = self.now();
        let Self { companions, node, .. } = self;
        let Some(companions) = companions else { return Ok(()) };
        let window = TOGETHER * node.mean_transfer_ns();
        let asked = companions.lacked(lack, now, window, |Lack { gfn, want }| {
            node.access(gfn) < want && !node.is_waiting(gfn) && node.table(gfn).is_none()
        });
        for Lack { gfn, want } in asked {
            self.companions_asked += 1;
            if self.node.access(gfn) != Access::None {
                // To the protocol an upgrade that somebody waits for, but nobody does.
                self.upgraded_ahead += 1;
                self.step(Input::Fault { gfn, want })?;
                continue;
            }
            self.step(Input::Prefetch { gfn, pages: 1, want })?;
            if self.node.is_waiting(gfn) {
                self.store.ahead.expect(gfn, false);
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
            self.store.ahead.expect(gfn, window.is_marker(gfn));
        }
        Ok(())
    }

    /// A chunk that this slice has nothing of, and nobody at home here, may become private.
    fn begin_chunk(&mut self, chunk: ChunkId, want: Access) -> Result<(), EngineError> {
        let node = &self.node;
        let is_free = |gfn| {
            node.access(gfn) == Access::None && !node.is_waiting(gfn) && node.table(gfn).is_none()
        };
        let is_whole = self.store.chunks.may_borrow(chunk);
        let kept = is_whole && chunk.frames().map(Gfn).all(is_free);
        let last = Gfn(chunk.first().0 + CHUNK_PAGES - 1);
        if node.home(chunk.first()).is_none() || node.home(last).is_none() {
            // The end of memory.
            let pages = u16::try_from(CHUNK_PAGES).expect("a small constant");
            return self.fetch_window(Window::neighbours(chunk.first(), pages, want));
        }
        let now = self.now();
        self.store.begin_whole(chunk, want, kept, now)
    }

    /// Asks for more of the chunks that are on their way, as far as there is room.
    pub(crate) fn fetch_on(&mut self) -> Result<(), EngineError> {
        let now = self.now();
        while let Some(piece) = self.store.whole.next_piece(now) {
            self.fetch_piece(piece)?;
        }
        Ok(())
    }

    fn fetch_piece(&mut self, (gfn, pages, want): (Gfn, u16, Access)) -> Result<(), EngineError> {
        self.step(Input::Prefetch { gfn, pages, want })?;
        let node = &self.node;
        let state = |gfn| if node.is_waiting(gfn) { Asked::Flying } else { Asked::Not };
        self.store.whole.asked(gfn, pages, state);
        Ok(())
    }
}
