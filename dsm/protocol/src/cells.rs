//! A value for each page of a chunk: one for all of them while they are alike, else one for each.
//!
//! Most memory of a VM is its home's alone, or a whole chunk of it is another slice's. Such a chunk takes a few bytes, and whoever
//! goes through all memory, as a checkpoint does while the guest stands still, looks at one value and not at each page's.

use std::hash::{Hash, Hasher};

/// Values of some pages, by their places in the chunk.
#[derive(Clone, Debug)]
pub(crate) enum Cells<T> {
    /// So many pages have this value.
    Alike(T, usize),
    /// The values.
    Each(Box<[T]>),
}

impl<T: Copy + PartialEq> Cells<T> {
    /// So many pages with the same value.
    pub(crate) fn new(value: T, pages: usize) -> Self {
        Self::Alike(value, pages)
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Alike(_, pages) => *pages,
            Self::Each(values) => values.len(),
        }
    }

    /// None beyond the last page.
    pub(crate) fn get(&self, at: usize) -> Option<T> {
        match self {
            Self::Alike(value, pages) => (at < *pages).then_some(*value),
            Self::Each(values) => values.get(at).copied(),
        }
    }

    /// Of a page that there is.
    pub(crate) fn set(&mut self, at: usize, value: T) {
        if let Self::Alike(all, pages) = self {
            assert!(at < *pages, "page {at} of {pages}");
            if *all == value {
                return;
            }
            *self = Self::Each(vec![*all; *pages].into());
        }
        if let Self::Each(values) = self {
            values[at] = value;
            // Most chunks are gone through from their first page to their last one.
            if at + 1 == values.len() && alike(values) == values.len() {
                *self = Self::Alike(value, values.len());
            }
        }
    }

    /// How many pages from this one on have its value; 0 beyond the last page.
    pub(crate) fn alike(&self, at: usize) -> usize {
        match self {
            Self::Alike(_, pages) => pages.saturating_sub(at),
            Self::Each(values) => alike(values.get(at..).unwrap_or_default()),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = T> + '_ {
        (0..self.len()).filter_map(|at| self.get(at))
    }

    /// Bytes beside the value itself.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Alike(..) => 0,
            Self::Each(values) => size_of_val(&**values),
        }
    }
}

/// The values count, and not how they are kept: a model must not take one state for two.
impl<T: Copy + PartialEq> PartialEq for Cells<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<T: Copy + Eq> Eq for Cells<T> {}

impl<T: Copy + PartialEq + Hash> Hash for Cells<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.len());
        self.iter().for_each(|value| value.hash(state));
    }
}

/// How many of these are as the first one. They are looked at in blocks: most runs are long, and a guest waits.
fn alike<T: Copy + PartialEq>(all: &[T]) -> usize {
    const BLOCK: usize = 64;
    let Some(first) = all.first() else { return 0 };
    let is_whole = |block: &&[T]| block.iter().fold(true, |same, one| same & (one == first));
    let whole = BLOCK * all.chunks_exact(BLOCK).take_while(is_whole).count();
    whole + all[whole..].iter().take_while(|one| *one == first).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn run_is_as_long_as_pages_are_alike() {
        assert_eq!(alike(&[1; 200]), 200);
        assert_eq!(alike::<u8>(&[]), 0);
        let mut cells = Cells::new(1, 200);
        assert_eq!((cells.alike(0), cells.alike(150), cells.alike(200)), (200, 50, 0));
        cells.set(130, 2);
        assert_eq!((cells.alike(0), cells.alike(130), cells.alike(131)), (130, 1, 69));
    }

    #[test]
    fn chunk_that_was_gone_through_is_kept_as_one() {
        let mut cells = Cells::new(1, 200);
        (0..199).for_each(|at| cells.set(at, 2));
        assert_eq!(cells.bytes(), 200 * size_of::<i32>());
        cells.set(199, 2);
        assert_eq!((cells.bytes(), cells.alike(0)), (0, 200));
    }

    proptest! {
        /// However they are kept, they are the values that were set; and equal values are equal.
        #[test]
        fn are_the_values_that_were_set(
            pages in 1..200_usize,
            stores in vec((0..200_usize, 0..3_u8), 0..50),
        ) {
            let mut cells = Cells::new(0, pages);
            let mut expected = vec![0; pages];
            for (at, value) in stores.into_iter().filter(|(at, _)| *at < pages) {
                cells.set(at, value);
                expected[at] = value;
            }
            prop_assert_eq!(cells.iter().collect::<Vec<_>>(), &expected[..]);
            prop_assert_eq!(cells.get(pages), None);
            let each = Cells::Each(expected.into());
            prop_assert_eq!(&cells, &each);
            prop_assert!((0..=pages).all(|at| cells.alike(at) == each.alike(at)));
        }
    }
}
