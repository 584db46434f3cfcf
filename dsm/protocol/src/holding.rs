//! Hold windows, opened and ended: [`crate::hold`] says why and for how long.

use crate::hold_windows::{HoldHistory, HoldWindow};
use crate::node::Node;
use crate::pages::PageCopy;
use crate::store::PageStore;
use std::collections::BTreeMap;
use wire::Gfn;

/// Pages whose history is remembered. Beyond that all are forgotten.
const REMEMBERED_MAX: usize = 1024;

impl Node {
    /// Opens the window of a page that has come after `waited_ns`, of which a holder kept it for `held_ns`.
    pub(crate) fn hold_page(&mut self, gfn: Gfn, waited_ns: u64, held_ns: u64) {
        let busy = self.hold.contended_ns(waited_ns, held_ns);
        let window = match self.hold_history.get(&gfn) {
            Some(HoldHistory::Busy) => self.hold.window_ns().max(busy / 3),
            Some(HoldHistory::Brief) => self.hold.brief_ns(),
            None => self.hold.window_ns(),
        };
        if window > 0 {
            let since = self.now;
            let held = HoldWindow { since, busy, ..HoldWindow::until(since + window) };
            self.held.set(gfn, held);
        }
    }

    /// Another slice asks for a page in its window: notes the contents, to see whether they change.
    pub(crate) fn note_contents(&mut self, gfn: Gfn, store: &impl PageStore) {
        let Some(held) = self.held.get(gfn).copied() else { return };
        if held.busy == 0 || held.contents.is_some() || self.pages.copy(gfn) != PageCopy::Exclusive
        {
            return;
        }
        let contents = Some(store.fingerprint(gfn));
        self.held.set(gfn, HoldWindow { contents, ..held });
    }

    /// The window is over. Goes on with it if this slice still writes the page; tells until when.
    pub(crate) fn go_on_holding(&mut self, gfn: Gfn, store: &impl PageStore) -> Option<u64> {
        let held = *self.held.get(gfn)?;
        held.contents.filter(|_| self.pages.copy(gfn) == PageCopy::Exclusive)?;
        if self.ends(gfn, held) {
            return None;
        }
        self.found(gfn, held, store.fingerprint(gfn))
    }

    /// Tells whether the page has been kept as long as it may; if so, how it was used is remembered.
    fn ends(&mut self, gfn: Gfn, held: HoldWindow) -> bool {
        let over = self.now >= held.since + held.busy;
        if over {
            remember(&mut self.hold_history, gfn, (held.changes >= 2).then_some(HoldHistory::Busy));
        }
        over
    }

    /// The contents of a page that another slice waits for have been looked at.
    fn found(&mut self, gfn: Gfn, mut held: HoldWindow, contents: u64) -> Option<u64> {
        let (now, end) = (self.now, held.since + held.busy);
        if held.contents.replace(contents) == Some(contents) {
            // Where nothing was written, the vCPU may not even have had the time to run.
            let is_brief = held.changes == 1 && self.config.mechanisms.brief_windows;
            remember(&mut self.hold_history, gfn, is_brief.then_some(HoldHistory::Brief));
            return None;
        }
        held.changes += 1;
        let more = if held.changes.is_multiple_of(2) {
            3 * (now - held.since)
        } else if self.hold_history.get(&gfn) == Some(&HoldHistory::Brief) {
            self.hold.brief_ns()
        } else {
            // One change may be all that there is: a lock that was taken, a turn that was given on.
            self.hold.window_ns()
        };
        held.until = end.min(now + more);
        self.held.set(gfn, held);
        Some(held.until)
    }
}

/// Remembers something about a page, or forgets it.
fn remember<T>(pages: &mut BTreeMap<Gfn, T>, gfn: Gfn, what: Option<T>) {
    let Some(what) = what else {
        pages.remove(&gfn);
        return;
    };
    if pages.len() >= REMEMBERED_MAX {
        pages.clear();
    }
    pages.insert(gfn, what);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, HoldPolicy, HomeRange, HomeTable};
    use wire::{Epoch, SliceId};

    const PAGE: Gfn = Gfn(1);

    fn node() -> Node {
        let homes = HomeTable::new(vec![HomeRange { frames: 0..2, home: SliceId(0) }]).unwrap();
        let slices = vec![SliceId(0), SliceId(1)];
        let config = Config::new(SliceId(1), slices, homes, Epoch(1));
        let mut node = Node::new(Config { hold: HoldPolicy::default(), ..config });
        (0..64).for_each(|_| node.hold.measured(200_000));
        node
    }

    /// The page comes, and another slice asks for it at once, finding `contents(0)`; how long this slice keeps it
    /// where looks at it find `contents(time)`.
    fn tenure(node: &mut Node, contents: impl Fn(u64) -> u64) -> u64 {
        node.now += 1_000_000_000;
        let start = node.now;
        node.hold_page(PAGE, 400_000, 200_000);
        let mut held = *node.held.get(PAGE).unwrap();
        held.contents = Some(contents(0));
        loop {
            node.now = held.until;
            let time = node.now - start;
            if node.ends(PAGE, held) || node.found(PAGE, held, contents(time)).is_none() {
                return time;
            }
            held = *node.held.get(PAGE).unwrap();
        }
    }

    #[test]
    fn page_that_is_written_once_is_given_up_sooner_next_time() {
        let mut node = node();
        let window = node.hold.window_ns();
        let once = |time: u64| u64::from(time > 0);
        assert_eq!(tenure(&mut node, once), 2 * window);
        assert_eq!(tenure(&mut node, once), window / 2);
        // Too short for a vCPU that comes late: it gets the whole window, and can show that it is busy.
        let late = |time: u64| time.saturating_sub(window / 3);
        assert_eq!(tenure(&mut node, late), window / 4);
        assert_eq!(tenure(&mut node, late), node.hold.busy_ns());
    }

    #[test]
    fn page_is_kept_for_long_at_once_only_if_it_was_busy_to_the_end() {
        let mut node = node();
        let (window, busy) = (node.hold.window_ns(), node.hold.busy_ns());
        // Busy for a while, then idle: no reason to wait for a third of the busy window next time.
        let twice = |time: u64| time.min(2 * window);
        assert!(tenure(&mut node, twice) > 2 * window);
        assert_eq!(node.hold_history.get(&PAGE), None);
        assert_eq!(tenure(&mut node, |time| time), busy);
        assert_eq!(node.hold_history.get(&PAGE), Some(&HoldHistory::Busy));
        assert_eq!(tenure(&mut node, |_| 7), busy / 3);
        assert_eq!(node.hold_history.get(&PAGE), None);
    }
}
