//! A table of pages that never grows and keeps the hottest.
//!
//! Pages are hashed to sets of eight. In each set the pages live by the rule of Space-Saving (Metwally,
//! Agrawal, El Abbadi, ICDT 2005): a page that comes to a full set takes the place of the one with the
//! least rank, and that rank plus one. So of the events of a set, a page that has more than an eighth is
//! always in: one that matters survives any number of pages that are touched once, and one that
//! mattered an hour ago gives way in the end. Only the rank is inherited. The counters of a page count
//! what happened since it came in.
//!
//! One event costs one line of the cache for the set, and those of the page.

use super::kinds::Company;
use super::page::PageTrace;
use dsm_protocol::Gfn;

/// Pages of a set.
const WAYS: usize = 8;
/// Sets, as a power of two: 16384 pages, some 1.5 MB.
const SETS_BITS: u32 = 11;
const SETS: usize = 1 << SETS_BITS;
/// Number of a place without a page.
const EMPTY: u32 = u32::MAX;
/// Regions that are told apart, as a power of two, and the pages of one.
const REGIONS_BITS: u32 = 12;
const REGION_PAGES: u64 = 64;
/// 2^64 divided by the golden ratio: neighbours get far apart.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Frame numbers and ranks of the pages of a set.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Set {
    numbers: [u32; WAYS],
    ranks: [u32; WAYS],
}

/// The pages, by place.
#[derive(Debug)]
pub(super) struct Table {
    sets: Box<[Set]>,
    pages: Box<[PageTrace]>,
    /// How many pages of each region are in. Regions may share a count.
    regions: Box<[u16]>,
}

impl Default for Table {
    fn default() -> Self {
        let set = Set { numbers: [EMPTY; WAYS], ranks: [0; WAYS] };
        Self {
            sets: vec![set; SETS].into(),
            pages: vec![PageTrace::default(); SETS * WAYS].into(),
            regions: vec![0; 1 << REGIONS_BITS].into(),
        }
    }
}

/// Half a word is enough for 16 TiB; pages of a guest with more would share a place at the end.
fn number(gfn: Gfn) -> u32 {
    u32::try_from(gfn.0).unwrap_or(EMPTY).min(EMPTY - 1)
}

fn set_of(gfn: Gfn) -> usize {
    hash(gfn.0, SETS_BITS)
}

fn region_of(gfn: Gfn) -> usize {
    hash(gfn.0 / REGION_PAGES, REGIONS_BITS)
}

/// So many bits.
fn hash(value: u64, bits: u32) -> usize {
    usize::try_from(value.wrapping_mul(SPREAD) >> (u64::BITS - bits)).expect("a few bits")
}

impl Table {
    /// Set and way of a page.
    fn find(&self, gfn: Gfn) -> (usize, Option<usize>) {
        let (set, number) = (set_of(gfn), number(gfn));
        (set, self.sets[set].numbers.iter().position(|at| *at == number))
    }

    /// The page, for one more event; a new one if it is not in.
    pub(super) fn touch(&mut self, gfn: Gfn) -> &mut PageTrace {
        let (set, way) = self.find(gfn);
        let way = way.unwrap_or_else(|| self.replace(set, gfn));
        let rank = &mut self.sets[set].ranks[way];
        *rank = rank.saturating_add(1);
        &mut self.pages[set * WAYS + way]
    }

    /// The page, if one that travels so is to be counted.
    pub(super) fn counted(&mut self, gfn: Gfn, company: Company) -> Option<&mut PageTrace> {
        match company {
            Company::Alone => Some(self.touch(gfn)),
            Company::InRun => self.get_mut(gfn),
        }
    }

    /// The way for a new page: an empty one, or that of the least rank.
    fn replace(&mut self, at: usize, gfn: Gfn) -> usize {
        let set = &mut self.sets[at];
        let least = (0..WAYS).min_by_key(|way| set.ranks[*way]).expect("a set has ways");
        let before = std::mem::replace(&mut set.numbers[least], number(gfn));
        let page = std::mem::replace(&mut self.pages[at * WAYS + least], PageTrace::new(gfn));
        if before != EMPTY {
            self.regions[region_of(Gfn(page.gfn))] -= 1;
        }
        self.regions[region_of(gfn)] += 1;
        least
    }

    /// False if the page is not in, and none near it. Cheap, and asked for every page of a run.
    pub(super) fn may_know(&self, gfn: Gfn) -> bool {
        self.regions[region_of(gfn)] > 0
    }

    pub(super) fn get_mut(&mut self, gfn: Gfn) -> Option<&mut PageTrace> {
        let (set, way) = self.find(gfn);
        way.map(|way| &mut self.pages[set * WAYS + way])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PageTrace> {
        let numbers = self.sets.iter().flat_map(|set| set.numbers);
        numbers.zip(&self.pages).filter(|(number, _)| *number != EMPTY).map(|(_, page)| page)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut PageTrace> {
        let numbers = self.sets.iter().flat_map(|set| set.numbers);
        numbers.zip(&mut self.pages).filter(|(number, _)| *number != EMPTY).map(|(_, page)| page)
    }
}

#[cfg(test)]
mod tests {
    use super::super::kinds::FaultKind;
    use super::*;
    use crate::observe::classify::PageClass;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn fault(table: &mut Table, gfn: u64) {
        table.touch(Gfn(gfn)).fault(FaultKind::Read, PageClass::Other, false);
    }

    #[test]
    fn hot_page_survives_a_stream_of_cold_ones() {
        let mut table = Table::default();
        for gfn in 100..500_000u64 {
            fault(&mut table, gfn);
            if gfn % 1000 == 0 {
                fault(&mut table, 7);
            }
        }
        assert_eq!(table.get_mut(Gfn(7)).unwrap().read, 499);
        assert!(table.iter().count() <= SETS * WAYS);
    }

    #[test]
    fn page_that_was_hot_once_gives_way() {
        let mut table = Table::default();
        for _ in 0..5 {
            fault(&mut table, 7);
        }
        for gfn in 100..400_000 {
            fault(&mut table, gfn);
        }
        assert!(table.get_mut(Gfn(7)).is_none());
    }

    #[test]
    fn regions_count_the_pages_that_are_in() {
        let mut table = Table::default();
        assert!(!table.may_know(Gfn(7)));
        for gfn in (0..3_000_000).step_by(7) {
            fault(&mut table, gfn);
            assert!(table.may_know(Gfn(gfn)));
        }
        let sum: usize = table.regions.iter().map(|count| usize::from(*count)).sum();
        assert_eq!(sum, table.iter().count());
        let known: Vec<Gfn> = table.iter().map(|page| Gfn(page.gfn)).collect();
        assert!(known.iter().all(|gfn| table.may_know(*gfn)));
    }

    proptest! {
        /// The rule of Space-Saving, and counters that are never too high.
        #[test]
        fn page_with_more_than_its_share_is_in(events in prop::collection::vec(0u64..40, 1..400)) {
            // Pages of one set.
            let set = set_of(Gfn(0));
            let frames: Vec<u64> =
                (0..).filter(|gfn| set_of(Gfn(*gfn)) == set).take(40).collect();
            let mut table = Table::default();
            let mut exact = BTreeMap::new();
            for event in &events {
                let gfn = frames[usize::try_from(*event).unwrap()];
                fault(&mut table, gfn);
                *exact.entry(gfn).or_insert(0) += 1;
            }
            for (gfn, count) in exact {
                let seen = table.get_mut(Gfn(gfn)).map(|page| page.read);
                prop_assert!(seen.unwrap_or(0) <= count);
                prop_assert!(seen.is_some() || u64::from(count) * 8 <= events.len() as u64);
            }
        }
    }
}
