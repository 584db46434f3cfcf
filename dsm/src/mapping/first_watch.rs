//! What userfaultfd watches when the engine starts: all memory of other homes, and those parts of this slice's home
//! that make no full chunk.

use super::chunks::Chunks;
use crate::error::EngineError;
use crate::kernel::{FaultWatch, Uffd};
use crate::memory::{CHUNK_PAGES, ChunkId, GuestRam, Place, whole_chunks};
use dsm_protocol::Gfn;
use std::fs;
use std::ops::Range;

const PAGE: u64 = 4096;
/// Parts of the address space that are left to everything else: probed pages, threads, libraries.
const MAPS_LEFT: u64 = 8192;
/// `vm.max_map_count` of a kernel that does not tell.
const MAPS_DEFAULT: u64 = 65_530;

/// The first frame beyond all memory.
pub(crate) fn end_of(ram: &GuestRam) -> u64 {
    ram.slots().last().map_or(0, |(start, _, bytes)| (start + bytes) / PAGE)
}

/// The frames of a range that are in no whole chunk of it, before and behind those that are.
pub(super) fn edges(range: &Range<u64>) -> [Range<u64>; 2] {
    let inner = whole_chunks(std::slice::from_ref(range)).pop();
    let inner = inner.map(|chunks| chunks.start * CHUNK_PAGES..chunks.end * CHUNK_PAGES);
    let inner = inner.unwrap_or(range.end..range.end);
    [range.start..inner.start, inner.end..range.end]
}

/// Watches what is not in a private chunk: all whose home is elsewhere, and parts of chunks.
pub(crate) fn watch_at_start(
    uffd: &Uffd,
    ram: &GuestRam,
    own: &[Range<u64>],
    others: &[Range<u64>],
) -> Result<Chunks, EngineError> {
    let watch = |range: &Range<u64>, how| {
        if range.is_empty() {
            return Ok(());
        }
        let start = ram.guest_address(Gfn(range.start)).ok_or(EngineError::Layout)?;
        Ok::<_, EngineError>(uffd.register(start, (range.end - range.start) * PAGE, how)?)
    };
    if !own.iter().chain(others).all(|range| ram.has_all(range)) {
        return Err(EngineError::Layout);
    }
    for range in others {
        for chunk in (range.start / CHUNK_PAGES..range.end.div_ceil(CHUNK_PAGES)).map(ChunkId) {
            if ram.place(chunk) == Place::OffFile {
                return Err(EngineError::Layout);
            }
            ram.set_place(chunk, Place::Outside);
        }
        watch(range, FaultWatch::Everything)?;
    }
    for range in own {
        for rest in edges(range) {
            watch(&rest, FaultWatch::GivenAway)?;
        }
    }
    let seams_max = maps_max().saturating_sub(MAPS_LEFT);
    Ok(Chunks::new(own, others, end_of(ram), seams_max, ram.has_off_file()))
}

/// How many parts the kernel permits in an address space.
fn maps_max() -> u64 {
    let text = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(MAPS_DEFAULT)
}
