//! What of a snapshot still is as it was, and copies of what is no longer.
//!
//! The engine and the reader meet here, under one lock. The reader holds it while it copies [`BATCH`] pages, some 50 us:
//! that long a store may wait, and no longer.
//!
//! The engine copies into buffers that have been written to before ([`buffers`]), and that the reader gives back. The first store to
//! a private chunk has all its 512 pages copied; 512 faults of the copying thread took several times as long as that.

use super::error::SnapshotLost;
use crate::memory::GuestRam;
use dsm_protocol::{Gfn, PageSet};
use std::collections::VecDeque;
use std::iter::repeat_with;
use std::mem::{swap, take};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::PAGE_SIZE;

/// Pages that the reader copies under the lock.
pub(super) const BATCH: u64 = 64;
/// Copies that wait for the reader before stores of the guest wait for it: 64 MiB. What the protocol takes away does not wait,
/// for another slice waits for it; of that there is no more than the slice had.
const COPIES_MAX: usize = (64 << 20) / PAGE_SIZE;
/// Bytes of a buffer, of [`BATCH`] pages, and how many are kept: 16 MiB.
pub(super) const BUFFER: usize = 64 * PAGE_SIZE;
const BUFFERS: usize = (16 << 20) / BUFFER;

/// Buffers for copies, which the kernel has backed with memory. It takes some milliseconds to make them.
pub(crate) fn buffers() -> Vec<Vec<u8>> {
    let touched = || {
        let mut buffer = vec![1; BUFFER];
        buffer.clear();
        buffer
    };
    repeat_with(touched).take(BUFFERS).collect()
}

/// What neighbouring pages were, [`BATCH`] at most.
#[derive(Debug)]
struct Copied {
    first: Gfn,
    bytes: Vec<u8>,
}

impl Copied {
    fn pages(&self) -> usize {
        self.bytes.len() / PAGE_SIZE
    }

    fn end(&self) -> u64 {
        self.first.0 + u64::try_from(self.pages()).unwrap_or(0)
    }
}

#[derive(Debug)]
pub(super) struct State {
    /// Pages that are as they were, and have not been read.
    pub(super) pending: PageSet,
    /// What others were, oldest first, and how many pages that is.
    copies: VecDeque<Copied>,
    copied: usize,
    /// Buffers for more.
    buffers: Vec<Vec<u8>>,
    /// Nobody reads any more.
    over: bool,
    /// Pages that are pending may have changed.
    spoiled: Option<SnapshotLost>,
}

impl State {
    fn copy(&mut self, ram: &GuestRam, gfn: Gfn, is_alone: bool) {
        self.copied += 1;
        let goes_on = |last: &Copied| {
            last.end() == gfn.0 && last.bytes.len() + PAGE_SIZE <= last.bytes.capacity().min(BUFFER)
        };
        if let Some(last) = self.copies.back_mut().filter(|last| goes_on(last)) {
            return ram.append_to(gfn, &mut last.bytes);
        }
        let mut bytes = if is_alone { Vec::new() } else { self.buffers.pop().unwrap_or_default() };
        bytes.reserve_exact(if is_alone { PAGE_SIZE } else { BUFFER });
        ram.append_to(gfn, &mut bytes);
        self.copies.push_back(Copied { first: gfn, bytes });
    }

    /// The oldest copies that are neighbours, [`BATCH`] at most, in place of `bytes`, which is empty. Gives the first of them.
    pub(super) fn take_copies(&mut self, bytes: &mut Vec<u8>) -> Option<Gfn> {
        let first = self.copies.front()?.first;
        let mut next = first.0;
        while let Some(block) = self.copies.pop_front_if(|block| {
            block.first.0 == next && bytes.len() + block.bytes.len() <= BUFFER
        }) {
            (self.copied, next) = (self.copied - block.pages(), block.end());
            let mut free = block.bytes;
            if bytes.is_empty() && free.capacity() >= BUFFER {
                swap(bytes, &mut free);
            } else {
                bytes.extend_from_slice(&free);
            }
            free.clear();
            if free.capacity() >= BUFFER && self.buffers.len() < BUFFERS {
                self.buffers.push(free);
            }
        }
        Some(first)
    }
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
    /// Of these frames, as they are now. Frames below `end` have memory. Copies go into these buffers ([`buffers`]) first.
    pub(crate) fn new(
        ram: Arc<GuestRam>,
        (frames, end): (&[Range<u64>], u64),
        buffers: Vec<Vec<u8>>,
    ) -> Self {
        let mut pending = PageSet::new(end);
        frames.iter().for_each(|range| pending.insert_range(range));
        let copies = VecDeque::new();
        let state = State { pending, copies, copied: 0, buffers, over: false, spoiled: None };
        Self { ram, state: Mutex::new(state), below: AtomicU64::new(0) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pages are about to change: copies those that were not read yet and are of the snapshot.
    pub(crate) fn keep(&self, frames: Range<u64>) {
        let mut state = self.lock();
        if state.over {
            return;
        }
        let is_alone = frames.end - frames.start == 1;
        for gfn in frames.map(Gfn) {
            if state.pending.remove(gfn) && !self.ram.is_surely_zero(gfn) {
                state.copy(&self.ram, gfn, is_alone);
            }
        }
    }

    /// More buffers for copies.
    pub(crate) fn add_buffers(&self, buffers: Vec<Vec<u8>>) {
        let mut state = self.lock();
        if !state.over {
            state.buffers.extend(buffers);
        }
    }

    /// Whether stores of the guest wait until the reader has taken copies.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().copied >= COPIES_MAX
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
        state.copied = 0;
        let gone = (take(&mut state.copies), take(&mut state.buffers));
        drop(state);
        drop(gone);
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
