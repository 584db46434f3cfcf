//! What ends at some time: hold windows, and recalls that wait for them. Both in the order in which they
//! end, so that a step looks only at what ends in it, however many pages have just come.

use crate::hold::Window;
use crate::holder::Deferred;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use wire::Gfn;

/// The hold windows of pages that came lately.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Windows {
    pages: BTreeMap<Gfn, Window>,
    ends: BTreeSet<(u64, Gfn)>,
}

impl Windows {
    pub(crate) fn get(&self, gfn: Gfn) -> Option<&Window> {
        self.pages.get(&gfn)
    }

    /// Opens a window, or changes it.
    pub(crate) fn set(&mut self, gfn: Gfn, window: Window) {
        if let Some(before) = self.pages.insert(gfn, window) {
            self.ends.remove(&(before.until, gfn));
        }
        self.ends.insert((window.until, gfn));
    }

    pub(crate) fn remove(&mut self, gfn: Gfn) {
        if let Some(window) = self.pages.remove(&gfn) {
            self.ends.remove(&(window.until, gfn));
        }
    }

    /// Forgets the windows that are over.
    pub(crate) fn expire(&mut self, now: u64) {
        while let Some((_, gfn)) = self.ends.first().copied().filter(|(end, _)| *end <= now) {
            self.remove(gfn);
        }
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
    use wire::SliceId;

    fn recall(gfn: Gfn, due: Option<u64>) -> VecDeque<Deferred> {
        let mut recall = Deferred::invalidate(gfn, SliceId(1), 0);
        recall.due = due;
        VecDeque::from([recall])
    }

    #[test]
    fn windows_expire_in_the_order_of_their_ends() {
        let mut windows = Windows::default();
        for (gfn, end) in [(1, 30), (2, 10), (3, 20), (4, 10)] {
            windows.set(Gfn(gfn), Window::until(end));
        }
        windows.set(Gfn(2), Window::until(40));
        windows.remove(Gfn(3));
        windows.expire(9);
        assert_eq!(windows.pages.len(), 3);
        windows.expire(30);
        assert_eq!(windows.pages.keys().collect::<Vec<_>>(), [&Gfn(2)]);
        assert_eq!(windows.ends.len(), 1);
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
