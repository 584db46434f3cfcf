//! Which byte of the memory file each guest frame is.
//!
//! Every frame keeps its place within a chunk of 2 MiB, so that a full chunk of frames can be one huge page of the
//! file. Ranges of frames follow one another in the file, each from a chunk of its own on.

use super::chunk::CHUNK_PAGES;
use super::error::RamError;
use crate::kernel::HUGE;
use std::ops::Range;
use wire::{Gfn, PAGE_SIZE};

#[derive(Clone, Debug)]
struct Block {
    frames: Range<u64>,
    /// Byte offset in the file and in both mappings.
    offset: usize,
}

/// The frames of guest memory in the memory file.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    blocks: Vec<Block>,
    bytes: usize,
}

impl Layout {
    /// Lays frame ranges out (ascending, disjoint) so that full chunks can be huge pages.
    ///
    /// # Errors
    /// No ranges, or ranges that overlap.
    pub(crate) fn new(frames: &[Range<u64>]) -> Result<Self, RamError> {
        let mut blocks: Vec<Block> = Vec::with_capacity(frames.len());
        let mut end = 0;
        for range in frames {
            let last = blocks.last();
            if range.is_empty() || last.is_some_and(|last| last.frames.end > range.start) {
                return Err(RamError::Layout);
            }
            let pages = |count: u64| {
                let bytes =
                    usize::try_from(count).ok().and_then(|count| count.checked_mul(PAGE_SIZE));
                bytes.ok_or(RamError::Layout)
            };
            let offset = end + pages(range.start % CHUNK_PAGES)?;
            blocks.push(Block { frames: range.clone(), offset });
            let last =
                offset.checked_add(pages(range.end - range.start)?).ok_or(RamError::Layout)?;
            end = last.checked_next_multiple_of(HUGE).ok_or(RamError::Layout)?;
        }
        if blocks.is_empty() { Err(RamError::Layout) } else { Ok(Self { blocks, bytes: end }) }
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The frame ranges, each with its byte offset.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (&Range<u64>, usize)> {
        self.blocks.iter().map(|block| (&block.frames, block.offset))
    }

    /// Byte offset of a frame, or `None` where there is no memory.
    pub(crate) fn offset(&self, gfn: Gfn) -> Option<usize> {
        let block = self.blocks.iter().find(|block| block.frames.contains(&gfn.0))?;
        let index = usize::try_from(gfn.0 - block.frames.start).ok()?;
        Some(block.offset + index * PAGE_SIZE)
    }

    /// The frame at a byte offset.
    pub(crate) fn frame_at(&self, offset: usize) -> Option<Gfn> {
        let block = self.blocks.iter().rev().find(|block| block.offset <= offset)?;
        let gfn = block.frames.start + u64::try_from((offset - block.offset) / PAGE_SIZE).ok()?;
        block.frames.contains(&gfn).then_some(Gfn(gfn))
    }

    /// How many frames follow this one in the same range, itself included.
    pub(crate) fn frames_from(&self, gfn: Gfn) -> Option<u64> {
        let block = self.blocks.iter().find(|block| block.frames.contains(&gfn.0))?;
        Some(block.frames.end - gfn.0)
    }
}
