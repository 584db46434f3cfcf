//! Runs of pages that are a stride apart, and how far to fetch ahead of them.
//!
//! Whoever goes down the column of a matrix, looks at the header of every block of a table, or clears memory from
//! its end, faults on page after page as a run of neighbours does, and none of these follows the one before.
//! Several vCPUs do so at once, so that the faults of one run do not come in a row. Hence the last faults are
//! remembered, those of all vCPUs, and a run is four of them with the same distance:
//!
//! ```text
//!   fault --> recent --(the fourth with equal distances)--> run: fetch 2 pages, the first is the marker
//!               |                                         |  ^ ^ |  |
//!               |                                         |  | | |  | touch of the marker, or a fault behind
//!         RECENT others                                   |  | | |  | the last page: fetch twice as many, up to 32
//!               v                                         |  | | +--+
//!           (forgotten) <-------PATIENCE others-----------+  | |
//!                                                            | | a fault on a page that was fetched: it was
//!                                                            | v taken away before anybody touched it
//!                     8, 16 ... 512 faults, each a stride ---+ resting: fetch nothing
//!                     behind the last: fetch 2 pages
//! ```
//!
//! A page of such a run comes by a request of its own and is mapped by itself, so windows are shorter than those
//! of [`super::streams`]. A fault that continues a run there is not for here ([`super::runs`]).
//!
//! Scattered faults have equal distances now and then. What comes of it is bounded: two pages for what is taken
//! for a run, and nothing more if nobody touches the first of them. Slices that contend for pages fault on them
//! in the same order ever and again: a window whose marker was never touched is not asked for a second time. And
//! who reads what another slice is about to write gets it too early: such runs rest, and try again now and then.

use super::window::{Window, away};
use std::collections::VecDeque;
use wire::{Access, Gfn};

/// Distances in pages that make a run. Further ones are mere chance more often.
const STRIDE_MAX: u64 = 64;
/// Faults that are remembered: those of five runs that begin at the same time, each in its turn.
const RECENT: usize = 16;
/// Equal distances, one after the other, that make a run.
const PROOF: u16 = 3;
/// Runs that are followed at a time.
const RUNS: usize = 8;
/// Pages of a window at most.
const WINDOW_MAX: u16 = 32;
/// Faults of no run after which a run that does not go on is forgotten: scattered faults would meet it one day.
const PATIENCE: u64 = 64;
/// For so many faults a run rests the first time, and each time twice as long.
const REST_MIN: u16 = 8;
const REST_MAX: u16 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fault {
    gfn: Gfn,
    want: Access,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    stride: i64,
    want: Access,
    /// The first page of the last window: its touch continues the run. None of a run that rests.
    marker: Option<Gfn>,
    /// The first page that was not asked for: a fault there continues the run. None behind the last page there is.
    next: Option<Gfn>,
    /// Pages from the marker on that were asked for: none is touched before the marker.
    asked: u16,
    /// How many are asked for at a time.
    window: u16,
    /// Faults for which it still rests.
    rests: u16,
    /// How long it rests next time.
    rest: u16,
    /// It went on last after so many faults of no run.
    since: u64,
}

impl Run {
    fn new(stride: i64, want: Access) -> Self {
        Self {
            stride,
            want,
            marker: None,
            next: None,
            asked: 0,
            window: 0,
            rests: 0,
            rest: REST_MIN,
            since: 0,
        }
    }

    fn asked_for(&self, gfn: Gfn) -> bool {
        let Some(marker) = self.marker else { return false };
        (0..self.asked).any(|times| away(marker, self.stride, times) == Some(gfn))
    }

    fn goes_on_at(&self, fault: Fault, missed: bool) -> bool {
        let Fault { gfn, want } = fault;
        let known = self.marker == Some(gfn) || self.next == Some(gfn);
        self.want == want && (known || (missed && self.asked_for(gfn)))
    }

    /// What was fetched was of no use.
    fn rest_from(&mut self, gfn: Gfn) {
        (self.rests, self.rest) = (self.rest, REST_MAX.min(self.rest * 2));
        self.window = 0;
        self.step_to(gfn);
    }

    /// The run goes on without anything fetched.
    fn step_to(&mut self, gfn: Gfn) {
        (self.marker, self.asked) = (None, 0);
        self.next = away(gfn, self.stride, 1);
    }

    /// The next window, twice as long as the last one or up to where pages end.
    fn ask(&mut self, first: Gfn) -> Window {
        self.window = (self.window * 2).clamp(2, WINDOW_MAX);
        let longest = Window { first, stride: self.stride, pages: self.window, want: self.want };
        let pages = u16::try_from(longest.frames().count()).expect("a window");
        (self.marker, self.next) = (Some(first), away(first, self.stride, pages));
        self.asked = pages;
        Window { pages, ..longest }
    }
}

/// The runs of one slice that are no runs of neighbours.
#[derive(Debug, Default)]
pub struct Strides {
    /// Faults of no run, the latest first.
    recent: VecDeque<Fault>,
    /// The latest first.
    runs: Vec<Run>,
    /// How many faults of no run there were.
    faults: u64,
}

impl Strides {
    /// Takes note of a touch of a marker, or of a fault, and says what to fetch. `missed` says that the page is
    /// neither here nor on its way.
    pub fn fault(&mut self, gfn: Gfn, want: Access, missed: bool) -> Option<Window> {
        let fault = Fault { gfn, want };
        match self.take(fault, missed) {
            Some(run) => self.follow(run, fault, missed),
            None => self.note(fault),
        }
    }

    /// The same for a miss of a page that was here before. It continues a run, or has it rest, but is no sign of a
    /// new one: slices that contend for pages miss them in the same order ever again.
    pub fn fault_again(&mut self, gfn: Gfn, want: Access) -> Option<Window> {
        let fault = Fault { gfn, want };
        let run = self.take(fault, true)?;
        self.follow(run, fault, true)
    }

    /// The run that a fault belongs to, taken out.
    fn take(&mut self, fault: Fault, missed: bool) -> Option<Run> {
        let at = self.runs.iter().position(|run| run.goes_on_at(fault, missed));
        // A marker is known by itself, whoever touches it for what.
        let at = at.or_else(|| self.runs.iter().position(|run| run.marker == Some(fault.gfn)));
        at.map(|at| self.runs.remove(at))
    }

    fn follow(&mut self, mut run: Run, fault: Fault, missed: bool) -> Option<Window> {
        let Fault { gfn, want } = fault;
        if missed && want == run.want && run.asked_for(gfn) {
            run.rest_from(gfn);
        } else if run.rests > 0 {
            run.rests -= 1;
            run.step_to(gfn);
        } else if run.marker == Some(gfn) {
            run.rest = REST_MIN.max(run.rest / 2);
            return self.ask(run, run.next?);
        } else {
            return self.ask(run, away(gfn, run.stride, 1)?);
        }
        self.keep(run);
        None
    }

    fn note(&mut self, fault: Fault) -> Option<Window> {
        let Fault { gfn, want } = fault;
        self.faults += 1;
        let Self { recent, runs, faults, .. } = self;
        runs.retain(|run| *faults - run.since <= PATIENCE);
        recent.retain(|known| *known != fault);
        let Some(stride) = proved(recent, fault) else {
            recent.push_front(fault);
            recent.truncate(RECENT);
            return None;
        };
        // They prove nothing else.
        let of_run = |known: &Fault| {
            let mut pages = (1..=PROOF).filter_map(|times| away(gfn, -stride, times));
            known.want == want && pages.any(|page| page == known.gfn)
        };
        recent.retain(|known| !of_run(known));
        self.ask(Run::new(stride, want), away(gfn, stride, 1)?)
    }

    /// The next window of a run. None if it was asked for in vain before: that run goes on if its marker is touched
    /// after all.
    fn ask(&mut self, mut run: Run, first: Gfn) -> Option<Window> {
        let is_it = |old: &&mut Run| {
            old.marker == Some(first) && old.stride == run.stride && old.want == run.want
        };
        if let Some(old) = self.runs.iter_mut().find(is_it) {
            old.since = self.faults;
            return None;
        }
        let window = run.ask(first);
        self.keep(run);
        Some(window)
    }

    fn keep(&mut self, mut run: Run) {
        run.since = self.faults;
        self.runs.insert(0, run);
        self.runs.truncate(RUNS);
    }
}

/// From one page to another, if that is the stride of a run that may be followed here.
fn stride_of(from: Gfn, to: Gfn) -> Option<i64> {
    let near = from.0.abs_diff(to.0) <= STRIDE_MAX;
    let stride = near.then(|| to.0.cast_signed().wrapping_sub(from.0.cast_signed()))?;
    (!matches!(stride, 0 | 1)).then_some(stride)
}

/// The stride of the run whose latest fault this is, of those that came before it in its order.
fn proved(recent: &VecDeque<Fault>, fault: Fault) -> Option<i64> {
    let alike = || recent.iter().filter(|known| known.want == fault.want);
    alike().enumerate().find_map(|(at, last)| {
        let stride = stride_of(last.gfn, fault.gfn)?;
        let mut steps = 0;
        for known in alike().skip(at) {
            if Some(known.gfn) == away(fault.gfn, -stride, steps + 1) {
                steps += 1;
            }
        }
        (steps >= PROOF).then_some(stride)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn miss(strides: &mut Strides, gfn: u64) -> Option<Window> {
        strides.fault(Gfn(gfn), Access::Read, true)
    }

    fn touch(strides: &mut Strides, gfn: u64) -> Option<Window> {
        strides.fault(Gfn(gfn), Access::Read, false)
    }

    fn window(first: u64, stride: i64, pages: u16) -> Option<Window> {
        Some(Window { first: Gfn(first), stride, pages, want: Access::Read })
    }

    /// Faults on these pages, of which the last proves a run.
    fn prove(strides: &mut Strides, pages: [u64; 4]) -> Option<Window> {
        let windows = pages.map(|gfn| miss(strides, gfn));
        assert_eq!(windows[..3], [None; 3]);
        windows[3]
    }

    #[test]
    fn run_is_followed_after_three_equal_distances_and_ever_further() {
        let mut strides = Strides::default();
        assert_eq!(prove(&mut strides, [100, 104, 108, 112]), window(116, 4, 2));
        assert_eq!(touch(&mut strides, 120), None, "no marker");
        assert_eq!(touch(&mut strides, 116), window(124, 4, 4));
        // Faster than the pages come: a fault behind the last window.
        assert_eq!(touch(&mut strides, 140), window(144, 4, 8));
        assert_eq!(touch(&mut strides, 144), window(176, 4, 16));
        assert_eq!(touch(&mut strides, 176), window(240, 4, 32));
        assert_eq!(touch(&mut strides, 240), window(368, 4, 32));
    }

    #[test]
    fn pages_that_were_here_before_prove_no_run_but_continue_one() {
        let mut strides = Strides::default();
        let again = |strides: &mut Strides, gfn| strides.fault_again(Gfn(gfn), Access::Read);
        for page in [100, 104, 108, 112, 116] {
            assert_eq!(again(&mut strides, page), None);
        }
        assert_eq!(prove(&mut strides, [200, 204, 208, 212]), window(216, 4, 2));
        // Behind the last page that was asked for, and one that was and is gone: the run rests.
        assert_eq!(again(&mut strides, 224), window(228, 4, 4));
        assert_eq!(again(&mut strides, 232), None);
        assert_eq!(again(&mut strides, 236), None, "it rests");
    }

    #[test]
    fn run_may_go_down() {
        let mut strides = Strides::default();
        assert_eq!(prove(&mut strides, [100, 99, 98, 97]), window(96, -1, 2));
        assert_eq!(touch(&mut strides, 96), window(94, -1, 4));
        assert_eq!(prove(&mut strides, [900, 897, 894, 891]), window(888, -3, 2));
        assert_eq!(touch(&mut strides, 94), window(90, -1, 8));
    }

    #[test]
    fn neighbours_and_pages_far_away_are_no_run() {
        let mut strides = Strides::default();
        assert_eq!(prove(&mut strides, [10, 11, 12, 13]), None);
        assert_eq!(prove(&mut strides, [1000, 1065, 1130, 1195]), None);
        assert_eq!(prove(&mut strides, [2000, 2000, 2000, 2000]), None);
        assert_eq!(prove(&mut strides, [3000, 3064, 3128, 3192]), window(3256, 64, 2));
    }

    #[test]
    fn distances_that_differ_are_no_run() {
        let mut strides = Strides::default();
        let pages = [100, 104, 108, 113, 117, 121, 126, 130, 134];
        assert!(pages.iter().all(|gfn| miss(&mut strides, *gfn).is_none()));
    }

    #[test]
    fn order_counts() {
        let mut strides = Strides::default();
        assert_eq!(prove(&mut strides, [104, 100, 108, 112]), None);
    }

    #[test]
    fn reads_and_writes_are_different_runs() {
        let mut strides = Strides::default();
        for page in [100, 104, 108] {
            assert_eq!(strides.fault(Gfn(page), Access::Write, true), None);
        }
        assert_eq!(miss(&mut strides, 112), None);
        let found = strides.fault(Gfn(112), Access::Write, true);
        assert_eq!(found.map(|window| window.want), Some(Access::Write));
        assert_eq!(touch(&mut strides, 124), None, "a read behind the last page");
        // The marker is its own, whoever touches it.
        let found = touch(&mut strides, 116);
        assert_eq!(found.map(|window| window.want), Some(Access::Write));
    }

    #[test]
    fn window_that_nobody_touched_is_not_asked_for_again() {
        let mut strides = Strides::default();
        let contended = [100, 116, 132, 148];
        assert_eq!(prove(&mut strides, contended), window(164, 16, 2));
        for _ in 0..50 {
            assert_eq!(prove(&mut strides, contended), None);
        }
        // Touched after all.
        assert_eq!(touch(&mut strides, 164), window(196, 16, 4));
        // Asked for anew, up to the marker that is there already.
        assert_eq!(prove(&mut strides, contended), window(164, 16, 2));
        assert_eq!(touch(&mut strides, 164), None);
        assert_eq!(touch(&mut strides, 196), window(260, 16, 8));
    }

    #[test]
    fn run_whose_pages_are_taken_away_untouched_rests() {
        let mut strides = Strides::default();
        let mut page = 112;
        assert_eq!(prove(&mut strides, [100, 104, 108, 112]), window(116, 4, 2));
        let mut fetch_after = |times: u16| {
            for _ in 1..=times {
                page += 4;
                assert_eq!(miss(&mut strides, page), None, "it rests");
            }
            page += 4;
            assert_eq!(miss(&mut strides, page), window(page + 4, 4, 2));
        };
        // The fault that finds it, and those for which it rests.
        for rest in [8, 16, 32, 64, 128, 256, 512, 512] {
            fetch_after(1 + rest);
        }
        // Of use again.
        assert_eq!(touch(&mut strides, page + 4), window(page + 12, 4, 4));
        assert_eq!(miss(&mut strides, page + 8), None, "one that may have been touched");
        assert_eq!(strides.runs[0].rests, 0);
        assert_eq!(miss(&mut strides, page + 16), None, "one behind the marker");
        let run = strides.runs[0];
        assert_eq!((run.rests, run.rest, run.window), (256, 512, 0));
    }

    #[test]
    fn page_that_is_written_after_it_came_for_reading_was_of_use() {
        let mut strides = Strides::default();
        assert_eq!(prove(&mut strides, [100, 104, 108, 112]), window(116, 4, 2));
        assert_eq!(strides.fault(Gfn(116), Access::Write, true), window(124, 4, 4));
    }

    #[test]
    fn run_that_breaks_off_is_forgotten() {
        let mut strides = Strides::default();
        assert_eq!(prove(&mut strides, [100, 104, 108, 112]), window(116, 4, 2));
        assert_eq!(touch(&mut strides, 116), window(124, 4, 4));
        for other in 1..=PATIENCE {
            assert_eq!(miss(&mut strides, other * 10_000), None);
        }
        assert_eq!(strides.runs.len(), 1);
        assert_eq!(miss(&mut strides, 5), None);
        assert_eq!((touch(&mut strides, 124), touch(&mut strides, 140)), (None, None));
    }

    #[test]
    fn windows_end_where_pages_end() {
        let mut strides = Strides::default();
        assert_eq!(prove(&mut strides, [17, 13, 9, 5]), window(1, -4, 1));
        assert_eq!(touch(&mut strides, 1), None);
        assert_eq!(prove(&mut strides, [48, 32, 16, 0]), None);
        let last = u64::MAX;
        assert_eq!(prove(&mut strides, [6, 4, 2, 0].map(|n| last - n)), None);
        let found = prove(&mut strides, [11, 9, 7, 5].map(|n| last - n));
        assert_eq!(found, window(last - 3, 2, 2));
        assert_eq!(touch(&mut strides, last - 3), None);
        // Half of all numbers: where signs would change.
        let middle = 1 << 63;
        assert_eq!(
            prove(&mut strides, [6, 4, 2, 0].map(|n| middle + 3 - n)),
            window(middle + 5, 2, 2)
        );
    }

    proptest! {
        #[test]
        fn what_is_known_and_asked_for_is_bounded(
            faults in prop::collection::vec((any::<bool>(), 0u64..200, 0u8..4), 0..600),
        ) {
            let mut strides = Strides::default();
            for (high, offset, kind) in faults {
                let gfn = Gfn(if high { u64::MAX - offset } else { offset });
                let want = if kind & 1 > 0 { Access::Write } else { Access::Read };
                let window = strides.fault(gfn, want, kind & 2 > 0);
                if let Some(window) = window {
                    prop_assert!((1..=WINDOW_MAX).contains(&window.pages) && window.first != gfn);
                    prop_assert!(!matches!(window.stride, 0 | 1));
                    prop_assert!(window.stride.unsigned_abs() <= STRIDE_MAX);
                    prop_assert_eq!(window.frames().count(), usize::from(window.pages));
                }
                prop_assert!(strides.recent.len() <= RECENT && strides.runs.len() <= RUNS);
            }
        }
    }
}
