//! The newest changes, for watchers and for lists that are read page by page.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::entry::{Batch, Change};
use crate::ids::Revision;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct History {
    /// By revision, without a gap that a commit filled.
    batches: VecDeque<Arc<Batch>>,
    /// All up to this one are forgotten.
    compacted: Revision,
    bytes: u64,
}

fn size(batch: &Batch) -> u64 {
    let of = |change: &Change| {
        let value = match change {
            Change::Put(entry) => entry.value.len(),
            Change::Delete(_) => 0,
        };
        (change.key().as_str().len() + value) as u64
    };
    batch.changes.iter().map(of).sum()
}

impl History {
    pub(super) fn new(compacted: Revision) -> Self {
        Self { compacted, ..Self::default() }
    }

    pub(super) fn compacted(&self) -> Revision {
        self.compacted
    }

    pub(super) fn push(&mut self, batch: Arc<Batch>) {
        self.bytes += size(&batch);
        self.batches.push_back(batch);
    }

    pub(super) fn pop_newest(&mut self, after: Revision) -> Option<Arc<Batch>> {
        self.batches.back().filter(|batch| batch.revision > after)?;
        let batch = self.batches.pop_back()?;
        self.bytes -= size(&batch);
        Some(batch)
    }

    pub(super) fn pop_oldest(&mut self, upto: Revision) -> Option<Arc<Batch>> {
        self.compacted = self.compacted.max(upto);
        self.batches.front().filter(|batch| batch.revision <= upto)?;
        let batch = self.batches.pop_front()?;
        self.bytes -= size(&batch);
        Some(batch)
    }

    /// Those after a revision.
    pub(super) fn after(&self, revision: Revision) -> impl Iterator<Item = &Arc<Batch>> {
        let known = self.batches.partition_point(|batch| batch.revision <= revision);
        self.batches.range(known..)
    }

    /// Up to where it must be forgotten, if it is an eighth longer than allowed. By and by would be a write more for each commit.
    pub(super) fn excess(&self, count_max: usize, bytes_max: u64) -> Option<Revision> {
        let few = self.batches.len() <= count_max + count_max / 8;
        if few && self.bytes <= bytes_max + bytes_max / 8 {
            return None;
        }
        let (mut count, mut bytes) = (self.batches.len(), self.bytes);
        let mut last = None;
        for batch in &self.batches {
            if count <= count_max && bytes <= bytes_max {
                break;
            }
            count -= 1;
            bytes -= size(batch);
            last = Some(batch.revision);
        }
        last
    }
}
