//! Homes of pages move while slices use them.

use super::ordinary;
use super::replicas::{self, DATA};
use super::scenario::{Op, Scenario};

/// One page, used freely, whose home moves to these slices one after another.
#[must_use]
pub fn one_page(slices: u16, faults: usize, to: &[u16]) -> Scenario {
    let scenario = to.iter().fold(ordinary::one_page(slices, faults), |s, to| s.moves(0, 1, *to));
    Scenario { name: "the home of a page moves", ..scenario }
}

/// One page whose home has no vCPU and moves to another slice that has none.
#[must_use]
pub fn between_homes(vcpus: u16, faults: usize) -> Scenario {
    let scenario = Scenario::new("a home without vCPUs moves", vcpus + 2, vec![vcpus]);
    (0..vcpus)
        .fold(scenario, |scenario, slice| scenario.vcpu(slice, vec![Op::Any(&[0]); faults]))
        .moves(0, 1, vcpus + 1)
}

/// Two pages that one slice asks for ahead, while another uses them and their home moves.
#[must_use]
pub fn run_ahead(write: bool, faults: usize, to: u16) -> Scenario {
    let scenario = ordinary::run_ahead(write, faults).moves(0, 2, to);
    Scenario { name: "a run meets a home that moves", ..scenario }
}

/// Two pages of one chunk with a home each; that of the first moves to the second's.
#[must_use]
pub fn beside_another(faults: usize) -> Scenario {
    let scenario = ordinary::two_pages(faults).moves(0, 1, 1);
    Scenario { name: "a home moves to its neighbour's", ..scenario }
}

/// Pinned pages, and a home that moves.
#[must_use]
pub fn pins(faults: usize) -> Scenario {
    let scenario = ordinary::pins(faults).moves(0, 1, 2);
    Scenario { name: "pins and a home that moves", ..scenario }
}

/// A page that many read is written, and its home, which keeps a copy, moves to a reader.
#[must_use]
pub fn many_readers(readers: u16, times: usize) -> Scenario {
    let scenario = ordinary::many_readers(readers, times).moves(0, 1, 2);
    Scenario { name: "many readers and a home that moves", ..scenario }
}

/// Page tables of [`replicas`]: the home of all five pages of slice 0 moves, those of others stay.
#[must_use]
pub fn with_tables(name: &'static str, scenario: Scenario, to: u16) -> Scenario {
    let first = (DATA..).zip(&scenario.homes).find(|(_, home)| **home == 0);
    let (first, _) = first.expect("slice 0 is home of a page");
    let own = usize::try_from(first).expect("a frame");
    let pages = scenario.homes[own..].iter().take_while(|home| **home == 0).count();
    let pages = u16::try_from(pages).expect("few pages");
    Scenario { name, ..scenario.moves(first, pages, to) }
}

/// A slice asks for two tables ahead, when it does not know them as such; they become replicas, and it ends one of them.
/// Then their home moves, when what was asked for ahead may still be on its way.
#[must_use]
pub fn late_runs(write: bool) -> Scenario {
    let scenario = replicas::reuse_by_who_prefetched(write, false).moves(2, 2, 1);
    Scenario { name: "a late run meets a home that moves", moves_after: Some(1), ..scenario }
}
