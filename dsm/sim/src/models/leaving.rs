//! Slices leave while others use their pages.

use super::ordinary;
use super::replicas::{self, DATA, MIDDLE, SLOT, TABLE, entry};
use super::scenario::{Op, Scenario};

/// One page, used freely. Its home moves from slice 0 to slice 1, and slice 0 leaves; or, with `home_stays`, the last
/// slice leaves, which is home of nothing.
#[must_use]
pub fn one_page(slices: u16, faults: usize, home_stays: bool) -> Scenario {
    let scenario = ordinary::one_page(slices, faults);
    let scenario =
        if home_stays { scenario.leaves(slices - 1) } else { scenario.moves(0, 1, 1).leaves(0) };
    Scenario { name: "a slice leaves that uses a page", ..scenario }
}

/// A page that many read; one of the readers leaves.
#[must_use]
pub fn many_readers(readers: u16, times: usize) -> Scenario {
    let scenario = ordinary::many_readers(readers, times).leaves(readers + 1);
    Scenario { name: "a reader among many leaves", ..scenario }
}

/// The last slice changes a table and leaves. Who stays sees the change then, changes the table too, and publishes that.
#[must_use]
pub fn change_of_leaver(slices: u16, converted: bool) -> Scenario {
    let last = slices - 1;
    let mut scenario =
        replicas::base("a slice leaves that has changed a table", slices, vec![0, 0, last]);
    for slice in 0..last {
        let ops: &[Op] = match slice {
            0 => &[
                Op::AwaitLeave,
                Op::Walk(TABLE, 6),
                Op::Store(TABLE, 5, entry(9)),
                Op::Interrupt(1),
            ],
            _ => &[Op::AwaitInterrupt(1), Op::Walk(TABLE, 5), Op::Walk(TABLE, 6)],
        };
        scenario = scenario.vcpu(slice, ops);
    }
    let scenario = scenario.vcpu(last, [Op::Store(TABLE, 6, entry(8))]);
    replicas::started(scenario, converted).moves(TABLE, 1, 0).leaves(last)
}

/// A table is taken out, and its page becomes data, while a slice leaves that walks it.
#[must_use]
pub fn reuse(slices: u16, converted: bool) -> Scenario {
    let last = slices - 1;
    let base =
        replicas::base("a table becomes data while a slice leaves", slices, vec![0, 0, last]);
    let end = [
        Op::Store(MIDDLE, SLOT, 0),
        Op::Interrupt(1),
        Op::Reuse(TABLE, 7, 70),
        Op::Store(DATA, 1, 1),
    ];
    let mut scenario = base.vcpu(0, end);
    if slices > 2 {
        scenario = scenario.vcpu(1, [Op::Descend(MIDDLE, SLOT), Op::Await(DATA, 1, 1)]);
    }
    let scenario = scenario.vcpu(last, [Op::Descend(MIDDLE, SLOT)]);
    replicas::started(scenario, converted).moves(TABLE, 1, 0).leaves(last)
}
