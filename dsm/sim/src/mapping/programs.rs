//! What vCPUs do, and where memory is.
//!
//! ```text
//!   frames:  0 ...... hole ...... end        whole chunks and parts of some; each range of a random home
//!   programs: a few busy pages, pages around the borders of chunks and homes, all pages of a chunk in order,
//!             devices that read and write, and rests long enough for chunks to become private
//! ```

use crate::simulator::random::Random;
use dsm_protocol::{Gfn, HomeRange, HomeTable, SliceId};
use std::collections::VecDeque;
use std::ops::Range;

pub(crate) const CHUNK: u64 = 512;
/// Words of a page that programs use; devices have one more to themselves.
pub(crate) const WORDS: u64 = 3;
pub(crate) const DEVICE_WORD: usize = 9;

/// One step of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Load(Gfn, usize),
    Store(Gfn, usize, u64),
    /// A device reads, or writes, the word of devices.
    Device(Gfn, Option<u64>),
    /// Nanoseconds.
    Rest(u64),
}

/// The frames that have memory, and their homes.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) blocks: Vec<Range<u64>>,
    pub(crate) homes: HomeTable,
    /// Frames next to which something changes: home, chunk or memory.
    borders: Vec<u64>,
}

impl Layout {
    /// One or two blocks of memory, with homes of random length at these slices.
    pub(crate) fn new(slices: &[u16], random: &mut Random) -> Self {
        let first = 0..CHUNK * (1 + random.below(3)) + 8 * random.below(2);
        let start = first.end.next_multiple_of(CHUNK) + CHUNK;
        let second = start..start + CHUNK * (1 + random.below(2));
        let blocks = if random.one_in(2) { vec![first, second] } else { vec![first] };
        let mut ranges = Vec::new();
        for block in &blocks {
            let mut at = block.start;
            while at < block.end {
                // Most homes are of whole chunks, as those of a VM.
                let unit = if random.one_in(3) { 100 } else { CHUNK };
                let end = block.end.min(at + unit * (1 + random.below(2)));
                let home = random.below(u64::try_from(slices.len()).expect("small"));
                let home = SliceId(slices[usize::try_from(home).expect("small")]);
                ranges.push(HomeRange { frames: at..end, home });
                at = end;
            }
        }
        let mut borders: Vec<u64> =
            ranges.iter().flat_map(|range| [range.frames.start, range.frames.end]).collect();
        borders.extend(
            blocks
                .iter()
                .flat_map(|block| block.clone().step_by(usize::try_from(CHUNK).expect("small"))),
        );
        let homes = HomeTable::new(ranges).expect("ranges follow one another");
        Self { blocks, homes, borders }
    }

    fn has(&self, frame: u64) -> bool {
        self.blocks.iter().any(|block| block.contains(&frame))
    }

    /// A page next to a border.
    fn near_border(&self, random: &mut Random) -> Gfn {
        let at = pick(random, &self.borders);
        let near = (at + random.below(12)).saturating_sub(6);
        if self.has(near) { Gfn(near) } else { Gfn(self.blocks[0].start + random.below(8)) }
    }

    fn any(&self, random: &mut Random) -> Gfn {
        let block =
            &self.blocks[usize::try_from(random.below(self.blocks.len() as u64)).expect("small")];
        Gfn(block.start + random.below(block.end - block.start))
    }

    /// The pages of one or more chunks, from the start of the first.
    fn chunks(&self, random: &mut Random) -> Range<u64> {
        let at = self.any(random).0 / CHUNK * CHUNK;
        let block = self.blocks.iter().find(|block| block.contains(&at)).unwrap_or(&self.blocks[0]);
        at..block.end.min(at + CHUNK * (1 + random.below(3)))
    }
}

fn pick(random: &mut Random, among: &[u64]) -> u64 {
    let at = random.below(u64::try_from(among.len()).expect("small"));
    among[usize::try_from(at).expect("small")]
}

fn value(random: &mut Random) -> u64 {
    random.next() | 1
}

fn touch(gfn: Gfn, write: bool, random: &mut Random) -> Step {
    let word = usize::try_from(random.below(WORDS)).expect("small");
    if write { Step::Store(gfn, word, value(random)) } else { Step::Load(gfn, word) }
}

/// What a vCPU does next.
pub(crate) fn plan(layout: &Layout, random: &mut Random, plan: &mut VecDeque<Step>) {
    match random.below(40) {
        0 => {
            // Chunks, or a part of one, in order.
            let pages = layout.chunks(random);
            let from = if random.one_in(3) { random.below(pages.end - pages.start) } else { 0 };
            let write = random.one_in(2);
            plan.extend((pages.start + from..pages.end).map(|at| touch(Gfn(at), write, random)));
        }
        1 => plan.push_back(Step::Rest(random.below(4_000_000_000))),
        2 => plan.push_back(Step::Rest(random.below(20_000_000))),
        3 => {
            let gfn = layout.near_border(random);
            let write = random.one_in(2).then(|| value(random));
            plan.push_back(Step::Device(gfn, write));
        }
        4..12 => {
            let (gfn, write) = (layout.any(random), random.one_in(2));
            plan.push_back(touch(gfn, write, random));
        }
        12..18 => {
            // A short run over a border.
            let (first, write) = (layout.near_border(random).0, random.one_in(2));
            let pages = (first..first + 4 + random.below(20)).filter(|at| layout.has(*at));
            let pages: Vec<u64> = pages.collect();
            plan.extend(pages.into_iter().map(|at| touch(Gfn(at), write, random)));
        }
        18..26 => {
            let (gfn, write) = (Gfn(layout.blocks[0].start + random.below(3)), random.one_in(2));
            plan.push_back(touch(gfn, write, random));
        }
        _ => {
            let (gfn, write) = (layout.near_border(random), random.one_in(2));
            plan.push_back(touch(gfn, write, random));
        }
    }
}
