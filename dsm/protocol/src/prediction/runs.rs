//! Runs of pages of whatever stride: neighbours first.

use super::{Streams, Strides, Window};
use wire::{Access, Gfn};

/// The runs of one slice.
#[derive(Debug, Default)]
pub struct Runs {
    streams: Streams,
    strides: Strides,
}

impl Runs {
    /// Takes note of a fault or of the touch of a marker, and says what to fetch. `missed` says that the page is
    /// neither here nor on its way.
    ///
    /// Runs of neighbours are found as if there were no others, and what continues one is no part of another. Two
    /// neighbours are no run yet: each may belong to one of pages further apart.
    pub fn fault(&mut self, gfn: Gfn, want: Access, missed: bool) -> Vec<Window> {
        let windows = self.streams.fault(gfn, want);
        if !windows.is_empty() {
            return windows;
        }
        self.strides.fault(gfn, want, missed).into_iter().collect()
    }

    /// The same for a miss of a page that was here before: to runs of neighbours it is as any.
    pub fn fault_again(&mut self, gfn: Gfn, want: Access) -> Vec<Window> {
        let windows = self.streams.fault(gfn, want);
        if !windows.is_empty() {
            return windows;
        }
        self.strides.fault_again(gfn, want).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// A slice that keeps all it gets, and gets at once what it asks for.
    #[derive(Default)]
    struct Slice {
        runs: Runs,
        here: BTreeSet<Gfn>,
        markers: BTreeSet<Gfn>,
        /// Asked for ahead, and not touched.
        untouched: BTreeSet<Gfn>,
        faults: usize,
        fetched: usize,
        windows: Vec<Window>,
    }

    impl Slice {
        /// Touches a page of a memory of so many pages.
        fn touch(&mut self, page: u64, memory: u64) {
            let gfn = Gfn(page);
            self.untouched.remove(&gfn);
            let missed = self.here.insert(gfn);
            self.faults += usize::from(missed);
            if !missed && !self.markers.remove(&gfn) {
                return;
            }
            for window in self.runs.fault(gfn, Access::Read, missed) {
                self.windows.push(window);
                for gfn in window.frames().filter(|gfn| gfn.0 < memory) {
                    if self.here.insert(gfn) {
                        self.fetched += 1;
                        self.untouched.insert(gfn);
                        if window.is_marker(gfn) {
                            self.markers.insert(gfn);
                        }
                    }
                }
            }
        }

        fn walk(&mut self, pages: impl Iterator<Item = u64>) {
            pages.for_each(|page| self.touch(page, u64::MAX));
        }
    }

    /// A walk through so many pages.
    fn walk(start: u64, stride: i64, steps: u64) -> impl Iterator<Item = u64> {
        (0..steps).map(move |nth| start.strict_add_signed(stride * nth.cast_signed()))
    }

    #[test]
    fn runs_of_all_strides_are_prefetched() {
        for stride in [2, 4, 16, 64, -1, -3, -16, -64] {
            let mut slice = Slice::default();
            slice.walk(walk(1 << 20, stride, 1000));
            assert_eq!(slice.faults, 4, "stride {stride}");
            assert!(slice.untouched.len() < 64, "stride {stride}: {}", slice.untouched.len());
        }
        let mut slice = Slice::default();
        slice.walk(walk(1 << 20, 1, 1000));
        assert_eq!(slice.faults, 3);
        assert!(slice.windows.iter().all(|window| window.stride == 1));
        for stride in [65, -65, 1000] {
            let mut slice = Slice::default();
            slice.walk(walk(1 << 20, stride, 1000));
            assert_eq!((slice.faults, slice.fetched), (1000, 0), "stride {stride}");
        }
    }

    #[test]
    fn both_pages_of_a_pair_are_prefetched() {
        let mut slice = Slice::default();
        slice.walk(walk(1 << 20, 8, 400).flat_map(|page| [page, page + 1]));
        assert_eq!(slice.faults, 8);
        assert!(slice.untouched.len() < 128);
    }

    #[test]
    fn run_that_breaks_off_asks_for_nothing_more() {
        let mut slice = Slice::default();
        slice.walk(walk(1 << 20, 4, 100));
        let fetched = slice.fetched;
        slice.walk((0..500).map(|n| n * n * 100));
        assert_eq!(slice.fetched, fetched);
        assert!(slice.untouched.len() < 64);
    }

    #[test]
    fn consumer_that_runs_ahead_of_its_producer_fetches_hardly_anything() {
        let mut slice = Slice::default();
        for page in walk(1 << 20, 4, 2000) {
            // It is written now: whoever has it loses it.
            slice.here.remove(&Gfn(page));
            slice.markers.remove(&Gfn(page));
            slice.touch(page, u64::MAX);
        }
        assert_eq!(slice.faults, 2000);
        assert!(slice.fetched < 20, "{}", slice.fetched);
    }

    #[test]
    fn scattered_order_is_no_run() {
        // The microguest's: at a distance of eight faults it has a stride.
        let mut slice = Slice::default();
        slice.walk((0..4096).map(|at| (at * 2561 + 1365) & 4095));
        assert_eq!((slice.faults, slice.fetched), (4096, 0));
    }

    proptest! {
        #[test]
        fn interleaved_runs_are_each_followed(
            strides in prop::collection::vec(prop_oneof![2i64..=64, -64i64..=-1], 2..=4),
            turns in prop::collection::vec(any::<prop::sample::Index>(), 400),
        ) {
            let mut slice = Slice::default();
            let mut walks: Vec<_> = (1u64..)
                .zip(&strides)
                .map(|(nth, stride)| walk(nth << 20, *stride, u64::MAX))
                .collect();
            let mut touched = vec![0; walks.len()];
            for turn in turns {
                let at = turn.index(walks.len());
                touched[at] += 1;
                let page = walks[at].next().unwrap();
                slice.touch(page, u64::MAX);
            }
            let needed: usize = touched.iter().map(|touches| 4.min(*touches)).sum();
            prop_assert_eq!(slice.faults, needed);
        }

        #[test]
        fn random_faults_ask_for_hardly_anything(
            memory in 512u64..1 << 20,
            pages in prop::collection::vec(any::<prop::sample::Index>(), 1500),
        ) {
            let mut slice = Slice::default();
            for page in pages {
                let page = page.index(usize::try_from(memory).unwrap());
                slice.touch(u64::try_from(page).unwrap(), memory);
            }
            let vain = slice.untouched.len();
            prop_assert!(vain * 20 <= slice.faults, "{vain} in vain of {} faults", slice.faults);
        }

        #[test]
        fn neighbours_are_found_as_if_there_were_no_other_runs(
            faults in prop::collection::vec((0u64..64, 0u64..4, 0u8..4), 0..300),
        ) {
            let (mut runs, mut alone) = (Runs::default(), Streams::default());
            for (start, run, kind) in faults {
                let (write, missed) = (kind & 1 > 0, kind & 2 > 0);
                let want = if write { Access::Write } else { Access::Read };
                for gfn in (start..=start + run).map(Gfn) {
                    let mut found = runs.fault(gfn, want, missed);
                    found.retain(|window| window.stride == 1);
                    prop_assert_eq!(found, alone.fault(gfn, want));
                }
            }
        }
    }
}
