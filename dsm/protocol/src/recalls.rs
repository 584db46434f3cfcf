//! Recalls that wait: for a page to come, for a pin, or for the end of a hold window. Those that wait for a time are
//! in its order, so that a step looks only at what is due.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use wire::{Access, Gfn, SliceId, Table};

/// A recall that a holder has not carried out yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Deferred {
    pub(crate) gfn: Gfn,
    pub(crate) recall: Recall,
    /// When it came, if it had to wait.
    pub(crate) since: Option<u64>,
    /// When to carry it out; `None` waits for an event instead of time.
    pub(crate) due: Option<u64>,
}

/// What the home asks of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Recall {
    Fetch { requester: SliceId, keep: Access, acks: u16, owner: bool, table: Option<Table> },
    Invalidate { requester: SliceId, upgrade: u16 },
    Leave { heir: SliceId, dropped: bool },
}

impl Deferred {
    fn new(gfn: Gfn, recall: Recall) -> Self {
        Self { gfn, recall, since: None, due: None }
    }

    pub(crate) fn fetch(
        gfn: Gfn,
        requester: SliceId,
        keep: Access,
        acks: u16,
        owner: bool,
        table: Option<Table>,
    ) -> Self {
        Self::new(gfn, Recall::Fetch { requester, keep, acks, owner, table })
    }

    pub(crate) fn invalidate(gfn: Gfn, requester: SliceId, upgrade: u16) -> Self {
        Self::new(gfn, Recall::Invalidate { requester, upgrade })
    }

    pub(crate) fn leave(gfn: Gfn, heir: SliceId, dropped: bool) -> Self {
        Self::new(gfn, Recall::Leave { heir, dropped })
    }

    pub(crate) fn what(&self) -> &'static str {
        match self.recall {
            Recall::Fetch { .. } => "Fetch",
            Recall::Invalidate { .. } => "Invalidate",
            Recall::Leave { .. } => "Leave",
        }
    }

    pub(crate) fn is_for_owner(&self) -> bool {
        matches!(self.recall, Recall::Fetch { owner: true, .. })
    }

    /// Nothing is taken away from a holder that may only read.
    pub(crate) fn takes_nothing(&self) -> bool {
        matches!(self.recall, Recall::Fetch { keep: Access::Read, .. })
    }
}

/// Recalls that wait, by page in the home's order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Recalls {
    queues: BTreeMap<Gfn, VecDeque<Deferred>>,
    /// When the first of each queue is to be carried out, where that is a question of time.
    dues: BTreeSet<(u64, Gfn)>,
}

impl Recalls {
    /// The first page with a recall that waits.
    pub(crate) fn first(&self) -> Option<Gfn> {
        self.queues.keys().next().copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// The queue of a page, to append to.
    pub(crate) fn queue(&mut self, gfn: Gfn) -> Option<&mut VecDeque<Deferred>> {
        self.queues.get_mut(&gfn)
    }

    /// Puts a queue into place where there is none.
    pub(crate) fn insert(&mut self, gfn: Gfn, queue: VecDeque<Deferred>) {
        self.dues.extend(due(&queue).map(|due| (due, gfn)));
        self.queues.insert(gfn, queue);
    }

    pub(crate) fn remove(&mut self, gfn: Gfn) -> Option<VecDeque<Deferred>> {
        let queue = self.queues.remove(&gfn)?;
        if let Some(due) = due(&queue) {
            self.dues.remove(&(due, gfn));
        }
        Some(queue)
    }

    /// The first recall of a page waits until then.
    pub(crate) fn put_off(&mut self, gfn: Gfn, until: u64) {
        let Some(mut queue) = self.remove(gfn) else { return };
        if let Some(recall) = queue.front_mut() {
            recall.due = Some(until);
        }
        self.insert(gfn, queue);
    }

    /// When the next is due.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.dues.first().map(|(due, _)| *due)
    }

    /// Pages whose first recall is due.
    pub(crate) fn due(&self, now: u64) -> Vec<Gfn> {
        self.dues.iter().take_while(|(due, _)| *due <= now).map(|(_, gfn)| *gfn).collect()
    }
}

fn due(queue: &VecDeque<Deferred>) -> Option<u64> {
    queue.front()?.due
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recall(gfn: Gfn, due: Option<u64>) -> VecDeque<Deferred> {
        let mut recall = Deferred::invalidate(gfn, SliceId(1), 0);
        recall.due = due;
        VecDeque::from([recall])
    }

    #[test]
    fn recalls_are_due_by_time_and_only_if_they_wait_for_it() {
        let mut recalls = Recalls::default();
        for (gfn, due) in [(1, Some(30)), (2, None), (3, Some(20))] {
            recalls.insert(Gfn(gfn), recall(Gfn(gfn), due));
        }
        assert_eq!((recalls.next_due(), recalls.due(30)), (Some(20), vec![Gfn(3), Gfn(1)]));
        recalls.put_off(Gfn(3), 50);
        assert_eq!((recalls.next_due(), recalls.due(40)), (Some(30), vec![Gfn(1)]));
        assert!(recalls.remove(Gfn(1)).is_some() && recalls.remove(Gfn(1)).is_none());
        assert_eq!((recalls.next_due(), recalls.dues.len()), (Some(50), 1));
    }
}
