//! Ordinary pages: Invalid, Shared, Exclusive.

use super::scenario::{Op, Scenario};

const ONE: &[u64] = &[0];
const TWO: &[u64] = &[0, 1];

/// Slices that each read or write one page freely; slice 0 is home and begins with the page.
#[must_use]
pub fn one_page(slices: u16, faults: usize) -> Scenario {
    (0..slices).fold(Scenario::new("one page", slices, vec![0]), |scenario, slice| {
        scenario.vcpu(slice, vec![Op::Any(ONE); faults])
    })
}

/// A home without vCPUs, as a slice with memory only has it.
#[must_use]
pub fn memory_only_home(vcpus: u16, faults: usize) -> Scenario {
    let scenario = Scenario::new("home without vCPUs", vcpus + 1, vec![0]);
    (1..=vcpus).fold(scenario, |scenario, slice| scenario.vcpu(slice, vec![Op::Any(ONE); faults]))
}

/// A page that one slice writes and others read, far from its home.
#[must_use]
pub fn many_readers(readers: u16, times: usize) -> Scenario {
    let scenario = Scenario::new("many readers", readers + 2, vec![0]);
    let scenario = scenario.vcpu(1, vec![Op::Store(0, 0, 7); times]);
    (2..readers + 2)
        .fold(scenario, |scenario, slice| scenario.vcpu(slice, vec![Op::Load(0, 0); times]))
}

/// Two slices, two pages with a home each.
#[must_use]
pub fn two_pages(faults: usize) -> Scenario {
    let scenario = Scenario::new("two pages", 2, vec![0, 1]);
    (0..2).fold(scenario, |scenario, slice| scenario.vcpu(slice, vec![Op::Any(TWO); faults]))
}

/// Two vCPUs on one of two slices: faults of one slice meet each other.
#[must_use]
pub fn two_vcpus_each(faults: usize) -> Scenario {
    let scenario = Scenario::new("two vCPUs a slice", 2, vec![0]);
    [0, 0, 1, 1]
        .into_iter()
        .fold(scenario, |scenario, slice| scenario.vcpu(slice, vec![Op::Any(ONE); faults]))
}

/// Two pages of a home that is only that, asked for ahead by one message, while others use them.
#[must_use]
pub fn run_ahead(write: bool, faults: usize) -> Scenario {
    Scenario::new("a run asked for ahead", 3, vec![0, 0])
        .vcpu(1, [Op::Prefetch(0, 2, write), Op::Any(TWO)])
        .vcpu(2, vec![Op::Any(TWO); faults])
}

/// A page that can be read is asked for ahead, to be written, while its home and a third slice use it.
#[must_use]
pub fn upgrade_ahead(faults: usize) -> Scenario {
    Scenario::new("an upgrade asked for ahead", 3, vec![0])
        .vcpu(1, [Op::Load(0, 0), Op::UpgradeAhead(0), Op::Any(ONE)])
        .vcpu(0, [Op::Any(ONE)])
        .vcpu(2, vec![Op::Any(ONE); faults])
}

/// A pin for reading and one for writing on two slices while a third touches the page.
#[must_use]
pub fn pins(faults: usize) -> Scenario {
    Scenario::new("pins", 3, vec![0])
        .vcpu(0, [Op::Pin(0, true), Op::Store(0, 0, 40), Op::Unpin(0, true)])
        .vcpu(1, [Op::Pin(0, false), Op::Load(0, 0), Op::Unpin(0, false)])
        .vcpu(1, vec![Op::Any(ONE); faults])
        .vcpu(2, vec![Op::Any(ONE); faults])
}
