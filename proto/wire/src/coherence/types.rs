//! What messages speak of: access, page tables and their entries.

use crate::Gfn;

/// What a slice may do with its copy of a page. Ordered: more access is greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// No copy.
    #[default]
    None,
    /// A copy that others may have too.
    Read,
    /// The only copy.
    Write,
}

/// Level of a page-table page: 4 is the root (PML4), 1 holds leaf entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(u8);

impl Level {
    /// The root of a four-level table.
    pub const ROOT: Self = Self(4);
    /// The level below, if this level's entries point to tables.
    #[must_use]
    pub fn below(self) -> Option<Self> {
        Self::new(self.0 - 1)
    }
    /// A level from 1 to 4.
    #[must_use]
    pub fn new(level: u8) -> Option<Self> {
        (1..=4).contains(&level).then_some(Self(level))
    }
    /// The number, 1 to 4.
    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }
}

/// Whose translations a page-table page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Half {
    /// The kernel's: the upper half of a root, or a root itself, since each has that half.
    Kernel,
    /// A process's: reachable from the lower half of a root.
    User,
}

/// What kind of page-table page a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table {
    /// Its level.
    pub level: Level,
    /// Whose it is.
    pub half: Half,
}

impl Table {
    /// A root.
    pub const ROOT: Self = Self { level: Level::ROOT, half: Half::Kernel };

    /// As one byte: the level, and [`USER_TABLE`].
    pub(super) fn code(self) -> u8 {
        self.level.get() | if self.half == Half::User { USER_TABLE } else { 0 }
    }

    pub(super) fn decode(code: u8) -> Option<Self> {
        let half = if code & USER_TABLE == 0 { Half::Kernel } else { Half::User };
        Level::new(code & !USER_TABLE).map(|level| Self { level, half })
    }
}

/// Set in the level byte of a table of a process.
const USER_TABLE: u8 = 0x80;

/// One changed entry of a replicated page-table page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// The page.
    pub gfn: Gfn,
    /// Index of the 8-byte entry, 0 to 511.
    pub index: u16,
    /// What the sender's twin held.
    pub old: u64,
    /// What the sender's page holds.
    pub new: u64,
}

/// What a requester holds when it confirms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Held {
    /// The only copy.
    Exclusive,
    /// A replica, as everyone else does.
    Replica,
}

/// What a slice asked a former home of a page for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Asked {
    /// As by [`Message::Get`](super::Message::Get), or by [`Message::GetRun`](super::Message::GetRun).
    Get {
        /// Read or write.
        want: Access,
        /// What kind of table page.
        table: Option<Table>,
        /// In a run, and late: the run came when the home had moved already.
        late_run: bool,
    },
    /// As by [`Message::Demote`](super::Message::Demote).
    Demote,
}

/// How the holders of a page hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HolderKind {
    /// To read, all of them.
    Shared,
    /// One of them, to write.
    Exclusive,
    /// One of them, to write, although it asked to read.
    ExclusiveGrant,
    /// Everyone has a replica.
    Replicated,
}

/// All that a home knows of a page. A slice is a bit, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirectoryEntry {
    /// Who has the page, or will have it once what is on its way has arrived. Of a replicated page: whose
    /// request was dropped.
    pub holders: u64,
    /// How they hold it.
    pub kind: HolderKind,
    /// Many slices read it between two writes.
    pub widely_shared: bool,
    /// It must never become a replica.
    pub never_replica: bool,
    /// Slices of which a run is on its way that asks for the page in vain.
    pub late_runs: u64,
}
