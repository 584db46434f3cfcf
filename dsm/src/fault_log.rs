//! Which pages this slice asked other slices for, and what kind of pages these were.

use crate::classify::PageClass;
use crate::report::{ClassCounts, HotPage};
use dsm_protocol::Gfn;
use std::collections::BTreeMap;

/// Pages of a kind that a report lists.
const LISTED: usize = 32;
/// Pages counted at a time. Beyond that the coldest are forgotten: what is listed is hot.
const COUNTED_MAX: usize = 1 << 16;

#[derive(Clone, Copy, Debug)]
struct Page {
    faults: u32,
    /// Of these, faults while the page was a known table: one that can become a replica.
    as_table: u32,
    /// What it was at its last fault.
    class: PageClass,
}

/// The faults of one slice that needed another.
#[derive(Debug, Default)]
pub(crate) struct FaultLog {
    classes: ClassCounts,
    pages: BTreeMap<Gfn, Page>,
}

impl FaultLog {
    /// Counts a fault; `known` says that the protocol takes the page for a table. Returns the
    /// number of the page's faults so far.
    pub(crate) fn count(&mut self, gfn: Gfn, class: PageClass, known: bool) -> u32 {
        match class {
            PageClass::KernelPageTable => self.classes.kernel_page_table += 1,
            PageClass::UserPageTable => self.classes.user_page_table += 1,
            PageClass::Other => self.classes.other += 1,
        }
        if self.pages.len() >= COUNTED_MAX && !self.pages.contains_key(&gfn) {
            self.forget_the_coldest();
        }
        let page = self.pages.entry(gfn).or_insert(Page { faults: 0, as_table: 0, class });
        page.faults = page.faults.saturating_add(1);
        page.as_table = page.as_table.saturating_add(u32::from(known));
        page.class = class;
        page.faults
    }

    /// Forgets pages by the number of their faults until half of the room is free.
    fn forget_the_coldest(&mut self) {
        let mut floor = 1;
        while self.pages.len() > COUNTED_MAX / 2 {
            self.pages.retain(|_, page| page.faults > floor);
            floor = floor.saturating_mul(2);
        }
    }

    pub(crate) fn classes(&self) -> ClassCounts {
        self.classes
    }

    /// The pages asked for most often, hottest first.
    pub(crate) fn hottest(&self) -> Vec<HotPage> {
        self.list(|_| true)
    }

    /// The same of page tables only.
    pub(crate) fn hottest_tables(&self) -> Vec<HotPage> {
        self.list(|page| page.class != PageClass::Other)
    }

    fn list(&self, wanted: impl Fn(&Page) -> bool) -> Vec<HotPage> {
        let pages = self.pages.iter().filter(|(_, page)| wanted(page));
        let mut hot: Vec<HotPage> = pages
            .map(|(gfn, page)| HotPage {
                gfn: gfn.0,
                faults: page.faults,
                as_table: page.as_table,
                class: page.class,
            })
            .collect();
        hot.sort_by_key(|page| std::cmp::Reverse(page.faults));
        hot.truncate(LISTED);
        hot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hottest_tables_leaves_other_pages_out() {
        let mut log = FaultLog::default();
        log.count(Gfn(1), PageClass::Other, false);
        log.count(Gfn(2), PageClass::KernelPageTable, false);
        for _ in 0..3 {
            log.count(Gfn(3), PageClass::UserPageTable, true);
        }
        assert_eq!(log.count(Gfn(2), PageClass::KernelPageTable, true), 2);

        let gfns = |pages: Vec<HotPage>| pages.iter().map(|page| page.gfn).collect::<Vec<_>>();
        assert_eq!(gfns(log.hottest()), [3, 2, 1]);
        assert_eq!(gfns(log.hottest_tables()), [3, 2]);
        assert_eq!(log.hottest_tables()[1].as_table, 1);
        let counts = ClassCounts { kernel_page_table: 2, user_page_table: 3, other: 1 };
        assert_eq!(log.classes(), counts);
    }

    #[test]
    fn lists_are_bounded() {
        let mut log = FaultLog::default();
        for gfn in 0..100 {
            log.count(Gfn(gfn), PageClass::Other, false);
        }
        assert_eq!(log.hottest().len(), LISTED);
    }

    #[test]
    fn hot_page_survives_any_number_of_cold_ones() {
        let mut log = FaultLog::default();
        for _ in 0..5 {
            log.count(Gfn(7), PageClass::Other, false);
        }
        for gfn in 100..300_000 {
            log.count(Gfn(gfn), PageClass::Other, false);
            assert!(log.pages.len() <= COUNTED_MAX);
        }
        assert_eq!((log.hottest()[0].gfn, log.hottest()[0].faults), (7, 5));
    }
}
