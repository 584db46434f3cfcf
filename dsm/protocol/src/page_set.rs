//! A set of pages at one bit per page of guest memory.

use std::ops::Range;
use wire::Gfn;

/// Pages below a frame, in the set or not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PageSet {
    bits: Vec<u64>,
}

impl PageSet {
    /// An empty set for frames below `end`.
    #[must_use]
    pub fn new(end: u64) -> Self {
        let words = usize::try_from(end.div_ceil(64)).expect("guest memory fits the address space");
        Self { bits: vec![0; words] }
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bits.capacity() * size_of::<u64>()
    }

    /// True for a page that is in.
    #[must_use]
    pub fn contains(&self, gfn: Gfn) -> bool {
        self.bits.get(word(gfn)).is_some_and(|word| word & bit(gfn) != 0)
    }

    /// Adds a page. Frames beyond the end are left out.
    pub fn insert(&mut self, gfn: Gfn) {
        if let Some(word) = self.bits.get_mut(word(gfn)) {
            *word |= bit(gfn);
        }
    }

    /// Adds all pages of a range. Frames beyond the end are left out.
    pub fn insert_range(&mut self, frames: &Range<u64>) {
        self.each_word(frames, |word, mask| *word |= mask);
    }

    /// Takes all pages of a range out.
    pub fn remove_range(&mut self, frames: &Range<u64>) {
        self.each_word(frames, |word, mask| *word &= !mask);
    }

    /// The words that have the bits of a range, and which bits these are.
    fn each_word(&mut self, frames: &Range<u64>, change: impl Fn(&mut u64, u64)) {
        let end = frames.end.min(64 * u64::try_from(self.bits.len()).unwrap_or(u64::MAX));
        let mut next = frames.start;
        while next < end {
            let (at, in_word) = (next % 64, (end - next).min(64 - next % 64));
            change(&mut self.bits[word(Gfn(next))], (u64::MAX >> (64 - in_word)) << at);
            next += in_word;
        }
    }

    /// Takes a page out; tells whether it was in.
    pub fn remove(&mut self, gfn: Gfn) -> bool {
        let was_in = self.contains(gfn);
        if let Some(word) = self.bits.get_mut(word(gfn)) {
            *word &= !bit(gfn);
        }
        was_in
    }

    /// Adds pages, as [`Self::insert`] does.
    pub fn extend(&mut self, pages: impl Iterator<Item = Gfn>) {
        pages.for_each(|gfn| self.insert(gfn));
    }
}

fn word(gfn: Gfn) -> usize {
    usize::try_from(gfn.0 / 64).unwrap_or(usize::MAX)
}

fn bit(gfn: Gfn) -> u64 {
    1 << (gfn.0 % 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_page_is_out_and_its_neighbours_stay() {
        let mut set = PageSet::new(130);
        set.extend([63, 64, 65, 129].map(Gfn).into_iter());
        assert!(set.remove(Gfn(64)) && !set.remove(Gfn(64)));
        let left: Vec<u64> = (0..200).filter(|gfn| set.contains(Gfn(*gfn))).collect();
        assert_eq!(left, [63, 65, 129]);
    }

    #[test]
    fn range_is_in_and_its_neighbours_are_not() {
        for (start, end) in [(0, 0), (5, 6), (0, 64), (63, 65), (3, 190), (64, 128), (130, 999)] {
            let mut set = PageSet::new(192);
            set.insert_range(&(start..end));
            let is_in: Vec<u64> = (0..1000).filter(|gfn| set.contains(Gfn(*gfn))).collect();
            assert_eq!(is_in, (start..end.min(192)).collect::<Vec<_>>());
            let mut rest = PageSet::new(192);
            rest.insert_range(&(0..192));
            rest.remove_range(&(start..end));
            assert!((0..192).all(|gfn| rest.contains(Gfn(gfn)) != set.contains(Gfn(gfn))));
        }
    }

    #[test]
    fn page_beyond_the_end_is_never_in() {
        let mut set = PageSet::new(64);
        set.insert(Gfn(u64::MAX));
        assert!(!set.contains(Gfn(u64::MAX)));
    }
}
