//! VMs that wait, in the order in which they came.

use crate::ids::VmId;
use crate::spec::Spec;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Who may pass whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Discipline {
    /// Whoever fits starts (backfill), until the first one has waited for this long, in milliseconds. Then nobody passes it.
    Backfill {
        /// How long.
        age_max: u64,
    },
    /// Nobody passes anybody.
    Strict,
}

impl Discipline {
    /// Whether others may pass one that has waited since `since` and found no room.
    pub(crate) fn may_pass(self, since: u64, now: u64) -> bool {
        match self {
            Self::Backfill { age_max } => now.saturating_sub(since) < age_max,
            Self::Strict => false,
        }
    }
}

/// A VM that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiting {
    /// Which.
    pub vm: VmId,
    /// What it wants.
    pub spec: Arc<Spec>,
    /// Since when.
    pub since: u64,
}

/// The queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Queue {
    entries: VecDeque<Waiting>,
    members: BTreeSet<VmId>,
}

impl Queue {
    /// In its place by the time it came, so that one whose start failed has lost nothing.
    pub(crate) fn add(&mut self, it: Waiting) {
        let at = self.entries.partition_point(|other| (other.since, other.vm) < (it.since, it.vm));
        self.members.insert(it.vm);
        self.entries.insert(at, it);
    }

    pub(crate) fn remove(&mut self, vm: VmId) -> Option<Waiting> {
        if !self.contains(vm) {
            return None;
        }
        let at = self.entries.iter().position(|it| it.vm == vm)?;
        self.take(at)
    }

    pub(crate) fn take(&mut self, at: usize) -> Option<Waiting> {
        let it = self.entries.remove(at)?;
        self.members.remove(&it.vm);
        Some(it)
    }

    /// Whether it waits.
    #[must_use]
    pub fn contains(&self, vm: VmId) -> bool {
        self.members.contains(&vm)
    }

    /// By turn.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&Waiting> {
        self.entries.get(at)
    }

    /// All, by turn.
    pub fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.entries.iter()
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nobody does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
