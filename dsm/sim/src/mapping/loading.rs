//! Memory whose contents come while the guests run, as in a VM that is restored lazily.
//!
//! ```text
//!   a piece is loaded: because a vCPU waits for it, soon; because the engine looks at it, within its turn; or by turns
//! ```

use super::world::{Event, Failure, World};
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

impl World {
    /// Loads a piece of a slice's memory, and says when the next one is.
    pub(super) fn load(&mut self, at: usize) -> Result<(), Failure> {
        let slice = &mut self.slices[at];
        slice.load = None;
        if slice.gone || slice.stepped.loaded().left == 0 {
            return Ok(());
        }
        if let Err(error) = slice.stepped.load() {
            return self.fail(&format!("slice{at} does not load: {error}"));
        }
        self.load_later(at);
        Ok(())
    }

    /// The next piece of a slice comes at some time.
    pub(super) fn load_later(&mut self, at: usize) {
        let scale = self.loads.below(9);
        let time = self.now() + 1 + self.loads.below(10_000 << scale);
        self.load_at(at, time);
    }

    /// A vCPU waits.
    pub(super) fn load_soon(&mut self, at: usize) {
        let time = self.now() + 1 + self.loads.below(30_000);
        self.load_at(at, time);
    }

    fn load_at(&mut self, at: usize, time: u64) {
        if self.slices[at].load.is_none_or(|planned| time < planned) {
            self.slices[at].load = Some(time);
            self.at(time, Event::Load(at));
        }
    }
}
