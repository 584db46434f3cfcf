//! What pages were at the last checkpoint, so that the next one need not have those that are still the same.
//!
//! A slice knows the hash of each page that it had at the cut of the last checkpoint, and of no other. If it has such a page
//! at the next cut as well, with the same hash, the page is in that cut what it was in the last one, whoever had it in
//! between. A page that has come since is written, changed or not: another slice may have written it down in between.
//!
//! No stores are tracked for this, so between checkpoints the guest pays nothing. All memory is hashed at each.

use std::collections::BTreeMap;
use std::ops::Range;
use wire::PAGE_SIZE;
use xxhash_rust::xxh3::xxh3_128;

/// Pages whose hashes lie side by side: 8 KiB for 2 MiB of memory.
const CHUNK: usize = 512;
const CHUNK_FRAMES: u64 = CHUNK as u64;
/// None is known. A page of which this is the hash is written each time.
const UNKNOWN: u128 = 0;

/// Hashes of pages, by their frames.
#[derive(Debug, Default)]
pub(crate) struct PageHashes(BTreeMap<u64, Box<[u128]>>);

impl PageHashes {
    fn get(&self, frame: u64) -> u128 {
        let at = usize::try_from(frame % CHUNK_FRAMES).unwrap_or(0);
        self.0.get(&(frame / CHUNK_FRAMES)).map_or(UNKNOWN, |hashes| hashes[at])
    }

    fn set(&mut self, frame: u64, hash: u128) {
        let room = || vec![UNKNOWN; CHUNK].into_boxed_slice();
        let at = usize::try_from(frame % CHUNK_FRAMES).unwrap_or(0);
        self.0.entry(frame / CHUNK_FRAMES).or_insert_with(room)[at] = hash;
    }

    /// The frames among these, ascending, whose contents `before` knows and that were not given now: they have become zeros, and nobody
    /// has stored to them since.
    pub(crate) fn gone<'a>(
        &'a self,
        frames: &'a [Range<u64>],
        before: &'a Self,
    ) -> impl Iterator<Item = u64> + 'a {
        let frames = frames.iter().cloned().flatten();
        frames.filter(|frame| before.get(*frame) != UNKNOWN && self.get(*frame) == UNKNOWN)
    }

    /// Takes the contents of consecutive frames, and gives the runs of them, as places in `bytes`, that are not as `before` says.
    pub(crate) fn changed(
        &mut self,
        first: u64,
        bytes: &[u8],
        before: Option<&Self>,
    ) -> Vec<(u64, Range<usize>)> {
        let mut runs: Vec<(u64, Range<usize>)> = Vec::new();
        for (page, (frame, at)) in
            bytes.chunks_exact(PAGE_SIZE).zip((first..).zip((0..).step_by(PAGE_SIZE)))
        {
            let hash = xxh3_128(page);
            self.set(frame, hash);
            if hash != UNKNOWN && before.is_some_and(|before| before.get(frame) == hash) {
                continue;
            }
            match runs.last_mut() {
                Some((_, run)) if run.end == at => run.end += PAGE_SIZE,
                _ => runs.push((frame, at..at + PAGE_SIZE)),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::slice::from_ref;

    fn memory(pages: &[u8]) -> Vec<u8> {
        pages.iter().flat_map(|page| vec![*page; PAGE_SIZE]).collect()
    }

    proptest! {
        /// Pages that a slice does not have at a cut are forgotten, and written when it has them again.
        #[test]
        fn what_is_given_is_what_has_changed_or_was_not_there(
            cuts in vec((0..600u64, vec(0..3u8, 1..40)), 1..8),
        ) {
            let mut before: Option<(PageHashes, BTreeMap<u64, u8>)> = None;
            for (first, pages) in cuts {
                let mut now = PageHashes::default();
                let bytes = memory(&pages);
                let hashes = before.as_ref().map(|(hashes, _)| hashes);
                let runs = now.changed(first, &bytes, hashes);
                let mut given = BTreeMap::new();
                for (frame, run) in &runs {
                    prop_assert_eq!(run.len() % PAGE_SIZE, 0);
                    given.extend((*frame..).zip(bytes[run.clone()].iter().step_by(PAGE_SIZE).copied()));
                }
                let there: BTreeMap<u64, u8> = (first..).zip(pages).collect();
                let all = 0..700;
                let gone = before.as_ref().map(|(hashes, _)| {
                    now.gone(from_ref(&all), hashes).collect::<BTreeSet<_>>()
                });
                let left = before.as_ref().map(|(_, pages)| {
                    pages.keys().copied().filter(|frame| !there.contains_key(frame)).collect()
                });
                prop_assert_eq!(gone, left);
                let known = before.as_ref().map(|(_, pages)| pages);
                let expected = there.iter().filter(|(frame, page)| {
                    known.and_then(|known| known.get(frame)) != Some(*page)
                });
                let expected: BTreeMap<u64, u8> = expected.map(|(frame, page)| (*frame, *page)).collect();
                prop_assert_eq!(given, expected);
                prop_assert!(runs.windows(2).all(|two| two[0].1.end < two[1].1.start));
                before = Some((now, there));
            }
        }
    }
}
