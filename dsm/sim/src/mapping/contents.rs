//! What memory is at first, if that is not all zeros.

use crate::simulator::random::Random;
use dsm::simulate::Source;
use dsm::{Give, LoadError};
use std::collections::BTreeMap;
use std::ops::Range;

const PAGE: usize = 4096;

/// What words of memory are at first, by frame.
pub(super) type Words = BTreeMap<u64, BTreeMap<usize, u64>>;

/// What memory is at first. What is not in it is zero.
#[derive(Clone, Debug, Default)]
pub(super) struct Contents(pub(super) Words);

impl Contents {
    /// Of about half of the pages of some chunks.
    pub(super) fn new(blocks: &[Range<u64>], words: &[usize], random: &mut Random) -> Self {
        let mut all = Words::new();
        for block in blocks {
            let mut at = block.start;
            while at < block.end {
                let end = block.end.min((at / 512 + 1) * 512);
                // Some chunks are all zeros.
                let seldom = if random.one_in(4) { 0 } else { 1 + random.below(3) };
                for frame in (at..end).filter(|_| seldom > 0) {
                    if random.one_in(seldom) {
                        let page = words.iter().map(|word| (*word, random.next() | 1));
                        all.insert(frame, page.collect());
                    }
                }
                at = end;
            }
        }
        Self(all)
    }
}

impl Source for Contents {
    fn name(&self) -> String {
        "the simulator".into()
    }

    fn has(&self, frames: Range<u64>) -> bool {
        self.0.range(frames).next().is_some()
    }

    fn read(&self, frames: Range<u64>, give: &mut Give<'_>) -> Result<(), LoadError> {
        for (frame, words) in self.0.range(frames) {
            let mut page = [0; PAGE];
            for (word, value) in words {
                page[word * 8..word * 8 + 8].copy_from_slice(&value.to_ne_bytes());
            }
            give(*frame, &page)?;
        }
        Ok(())
    }
}
