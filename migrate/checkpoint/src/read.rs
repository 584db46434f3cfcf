//! Contents of pages, whichever part of whichever checkpoint of the chain has them.
//!
//! ```text
//!   frame --> this checkpoint: part of the lowest slice, ..., part of the highest --> its base: ... --> the full one: ... --> zero
//! ```
//! The first that mentions a frame says what it is.

use crate::cache::Key;
use crate::checkpoint::Checkpoint;
use crate::error::CheckpointError;
use crate::frames::common;
use crate::index::{Presence, Run};
use crate::layout::{PAGE_BYTES, narrow};
use crate::part::Part;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

/// Takes the contents of consecutive frames: the first of them, and the bytes of their pages.
pub type Sink<'a, E> = dyn FnMut(u64, &[u8]) -> Result<(), E> + 'a;

/// Which chunks are kept for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    No,
    /// Those of which not all was wanted.
    Rest,
}

/// Who says what a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A run of a part: checkpoint of the chain, part, run.
    Run(usize, usize, u32),
    Zero,
}

impl Checkpoint {
    /// Gives a sink the contents of all pages in a range: runs of consecutive frames, 2 MiB at most, in any order, each frame
    /// once. Pages that are zero are left out. A chunk was compared with its digest before the sink sees anything of it.
    ///
    /// # Errors
    /// What the sink says; or a chunk is damaged or cannot be read. The sink has seen other chunks then.
    pub fn read<E: From<CheckpointError>>(
        &self,
        frames: Range<u64>,
        sink: &mut Sink<'_, E>,
    ) -> Result<(), E> {
        self.read_with(Kept::No, &frames, sink)
    }

    /// The same where neighbours are read next, or before long: a chunk that has frames outside the range is kept for a while, for an
    /// increment may have pages of all memory in one chunk.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub fn read_piece<E: From<CheckpointError>>(
        &self,
        frames: Range<u64>,
        sink: &mut Sink<'_, E>,
    ) -> Result<(), E> {
        self.read_with(Kept::Rest, &frames, sink)
    }

    fn read_with<E: From<CheckpointError>>(
        &self,
        kept: Kept,
        frames: &Range<u64>,
        sink: &mut Sink<'_, E>,
    ) -> Result<(), E> {
        for (layer, part, of) in self.parts() {
            for chunk in chunks_with(of, frames) {
                self.read_chunk((layer, part, chunk), kept, frames, sink)?;
            }
        }
        Ok(())
    }

    /// The contents of one page, and whether it has any: one that is zero has none. What lies near it is read with it, and kept
    /// for a while.
    ///
    /// # Errors
    /// The frame is no memory of the VM, or its chunk is damaged or cannot be read.
    pub fn page(&self, frame: u64, out: &mut [u8; PAGE_BYTES]) -> Result<bool, CheckpointError> {
        let end = frame.saturating_add(1);
        if !self.contents().has(&(frame..end)) {
            return Err(CheckpointError::Frames { first: frame, end, why: "no memory of the VM" });
        }
        let (Place::Run(layer, part, run), _) = self.place(frame, end) else {
            out.fill(0);
            return Ok(false);
        };
        self.page_of((layer, part, run), frame, out)?;
        Ok(true)
    }

    /// Whether any page of a range is not zero.
    #[must_use]
    pub fn has(&self, frames: Range<u64>) -> bool {
        let mut at = frames.start;
        while at < frames.end {
            let (place, end) = self.place(at, frames.end);
            if place != Place::Zero {
                return true;
            }
            at = end;
        }
        false
    }

    /// The frames in a range whose pages are not zero, from the lowest on, in ranges that do not meet.
    #[must_use]
    pub fn present(&self, frames: Range<u64>) -> Vec<Range<u64>> {
        let mut present: Vec<Range<u64>> = Vec::new();
        self.each_place(&frames, &mut |place, piece| match present.last_mut() {
            _ if place == Place::Zero => {}
            Some(last) if last.end == piece.start => last.end = piece.end,
            _ => present.push(piece),
        });
        present
    }

    /// All parts of the chain in the order in which they are asked, with their places.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (usize, usize, &Part)> {
        self.layers.iter().enumerate().flat_map(|(number, layer)| {
            layer.parts.iter().enumerate().map(move |(part, of)| (number, part, of))
        })
    }

    pub(crate) fn run(&self, layer: usize, part: usize, run: u32) -> &Run {
        &self.layers[layer].parts[part].index.runs[narrow(run.into())]
    }

    /// Who says what a frame is, and one past the last frame, up to a limit, of which the same is true.
    fn place(&self, frame: u64, limit: u64) -> (Place, u64) {
        let mut end = limit;
        for (layer, part, of) in self.parts() {
            let (presence, until) = of.index.presence(frame);
            end = end.min(until);
            match presence {
                Presence::Run(run) => return (Place::Run(layer, part, run), end),
                Presence::Zero => return (Place::Zero, end),
                Presence::Absent => {}
            }
        }
        (Place::Zero, end)
    }

    /// Who says what each frame of a range is, piece by piece.
    fn each_place(&self, frames: &Range<u64>, each: &mut dyn FnMut(Place, Range<u64>)) {
        let mut at = frames.start;
        while at < frames.end {
            let (place, end) = self.place(at, frames.end);
            each(place, at..end);
            at = end;
        }
    }

    /// Gives a sink what a chunk says of frames in a range, and nobody before it says otherwise.
    pub(crate) fn read_chunk<E: From<CheckpointError>>(
        &self,
        (layer, part, chunk): Key,
        kept: Kept,
        frames: &Range<u64>,
        sink: &mut Sink<'_, E>,
    ) -> Result<(), E> {
        let of = &self.layers[layer].parts[part];
        let runs = of.index.chunks[narrow(chunk.into())].runs.clone();
        let is_outside = |number| {
            let run = self.run(layer, part, number).frames();
            run.start < frames.start || frames.end < run.end
        };
        let kept = kept == Kept::Rest && runs.clone().any(is_outside);
        let mut pages = None;
        for number in runs {
            let run = self.run(layer, part, number);
            let mut pieces = Vec::new();
            self.each_place(&common(&run.frames(), frames), &mut |place, piece| {
                if place == Place::Run(layer, part, number) {
                    pieces.push(piece);
                }
            });
            for piece in pieces {
                let pages = match &mut pages {
                    Some(pages) => pages,
                    none if kept => none.insert(self.kept_chunk((layer, part, chunk))?),
                    none => none.insert(Arc::new(of.chunk(chunk)?)),
                };
                sink(piece.start, &pages[bytes_of(run, &piece)])?;
            }
        }
        Ok(())
    }

    /// A page of a run.
    pub(crate) fn page_of(
        &self,
        (layer, part, run): (usize, usize, u32),
        frame: u64,
        out: &mut [u8; PAGE_BYTES],
    ) -> Result<(), CheckpointError> {
        let run = self.run(layer, part, run);
        let pages = self.kept_chunk((layer, part, run.chunk))?;
        out.copy_from_slice(&pages[bytes_of(run, &(frame..frame + 1))]);
        Ok(())
    }

    /// The pages of a chunk, which are kept for a while.
    fn kept_chunk(&self, key: Key) -> Result<Arc<Vec<u8>>, CheckpointError> {
        let cache = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pages) = cache().get(key) {
            return Ok(pages);
        }
        let (layer, part, chunk) = key;
        let pages = Arc::new(self.layers[layer].parts[part].chunk(chunk)?);
        cache().put(key, Arc::clone(&pages));
        Ok(pages)
    }
}

/// The chunks that have frames of a range, in the order of the file.
fn chunks_with(part: &Part, frames: &Range<u64>) -> BTreeSet<u32> {
    let runs = part.index.in_order(frames.start);
    runs.take_while(|run| run.first < frames.end).map(|run| run.chunk).collect()
}

/// Where frames of a run are in the pages of its chunk.
fn bytes_of(run: &Run, frames: &Range<u64>) -> Range<usize> {
    let at = |frame: u64| (usize::from(run.at) + narrow(frame - run.first)) * PAGE_BYTES;
    at(frames.start)..at(frames.end)
}
