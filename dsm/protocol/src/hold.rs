//! The hold window: how long a slice keeps a page that it has just received.
//!
//! Without it, two slices that write one page can hand it back and forth without either making
//! progress. It follows the measured cost of a transfer (the time of a fault less what holders kept the
//! page), and never exceeds a cap, because a timer tick touches several shared pages and must not cost
//! more than its period (facts: linux-over-dsm, section 2).
//!
//! ```text
//!   page comes --window--> nobody asks: no window any more
//!                      \-> asked: contents changed meanwhile? --no--> given up
//!                             ^            | yes: for a window more, and if they have changed
//!                             +--a while---+ again, the slice is busy with it: until the busy
//!                                            window is over
//! ```
//!
//! While one slice has the page the others wait, so of the time of a busy page a transfer is lost for each
//! window. A window of 100 transfers loses a hundredth. But a slice that does nothing with the page
//! would make the others wait for nothing: so only a page whose contents go on changing is kept longer,
//! twice in a row, and each time for thrice as long as so far. What is kept in vain is thus in proportion to
//! what was not. A page that was busy to the end of its window last time begins with a third of the busy window:
//! each look at a page takes the core away from the guest. One that changed just once last time (a turn that was
//! taken and given on, a lock) begins with a quarter of the ordinary window, and is looked at as often; if that
//! was too short to write it even once, next time is like the first.
//!
//! Where transfers take long now and then, or the looks do, 100 mean transfers are not enough. So slices that
//! are all busy with a page let their windows grow: each keeps it at most twice as long as the last holder did
//! after it had been asked (`held`), and gives way to the others, who kept it for `waited` together:
//!
//! ```text
//!   window = min(2 held, (3 most - waited) / 2, most), but never less than without growth
//! ```
//!
//! With n slices that comes to rest at 3/(n + 1) of the most: two of them have it for `most` each, and a
//! round of however many takes less than thrice that, unless it takes longer without growth. A holder that
//! goes idle gives the page up after a look, and as `held` is short then, the next window is short too.

use crate::node::Node;
use crate::pages::Copy;
use crate::store::PageStore;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use wire::Gfn;

/// Parameters of the hold window. Times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HoldPolicy {
    /// The least window.
    pub min_ns: u64,
    /// The most.
    pub max_ns: u64,
    /// Window as a percentage of the mean transfer time.
    pub percent: u32,
    /// The least for a page that this slice goes on writing.
    pub busy_min_ns: u64,
    /// The most.
    pub busy_max_ns: u64,
    /// Window for such a page, as a percentage of the mean transfer time.
    pub busy_percent: u32,
    /// The most for a page that the other slices go on writing too; nothing if it is not more than that.
    pub contended_max_ns: u64,
}

impl HoldPolicy {
    /// No window at all. For models.
    pub const NONE: Self = Self::fixed(0);

    /// One window for all pages.
    #[must_use]
    pub const fn fixed(ns: u64) -> Self {
        Self {
            min_ns: ns,
            max_ns: ns,
            percent: 0,
            busy_min_ns: 0,
            busy_max_ns: 0,
            busy_percent: 0,
            contended_max_ns: 0,
        }
    }
}

impl Default for HoldPolicy {
    fn default() -> Self {
        Self {
            min_ns: 20_000,
            max_ns: 2_000_000,
            percent: 150,
            busy_min_ns: 0,
            busy_max_ns: 20_000_000,
            busy_percent: 10_000,
            contended_max_ns: 50_000_000,
        }
    }
}

/// Mean transfer time and the windows that follow from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hold {
    policy: HoldPolicy,
    mean_ns: u64,
}

/// What this slice did with a page when it was here last, asked for by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Habit {
    /// Wrote it until the window was over.
    Busy,
    /// Wrote it once.
    Brief,
}

/// The window of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Window {
    since: u64,
    pub(crate) until: u64,
    /// The longest that it may become.
    busy: u64,
    /// Contents when another slice asked, or when they were looked at last.
    contents: Option<u64>,
    /// How often in a row they were found changed.
    changes: u32,
}

impl Window {
    /// One that ends then, and does not grow.
    pub(crate) fn until(until: u64) -> Self {
        Self { since: 0, until, busy: 0, contents: None, changes: 0 }
    }
}

impl Hold {
    pub(crate) fn new(policy: HoldPolicy) -> Self {
        Self { policy, mean_ns: 0 }
    }

    /// Other parameters. What was measured stays.
    pub(crate) fn set(&mut self, policy: HoldPolicy) {
        self.policy = policy;
    }

    /// Takes one measured transfer into the mean (weight 1/16), as twice the mean at most: that some
    /// transfers take ten times as long, when a host has no time for a slice, says nothing about the others.
    pub(crate) fn measured(&mut self, transfer_ns: u64) {
        if self.policy == HoldPolicy::NONE {
            return;
        }
        self.mean_ns = match self.mean_ns {
            0 => transfer_ns,
            mean => mean - mean / 16 + transfer_ns.min(mean.saturating_mul(2)).div_ceil(16),
        };
    }

    pub(crate) fn mean_ns(&self) -> u64 {
        self.mean_ns
    }

    fn share(&self, percent: u32) -> u64 {
        self.mean_ns.saturating_mul(u64::from(percent)) / 100
    }

    /// The window now.
    pub(crate) fn window_ns(&self) -> u64 {
        self.share(self.policy.percent).clamp(self.policy.min_ns, self.policy.max_ns)
    }

    /// The window of a page that was written once last time.
    fn brief_ns(&self) -> u64 {
        (self.window_ns() / 4).max(self.policy.min_ns)
    }

    /// The window of a page that is written all the time.
    fn busy_ns(&self) -> u64 {
        let HoldPolicy { busy_percent, busy_min_ns, busy_max_ns, .. } = self.policy;
        self.share(busy_percent).clamp(busy_min_ns, busy_max_ns)
    }

    /// The same of a page that a holder kept for `held_ns` after it had been asked, and all holders together
    /// for `waited_ns`.
    fn contended_ns(&self, waited_ns: u64, held_ns: u64) -> u64 {
        let most = self.policy.contended_max_ns;
        let others_left = most.saturating_mul(3).saturating_sub(waited_ns) / 2;
        held_ns.saturating_mul(2).min(others_left).min(most).max(self.busy_ns())
    }
}

/// A page that its holder kept for longer than this is waited for with its habits in mind.
const LONG_NS: u64 = 500_000;
/// Pages remembered for their habits. Beyond that all are forgotten.
const REMEMBERED_MAX: usize = 1024;

impl Node {
    /// A page has come after `waited_ns`, of which a holder kept it for `held_ns`.
    pub(crate) fn note_habit(&mut self, gfn: Gfn, waited_ns: u64, held_ns: u64) {
        let habit = (held_ns >= LONG_NS).then(|| (held_ns.min(waited_ns), waited_ns));
        remember(&mut self.long_held, gfn, habit);
    }

    /// When a page that is waited for should come, in the clock of the steps, if its holder kept it for a
    /// while last time and does so again: not before its window is over, and after as long as last time at
    /// the latest. A shell that knows can be awake by then.
    #[must_use]
    pub fn expected_ns(&self, gfn: Gfn) -> Option<RangeInclusive<u64>> {
        let since = self.waits.get(gfn)?.since;
        let (held_ns, waited_ns) = self.long_held.get(&gfn)?;
        Some(since + held_ns..=since + waited_ns)
    }

    /// Opens the window of a page that has come after `waited_ns`, of which a holder kept it for `held_ns`.
    pub(crate) fn hold_page(&mut self, gfn: Gfn, waited_ns: u64, held_ns: u64) {
        let busy = self.hold.contended_ns(waited_ns, held_ns);
        let window = match self.habits.get(&gfn) {
            Some(Habit::Busy) => self.hold.window_ns().max(busy / 3),
            Some(Habit::Brief) => self.hold.brief_ns(),
            None => self.hold.window_ns(),
        };
        if window > 0 {
            let since = self.now;
            let held = Window { since, busy, ..Window::until(since + window) };
            self.held.set(gfn, held);
        }
    }

    /// Another slice asks for a page in its window: notes the contents, to see whether they change.
    pub(crate) fn note_contents(&mut self, gfn: Gfn, store: &impl PageStore) {
        let Some(held) = self.held.get(gfn).copied() else { return };
        if held.busy == 0 || held.contents.is_some() || self.pages.copy(gfn) != Copy::Exclusive {
            return;
        }
        let contents = Some(store.fingerprint(gfn));
        self.held.set(gfn, Window { contents, ..held });
    }

    /// The window is over. Goes on with it if this slice still writes the page; tells until when.
    pub(crate) fn go_on_holding(&mut self, gfn: Gfn, store: &impl PageStore) -> Option<u64> {
        let held = *self.held.get(gfn)?;
        held.contents.filter(|_| self.pages.copy(gfn) == Copy::Exclusive)?;
        if self.ends(gfn, held) {
            return None;
        }
        self.found(gfn, held, store.fingerprint(gfn))
    }

    /// Tells whether the page has been kept as long as it may; if so, how it was used is remembered.
    fn ends(&mut self, gfn: Gfn, held: Window) -> bool {
        let over = self.now >= held.since + held.busy;
        if over {
            remember(&mut self.habits, gfn, (held.changes >= 2).then_some(Habit::Busy));
        }
        over
    }

    /// The contents of a page that another slice waits for have been looked at.
    fn found(&mut self, gfn: Gfn, mut held: Window, contents: u64) -> Option<u64> {
        let (now, end) = (self.now, held.since + held.busy);
        if held.contents.replace(contents) == Some(contents) {
            // Where nothing was written, the vCPU may not even have had the time to run.
            remember(&mut self.habits, gfn, (held.changes == 1).then_some(Habit::Brief));
            return None;
        }
        held.changes += 1;
        let more = if held.changes.is_multiple_of(2) {
            3 * (now - held.since)
        } else if self.habits.get(&gfn) == Some(&Habit::Brief) {
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
    use crate::{Config, HomeRange, HomeTable};
    use wire::{Epoch, SliceId};

    #[test]
    fn window_follows_the_mean_within_its_bounds() {
        let policy = HoldPolicy { min_ns: 10, max_ns: 1000, percent: 200, ..HoldPolicy::default() };
        let mut hold = Hold::new(policy);
        assert_eq!(hold.window_ns(), 10);

        hold.measured(100);
        assert_eq!(hold.window_ns(), 200);

        (0..200).for_each(|_| hold.measured(100_000));
        assert_eq!(hold.window_ns(), 1000);
    }

    /// Windows of so many slices that are all busy with a page and take turns, after many turns.
    fn at_rest(slices: usize) -> Vec<u64> {
        const TRANSFER: u64 = 200_000;
        let mut hold = Hold::new(HoldPolicy::default());
        hold.measured(TRANSFER);
        let mut windows = vec![hold.busy_ns(); slices];
        for turn in 0..100 * slices {
            let last = windows[(turn + slices - 1) % slices];
            let others: u64 = windows.iter().sum::<u64>() - windows[turn % slices];
            let transfers = TRANSFER * u64::try_from(slices).unwrap();
            windows[turn % slices] = hold.contended_ns(others + transfers, last);
        }
        windows
    }

    #[test]
    fn contended_windows_grow_and_a_round_stays_bounded() {
        let (least, most) = (20_000_000, HoldPolicy::default().contended_max_ns);
        for slices in 2..=64 {
            let windows = at_rest(usize::try_from(slices).unwrap());
            let share = (3 * most / (slices + 1)).clamp(least, most);
            for window in &windows {
                assert!(window.abs_diff(share) < share / 10, "{slices} slices: {windows:?}");
            }
            assert!(windows.iter().sum::<u64>() <= (3 * most).max(least * slices));
        }
    }

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
        assert_eq!(node.habits.get(&PAGE), None);
        assert_eq!(tenure(&mut node, |time| time), busy);
        assert_eq!(node.habits.get(&PAGE), Some(&Habit::Busy));
        assert_eq!(tenure(&mut node, |_| 7), busy / 3);
        assert_eq!(node.habits.get(&PAGE), None);
    }

    #[test]
    fn mean_forgets_a_transfer_that_took_long_by_chance() {
        let mut hold = Hold::new(HoldPolicy::default());
        // One in seven waits for a host that is busy with something else.
        (0..700).for_each(|at| hold.measured(if at % 7 == 0 { 2_000_000 } else { 150_000 }));
        assert!(hold.mean_ns() < 200_000, "{}", hold.mean_ns());
        (0..100).for_each(|_| hold.measured(2_000_000));
        assert!(hold.mean_ns() > 1_500_000, "{}", hold.mean_ns());
    }

    #[test]
    fn window_does_not_grow_beside_a_slice_that_is_not_busy() {
        let mut hold = Hold::new(HoldPolicy::default());
        hold.measured(50_000);
        assert_eq!(hold.contended_ns(0, 0), 5_000_000);
        assert_eq!(hold.contended_ns(400_000, 300_000), 5_000_000);
        assert_eq!(hold.contended_ns(10_000_000, 9_000_000), 18_000_000);
        assert_eq!(hold.contended_ns(u64::MAX, u64::MAX), 5_000_000);
        assert_eq!(Hold::new(HoldPolicy::fixed(7)).contended_ns(9_000_000, 9_000_000), 0);
    }
}
