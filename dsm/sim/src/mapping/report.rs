//! What a run of the simulator found.

use dsm::Memory;
use std::fmt;

/// What a run found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Slices.
    pub slices: u16,
    /// Of what private chunks are made.
    pub memory: Memory,
    /// Touches of memory.
    pub touches: u64,
    /// Faults that asked for a page.
    pub faults: u64,
    /// Pages that came.
    pub pages_in: u64,
    /// Chunks that became shared.
    pub shared: u64,
    /// Chunks of other homes that became private.
    pub exclusive_grants: u64,
    /// Chunks that became private again.
    pub private_again: u64,
    /// Chunks put on huge pages.
    pub collapsed: u64,
    /// Faults of workers whose page was probed.
    pub probed: u64,
    /// The longest step, virtual nanoseconds.
    pub longest_ns: u64,
    /// How often all was saved and restored.
    pub saves: u64,
    /// Moves of homes, and pulls of pages.
    pub moves: u64,
    /// Snapshots that were read, and were what memory had been.
    pub snapshots: u64,
    /// How often pages were protected again before a snapshot, while some slice was not ready.
    pub upkeep: u64,
    /// Slices that left.
    pub left: u64,
    /// Slices that joined.
    pub joined: u64,
    /// Pieces of memory that came while the guests ran.
    pub loaded: usize,
    /// Those that came because somebody needed them.
    pub on_demand: usize,
    /// Pages whose home moved.
    pub moved_pages: u64,
    /// Pages that went to their home.
    pub pulled: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "slices={} {:?} touches={} faults={} pages={} shared={} exclusive-grants={} private-again={} \
             huge={} probed={} saves={} snapshots={} upkeep={} moves={} moved-pages={} pulled={} left={} joined={} loaded={} on-demand={} longest={}us",
            self.slices,
            self.memory,
            self.touches,
            self.faults,
            self.pages_in,
            self.shared,
            self.exclusive_grants,
            self.private_again,
            self.collapsed,
            self.probed,
            self.saves,
            self.snapshots,
            self.upkeep,
            self.moves,
            self.moved_pages,
            self.pulled,
            self.left,
            self.joined,
            self.loaded,
            self.on_demand,
            self.longest_ns / 1000
        )
    }
}
