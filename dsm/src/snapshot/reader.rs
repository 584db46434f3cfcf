//! Reads a snapshot, on a thread of its own.

use super::error::SnapshotLost;
use super::frozen::{BATCH, Frozen};
use crate::memory::{ChunkId, Runs};
use dsm_protocol::Gfn;
use std::ops::Range;
use std::sync::Arc;
use std::vec::IntoIter;
use wire::PAGE_SIZE;

/// Ends the reading from elsewhere, as when the reader hangs.
#[derive(Debug)]
pub struct SnapshotEnd(Arc<Frozen>);

impl Drop for SnapshotEnd {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The one that reads a snapshot. The guest's memory is protected until all was read, or this is dropped.
#[derive(Debug)]
pub struct SnapshotReader {
    frozen: Arc<Frozen>,
    /// What of it is to be read from memory, a chunk or a part of one each, ascending.
    pieces: IntoIter<Range<u64>>,
    piece: Range<u64>,
    /// What of it has not been looked at.
    left: Range<u64>,
    /// The next pages of it that may have contents.
    run: Range<u64>,
    runs: Runs,
}

impl SnapshotReader {
    /// Of these frames, ascending.
    pub(crate) fn new(frozen: Arc<Frozen>, frames: &[Range<u64>]) -> Self {
        let pieces = |range: &Range<u64>| {
            ChunkId::pieces(Gfn(range.start), range.end - range.start)
                .map(|(_, piece)| piece)
                .collect::<Vec<_>>()
        };
        let pieces: Vec<_> = frames.iter().flat_map(pieces).collect();
        Self {
            frozen,
            pieces: pieces.into_iter(),
            piece: 0..0,
            left: 0..0,
            run: 0..0,
            runs: Runs::default(),
        }
    }

    /// When what this gives is dropped nothing is protected any more. What is read then is of no use.
    #[must_use]
    pub fn end(&self) -> SnapshotEnd {
        SnapshotEnd(Arc::clone(&self.frozen))
    }

    /// Reads pages of neighbouring frames, 256 KiB at most, in place of what is in `bytes`. Gives the first frame; none when
    /// all were read. Pages come in any order, each once.
    ///
    /// # Errors
    /// The snapshot is not complete, and will not be.
    pub fn next(&mut self, bytes: &mut Vec<u8>) -> Result<Option<Gfn>, SnapshotLost> {
        loop {
            bytes.clear();
            if let Some(lost) = self.frozen.spoiled() {
                return Err(lost);
            }
            if let Some(first) = self.copies(bytes) {
                return Ok(Some(first));
            }
            if self.run.is_empty() && !self.next_run() {
                // A copy may have been made meanwhile; none is from now on.
                let last = self.copies(bytes);
                if last.is_none() {
                    self.frozen.end();
                }
                return Ok(last);
            }
            if let Some(first) = self.batch(bytes) {
                return Ok(Some(first));
            }
        }
    }

    /// Finds the next pages that may have contents. False if there are none.
    fn next_run(&mut self) -> bool {
        loop {
            if let Some(run) = self.runs.next(&self.frozen.ram, self.left.clone()) {
                self.left.start = run.end;
                self.run = run;
                return true;
            }
            let Some(next) = self.pieces.next() else { return false };
            // What is pending of the former piece are holes, which are protected no longer.
            self.frozen.lock().pending.remove_range(&self.piece);
            self.frozen.set_read_below(next.start);
            (self.left, self.piece) = (next.clone(), next);
        }
    }

    /// Neighbours of which copies were made.
    fn copies(&self, bytes: &mut Vec<u8>) -> Option<Gfn> {
        let mut state = self.frozen.lock();
        let first = state.copies.front()?.0;
        let mut next = first;
        while let Some((gfn, copy)) = state.copies.pop_front() {
            if gfn != next || next.0 - first.0 == BATCH {
                state.copies.push_front((gfn, copy));
                break;
            }
            bytes.extend_from_slice(&copy[..]);
            next = Gfn(gfn.0 + 1);
        }
        Some(first)
    }

    /// Neighbours of the run that are still as they were.
    fn batch(&mut self, bytes: &mut Vec<u8>) -> Option<Gfn> {
        let Range { start, end } = self.run;
        let mut state = self.frozen.lock();
        let is_pending = |frame: &u64| state.pending.contains(Gfn(*frame));
        let Some(first) = (start..end).find(is_pending) else {
            drop(state);
            self.run = end..end;
            return None;
        };
        bytes.reserve(usize::try_from(BATCH).unwrap_or(0) * PAGE_SIZE);
        let mut next = first;
        while next < end.min(first + BATCH) && state.pending.remove(Gfn(next)) {
            self.frozen.ram.append_to(Gfn(next), bytes);
            next += 1;
        }
        drop(state);
        self.run.start = next;
        Some(Gfn(first))
    }
}

impl Drop for SnapshotReader {
    fn drop(&mut self) {
        self.frozen.end();
    }
}
