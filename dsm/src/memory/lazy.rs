//! Memory that the guest may use before its contents are here (post-copy, demand paging).
//!
//! ```text
//!   guest mapping of a chunk that is absent: watched, by a userfaultfd of its own
//!      touched by a vCPU or a device ---event---> `loader` --\
//!   alias, or what Linux knows of its pages: `ensure` --------+--> contents read and put in place --> watched no longer --> loaded
//!      looked at by the engine or the VMM                     |
//!   nobody needs it: its turn comes -------------------------/
//! ```
//! A chunk is opened to the guest when all of it is there, so no load ever meets a store. Everything in this room that looks at contents
//! of a page, or asks Linux whether there are any, calls [`GuestRam::ensure`] first, and nothing else reaches them.
//! The engine watches a chunk itself only after that.
//!
//! What fails is remembered, and so is, for each thread, whether it has looked at what has not come. Nothing leaves the slice of a step in
//! which the engine has ([`GuestRam::missed`]). Others ask [`GuestRam::load_failure`].

use super::absent::Lazy;
use super::chunk::{CHUNK_PAGES, whole_chunks};
use super::loading::{Loaded, Loading, Piece, Turn};
use super::off_file::OffFile;
use super::places::Place;
use super::ram::GuestRam;
use super::source::{LoadError, Source};
use crate::kernel::{FaultWatch, HUGE, Uffd};
use crate::planted::PlantedBug;
use std::cell::Cell;
use std::io::Error;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use wire::{Gfn, PAGE_SIZE};

/// So many pieces at most: neighbours of which one is watched and one is not are parts of the address space of their own, and
/// Linux has a limit for these.
const PIECES_MAX: u64 = 16_384;

thread_local! {
    /// This thread has looked at memory that has not come. One thread is of one slice.
    static MISSED: Cell<bool> = const { Cell::new(false) };
}

impl GuestRam {
    /// From now on these frames, in which nothing has been written, have the contents that a source has of them. Parts of chunks are
    /// read at once. No thread loads the rest yet. Nobody uses the memory. Whoever needs a page waits for `limit` at most.
    ///
    /// # Errors
    /// A part of a chunk cannot be read, or the kernel refuses to watch memory.
    pub(crate) fn begin_loading(
        &self,
        frames: &[Range<u64>],
        source: Arc<dyn Source>,
        (limit, planted): (Duration, Option<PlantedBug>),
    ) -> Result<(), LoadError> {
        if !frames.iter().all(|range| self.has_all(range)) || self.lazy.get().is_some() {
            return Err(LoadError::Layout);
        }
        let whole = whole_chunks(frames);
        for edge in edges(frames, &whole) {
            source.read(edge, &mut |first, bytes| {
                self.write_run(Gfn(first), bytes);
                Ok(())
            })?;
        }
        let pieces = self.pieces(&whole, &*source)?;
        let uffd = self.userfaultfd()?;
        let runs = pieces.chunk_by(|one, next| one.chunks.end == next.chunks.start);
        for run in runs {
            self.close(&uffd, run[0].chunks.start..run[run.len() - 1].chunks.end)?;
        }
        let loading = Loading::new(self.bytes() / HUGE, pieces, limit);
        let is_over = loading.is_over();
        let source = Some(source).filter(|_| !is_over);
        let set = self.lazy.set(Box::new(Lazy::new(loading, source, uffd, planted)));
        set.map_err(|_| LoadError::Layout)
    }

    /// What there is to load, ascending: what is not all zeros.
    fn pieces(&self, whole: &[Range<u64>], source: &dyn Source) -> Result<Vec<Piece>, LoadError> {
        let chunks: u64 = whole.iter().map(|range| range.end - range.start).sum();
        let at_once = chunks.div_ceil(PIECES_MAX).max(1);
        let mut pieces = Vec::new();
        for range in whole {
            let mut at = range.start;
            while at < range.end {
                let end = range.end.min(at + at_once);
                let frames = at * CHUNK_PAGES..end * CHUNK_PAGES;
                let start = self.offset(Gfn(frames.start)).ok_or(LoadError::Layout)? / HUGE;
                let count = usize::try_from(end - at).map_err(|_| LoadError::Layout)?;
                at = end;
                if source.has(frames.clone()) {
                    pieces.push(Piece { chunks: start..start + count, frames });
                }
            }
        }
        Ok(pieces)
    }

    /// Nobody touches these chunks in the guest mapping before they are there.
    fn close(&self, uffd: &Uffd, chunks: Range<usize>) -> Result<(), LoadError> {
        let (offset, bytes) = (chunks.start * HUGE, chunks.len() * HUGE);
        let in_file = |at: usize| self.place_at(at) != Place::OffFile;
        for at in chunks.map(|chunk| chunk * HUGE).filter(|at| in_file(*at)) {
            // Nobody puts it on a huge page meanwhile.
            self.set_place_at(at, Place::Watched);
        }
        if self.prepared.is_some() {
            // What is mapped is not told.
            self.guest.advise(offset, bytes, libc::MADV_DONTNEED).map_err(LoadError::Fill)?;
        }
        let watch = match self.off_file {
            OffFile::Anonymous => FaultWatch::Absent,
            OffFile::None | OffFile::Huge(..) => FaultWatch::AbsentInFile,
        };
        let (start, len) = self.span_at(offset, bytes);
        Ok(uffd.register(start, len, watch)?)
    }

    /// All of a piece is there.
    fn open(&self, lazy: &Lazy, piece: &Piece) -> Result<(), LoadError> {
        let (offset, bytes) = (piece.chunks.start * HUGE, piece.chunks.len() * HUGE);
        let (start, len) = self.span_at(offset, bytes);
        lazy.uffd.unregister(start, len)?;
        for at in piece.chunks.clone().map(|chunk| chunk * HUGE) {
            let huge = self.prepared.as_ref().is_some_and(|prepared| prepared.is_huge(at));
            if self.place_at(at) != Place::OffFile {
                self.set_place_at(at, if huge { Place::Huge } else { Place::Plain });
            }
        }
        Ok(())
    }

    fn span_at(&self, offset: usize, bytes: usize) -> (u64, u64) {
        let number = |bytes: usize| u64::try_from(bytes).expect("an address fits u64");
        (number(self.guest.start() + offset), number(bytes))
    }

    /// Loads a piece that is the caller's to load.
    pub(super) fn load(&self, lazy: &Lazy, piece: &Piece) {
        let last = match self.load_and_open(lazy, piece) {
            Ok(()) => lazy.loading.finish(piece),
            Err(error) => return lazy.loading.fail(error),
        };
        if last {
            // Files are closed.
            lazy.close();
        }
        self.gather(piece);
    }

    fn load_and_open(&self, lazy: &Lazy, piece: &Piece) -> Result<(), LoadError> {
        let Some(source) = lazy.source() else { return Err(LoadError::Layout) };
        source.read(piece.frames.clone(), &mut |first, bytes| self.fill(lazy, first, bytes))?;
        self.open(lazy, piece)
    }

    /// Puts contents where they belong, in memory that is absent.
    fn fill(&self, lazy: &Lazy, first: u64, bytes: &[u8]) -> Result<(), LoadError> {
        let pages = u64::try_from(bytes.len() / PAGE_SIZE).map_err(|_| LoadError::Layout)?;
        if !bytes.len().is_multiple_of(PAGE_SIZE) || !self.has_all(&(first..first + pages)) {
            return Err(LoadError::Layout);
        }
        let at = self.offset(Gfn(first)).ok_or(LoadError::Layout)?;
        match &self.off_file {
            OffFile::Anonymous => Ok(lazy.uffd.copy(self.span_at(at, 0).0, bytes)?),
            OffFile::None => self.write_absent(at, bytes).map_err(LoadError::Fill),
            OffFile::Huge(..) => {
                self.copy_absent(at, bytes);
                Ok(())
            }
        }
    }

    /// Private memory was filled page by page. Where nearly all of a chunk has come, it gets its huge page.
    fn gather(&self, piece: &Piece) {
        if !matches!(self.off_file, OffFile::Anonymous) {
            return;
        }
        for at in piece.chunks.clone().map(|chunk| chunk * HUGE) {
            if let Err(error) = self.gather_private(at) {
                tracing::debug!("memory that was loaded is on small pages: {error}");
            }
        }
    }

    /// Has what threads wait for loaded first.
    pub(super) fn take_load_faults(&self, lazy: &Lazy) -> Result<(), Error> {
        let mut faults = Vec::new();
        lazy.uffd.read(&mut faults)?;
        for fault in faults {
            let offset = usize::try_from(fault.address).ok();
            let offset = offset.and_then(|address| address.checked_sub(self.guest.start()));
            // Whoever waits for what is here by now was woken.
            if let Some(chunk) = offset.map(|offset| offset / HUGE) {
                lazy.loading.want(chunk);
            }
        }
        Ok(())
    }

    /// Loads one piece, as a thread would: what somebody waits for, or the first. False if there is none.
    #[cfg(any(test, feature = "simulate"))]
    pub(crate) fn load_one(&self) -> Result<bool, Arc<LoadError>> {
        let Some(lazy) = self.lazy.get() else { return Ok(false) };
        let read = self.take_load_faults(lazy);
        read.map_err(|error| Arc::new(LoadError::Fill(error)))?;
        #[cfg(feature = "simulate")]
        self.load_again(lazy);
        let piece = lazy.loading.claim(true);
        if let Some(piece) = &piece {
            #[cfg(feature = "simulate")]
            lazy.note_for_again(piece);
            self.load(lazy, piece);
        }
        lazy.loading.failure().map_or(Ok(piece.is_some()), Err)
    }

    /// As if another thread had taken the same piece.
    #[cfg(feature = "simulate")]
    fn load_again(&self, lazy: &Lazy) {
        if let Some((piece, source)) =
            lazy.take_again().filter(|_| lazy.has_bug(PlantedBug::LoadedOverStores))
        {
            // The simulator finds what comes of it.
            let _ = source.read(piece.frames, &mut |first, bytes| {
                self.write_run(Gfn(first), bytes);
                Ok(())
            });
        }
    }

    /// Makes sure that the chunk at an offset of the memory file is here. It waits, or loads it. What cannot be had is found by
    /// [`Self::load_failure`].
    pub(crate) fn ensure(&self, offset: usize) {
        if let Some(lazy) = self.lazy.get()
            && !lazy.loading.is_loaded(offset / HUGE)
        {
            self.ensure_chunk(lazy, offset / HUGE);
        }
    }

    #[cold]
    fn ensure_chunk(&self, lazy: &Lazy, chunk: usize) {
        loop {
            match lazy.loading.wait_for(chunk) {
                Turn::Loaded => return,
                Turn::Failed => {
                    MISSED.set(true);
                    return;
                }
                Turn::Yours(piece) if lazy.has_bug(PlantedBug::GivenUnloaded) => {
                    if let Err(error) = self.open(lazy, &piece) {
                        lazy.loading.fail(error);
                    }
                    lazy.loading.finish(&piece);
                }
                Turn::Yours(piece) => self.load(lazy, &piece),
                Turn::Silent(waited) => lazy.loading.fail(lazy.silent(waited)),
            }
        }
    }

    /// Why memory has not come that this thread has looked at, once.
    pub(crate) fn missed(&self) -> Option<Arc<LoadError>> {
        self.lazy.get()?;
        if MISSED.take() { self.load_failure() } else { None }
    }

    /// Why some memory does not come, if so. Then nothing that was read of it may be used.
    #[must_use]
    pub fn load_failure(&self) -> Option<Arc<LoadError>> {
        self.lazy.get()?.loading.failure()
    }

    /// Who is told, once, that memory does not come. It may be on any thread.
    pub fn when_load_fails(&self, teller: impl FnOnce(&Arc<LoadError>) + Send + 'static) {
        if let Some(lazy) = self.lazy.get() {
            lazy.loading.tell(Box::new(teller));
        }
    }

    /// How much has been loaded, of memory that did not have its contents at first.
    #[must_use]
    pub fn loaded(&self) -> Loaded {
        self.lazy.get().map_or_else(Loaded::default, |lazy| lazy.loading.counts())
    }

    /// Waits until all is loaded, or does not come; how much is not here if it takes longer.
    #[must_use]
    pub fn wait_until_loaded(&self, limit: Duration) -> Loaded {
        let waited = |lazy: &Lazy| lazy.loading.wait_for_all(limit);
        self.lazy.get().map_or_else(Loaded::default, |lazy| waited(lazy))
    }

    /// Those of these frames, which have memory side by side, that are not watched because they are absent.
    pub(crate) fn without_absent(&self, frames: &Range<u64>) -> Vec<Range<u64>> {
        let Some(lazy) = self.lazy.get() else { return vec![frames.clone()] };
        let mut here: Vec<Range<u64>> = Vec::new();
        let mut at = frames.start;
        while at < frames.end {
            let end = frames.end.min((at / CHUNK_PAGES + 1) * CHUNK_PAGES);
            let offset = self.offset(Gfn(at)).filter(|at| lazy.loading.is_loaded(at / HUGE));
            match here.last_mut() {
                _ if offset.is_none() => {}
                Some(last) if last.end == at => last.end = end,
                _ => here.push(at..end),
            }
            at = end;
        }
        here
    }
}

/// The frames of ranges that are in none of their whole chunks.
fn edges(frames: &[Range<u64>], whole: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut edges = Vec::new();
    for range in frames {
        let inner = whole.iter().map(|range| range.start * CHUNK_PAGES..range.end * CHUNK_PAGES);
        let inner =
            inner.into_iter().find(|inner| range.start <= inner.start && inner.end <= range.end);
        let inner = inner.unwrap_or(range.end..range.end);
        edges.extend([range.start..inner.start, inner.end..range.end]);
    }
    edges.retain(|edge| !edge.is_empty());
    edges
}

#[cfg(test)]
mod tests;
