//! What a run found, or why it failed.

use super::workload::Workload;
use dsm_protocol::Stats;
use std::fmt;

/// What a run found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The workload.
    pub workload: Workload,
    /// Pages of the cluster.
    pub frames: u64,
    /// Faults that asked for a page.
    pub faults: u64,
    /// Messages sent.
    pub messages: u64,
    /// Pages turned into replicas.
    pub conversions: u64,
    /// Replicas ended.
    pub demotions: u64,
    /// Entries changed by two slices at once.
    pub conflicts: u64,
    /// Recalls that waited.
    pub deferrals: u64,
    /// How often all nodes were saved and restored.
    pub saves: u64,
    /// Replicas in the saved forms of one slice, all of them together.
    pub saved_replicas: u64,
    /// Moves of homes.
    pub moves: u64,
    /// Pages whose home moved.
    pub moved_pages: u64,
    /// Requests that came to a former home.
    pub late_requests: u64,
    /// Slices that left.
    pub left: u64,
    /// Slices that joined.
    pub joined: u64,
    /// How often one could not leave yet.
    pub refusals: u64,
    /// The longest operation, virtual nanoseconds.
    pub longest_ns: u64,
}

impl Report {
    /// Adds what a node has counted. Once for each node.
    pub(super) fn add(&mut self, stats: &Stats) {
        self.faults += stats.faults_read + stats.faults_write + stats.faults_upgrade;
        self.messages += stats.messages_out;
        self.conversions += stats.replicas.conversions;
        self.demotions += stats.replicas.demotions;
        self.conflicts += stats.replicas.conflicts;
        self.deferrals += stats.deferrals;
        self.moved_pages += stats.homes_in;
        self.late_requests += stats.home_requests_passed;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.messages * 10 / self.faults.max(1);
        write!(
            f,
            "{} pages={} faults={} messages/fault={}.{} conversions={} demotions={} conflicts={} \
             deferrals={} saves={} saved_replicas={} moves={} moved_pages={} late_requests={} left={} \
             joined={} refusals={} longest={}us",
            self.workload,
            self.frames,
            self.faults,
            tenths / 10,
            tenths % 10,
            self.conversions,
            self.demotions,
            self.conflicts,
            self.deferrals,
            self.saves,
            self.saved_replicas,
            self.moves,
            self.moved_pages,
            self.late_requests,
            self.left,
            self.joined,
            self.refusals,
            self.longest_ns / 1000
        )
    }
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}
