//! Which chunks have not come from their [`Source`](super::source::Source) yet, and who loads which.
//!
//! ```text
//!   absent --claimed: somebody needs it, or its turn has come--> loading --finished--> loaded
//!                                                                   \--failed--> nothing more is claimed
//! ```
//! Neighbours are loaded together as one *piece*; a piece is one chunk unless there are very many. Whoever finds one that is not loaded has it
//! loaded before all others, and waits. Where no thread loads, it loads the piece itself.

use super::source::LoadError;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const LOADED: u8 = 0;
const ABSENT: u8 = 1;
const LOADING: u8 = 2;

/// What is loaded at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Numbers of its chunks, by their place in the memory file.
    pub(crate) chunks: Range<usize>,
    pub(crate) frames: Range<u64>,
}

/// What somebody has to do who needs a piece.
#[derive(Debug)]
pub(super) enum Turn {
    /// Nothing: it is here.
    Loaded,
    /// Load it.
    Yours(Piece),
    /// Give up: it does not come.
    Failed,
    /// Say that nothing has come for so long.
    Silent(Duration),
}

/// How much has been loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Pieces of memory.
    pub pieces: usize,
    /// Those that are not here yet.
    pub left: usize,
    /// Those that came because somebody needed them.
    pub on_demand: usize,
    /// The longest that the engine, or another thread that is none of the guest's, has waited for one.
    pub longest_wait: Duration,
}

type Teller = Box<dyn FnOnce(&Arc<LoadError>) + Send>;

#[derive(Default)]
struct Work {
    /// First chunks of pieces that somebody waits for.
    wanted: VecDeque<usize>,
    /// The first piece that may not have had its turn.
    next: usize,
    counts: Loaded,
    /// First chunks of pieces that are being read, and since when.
    reading: Vec<(usize, Instant)>,
    /// Threads that load.
    readers: usize,
    stopped: bool,
    failure: Option<Arc<LoadError>>,
    teller: Option<Teller>,
}

/// Which chunks have come.
pub(crate) struct Loading {
    /// For each chunk of the memory file.
    states: Vec<AtomicU8>,
    /// Ascending.
    pieces: Vec<Piece>,
    work: Mutex<Work>,
    changed: Condvar,
    failed: AtomicBool,
    /// Whoever needs a piece waits so long at most.
    limit: Duration,
}

impl std::fmt::Debug for Loading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loading").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Loading {
    /// These pieces, ascending, of a file of so many chunks are to be loaded.
    pub(super) fn new(chunks: usize, pieces: Vec<Piece>, limit: Duration) -> Self {
        let states: Vec<AtomicU8> = (0..chunks).map(|_| AtomicU8::new(LOADED)).collect();
        for chunk in pieces.iter().flat_map(|piece| piece.chunks.clone()) {
            states[chunk].store(ABSENT, Ordering::Relaxed);
        }
        let counts = Loaded { pieces: pieces.len(), left: pieces.len(), ..Loaded::default() };
        let work = Mutex::new(Work { counts, ..Work::default() });
        let (changed, failed) = (Condvar::new(), AtomicBool::new(false));
        Self { states, pieces, work, changed, failed, limit }
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a chunk is here.
    pub(crate) fn is_loaded(&self, chunk: usize) -> bool {
        self.states.get(chunk).is_none_or(|state| state.load(Ordering::Acquire) == LOADED)
    }

    fn is_absent(&self, piece: &Piece) -> bool {
        self.states[piece.chunks.start].load(Ordering::Acquire) == ABSENT
    }

    fn set(&self, piece: &Piece, state: u8) {
        piece.chunks.clone().for_each(|chunk| self.states[chunk].store(state, Ordering::Release));
    }

    fn piece_of(&self, chunk: usize) -> Option<&Piece> {
        let at = self.pieces.partition_point(|piece| piece.chunks.end <= chunk);
        self.pieces.get(at).filter(|piece| piece.chunks.contains(&chunk))
    }

    pub(super) fn counts(&self) -> Loaded {
        self.work().counts
    }

    /// Somebody waits for a chunk.
    pub(super) fn want(&self, chunk: usize) {
        Self::want_in(&mut self.work(), self.piece_of(chunk));
        self.changed.notify_all();
    }

    fn want_in(work: &mut Work, piece: Option<&Piece>) {
        let Some(first) = piece.map(|piece| piece.chunks.start) else { return };
        if !work.wanted.contains(&first) {
            work.wanted.push_back(first);
        }
    }

    /// The same before all vCPUs: who waits here keeps other slices waiting, and may only do so for a part of a lease.
    fn want_first_in(work: &mut Work, piece: &Piece) {
        let first = piece.chunks.start;
        work.wanted.retain(|other| *other != first);
        work.wanted.push_front(first);
    }

    /// What is to be loaded next: what somebody waits for, or, if `all`, what comes first in memory.
    #[cfg(any(test, feature = "simulate"))]
    pub(super) fn claim(&self, all: bool) -> Option<Piece> {
        self.claim_in(&mut self.work(), all)
    }

    fn claim_in(&self, work: &mut Work, all: bool) -> Option<Piece> {
        if work.failure.is_some() {
            return None;
        }
        while let Some(first) = work.wanted.pop_front() {
            let piece = self.piece_of(first).filter(|piece| self.is_absent(piece));
            if let Some(piece) = piece {
                work.counts.on_demand += 1;
                return Some(self.take(work, piece));
            }
        }
        while let Some(piece) = self.pieces.get(work.next).filter(|_| all) {
            work.next += 1;
            if self.is_absent(piece) {
                return Some(self.take(work, piece));
            }
        }
        None
    }

    fn take(&self, work: &mut Work, piece: &Piece) -> Piece {
        self.set(piece, LOADING);
        work.reading.push((piece.chunks.start, Instant::now()));
        piece.clone()
    }

    /// The same for a thread that does nothing else, which waits for something to load. `None` when it is to end.
    pub(super) fn next(&self, all: bool) -> Option<Piece> {
        let mut work = self.work();
        loop {
            if work.stopped || work.failure.is_some() || work.counts.left == 0 {
                return None;
            }
            if let Some(piece) = self.claim_in(&mut work, all) {
                return Some(piece);
            }
            work = self.changed.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until a chunk is here, or it is the caller's to load.
    pub(super) fn wait_for(&self, chunk: usize) -> Turn {
        let begun = Instant::now();
        let mut work = self.work();
        loop {
            if self.is_loaded(chunk) {
                let longest = &mut work.counts.longest_wait;
                *longest = begun.elapsed().max(*longest);
                return Turn::Loaded;
            }
            let Some(piece) = self.piece_of(chunk) else { return Turn::Loaded };
            if work.failure.is_some() {
                return Turn::Failed;
            }
            if self.is_absent(piece) {
                if work.readers == 0 {
                    work.counts.on_demand += 1;
                    return Turn::Yours(self.take(&mut work, piece));
                }
                Self::want_first_in(&mut work, piece);
                self.changed.notify_all();
            }
            let waited = begun.elapsed();
            let Some(left) = self.limit.checked_sub(waited).filter(|left| !left.is_zero()) else {
                return Turn::Silent(waited);
            };
            let waited = self.changed.wait_timeout(work, left);
            work = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until all is here, or nobody goes on with it; how much is not, if it takes longer.
    pub(super) fn wait_for_all(&self, limit: Duration) -> Loaded {
        let goes_on =
            |work: &mut Work| work.counts.left > 0 && work.failure.is_none() && !work.stopped;
        let waited = self.changed.wait_timeout_while(self.work(), limit, goes_on);
        waited.unwrap_or_else(PoisonError::into_inner).0.counts
    }

    /// A piece is here, and whoever likes may touch it. True if it was the last one.
    pub(super) fn finish(&self, piece: &Piece) -> bool {
        let mut work = self.work();
        self.set(piece, LOADED);
        work.reading.retain(|(first, _)| *first != piece.chunks.start);
        work.counts.left -= 1;
        self.changed.notify_all();
        work.counts.left == 0
    }

    /// A piece does not come. Nobody gets it, or anything else that is not here.
    pub(super) fn fail(&self, error: LoadError) {
        let mut work = self.work();
        let error = Arc::clone(work.failure.get_or_insert_with(|| Arc::new(error)));
        let teller = work.teller.take();
        self.failed.store(true, Ordering::Release);
        self.changed.notify_all();
        drop(work);
        if let Some(teller) = teller {
            teller(&error);
        }
    }

    /// Why something did not come, if so.
    pub(super) fn failure(&self) -> Option<Arc<LoadError>> {
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        self.work().failure.clone()
    }

    /// Says who is told that something does not come.
    pub(super) fn tell(&self, teller: Teller) {
        let mut work = self.work();
        match work.failure.clone() {
            None => work.teller = Some(teller),
            Some(error) => {
                drop(work);
                teller(&error);
            }
        }
    }

    /// For how long the piece is being read that was begun first.
    pub(super) fn longest_read(&self) -> Option<Duration> {
        self.work().reading.first().map(|(_, since)| since.elapsed())
    }

    /// One thread more, or less, loads.
    pub(super) fn reads(&self, on: bool) {
        let mut work = self.work();
        work.readers = if on { work.readers + 1 } else { work.readers.saturating_sub(1) };
        self.changed.notify_all();
    }

    /// Threads that load are to end.
    pub(super) fn stop(&self) {
        self.work().stopped = true;
        self.changed.notify_all();
    }

    /// Whether they are to end: there is nothing more to do.
    pub(super) fn is_over(&self) -> bool {
        let work = self.work();
        work.stopped || work.failure.is_some() || work.counts.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;

    fn loading(limit: Duration) -> Loading {
        let piece = |chunks: Range<usize>| Piece {
            frames: chunks.start as u64 * 512..chunks.end as u64 * 512,
            chunks,
        };
        Loading::new(8, vec![piece(1..2), piece(2..4), piece(6..7)], limit)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_is_wanted_comes_first_and_each_piece_once() {
        let loading = loading(LONG);
        assert!(loading.is_loaded(0) && loading.is_loaded(5) && loading.is_loaded(99));
        assert_eq!(loading.claim(false), None, "nobody wants anything");
        loading.want(6);
        loading.want(6);
        loading.want(3);
        let chunks: Vec<_> = std::iter::from_fn(|| loading.claim(true)).collect();
        let firsts: Vec<_> = chunks.iter().map(|piece| piece.chunks.start).collect();
        assert_eq!(firsts, [6, 2, 1]);
        assert!(!loading.is_loaded(3), "it is being loaded");
        assert!(loading.longest_read().is_some());
        let last: Vec<_> = chunks.iter().map(|piece| loading.finish(piece)).collect();
        assert_eq!(last, [false, false, true]);
        assert!((0..8).all(|chunk| loading.is_loaded(chunk)));
        let Loaded { pieces, left, on_demand, .. } = loading.counts();
        assert_eq!((pieces, left, on_demand), (3, 0, 2));
        assert!(loading.is_over() && loading.next(true).is_none());
    }

    #[test]
    fn who_needs_a_piece_loads_it_where_no_thread_does() {
        let loading = loading(LONG);
        let Turn::Yours(piece) = loading.wait_for(3) else { panic!("nobody loads") };
        assert_eq!(piece.chunks, 2..4);
        loading.finish(&piece);
        assert!(matches!(loading.wait_for(2), Turn::Loaded));
    }

    #[test]
    fn who_needs_a_piece_waits_for_a_thread_and_not_for_ever() {
        let loading = loading(Duration::from_millis(20));
        loading.reads(true);
        assert!(matches!(loading.wait_for(1), Turn::Silent(_)));
        thread::scope(|threads| {
            threads.spawn(|| {
                let piece = loading.next(false).unwrap();
                loading.finish(&piece);
            });
            while !matches!(loading.wait_for(1), Turn::Loaded) {}
        });
        assert_eq!(loading.counts().left, 2);
    }

    #[test]
    fn who_waits_in_the_engine_comes_before_vcpus() {
        let loading = loading(Duration::from_millis(1));
        loading.reads(true);
        [6, 1].into_iter().for_each(|chunk| loading.want(chunk));
        assert!(matches!(loading.wait_for(3), Turn::Silent(_)));
        assert!(matches!(loading.wait_for(1), Turn::Silent(_)));
        let firsts: Vec<_> =
            std::iter::from_fn(|| loading.claim(false)).map(|piece| piece.chunks.start).collect();
        assert_eq!(firsts, [1, 2, 6]);
    }

    #[test]
    fn failure_is_told_once_and_ends_all() {
        let loading = loading(LONG);
        loading.reads(true);
        let (told, heard) = channel();
        let other = told.clone();
        loading.tell(Box::new(move |error| told.send(error.to_string()).unwrap()));
        loading.claim(true).unwrap();
        loading.fail(LoadError::Source("torn".into()));
        loading.fail(LoadError::Layout);
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), ["torn"]);
        assert!(matches!(loading.wait_for(6), Turn::Failed));
        assert!(loading.next(true).is_none() && loading.claim(true).is_none());
        loading.tell(Box::new(move |error| other.send(error.to_string()).unwrap()));
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), ["torn"], "who comes late hears of it");
    }
}
