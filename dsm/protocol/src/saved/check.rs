//! What the form of one node alone can be asked.

use super::frames::FrameRuns;
use super::state::{HolderKind, HoldersState, NodeState, TableScope};
use crate::homes::HomeTable;
use migrate::{Invalid, SavedState};
use std::ops::Range;
use wire::{Half, Level, SLICES_MAX, SliceId};

/// No slice sends so many messages, a million in a second, in a thousand years.
const COUNT_MAX: u64 = 1 << 56;

impl SavedState for NodeState {
    const NAME: &'static str = "memory-node";
    const VERSION: u16 = 1;
    /// A run takes 12 bytes at most, so these are five million runs. A guest of 64 GiB whose every third page is held
    /// in another way stays below that.
    const MAX_BYTES: usize = 64 << 20;

    fn check(&self) -> Result<(), Invalid> {
        check(self)
    }
}

/// Whether the fields fit together: every page in one state, every page of this home with its holders, and the holders
/// as this slice itself holds the pages.
fn check(state: &NodeState) -> Result<(), Invalid> {
    members(state)?;
    numbers(state)?;
    let homes = state.home_table()?;
    let memory = frames(&homes, |_| true);
    let own = frames(&homes, |home| home == state.slice);
    state.shared.check("shared", &memory)?;
    state.exclusive.check("exclusive", &memory)?;
    replicas(state, &memory)?;
    let replicas = of_replicas(state);
    let all = [&state.shared, &state.exclusive, &replicas];
    disjoint("exclusive", all.into_iter().flat_map(FrameRuns::ranges).collect())?;
    directory(state, &own)?;
    state.never_replicas.check("never_replicas", &own)?;
    disjoint("never_replicas", state.never_replicas.ranges().chain(replicas.ranges()).collect())?;
    roots(state, &memory)?;
    own_copies(state, &own, &replicas)
}

/// What is counted on from here is far from its end.
fn numbers(state: &NodeState) -> Result<(), Invalid> {
    Invalid::unless(state.newest_flush <= COUNT_MAX, "newest_flush", "no node comes so far")?;
    let counts = state.channels.iter().flat_map(|channel| [channel.sent, channel.received]);
    Invalid::unless(counts.max() <= Some(COUNT_MAX), "channels", "no node comes so far")
}

/// Frames whose home is one of these, ascending.
fn frames(homes: &HomeTable, wanted: impl Fn(SliceId) -> bool) -> FrameRuns {
    let ranges = homes.ranges().iter().filter(|range| wanted(range.home));
    FrameRuns::of(ranges.map(|range| range.frames.clone()).collect())
}

/// The pages that are replicas here.
pub(super) fn of_replicas(state: &NodeState) -> FrameRuns {
    FrameRuns::of(state.replicas.iter().map(|one| one.page.0..one.page.0 + 1).collect())
}

fn members(state: &NodeState) -> Result<(), Invalid> {
    let slices = &state.slices;
    let unless = |holds, why| Invalid::unless(holds, "slices", why);
    unless(slices.iter().all(|slice| slice.0 < SLICES_MAX), "more than 64")?;
    unless(slices.is_sorted_by(|a, b| a < b), "they do not ascend")?;
    Invalid::unless(slices.contains(&state.slice), "slice", "it shares no memory")?;
    let ascend = state.homes.is_sorted_by(|a, b| a.first < b.first);
    Invalid::unless(ascend, "homes", "they do not ascend")?;
    let known = state.homes.iter().all(|range| slices.contains(&range.home));
    Invalid::unless(known, "homes", "a home that shares no memory")?;
    let others = slices.iter().filter(|slice| **slice != state.slice);
    let peers = others.eq(state.channels.iter().map(|channel| &channel.peer));
    Invalid::unless(peers, "channels", "not one for each other slice")
}

fn replicas(state: &NodeState, memory: &FrameRuns) -> Result<(), Invalid> {
    let unless = |holds, why| Invalid::unless(holds, "replicas", why);
    unless(state.replicas.is_sorted_by(|a, b| a.page < b.page), "they do not ascend")?;
    let possible = state.tables != TableScope::Nothing && state.slices.len() > 1;
    unless(possible || state.replicas.is_empty(), "this node makes none")?;
    for replica in &state.replicas {
        let table = replica.table();
        let table = table.ok_or_else(|| Invalid::new("replicas", "a level that no table has"))?;
        unless(memory.contains(replica.page), "a page without memory")?;
        let root = table.level == Level::ROOT;
        unless(root || !replica.of_process, "a process whose root is no root")?;
        let user = table.half == Half::User;
        unless(!user || !root, "a root of one half")?;
        let possible = !user || state.tables == TableScope::All;
        unless(possible, "a table of a process, and none of these becomes a replica")?;
    }
    Ok(())
}

/// No frame is in two of these ranges.
fn disjoint(field: &'static str, mut ranges: Vec<Range<u64>>) -> Result<(), Invalid> {
    ranges.sort_unstable_by_key(|range| range.start);
    let overlap = ranges.windows(2).find(|pair| pair[0].end > pair[1].start);
    match overlap {
        Some(pair) => Err(Invalid::new(field, format!("gfn{} is in two states", pair[1].start))),
        None => Ok(()),
    }
}

fn directory(state: &NodeState, own: &FrameRuns) -> Result<(), Invalid> {
    let unless = |holds, why| Invalid::unless(holds, "directory", why);
    for holders in &state.directory {
        let HoldersState { kind, slices, widely_shared, frames } = holders;
        frames.check("directory", own)?;
        unless(!frames.is_empty(), "holders of no page")?;
        unless(slices.is_sorted_by(|a, b| a < b), "holders do not ascend")?;
        unless(slices.iter().all(|slice| state.slices.contains(slice)), "a holder is no member")?;
        let fits = match kind {
            HolderKind::Shared => !slices.is_empty(),
            HolderKind::Exclusive | HolderKind::ExclusiveGrant => slices.len() == 1,
            HolderKind::Replicated => slices.is_empty() && !widely_shared,
        };
        unless(fits, "holders that do not fit how they hold it")?;
    }
    // Each directory has one form, and each way to hold a page is in it once.
    let key = |holders: &HoldersState| {
        let slices = holders.slices.iter().fold(0_u64, |all, slice| all | 1 << slice.0);
        (slices, holders.kind, holders.widely_shared)
    };
    let ascend = state.directory.is_sorted_by(|a, b| key(a) < key(b));
    unless(ascend, "holders do not ascend from group to group")?;
    let ranges = || state.directory.iter().flat_map(|holders| holders.frames.ranges());
    disjoint("directory", ranges().collect())?;
    let pages: u64 = state.directory.iter().map(|holders| holders.frames.pages()).sum();
    unless(pages == own.pages(), "not every page of this home has holders")
}

fn roots(state: &NodeState, memory: &FrameRuns) -> Result<(), Invalid> {
    let unless = |holds, why| Invalid::unless(holds, "roots", why);
    unless(state.roots.is_sorted_by(|a, b| a.vcpu < b.vcpu), "vCPUs do not ascend")?;
    let known = state.roots.iter().all(|root| root.vcpu.0 < state.vcpus);
    unless(known, "a vCPU that the VM does not have")?;
    unless(state.roots.iter().all(|root| memory.contains(root.page)), "a page without memory")
}

/// What the directory says of this slice is how it has the pages.
fn own_copies(state: &NodeState, own: &FrameRuns, replicas: &FrameRuns) -> Result<(), Invalid> {
    let said = |fits: &dyn Fn(&HoldersState) -> bool| {
        let groups = state.directory.iter().filter(|holders| fits(holders));
        FrameRuns::of(groups.flat_map(|holders| holders.frames.ranges()).collect())
    };
    let here = |holders: &HoldersState| holders.slices.contains(&state.slice);
    let shared = said(&|holders| here(holders) && holders.kind == HolderKind::Shared);
    let exclusive = said(&|holders| here(holders) && holders.kind != HolderKind::Shared);
    let replicated = said(&|holders| holders.kind == HolderKind::Replicated);
    let pairs = [
        ("shared", &state.shared, shared),
        ("exclusive", &state.exclusive, exclusive),
        ("replicas", replicas, replicated),
    ];
    for (field, found, said) in pairs {
        let found = found.intersection(own);
        if let Some(gfn) = found.first_difference(&said) {
            let why = format!("{gfn} is not held as the directory of this slice says");
            return Err(Invalid::new(field, why));
        }
    }
    Ok(())
}
