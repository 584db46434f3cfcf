//! Counters. They never influence the protocol.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use wire::SliceId;

/// What one slice counted. Monotonic.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Read faults that asked another slice, or the home of this slice.
    pub faults_read: u64,
    /// Write faults on pages that this slice had no copy of.
    pub faults_write: u64,
    /// Write faults on pages that this slice could read.
    pub faults_upgrade: u64,
    /// Faults answered from what this slice already had.
    pub faults_local: u64,
    /// For how long somebody waited for pages, in nanoseconds, all of them together. A page that was asked for ahead counts
    /// from when it was touched.
    pub waited_ns: u64,
    /// Of this, for how long holders kept the pages after they were asked.
    pub held_ns: u64,
    /// Pages asked for ahead of a fault.
    pub prefetches: u64,
    /// Pages received (zero pages too).
    pub pages_in: u64,
    /// Of these, pages of each slice.
    pub pages_from: BTreeMap<SliceId, u64>,
    /// Pages sent (zero pages too).
    pub pages_out: u64,
    /// Copies dropped because another slice writes.
    pub invalidations: u64,
    /// Requests that waited for a hold window or a pin.
    pub deferrals: u64,
    /// Messages sent to other slices.
    pub messages_out: u64,
    /// Messages refused because of their epoch.
    pub epoch_refused: u64,
    /// Pages whose home left this slice.
    pub homes_out: u64,
    /// Pages whose home came to this slice.
    pub homes_in: u64,
    /// Late requests that this slice passed on to the next home.
    pub home_requests_passed: u64,
    /// Pages that this home asked for because another slice had them.
    pub pulled: u64,
    /// Replicated page tables.
    pub replicas: ReplicaStats,
}

impl Stats {
    pub(crate) fn page_came(&mut self, from: SliceId) {
        self.pages_in += 1;
        *self.pages_from.entry(from).or_default() += 1;
    }
}

/// Counters of replicated page-table pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaStats {
    /// Pages replicated now.
    pub pages: u64,
    /// Pages that this slice turned into replicas.
    pub conversions: u64,
    /// Pages that left the class through this slice.
    pub demotions: u64,
    /// Comparisons of all replicas with their twins.
    pub flushes: u64,
    /// Flushes that found a difference.
    pub diffs: u64,
    /// Entries sent.
    pub entries_out: u64,
    /// Entries taken from others.
    pub entries_in: u64,
    /// Entries that two slices changed at once.
    pub conflicts: u64,
}

/// Two nodes that differ only in what they counted are the same state to a model checker.
impl PartialEq for Stats {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for Stats {}
impl Hash for Stats {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}
