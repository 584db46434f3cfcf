//! A value for each page of a chunk: one for all of them while they are alike, some runs, or one for each.
//!
//! Most memory of a VM is its home's alone, or a whole chunk of it is another slice's, or a few pages of it are. Such a chunk takes
//! a few bytes, and whoever goes through all memory, as a checkpoint does while the guest stands still, looks at some values and
//! not at each page's.
//!
//! ```text
//!   alike --a page differs--> runs --more than RUNS_MAX--> each
//!     ^------the last page, all alike-----/-----------------/
//! ```

use std::hash::{Hash, Hasher};

/// With more runs than these a chunk keeps a value for each page. Runs are looked through and moved whenever a page changes.
const RUNS_MAX: usize = 16;

/// Values of some pages, by their places in the chunk.
#[derive(Clone, Debug)]
pub(crate) enum Cells<T> {
    /// So many pages have this value.
    Alike(T, usize),
    /// Where each run ends, and its value; ascending. Neighbours differ.
    Runs(Vec<(usize, T)>),
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
            Self::Runs(runs) => runs.last().map_or(0, |(end, _)| *end),
            Self::Each(values) => values.len(),
        }
    }

    /// None beyond the last page.
    pub(crate) fn get(&self, at: usize) -> Option<T> {
        match self {
            Self::Alike(value, pages) => (at < *pages).then_some(*value),
            Self::Runs(runs) => runs.get(run_of(runs, at)).map(|(_, value)| *value),
            Self::Each(values) => values.get(at).copied(),
        }
    }

    /// Of a page that there is.
    pub(crate) fn set(&mut self, at: usize, value: T) {
        assert!(at < self.len(), "page {at} of {}", self.len());
        if self.get(at) == Some(value) {
            return;
        }
        if let Self::Alike(all, pages) = *self {
            *self = Self::Runs(vec![(pages, all)]);
        }
        match self {
            Self::Alike(..) => {}
            Self::Runs(runs) => set_in_runs(runs, at, value),
            Self::Each(values) => values[at] = value,
        }
        // Most chunks are gone through from their first page to their last one.
        if at + 1 == self.len() && self.alike(0) == self.len() {
            *self = Self::Alike(value, self.len());
        } else if let Self::Runs(runs) = self
            && runs.len() > RUNS_MAX
        {
            *self = Self::Each(self.iter().collect());
        }
    }

    /// How many pages from this one on have its value; 0 beyond the last page.
    pub(crate) fn alike(&self, at: usize) -> usize {
        match self {
            Self::Alike(_, pages) => pages.saturating_sub(at),
            Self::Runs(runs) => runs.get(run_of(runs, at)).map_or(0, |(end, _)| end - at),
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
            Self::Runs(runs) => runs.capacity() * size_of::<(usize, T)>(),
            Self::Each(values) => size_of_val(&**values),
        }
    }
}

/// The run that a place is in; none has this number if it is beyond the last one.
fn run_of<T>(runs: &[(usize, T)], at: usize) -> usize {
    runs.partition_point(|(end, _)| *end <= at)
}

/// Another value for one page.
fn set_in_runs<T: Copy + PartialEq>(runs: &mut Vec<(usize, T)>, at: usize, value: T) {
    let run = run_of(runs, at);
    let start = run.checked_sub(1).map_or(0, |before| runs[before].0);
    let (end, old) = runs[run];
    let is_first = at == start;
    let is_last = at + 1 == end;
    let joins_former = is_first && run > 0 && runs[run - 1].1 == value;
    let joins_next = is_last && runs.get(run + 1).is_some_and(|(_, next)| *next == value);
    match (joins_former, joins_next) {
        // It was alone between two runs that are one now.
        (true, true) => drop(runs.drain(run - 1..=run)),
        (true, false) => {
            runs[run - 1].0 = at + 1;
            if is_last {
                runs.remove(run);
            }
        }
        (false, true) => {
            runs[run].0 = at;
            if is_first {
                runs.remove(run);
            }
        }
        (false, false) => {
            let before = (!is_first).then_some((at, old));
            let after = (!is_last).then_some((end, old));
            runs.splice(run..=run, before.into_iter().chain([(at + 1, value)]).chain(after));
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

    /// A checkpoint goes through all chunks: one with a few pages of another slice takes some looks, and not one for each page.
    #[test]
    fn chunk_with_a_few_other_pages_is_kept_as_runs() {
        let mut cells = Cells::new(1, 512);
        [3, 4, 9, 100, 511].into_iter().for_each(|at| cells.set(at, 2));
        let Cells::Runs(runs) = &cells else { panic!("{cells:?}") };
        assert_eq!(runs[..3], [(3, 1), (5, 2), (9, 1)]);
        assert_eq!(runs.len(), 8);
        (0..512).step_by(2).for_each(|at| cells.set(at, 2));
        assert!(matches!(cells, Cells::Each(_)));
    }

    #[test]
    fn chunk_that_was_gone_through_is_kept_as_one() {
        let mut cells = Cells::new(1, 200);
        (0..199).rev().for_each(|at| cells.set(at, 2));
        assert!(cells.bytes() > 0);
        cells.set(199, 2);
        assert_eq!((cells.bytes(), cells.alike(0)), (0, 200));
    }

    proptest! {
        /// However they are kept, they are the values that were set; and equal values are equal.
        #[test]
        fn are_the_values_that_were_set(
            pages in 1..200_usize,
            stores in vec((0..200_usize, 0..3_u8), 0..80),
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
