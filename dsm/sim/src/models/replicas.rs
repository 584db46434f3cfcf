//! Page tables as causal replicas.
//!
//! Frame 0 is an ordinary page with flags and a lock, frame 1 the root of all vCPUs. Entry 256 of the
//! root points to frame 3, a table of level 3 that stays; its entry 3 points to frame 2, the table
//! of level 2 that the programs change, take out and put back. Frame 4 is a second root.

use super::scenario::{Op, Scenario};
use crate::store::Page;

/// The page with lock (entry 0) and flags.
pub const DATA: u64 = 0;
/// The root of all vCPUs.
pub const ROOT: u64 = 1;
/// The table that the programs change.
pub const TABLE: u64 = 2;
/// The table between the two.
pub const MIDDLE: u64 = 3;
/// One more root.
pub const SPARE: u64 = 4;
/// The entry of the root that points to [`MIDDLE`]: the first of the kernel's half.
pub const KERNEL: u16 = 256;
/// The entry of the root that points to [`MIDDLE`] where that is a process's table.
pub const USER: u16 = 0;
/// The entry of [`MIDDLE`] that points to [`TABLE`].
pub const SLOT: u16 = 3;

/// A table entry that points to a frame: present, writable, accessed, dirty.
#[must_use]
pub const fn entry(frame: u64) -> u64 {
    frame << 12 | 0x63
}

/// Homes of frames 0, 1 and 2; the others begin on slice 0.
pub(super) fn base(name: &'static str, slices: u16, mut homes: Vec<u16>) -> Scenario {
    homes.resize(5, 0);
    let mut scenario = Scenario::new(name, slices, homes);
    scenario.strict = vec![DATA];
    scenario.replicate = true;
    scenario.contents = vec![
        (ROOT, Page::from([(KERNEL, entry(MIDDLE))])),
        (MIDDLE, Page::from([(SLOT, entry(TABLE))])),
    ];
    scenario
}

/// Every vCPU uses the root, and those named have walked down to the table.
fn walked(mut scenario: Scenario, slices: &[u16]) -> Scenario {
    let all = 0..scenario.slices;
    scenario.prologue.extend(all.map(|slice| (slice, Op::Root(ROOT))));
    for slice in slices {
        scenario.prologue.push((*slice, Op::Descend(ROOT, KERNEL)));
        scenario.prologue.push((*slice, Op::Descend(MIDDLE, SLOT)));
    }
    scenario
}

/// Root and middle are replicas, and the table below it too if `converted`. Else the first walk to the
/// table is still to come.
pub(super) fn started(scenario: Scenario, converted: bool) -> Scenario {
    let mut scenario = walked(scenario, if converted { &[0, 1] } else { &[] });
    for slice in [0, 1] {
        scenario.prologue.push((slice, Op::Walk(ROOT, KERNEL)));
        scenario.prologue.push((slice, Op::Walk(MIDDLE, SLOT)));
    }
    scenario
}

/// Slice 0 changes the table and raises a flag; the others see the flag, then the change.
#[must_use]
pub fn publish(slices: u16, converted: bool) -> Scenario {
    let mut scenario = base("publish by flag", slices, vec![slices - 1, 0, 0])
        .vcpu(0, [Op::Store(TABLE, 5, entry(9)), Op::Store(DATA, 1, 1)]);
    for slice in 1..slices {
        scenario = scenario.vcpu(slice, [Op::Await(DATA, 1, 1), Op::Walk(TABLE, 5)]);
    }
    started(scenario, converted)
}

/// The same by an interrupt instead of a flag.
#[must_use]
pub fn publish_by_interrupt(slices: u16, converted: bool) -> Scenario {
    let mut scenario = base("publish by interrupt", slices, vec![slices - 1, 0, 0])
        .vcpu(0, [Op::Store(TABLE, 5, entry(9)), Op::Interrupt(1)]);
    for slice in 1..slices {
        scenario = scenario.vcpu(slice, [Op::AwaitInterrupt(1), Op::Walk(TABLE, 5)]);
    }
    started(scenario, converted)
}

/// A chain: slice 0 publishes to slice 1, that one to slice 2.
#[must_use]
pub fn chain() -> Scenario {
    let scenario = base("publish through a third slice", 3, vec![1, 0, 2])
        .vcpu(0, [Op::Store(TABLE, 5, entry(9)), Op::Interrupt(1)])
        .vcpu(
            1,
            [
                Op::AwaitInterrupt(1),
                Op::Walk(TABLE, 5),
                Op::Store(TABLE, 6, entry(8)),
                Op::Interrupt(2),
            ],
        )
        .vcpu(2, [Op::AwaitInterrupt(2), Op::Walk(TABLE, 5), Op::Walk(TABLE, 6)]);
    walked(scenario, &[0, 1, 2])
}

/// Slices change different entries, and one entry in turns, under one lock.
#[must_use]
pub fn under_lock(slices: u16, converted: bool) -> Scenario {
    let mut scenario = base("tables under a lock", slices, vec![0, 0, 1]);
    for slice in 0..slices {
        let own = 10 + slice;
        let value = entry(u64::from(20 + slice));
        scenario = scenario.vcpu(
            slice,
            [
                Op::Lock(DATA),
                Op::Walk(TABLE, 5),
                Op::Store(TABLE, 5, value),
                Op::Store(TABLE, own, value),
                Op::Unlock(DATA),
                Op::Interrupt(0),
            ],
        );
    }
    started(scenario, converted)
}

/// Each slice changes an entry of its own, without a lock, and publishes it.
#[must_use]
pub fn own_entries(slices: u16) -> Scenario {
    let mut scenario = base("own entries", slices, vec![0, 0, 1]);
    for slice in 0..slices {
        let number = u8::try_from(slice).expect("few slices");
        let other = (slice + 1) % slices;
        let next = u8::try_from(other).expect("few slices");
        scenario = scenario.vcpu(
            slice,
            [
                Op::Store(TABLE, 10 + slice, entry(9)),
                Op::Interrupt(number),
                Op::AwaitInterrupt(next),
                Op::Walk(TABLE, 10 + other),
            ],
        );
    }
    walked(scenario, &[0, 1])
}

/// Slice 0 takes the table out and says so; slice 1 uses the page as data; another slice may be
/// walking all the while.
#[must_use]
pub fn reuse(slices: u16, converted: bool) -> Scenario {
    let mut scenario = base("a table page becomes data", slices, vec![0, 0, slices - 1])
        .vcpu(
            0,
            [
                Op::Store(MIDDLE, SLOT, 0),
                Op::Store(DATA, 1, 1),
                Op::Await(DATA, 2, 1),
                Op::Load(TABLE, 7),
            ],
        )
        .vcpu(1, [Op::Await(DATA, 1, 1), Op::Reuse(TABLE, 7, 70), Op::Store(DATA, 2, 1)]);
    if slices > 2 {
        scenario = scenario.vcpu(2, [Op::Descend(MIDDLE, SLOT)]);
    }
    started(scenario, converted)
}

/// The same where no table is a replica yet: slices come to know it in different order.
#[must_use]
pub fn reuse_from_roots(home: u16) -> Scenario {
    let mut scenario = base("a table page becomes data", 3, vec![0, 0, home])
        .vcpu(0, [Op::Store(MIDDLE, SLOT, 0), Op::Interrupt(1), Op::Reuse(TABLE, 7, 70)])
        .vcpu(1, [Op::Descend(MIDDLE, SLOT)])
        .vcpu(2, [Op::Descend(ROOT, KERNEL), Op::Descend(MIDDLE, SLOT)]);
    let all = 0..scenario.slices;
    scenario.prologue.extend(all.map(|slice| (slice, Op::Root(ROOT))));
    scenario
}

/// The same, and a third slice asks for both tables ahead of any walk: it does not know them as such yet.
#[must_use]
pub fn reuse_of_prefetched(write: bool, converted: bool) -> Scenario {
    let scenario = base("a table asked for ahead", 3, vec![0, 0, 0])
        .vcpu(0, [Op::Store(MIDDLE, SLOT, 0), Op::Store(DATA, 1, 1)])
        .vcpu(1, [Op::Await(DATA, 1, 1), Op::Reuse(TABLE, 7, 70)])
        .vcpu(2, [Op::Prefetch(TABLE, 2, write), Op::Descend(ROOT, KERNEL), Op::Load(TABLE, 7)]);
    started(scenario, converted)
}

/// A slice asks for both tables ahead, when it does not know them as such; another one walks, so that they become
/// replicas; then the first takes one out of the other, and uses it as data. What it asked for may still be on its
/// way; with `again` it loses the page and asks for it once more.
#[must_use]
pub fn reuse_by_who_prefetched(write: bool, again: bool) -> Scenario {
    let mut walker = vec![Op::Descend(ROOT, KERNEL), Op::Descend(MIDDLE, SLOT)];
    let mut asker = vec![
        Op::Prefetch(TABLE, 2, write),
        Op::Descend(ROOT, KERNEL),
        Op::Descend(MIDDLE, SLOT),
        Op::Store(MIDDLE, SLOT, 0),
        Op::Interrupt(1),
        Op::Reuse(TABLE, 7, 70),
    ];
    if again {
        walker.extend([Op::AwaitInterrupt(1), Op::Store(TABLE, 8, 80)]);
        asker.extend([Op::Prefetch(TABLE, 2, write), Op::Load(TABLE, 7)]);
    }
    let mut scenario = base("a table is ended by who asked for it ahead", 3, vec![0, 0, 0])
        .vcpu(0, [])
        .vcpu(1, walker)
        .vcpu(2, asker);
    let all = 0..scenario.slices;
    scenario.prologue.extend(all.map(|slice| (slice, Op::Root(ROOT))));
    scenario
}

/// Two slices change one entry at once. The page must leave the class, and all must agree.
#[must_use]
pub fn conflict(slices: u16, converted: bool) -> Scenario {
    let mut scenario = base("two slices change one entry", slices, vec![0, 0, slices - 1])
        .vcpu(0, [Op::Race(TABLE, 5, entry(8)), Op::Interrupt(1)])
        .vcpu(1, [Op::Race(TABLE, 5, entry(9)), Op::Interrupt(2), Op::Descend(MIDDLE, SLOT)]);
    for slice in 2..slices {
        scenario = scenario.vcpu(slice, [Op::Store(TABLE, 6, entry(7)), Op::Interrupt(3)]);
    }
    started(scenario, converted)
}

/// A slice changes a table that two others make leave the class, and publishes the change.
#[must_use]
pub fn leave_with_changes(home: u16, converted: bool) -> Scenario {
    let scenario = base("a change meets the end of its table", 3, vec![0, 0, home])
        .vcpu(
            0,
            [
                Op::Race(TABLE, 5, entry(8)),
                Op::Interrupt(1),
                Op::AwaitInterrupt(2),
                Op::Walk(TABLE, 6),
            ],
        )
        .vcpu(1, [Op::Store(TABLE, 6, entry(7)), Op::Interrupt(2)])
        .vcpu(
            2,
            [
                Op::Race(TABLE, 5, entry(9)),
                Op::Interrupt(3),
                Op::AwaitInterrupt(2),
                Op::Walk(TABLE, 6),
            ],
        );
    started(scenario, converted)
}

/// A slice takes a table out while a conflict of two others is ending it as a replica.
#[must_use]
pub fn reuse_in_conflict(home: u16, converted: bool) -> Scenario {
    let scenario = base("a table in conflict becomes data", 3, vec![0, 0, home])
        .vcpu(0, [Op::Race(TABLE, 5, entry(8)), Op::Interrupt(1)])
        .vcpu(
            1,
            [
                Op::Race(TABLE, 5, entry(9)),
                Op::Interrupt(2),
                Op::AwaitInterrupt(3),
                Op::Reuse(TABLE, 7, 70),
            ],
        )
        .vcpu(2, [Op::Store(MIDDLE, SLOT, 0), Op::Interrupt(3)]);
    started(scenario, converted)
}

/// The table is taken out and put back while others walk it: it joins the class twice.
#[must_use]
pub fn twice(slices: u16, converted: bool) -> Scenario {
    let mut scenario = base("a table leaves and comes back", slices, vec![0, 0, slices - 1])
        .vcpu(
            0,
            [
                Op::Store(MIDDLE, SLOT, 0),
                Op::Interrupt(1),
                Op::Store(MIDDLE, SLOT, entry(TABLE)),
                Op::Store(TABLE, 5, entry(8)),
                Op::Interrupt(2),
            ],
        )
        .vcpu(1, [Op::Descend(MIDDLE, SLOT), Op::AwaitInterrupt(2), Op::Walk(TABLE, 5)]);
    for slice in 2..slices {
        scenario = scenario.vcpu(slice, [Op::Descend(MIDDLE, SLOT)]);
    }
    started(scenario, converted)
}

/// A root that no vCPU uses any more leaves the class and becomes data.
#[must_use]
pub fn idle_root(slices: u16) -> Scenario {
    let mut scenario = base("a root is no longer used", slices, vec![0, 0, 0, 0, slices - 1])
        .vcpu(0, [Op::Await(DATA, 1, 1), Op::Elapse, Op::Elapse, Op::Store(DATA, 2, 1)])
        .vcpu(
            1,
            [Op::Root(ROOT), Op::Store(DATA, 1, 1), Op::Await(DATA, 2, 1), Op::Reuse(SPARE, 7, 70)],
        );
    for slice in 2..slices {
        scenario = scenario.vcpu(slice, [Op::Descend(ROOT, KERNEL), Op::Descend(SPARE, KERNEL)]);
    }
    // A user's entry makes it a process's root; the kernel's own never leaves.
    let process = Page::from([(0, entry(9)), (KERNEL, entry(MIDDLE))]);
    scenario.contents.push((SPARE, process));
    let mut scenario = walked(scenario, &[0, 1]);
    // Both roots point to the middle table, so neither is kept for its sake.
    scenario.prologue.extend([
        (1, Op::Root(SPARE)),
        (0, Op::Walk(SPARE, KERNEL)),
        (1, Op::Walk(SPARE, KERNEL)),
    ]);
    scenario
}

/// A leaf of a process's table that permits writes, with or without its dirty bit.
const fn leaf(dirty: bool) -> u64 {
    entry(9) & !0x40 | 0x80 | if dirty { 0x40 } else { 0 }
}

/// Slice 0 shares a page that may be written and is clean, then takes it back. The others write
/// through the entry when they like. What was written must count as dirty when it is taken back.
///
/// `before` is the entry at the start: none, or one that was dirty and is made clean (`MADV_FREE`).
#[must_use]
pub fn dirty(slices: u16, before: bool, converted: bool) -> Scenario {
    let ops = [
        Op::Store(TABLE, 5, leaf(false)),
        Op::Interrupt(1),
        Op::TakeBack(TABLE, 5),
        Op::Interrupt(2),
    ];
    let mut scenario = base("a page written elsewhere is dirty", slices, vec![0, 0, slices - 1]);
    scenario = scenario.vcpu(0, ops);
    for slice in 1..slices {
        let through = Op::WriteThrough(TABLE, 5);
        scenario = scenario.vcpu(slice, [Op::AwaitInterrupt(1), through]);
    }
    // The same tables as elsewhere, but in the half of a process.
    scenario.contents[0] = (ROOT, Page::from([(USER, entry(MIDDLE))]));
    if before {
        scenario.contents.push((TABLE, Page::from([(5, leaf(true))])));
    }
    let all = 0..scenario.slices;
    scenario.prologue.extend(all.map(|slice| (slice, Op::Root(ROOT))));
    for slice in [0, 1] {
        scenario.prologue.push((slice, Op::Descend(ROOT, USER)));
        if converted {
            scenario.prologue.push((slice, Op::Descend(MIDDLE, SLOT)));
        }
    }
    scenario
}
