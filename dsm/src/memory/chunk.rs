//! Chunks: 2 MiB of guest frames, the unit of huge pages and of what is private or shared.

use dsm_protocol::Gfn;
use std::ops::Range;

/// Pages of a chunk.
pub(crate) const CHUNK_PAGES: u64 = 512;

/// Number of a chunk: its first frame divided by [`CHUNK_PAGES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChunkId(pub(crate) u64);

impl ChunkId {
    pub(crate) fn of(gfn: Gfn) -> Self {
        Self(gfn.0 / CHUNK_PAGES)
    }

    pub(crate) fn first(self) -> Gfn {
        Gfn(self.0 * CHUNK_PAGES)
    }

    pub(crate) fn frames(self) -> Range<u64> {
        self.0 * CHUNK_PAGES..(self.0 + 1) * CHUNK_PAGES
    }

    /// The chunks that neighbouring pages lie in, and which of their frames these are.
    pub(crate) fn pieces(first: Gfn, pages: u64) -> impl Iterator<Item = (Self, Range<u64>)> {
        let end = first.0 + pages;
        (first.0 / CHUNK_PAGES..end.div_ceil(CHUNK_PAGES)).map(Self).map(move |chunk| {
            let frames = chunk.frames();
            (chunk, frames.start.max(first.0)..frames.end.min(end))
        })
    }
}

/// The chunks of which frame ranges have all frames, as ranges of chunk numbers.
pub(crate) fn whole_chunks(frames: &[Range<u64>]) -> Vec<Range<u64>> {
    let inside = |range: &Range<u64>| range.start.div_ceil(CHUNK_PAGES)..range.end / CHUNK_PAGES;
    frames.iter().map(inside).filter(|range| !range.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_neighbours_once() {
        let pieces = |first, pages| ChunkId::pieces(Gfn(first), pages).collect::<Vec<_>>();
        assert_eq!(pieces(510, 1), [(ChunkId(0), 510..511)]);
        assert_eq!(
            pieces(511, 514),
            [(ChunkId(0), 511..512), (ChunkId(1), 512..1024), (ChunkId(2), 1024..1025),]
        );
        assert_eq!(pieces(512, 512), [(ChunkId(1), 512..1024)]);
        assert_eq!(pieces(512, 0), []);
    }
}
