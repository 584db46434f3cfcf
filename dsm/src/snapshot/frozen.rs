//! What of a snapshot still is as it was, and copies of what is no longer.
//!
//! The engine and the reader meet here, under one lock. The reader holds it while it copies [`BATCH`] pages, some 50 us:
//! that long a store may wait, and no longer.

use super::error::SnapshotLost;
use crate::memory::GuestRam;
use dsm_protocol::{Gfn, PageSet};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::PAGE_SIZE;

/// Pages that the reader copies under the lock.
pub(super) const BATCH: u64 = 64;
/// Copies that wait for the reader before stores of the guest wait for it: 64 MiB. What the protocol takes away does not wait,
/// for another slice waits for it; of that there is no more than the slice had.
const COPIES_MAX: usize = (64 << 20) / PAGE_SIZE;

#[derive(Debug)]
pub(super) struct State {
    /// Pages that are as they were, and have not been read.
    pub(super) pending: PageSet,
    /// What others were, oldest first.
    pub(super) copies: VecDeque<(Gfn, Box<[u8; PAGE_SIZE]>)>,
    /// Nobody reads any more.
    over: bool,
    /// Pages that are pending may have changed.
    spoiled: Option<SnapshotLost>,
}

/// A snapshot that is being read.
#[derive(Debug)]
pub(crate) struct Frozen {
    pub(super) ram: Arc<GuestRam>,
    state: Mutex<State>,
    /// Frames below this one have been read.
    below: AtomicU64,
}

impl Frozen {
    /// Of these frames, as they are now. Frames below `end` have memory.
    pub(crate) fn new(ram: Arc<GuestRam>, frames: &[Range<u64>], end: u64) -> Self {
        let mut pending = PageSet::new(end);
        frames.iter().for_each(|range| pending.insert_range(range));
        let state = State { pending, copies: VecDeque::new(), over: false, spoiled: None };
        Self { ram, state: Mutex::new(state), below: AtomicU64::new(0) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A page is about to change: copies it, unless it was read already or is not of the snapshot.
    pub(crate) fn keep(&self, gfn: Gfn) {
        let mut state = self.lock();
        if state.over || !state.pending.remove(gfn) || self.ram.is_surely_zero(gfn) {
            return;
        }
        let mut copy = Box::new([0; PAGE_SIZE]);
        self.ram.read(gfn, 0, &mut copy[..]);
        state.copies.push_back((gfn, copy));
    }

    /// Whether stores of the guest wait until the reader has taken copies.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().copies.len() >= COPIES_MAX
    }

    /// Frames below the one that is given need no protection any more.
    pub(crate) fn read_below(&self) -> u64 {
        self.below.load(Ordering::Acquire)
    }

    pub(super) fn set_read_below(&self, frame: u64) {
        self.below.store(frame, Ordering::Release);
    }

    /// Nobody will read the rest.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.over = true;
        state.pending = PageSet::default();
        state.copies = VecDeque::new();
        drop(state);
        self.set_read_below(u64::MAX);
    }

    /// The guest may store to what was not read.
    pub(crate) fn spoil(&self, why: SnapshotLost) {
        self.lock().spoiled.get_or_insert(why);
    }

    pub(super) fn spoiled(&self) -> Option<SnapshotLost> {
        self.lock().spoiled
    }
}
