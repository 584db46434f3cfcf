//! Slices join while others use their pages.

use super::ordinary;
use super::replicas::{self, DATA, KERNEL, MIDDLE, ROOT, SLOT, TABLE, entry};
use super::scenario::{Op, Scenario};

/// One page, used freely. The last slice joins.
#[must_use]
pub fn one_page(slices: u16, faults: usize) -> Scenario {
    let scenario = ordinary::one_page(slices, faults).joins(slices - 1);
    Scenario { name: "a slice joins and uses a page", ..scenario }
}

/// The same, while the home moves: to another slice, which was there, or to the newcomer.
#[must_use]
pub fn one_page_moves(slices: u16, faults: usize, to: u16) -> Scenario {
    let scenario = one_page(slices, faults).moves(0, 1, to);
    Scenario { name: "a slice joins while a home moves", ..scenario }
}

/// The last slice joins, becomes home of the page, gives it back, and leaves.
#[must_use]
pub fn joins_and_leaves(slices: u16, faults: usize) -> Scenario {
    let last = slices - 1;
    let scenario = one_page(slices, faults).moves(0, 1, last).moves(0, 1, 0).leaves(last);
    Scenario { name: "a slice joins and leaves", ..scenario }
}

/// A page that many read; one of the readers joins.
#[must_use]
pub fn many_readers(readers: u16, times: usize) -> Scenario {
    let scenario = ordinary::many_readers(readers, times).joins(readers + 1);
    Scenario { name: "a reader joins many", ..scenario }
}

fn tables(name: &'static str, slices: u16) -> Scenario {
    // All homes are with slices that are there.
    replicas::base(name, slices, vec![0, 0, slices - 2])
}

/// Slice 0 changes a table and publishes that. The last slice joins, sees it, changes the table too, and publishes that.
#[must_use]
pub fn change(slices: u16, converted: bool) -> Scenario {
    let last = slices - 1;
    let mut scenario = tables("a slice joins and changes a table", slices);
    for slice in 0..last {
        let ops: &[Op] = match slice {
            0 => &[
                Op::Store(TABLE, 5, entry(9)),
                Op::Interrupt(1),
                Op::AwaitInterrupt(2),
                Op::Walk(TABLE, 6),
            ],
            _ => &[Op::AwaitInterrupt(2), Op::Walk(TABLE, 5), Op::Walk(TABLE, 6)],
        };
        scenario = scenario.vcpu(slice, ops);
    }
    let ops = [
        Op::Root(ROOT),
        Op::Descend(ROOT, KERNEL),
        Op::AwaitInterrupt(1),
        Op::Walk(TABLE, 5),
        Op::Store(TABLE, 6, entry(8)),
        Op::Interrupt(2),
    ];
    started(scenario.vcpu(last, ops), converted)
}

/// A table is changed by who is not its home, before or after a slice joins; then its home looks.
#[must_use]
pub fn change_before(converted: bool) -> Scenario {
    let scenario = tables("a slice joins after a change of a table", 3)
        .vcpu(0, [Op::Store(TABLE, 5, entry(9)), Op::Interrupt(1)])
        .vcpu(1, [Op::AwaitJoin, Op::AwaitInterrupt(1), Op::Walk(TABLE, 5)])
        .vcpu(2, [Op::AwaitInterrupt(1), Op::Walk(TABLE, 5)]);
    started(scenario, converted)
}

/// A table is taken out, and its page becomes data, while a slice joins that walks it.
#[must_use]
pub fn reuse(slices: u16, converted: bool) -> Scenario {
    let last = slices - 1;
    let end = [
        Op::Store(MIDDLE, SLOT, 0),
        Op::Interrupt(1),
        Op::Reuse(TABLE, 7, 70),
        Op::Store(DATA, 1, 1),
    ];
    let mut scenario = tables("a table becomes data while a slice joins", slices).vcpu(0, end);
    if slices > 2 {
        scenario = scenario.vcpu(1, [Op::Descend(MIDDLE, SLOT), Op::Await(DATA, 1, 1)]);
    }
    let walk = [Op::Root(ROOT), Op::Descend(ROOT, KERNEL), Op::Descend(MIDDLE, SLOT)];
    started(scenario.vcpu(last, walk), converted)
}

/// Two slices change one entry at once, while a third joins that walks the table.
#[must_use]
pub fn conflict(converted: bool) -> Scenario {
    let scenario = tables("two slices change one entry while one joins", 3)
        .vcpu(0, [Op::Race(TABLE, 5, entry(8)), Op::Interrupt(1)])
        .vcpu(1, [Op::Race(TABLE, 5, entry(9)), Op::Interrupt(2)])
        .vcpu(2, [Op::Root(ROOT), Op::Descend(MIDDLE, SLOT)]);
    started(scenario, converted)
}

/// A slice asks for two tables ahead, when it does not know them as such; they become replicas, and another one joins.
/// `all_walk`: the others walk down to the second of them too.
#[must_use]
pub fn run_ahead(write: bool, all_walk: bool) -> Scenario {
    let walk = [Op::Root(ROOT), Op::Descend(ROOT, KERNEL), Op::Descend(MIDDLE, SLOT)];
    let walk = &walk[..if all_walk { 3 } else { 2 }];
    let mut scenario = tables("a slice joins while tables are asked for ahead", 3)
        .vcpu(0, &walk[1..])
        .vcpu(
            1,
            [
                Op::Prefetch(TABLE, 2, write),
                Op::Descend(ROOT, KERNEL),
                Op::Descend(MIDDLE, SLOT),
                Op::Store(MIDDLE, SLOT, 0),
                Op::Interrupt(1),
                Op::Reuse(TABLE, 7, 70),
            ],
        )
        .vcpu(2, walk);
    scenario.prologue.extend([(0, Op::Root(ROOT)), (1, Op::Root(ROOT))]);
    scenario.joins(2)
}

/// As [`replicas::started`] makes it of the slices that are there.
fn started(scenario: Scenario, converted: bool) -> Scenario {
    let last = scenario.slices - 1;
    replicas::started(scenario, converted).joins(last)
}
