//! What the engine counted, for people and for the run report.

use super::classify::PageClass;
use crate::mapping::ChunkCounts;
use serde::{Deserialize, Serialize};

/// Faults by what the vCPU needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultCounts {
    /// Reads of pages that were not here.
    pub read: u64,
    /// Writes to pages that were not here.
    pub write: u64,
    /// Writes to pages that could only be read here.
    pub upgrade: u64,
}

/// Faults by class of page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassCounts {
    /// Kernel page tables and roots.
    pub kernel_page_table: u64,
    /// Page tables of processes.
    pub user_page_table: u64,
    /// Everything else.
    pub other: u64,
}

/// A page and how often this slice had to ask for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HotPage {
    /// Guest frame number.
    pub gfn: u64,
    /// Faults on it that needed another slice.
    pub faults: u32,
    /// Of these, faults while the protocol took it for a page table.
    pub as_table: u32,
    /// What it was at its last fault.
    pub class: PageClass,
}

/// How contents of pages went from memory to memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageMoves {
    /// Copies of pages by this slice's engine, out of guest memory into a frame or back. The transport
    /// copies such a frame once more. A page that is written remotely is never in a frame.
    pub copies: u64,
    /// Pages that went into another slice's memory, by an adapter or into its memory file.
    pub remote_writes_out: u64,
    /// Pages that another slice wrote into ours in that way.
    pub remote_writes_in: u64,
    /// Pages that the transport received into guest memory.
    #[serde(default)]
    pub direct_received: u64,
}

/// Homes of pages that moved from slice to slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeCounts {
    /// Moves that this slice has heard of, whoever had a part in them: a chunk or a part of one each.
    pub moves: u64,
    /// Pages whose home came to this slice.
    pub pages_in: u64,
    /// Pages whose home left this slice.
    pub pages_out: u64,
    /// Requests of runs that came here for pages with another home by then.
    pub requests_passed_on: u64,
    /// Pages that this slice, their home, fetched from one that was to have none.
    pub pages_pulled: u64,
}

/// Pages received from a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagesFrom {
    /// The slice.
    pub slice: u16,
    /// Pages.
    pub pages: u64,
}

/// Counters of one engine since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Optional mechanisms that were left out to measure what they are worth.
    #[serde(default)]
    pub without: Vec<String>,
    /// Faults that needed another slice.
    pub faults: FaultCounts,
    /// The same faults by class.
    pub faults_by_class: ClassCounts,
    /// Faults answered from what was here.
    pub faults_local: u64,
    /// Time between requests that somebody waited for and their pages, in microseconds, all of them together.
    #[serde(default)]
    pub waited_us: u64,
    /// Of this, for how long holders kept the pages after they were asked.
    #[serde(default)]
    pub held_us: u64,
    /// Pages asked for ahead of a fault.
    #[serde(default)]
    pub prefetches: u64,
    /// Correlated pages asked for: this slice misses them at the same times as others.
    #[serde(default)]
    pub correlated_requests: u64,
    /// Faults of the kernel's workers whose page was probed: only the vCPU could tell what it wanted.
    #[serde(default)]
    pub worker_faults_probed: u64,
    /// Faults of the kernel's workers on pages that this slice was predicted to write.
    #[serde(default)]
    pub worker_faults_guessed: u64,
    /// Reads that asked for write access, because this slice writes the page whenever it has it.
    pub writes_predicted: u64,
    /// Of these, pages that went unwritten.
    pub writes_predicted_in_vain: u64,
    /// Pages that devices of this slice have used for rings and payload.
    #[serde(default)]
    pub device_pages: u64,
    /// How often one of these came from another slice, or went to one, since a device used it first.
    #[serde(default)]
    pub device_page_moves: u64,
    /// Pages that they have used for headers and status of requests, and some of them for data too.
    #[serde(default)]
    pub device_frame_pages: u64,
    /// How often one of these travelled that held no data.
    #[serde(default)]
    pub device_frame_page_moves: u64,
    /// Copies of page contents, and pages that needed none.
    #[serde(default)]
    pub page_moves: PageMoves,
    /// Pages received.
    pub pages_in: u64,
    /// Of these, pages of each slice, ascending.
    #[serde(default)]
    pub pages_from: Vec<PagesFrom>,
    /// Pages sent.
    pub pages_out: u64,
    /// Copies dropped for a writer elsewhere.
    pub invalidations: u64,
    /// Recalls that waited for a hold window or pin.
    pub deferrals: u64,
    /// Messages sent.
    pub messages_out: u64,
    /// Messages refused because of their epoch.
    pub epoch_refused: u64,
    /// Replicated table pages now.
    pub replica_pages: u64,
    /// Pages that this slice turned into replicas.
    pub replica_conversions: u64,
    /// Replicas that ended through this slice.
    pub replica_demotions: u64,
    /// Comparisons of all replicas.
    pub replica_flushes: u64,
    /// Diffs sent.
    pub replica_diffs: u64,
    /// Entries sent in diffs.
    pub replica_entries_out: u64,
    /// Entries taken from diffs.
    pub replica_entries_in: u64,
    /// Entries changed on two slices at once.
    pub replica_conflicts: u64,
    /// The hold window now, in nanoseconds.
    pub hold_window_ns: u64,
    /// The pages asked for most often, hottest first.
    pub hot_pages: Vec<HotPage>,
    /// The same of page tables only.
    pub hot_tables: Vec<HotPage>,
    /// Chunks of this slice's home.
    #[serde(default)]
    pub chunks: ChunkCounts,
    /// Homes that moved.
    #[serde(default)]
    pub homes: HomeCounts,
}
