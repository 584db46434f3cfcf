//! Runs of pages that a guest touches one after another, and how far to fetch ahead of them.
//!
//! Clearing memory, unpacking an image or running through code for the first time faults on page after page. So does
//! whoever goes down the column of a matrix, or clears memory from its end, and none of these pages follows the one
//! before. Each such fault costs a round trip; pages fetched ahead share one. A page that is fetched in vain costs its
//! holder a fault, so only runs that have proved themselves are followed, and the distance grows with them.
//!
//! Several vCPUs fault at once, so the faults of one run do not come in a row. Hence the last faults are remembered,
//! those of all vCPUs. Three of neighbours upwards are a run, and four with any other equal distances:
//!
//! ```text
//!   fault --> recent --(the last of three or four)----------> run: fetch 2 pages, the first is the marker
//!               |                                         |  ^ ^ |  |
//!               |                                         |  | | |  | touch of a marker, or a fault behind
//!         RECENT others                                   |  | | |  | the last page: fetch twice as many
//!               v                                         |  | | +--+
//!           (forgotten) <-------PATIENCE others-----------+  | |
//!                                                            | | a fault on a page that was fetched: it was
//!                                                            | v taken away before anybody touched it
//!                     8, 16 ... 512 faults, each a stride ---+ resting: fetch nothing (not of neighbours)
//!                     behind the last: fetch 2 pages
//! ```
//!
//! Neighbours come by one request and are mapped together, so their windows grow to 64 pages, and two such windows are
//! on their way or waiting while the guest works through the one before: it may take a slice as long to wake up and
//! answer as a guest to read a window. Windows of 64 end where a chunk of 2 MiB begins. From there on a window is such a
//! chunk, which is fetched piece by piece by whoever carries this out, and can be mapped as a whole. A page of any other
//! run comes by a request of its own, and their windows grow to 32 pages.
//!
//! Scattered faults have equal distances now and then. What comes of it is bounded: two pages for what is taken
//! for a run, and nothing more if nobody touches the first of them. Slices that contend for pages fault on them
//! in the same order ever and again: a window whose marker was never touched is not asked for a second time. And
//! who reads what another slice is about to write gets it too early: such runs rest, and try again now and then.

use super::predictor::{Predictor, Touch};
use super::window::{CHUNK, Miss, Window, away};
use crate::mechanisms::Mechanisms;
use std::collections::VecDeque;
use wire::{Access, Gfn, RUN_MAX};

/// Distances in pages that make a run. Further ones are mere chance more often.
const STRIDE_MAX: u64 = 64;
/// Faults that are remembered: those of five runs that begin at the same time, each in its turn.
const RECENT: usize = 16;
/// Equal distances, one after the other, that make a run: of neighbours upwards, and of others.
const PROOF: [u16; 2] = [2, 3];
/// Pages of a window at most, if it is no chunk.
const WINDOW_MAX: [u16; 2] = [RUN_MAX, 32];
/// Windows of neighbours on their way, once a run has the longest ones.
const DEPTH: usize = 2;
/// Runs that are followed at a time.
const RUNS: usize = 16;
/// Faults of no run after which a run that does not go on is forgotten: scattered faults would meet it one day.
const PATIENCE: u64 = 64;
/// For so many faults a run rests the first time, and each time twice as long.
const REST_MIN: u16 = 8;
const REST_MAX: u16 = 512;

/// A fault of no run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fault {
    miss: Miss,
    /// The page was here before. Slices that contend for pages miss them in the same order ever again, so it is a sign of
    /// neighbours only.
    again: bool,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    stride: i64,
    want: Access,
    /// The first pages of the last windows: their touch continues the run. None of a run that rests.
    markers: [Option<Gfn>; DEPTH],
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

/// Of what kind a run with this stride is: the place of its limits.
fn kind(stride: i64) -> usize {
    usize::from(stride != 1)
}

impl Run {
    fn new(stride: i64, want: Access) -> Self {
        Self {
            stride,
            want,
            markers: [None; DEPTH],
            next: None,
            asked: 0,
            window: 0,
            rests: 0,
            rest: REST_MIN,
            since: 0,
        }
    }

    fn has_marker(&self, gfn: Gfn) -> bool {
        self.markers.contains(&Some(gfn))
    }

    /// True for a miss of a page that this run has fetched. The pages of a chunk are asked for one after the other, so
    /// of neighbours this tells nothing.
    fn is_in_vain(&self, touch: Touch) -> bool {
        let Some(marker) = self.markers[0].filter(|_| self.stride != 1) else { return false };
        let mut asked = (0..self.asked).map(|times| away(marker, self.stride, times));
        touch.missed
            && touch.miss.want == self.want
            && asked.any(|page| page == Some(touch.miss.gfn))
    }

    /// How well a touch fits: the least is the best. A marker is known by itself, whoever touches it for what.
    fn fit(&self, touch: Touch) -> Option<u8> {
        let Miss { gfn, want } = touch.miss;
        let (at_marker, at_end) =
            (self.has_marker(gfn), self.next == Some(gfn) && self.want == want);
        match self.stride {
            1 => (at_marker || at_end).then_some(0),
            _ if at_end || at_marker && self.want == want || self.is_in_vain(touch) => Some(1),
            _ => at_marker.then_some(2),
        }
    }

    /// What was fetched was of no use.
    fn rest_from(&mut self, gfn: Gfn) {
        (self.rests, self.rest) = (self.rest, REST_MAX.min(self.rest * 2));
        self.window = 0;
        self.step_to(gfn);
    }

    /// The run goes on without anything fetched.
    fn step_to(&mut self, gfn: Gfn) {
        (self.markers, self.asked) = ([None; DEPTH], 0);
        self.next = away(gfn, self.stride, 1);
    }

    /// The guest has come to this page: markers up to it have served. Returns the first page to ask for.
    fn reach(&mut self, gfn: Gfn) -> Option<Gfn> {
        let first = if self.has_marker(gfn) { self.next } else { away(gfn, self.stride, 1) };
        let is_ahead = |marker: &Gfn| *marker != gfn && (*marker > gfn) == (self.stride > 0);
        self.markers = self.markers.map(|marker| marker.filter(is_ahead));
        first
    }

    /// The next window, twice as long as the last one; of the longest of neighbours as many as are not on their way.
    fn ask(&mut self, first: Gfn, chunks: bool) -> Vec<Window> {
        let most = WINDOW_MAX[kind(self.stride)];
        self.window = (self.window * 2).clamp(2, most);
        let depth = if self.stride == 1 && self.window == most { DEPTH } else { 1 };
        let (mut windows, mut next) = (Vec::new(), Some(first));
        for marker in self.markers[..depth].iter_mut().filter(|marker| marker.is_none()) {
            let Some(first) = next else { break };
            let pages = if depth == DEPTH { up_to_chunk(first, most, chunks) } else { self.window };
            let window = Window::of_run(first, self.stride, pages, self.want).up_to_the_ends();
            (*marker, self.asked) = (Some(first), window.pages);
            next = away(first, self.stride, window.pages);
            windows.push(window);
        }
        self.next = next;
        windows
    }
}

/// How many pages of the longest window there are up to a chunk, or the chunk.
fn up_to_chunk(first: Gfn, most: u16, chunks: bool) -> u16 {
    let in_chunk = u16::try_from(first.0 % u64::from(CHUNK)).expect("below a chunk");
    if in_chunk == 0 && chunks { CHUNK } else { most.min(CHUNK - in_chunk) }
}

/// The runs of one slice.
#[derive(Debug)]
pub struct Runs {
    /// Those that are not of neighbours are followed too.
    strides: bool,
    /// Long runs of neighbours fetch chunks.
    chunks: bool,
    /// Faults of no run, the latest first.
    recent: VecDeque<Fault>,
    /// The latest first.
    runs: Vec<Run>,
    /// How many faults of no run there were.
    faults: u64,
}

impl Predictor for Runs {
    fn touched(&mut self, touch: Touch, _: &dyn Fn(Miss) -> bool) -> Vec<Window> {
        match self.take(touch) {
            Some(run) => self.follow(run, touch),
            None => self.note(Fault { miss: touch.miss, again: touch.had }),
        }
    }
}

impl Runs {
    /// None yet.
    #[must_use]
    pub fn new(mechanisms: Mechanisms) -> Self {
        let Mechanisms { strides, chunk_fetch: chunks, .. } = mechanisms;
        Self { strides, chunks, recent: VecDeque::new(), runs: Vec::new(), faults: 0 }
    }

    /// The run that a touch belongs to, taken out. What continues a run of neighbours is no part of another.
    fn take(&mut self, touch: Touch) -> Option<Run> {
        let fits = self.runs.iter().enumerate().filter_map(|(at, run)| Some((run.fit(touch)?, at)));
        fits.min().map(|(_, at)| self.runs.remove(at))
    }

    fn follow(&mut self, mut run: Run, touch: Touch) -> Vec<Window> {
        let gfn = touch.miss.gfn;
        if run.is_in_vain(touch) {
            run.rest_from(gfn);
        } else if run.rests > 0 {
            run.rests -= 1;
            run.step_to(gfn);
        } else {
            if run.has_marker(gfn) {
                run.rest = REST_MIN.max(run.rest / 2);
            }
            let first = run.reach(gfn);
            return first.map_or_else(Vec::new, |first| self.ask(run, first));
        }
        self.keep(run);
        Vec::new()
    }

    fn note(&mut self, fault: Fault) -> Vec<Window> {
        let Miss { gfn, want } = fault.miss;
        self.faults += 1;
        let Self { recent, runs, faults, .. } = self;
        runs.retain(|run| *faults - run.since <= PATIENCE);
        recent.retain(|known| known.miss != fault.miss);
        let Some(stride) = proved(recent, fault, self.strides) else {
            recent.push_front(fault);
            recent.truncate(RECENT);
            return Vec::new();
        };
        // They prove nothing else.
        let of_run = |known: &Fault| {
            let mut pages = (1..=PROOF[kind(stride)]).filter_map(|times| away(gfn, -stride, times));
            known.miss.want == want && pages.any(|page| page == known.miss.gfn)
        };
        recent.retain(|known| !of_run(known));
        let first = away(gfn, stride, 1);
        first.map_or_else(Vec::new, |first| self.ask(Run::new(stride, want), first))
    }

    /// The next windows of a run. None if they were asked for in vain before: that run goes on if its marker is touched
    /// after all.
    fn ask(&mut self, mut run: Run, first: Gfn) -> Vec<Window> {
        let is_it = |old: &&mut Run| {
            old.has_marker(first) && (old.stride, old.want) == (run.stride, run.want)
        };
        if let Some(old) = self.runs.iter_mut().find(is_it) {
            old.since = self.faults;
            return Vec::new();
        }
        let windows = run.ask(first, self.chunks);
        self.keep(run);
        windows
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

/// Whether pages that were missed, the latest first, lead to this one in steps of a stride.
fn leads_to(gfn: Gfn, stride: i64, missed: impl Iterator<Item = Gfn>) -> bool {
    let mut steps = 0;
    for known in missed {
        steps += u16::from(Some(known) == away(gfn, -stride, steps + 1));
    }
    steps >= PROOF[kind(stride)]
}

/// The stride of the run whose latest fault this is, of those that came before it in its order.
fn proved(recent: &VecDeque<Fault>, fault: Fault, strides: bool) -> Option<i64> {
    let Miss { gfn, want } = fault.miss;
    let alike = || recent.iter().filter(|known| known.miss.want == want);
    if leads_to(gfn, 1, alike().map(|known| known.miss.gfn)) {
        return Some(1);
    }
    let fresh = || alike().filter(|known| !known.again).map(|known| known.miss.gfn);
    fresh().enumerate().filter(|_| strides && !fault.again).find_map(|(at, last)| {
        let stride = stride_of(last, gfn)?;
        leads_to(gfn, stride, fresh().skip(at)).then_some(stride)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn runs() -> Runs {
        Runs::new(Mechanisms::ALL)
    }

    fn touch(gfn: u64, want: Access, missed: bool) -> Touch {
        let miss = Miss { gfn: Gfn(gfn), want };
        Touch { miss, missed, had: false, now_ns: 0, together_ns: 0 }
    }

    /// A read of a page that is missed, or (`at` a marker) that is here.
    fn read(runs: &mut Runs, gfn: u64, missed: bool) -> Vec<Window> {
        runs.touched(touch(gfn, Access::Read, missed), &|_| true)
    }

    fn miss(runs: &mut Runs, gfn: u64) -> Vec<Window> {
        read(runs, gfn, true)
    }

    fn at(runs: &mut Runs, gfn: u64) -> Vec<Window> {
        read(runs, gfn, false)
    }

    /// A miss of a page that was here before.
    fn again(runs: &mut Runs, gfn: u64) -> Vec<Window> {
        runs.touched(Touch { had: true, ..touch(gfn, Access::Read, true) }, &|_| true)
    }

    /// Windows to read, by their first page, stride and pages.
    fn windows(of: &[(u64, i64, u16)]) -> Vec<Window> {
        let window = |&(first, stride, pages): &(u64, i64, u16)| {
            Window::of_run(Gfn(first), stride, pages, Access::Read)
        };
        of.iter().map(window).collect()
    }

    /// Faults on these pages, of which the last proves a run.
    fn prove<const N: usize>(runs: &mut Runs, pages: [u64; N]) -> Vec<Window> {
        let mut found = pages.map(|gfn| miss(runs, gfn)).to_vec();
        let last = found.pop().unwrap();
        assert!(found.iter().all(Vec::is_empty), "{pages:?}: {found:?}");
        last
    }

    #[test]
    fn run_of_neighbours_is_followed_after_three_faults_and_ever_further() {
        let mut runs = runs();
        assert_eq!(prove(&mut runs, [100, 101, 102]), windows(&[(103, 1, 2)]));
        for (page, found) in [
            // The marker is touched while the window before it is not used up.
            (103, &[(105, 1, 4)][..]),
            (105, &[(109, 1, 8)]),
            // Faster than the pages come: a fault behind the last window.
            (117, &[(118, 1, 16)]),
            (118, &[(134, 1, 32)]),
            // The longest windows come in pairs, and one more for each that is used up.
            (134, &[(166, 1, 64), (230, 1, 64)]),
            (166, &[(294, 1, 64)]),
            (230, &[(358, 1, 64)]),
            (294, &[(422, 1, 64)]),
            // Up to the next chunk, and by chunks from there.
            (358, &[(486, 1, 26)]),
            (422, &[(512, 1, 512)]),
            (486, &[(1024, 1, 512)]),
            (512, &[(1536, 1, 512)]),
            // In the midst of a run of chunks that were here already.
            (2048, &[(2049, 1, 64), (2113, 1, 64)]),
        ] {
            assert_eq!(at(&mut runs, page), windows(found), "{page}");
        }
    }

    #[test]
    fn run_of_another_stride_is_followed_after_three_equal_distances_and_ever_further() {
        let mut runs = runs();
        assert_eq!(prove(&mut runs, [100, 104, 108, 112]), windows(&[(116, 4, 2)]));
        for (page, found) in [
            (120, &[][..]),
            (116, &[(124, 4, 4)]),
            // Faster than the pages come: a fault behind the last window.
            (140, &[(144, 4, 8)]),
            (144, &[(176, 4, 16)]),
            (176, &[(240, 4, 32)]),
            (240, &[(368, 4, 32)]),
        ] {
            assert_eq!(at(&mut runs, page), windows(found), "{page}");
        }
    }

    #[test]
    fn run_may_go_down() {
        let mut runs = runs();
        assert_eq!(prove(&mut runs, [100, 99, 98, 97]), windows(&[(96, -1, 2)]));
        assert_eq!(at(&mut runs, 96), windows(&[(94, -1, 4)]));
        assert_eq!(prove(&mut runs, [900, 897, 894, 891]), windows(&[(888, -3, 2)]));
        assert_eq!(at(&mut runs, 94), windows(&[(90, -1, 8)]));
    }

    #[test]
    fn what_is_left_out_is_not_followed() {
        let without = |name: &str| {
            let mut runs = Runs::new(Mechanisms::ALL.without(name.parse().unwrap()));
            let strided = prove(&mut runs, [100, 104, 108, 112]);
            let mut found = prove(&mut runs, [0, 1, 2]);
            while let Some(last) = found.last().filter(|window| window.first < Gfn(2000)) {
                let first = last.first.0;
                found.extend(at(&mut runs, first));
            }
            let has_chunk = found.iter().any(Window::is_chunk);
            (strided.len(), found.is_empty(), has_chunk)
        };
        assert_eq!(without("strides"), (0, false, true));
        assert_eq!(without("chunk-fetch"), (1, false, false));
    }

    #[test]
    fn faults_that_are_no_run_fetch_nothing() {
        for pages in [
            &[1000, 1065, 1130, 1195][..],
            &[2000, 2000, 2000, 2000],
            // Distances that differ, and the wrong order.
            &[100, 104, 108, 113, 117, 121, 126, 130, 134],
            &[104, 100, 108, 112],
            // 10 follows 9 and 31 follows 30, but there is no third.
            &[7, 9, 8, 30, 10, 31, 50, 70],
            &[18, 17, 19, 21],
        ] {
            let mut runs = runs();
            assert!(pages.iter().all(|gfn| miss(&mut runs, *gfn).is_empty()), "{pages:?}");
        }
        assert_eq!(prove(&mut runs(), [3000, 3064, 3128, 3192]), windows(&[(3256, 64, 2)]));
    }

    #[test]
    fn pages_that_were_here_before_prove_neighbours_only_and_continue_any_run() {
        let mut runs = runs();
        for page in [100, 104, 108, 112, 116, 140, 141] {
            assert_eq!(again(&mut runs, page), []);
        }
        assert_eq!(again(&mut runs, 142), windows(&[(143, 1, 2)]));
        assert_eq!(prove(&mut runs, [200, 204, 208, 212]), windows(&[(216, 4, 2)]));
        // Behind the last page that was asked for, and one that was and is gone: the run rests.
        assert_eq!(again(&mut runs, 224), windows(&[(228, 4, 4)]));
        assert_eq!(again(&mut runs, 232), []);
        assert_eq!(again(&mut runs, 236), [], "it rests");
    }

    #[test]
    fn reads_and_writes_are_different_runs() {
        for pages in [&[100, 101, 102][..], &[100, 104, 108, 112]] {
            let mut runs = runs();
            let write = |runs: &mut Runs, gfn| {
                runs.touched(touch(gfn, Access::Write, true), &|_| true).pop()
            };
            let (last, before) = pages.split_last().unwrap();
            assert!(before.iter().all(|gfn| write(&mut runs, *gfn).is_none()));
            assert_eq!(miss(&mut runs, *last), []);
            let found = write(&mut runs, *last).unwrap();
            assert_eq!(found.want, Access::Write);
            let behind = away(found.first, found.stride, found.pages).unwrap();
            assert_eq!(at(&mut runs, behind.0), [], "a read behind the last page");
            // The marker is its own, whoever touches it.
            let found = at(&mut runs, found.first.0).pop();
            assert_eq!(found.map(|window| window.want), Some(Access::Write));
        }
    }

    #[test]
    fn window_that_nobody_touched_is_not_asked_for_again() {
        let mut runs = runs();
        let contended = [100, 116, 132, 148];
        assert_eq!(prove(&mut runs, contended), windows(&[(164, 16, 2)]));
        for _ in 0..50 {
            assert_eq!(prove(&mut runs, contended), []);
        }
        // Touched after all.
        assert_eq!(at(&mut runs, 164), windows(&[(196, 16, 4)]));
        // Asked for anew, up to the marker that is there already.
        assert_eq!(prove(&mut runs, contended), windows(&[(164, 16, 2)]));
        assert_eq!(at(&mut runs, 164), []);
        assert_eq!(at(&mut runs, 196), windows(&[(260, 16, 8)]));
    }

    #[test]
    fn run_whose_pages_are_taken_away_untouched_rests() {
        let mut runs = runs();
        let mut page = 112;
        assert_eq!(prove(&mut runs, [100, 104, 108, 112]), windows(&[(116, 4, 2)]));
        let mut fetch_after = |times: u16| {
            for _ in 1..=times {
                page += 4;
                assert_eq!(miss(&mut runs, page), [], "it rests");
            }
            page += 4;
            assert_eq!(miss(&mut runs, page), windows(&[(page + 4, 4, 2)]));
        };
        // The fault that finds it, and those for which it rests.
        for rest in [8, 16, 32, 64, 128, 256, 512, 512] {
            fetch_after(1 + rest);
        }
        // Of use again.
        assert_eq!(at(&mut runs, page + 4), windows(&[(page + 12, 4, 4)]));
        assert_eq!(miss(&mut runs, page + 8), [], "one that may have been touched");
        assert_eq!(runs.runs[0].rests, 0);
        assert_eq!(miss(&mut runs, page + 16), [], "one behind the marker");
        let run = runs.runs[0];
        assert_eq!((run.rests, run.rest, run.window), (256, 512, 0));
    }

    #[test]
    fn page_that_is_written_after_it_came_for_reading_was_of_use() {
        let mut runs = runs();
        assert_eq!(prove(&mut runs, [100, 104, 108, 112]), windows(&[(116, 4, 2)]));
        let found = runs.touched(touch(116, Access::Write, true), &|_| true);
        assert_eq!(found, windows(&[(124, 4, 4)]));
    }

    #[test]
    fn run_that_breaks_off_is_forgotten() {
        let mut runs = runs();
        assert_eq!(prove(&mut runs, [100, 104, 108, 112]), windows(&[(116, 4, 2)]));
        assert_eq!(at(&mut runs, 116), windows(&[(124, 4, 4)]));
        for other in 1..=PATIENCE {
            assert_eq!(miss(&mut runs, other * 10_000), []);
        }
        assert_eq!(runs.runs.len(), 1);
        assert_eq!(miss(&mut runs, 5), []);
        assert!(at(&mut runs, 124).is_empty() && at(&mut runs, 140).is_empty());
    }

    #[test]
    fn windows_end_where_pages_end() {
        let mut runs = runs();
        assert_eq!(prove(&mut runs, [17, 13, 9, 5]), windows(&[(1, -4, 1)]));
        assert_eq!(at(&mut runs, 1), []);
        assert_eq!(prove(&mut runs, [48, 32, 16, 0]), []);
        let last = u64::MAX;
        assert_eq!(prove(&mut runs, [6, 4, 2, 0].map(|n| last - n)), []);
        let found = prove(&mut runs, [11, 9, 7, 5].map(|n| last - n));
        assert_eq!(found, windows(&[(last - 3, 2, 2)]));
        assert_eq!(at(&mut runs, last - 3), []);
        let found = prove(&mut runs, [22, 21, 20].map(|n| last - n));
        assert_eq!(found, windows(&[(last - 19, 1, 2)]));
        // Half of all numbers: where signs would change.
        let middle = 1 << 63;
        let found = prove(&mut runs, [6, 4, 2, 0].map(|n| middle + 3 - n));
        assert_eq!(found, windows(&[(middle + 5, 2, 2)]));
    }

    /// A slice that keeps all it gets, and gets at once what it asks for.
    struct Slice {
        runs: Runs,
        here: BTreeSet<Gfn>,
        markers: BTreeSet<Gfn>,
        /// Asked for ahead, and not touched.
        untouched: BTreeSet<Gfn>,
        faults: usize,
        fetched: usize,
        windows: Vec<Window>,
    }

    impl Default for Slice {
        fn default() -> Self {
            let (here, markers, untouched) = Default::default();
            Self { runs: runs(), here, markers, untouched, faults: 0, fetched: 0, windows: vec![] }
        }
    }

    impl Slice {
        /// Touches a page of a memory of so many pages.
        fn touch(&mut self, page: u64, memory: u64) {
            let gfn = Gfn(page);
            self.untouched.remove(&gfn);
            let missed = self.here.insert(gfn);
            self.faults += usize::from(missed);
            if !missed && !self.markers.remove(&gfn) {
                return;
            }
            for window in read(&mut self.runs, page, missed) {
                self.windows.push(window);
                for gfn in window.frames().filter(|gfn| gfn.0 < memory) {
                    if self.here.insert(gfn) {
                        self.fetched += 1;
                        self.untouched.insert(gfn);
                        if window.is_marker(gfn) {
                            self.markers.insert(gfn);
                        }
                    }
                }
            }
        }

        fn walk(&mut self, pages: impl Iterator<Item = u64>) {
            pages.for_each(|page| self.touch(page, u64::MAX));
        }
    }

    /// A walk through so many pages.
    fn walk(start: u64, stride: i64, steps: u64) -> impl Iterator<Item = u64> {
        (0..steps).map(move |nth| start.strict_add_signed(stride * nth.cast_signed()))
    }

    #[test]
    fn runs_of_all_strides_are_prefetched() {
        for stride in [2, 4, 16, 64, -1, -3, -16, -64] {
            let mut slice = Slice::default();
            slice.walk(walk(1 << 20, stride, 1000));
            assert_eq!(slice.faults, 4, "stride {stride}");
            assert!(slice.untouched.len() < 64, "stride {stride}: {}", slice.untouched.len());
        }
        let mut slice = Slice::default();
        slice.walk(walk(1 << 20, 1, 1000));
        assert_eq!(slice.faults, 3);
        assert!(slice.windows.iter().all(|window| window.stride == 1));
        for stride in [65, -65, 1000] {
            let mut slice = Slice::default();
            slice.walk(walk(1 << 20, stride, 1000));
            assert_eq!((slice.faults, slice.fetched), (1000, 0), "stride {stride}");
        }
    }

    #[test]
    fn both_pages_of_a_pair_are_prefetched() {
        let mut slice = Slice::default();
        slice.walk(walk(1 << 20, 8, 400).flat_map(|page| [page, page + 1]));
        assert_eq!(slice.faults, 8);
        assert!(slice.untouched.len() < 128);
    }

    #[test]
    fn run_that_breaks_off_asks_for_nothing_more() {
        let mut slice = Slice::default();
        slice.walk(walk(1 << 20, 4, 100));
        let fetched = slice.fetched;
        slice.walk((0..500).map(|n| n * n * 100));
        assert_eq!(slice.fetched, fetched);
        assert!(slice.untouched.len() < 64);
    }

    #[test]
    fn consumer_that_runs_ahead_of_its_producer_fetches_hardly_anything() {
        let mut slice = Slice::default();
        for page in walk(1 << 20, 4, 2000) {
            // It is written now: whoever has it loses it.
            slice.here.remove(&Gfn(page));
            slice.markers.remove(&Gfn(page));
            slice.touch(page, u64::MAX);
        }
        assert_eq!(slice.faults, 2000);
        assert!(slice.fetched < 20, "{}", slice.fetched);
    }

    #[test]
    fn scattered_order_is_no_run() {
        // The microguest's: at a distance of eight faults it has a stride.
        let mut slice = Slice::default();
        slice.walk((0..4096).map(|at| (at * 2561 + 1365) & 4095));
        assert_eq!((slice.faults, slice.fetched), (4096, 0));
    }

    proptest! {
        #[test]
        fn interleaved_runs_are_each_followed(
            strides in prop::collection::vec(prop_oneof![2i64..=64, -64i64..=-1], 2..=4),
            turns in prop::collection::vec(any::<prop::sample::Index>(), 400),
        ) {
            let mut slice = Slice::default();
            let mut walks: Vec<_> = (1u64..)
                .zip(&strides)
                .map(|(nth, stride)| walk(nth << 20, *stride, u64::MAX))
                .collect();
            let mut touched = vec![0; walks.len()];
            for turn in turns {
                let at = turn.index(walks.len());
                touched[at] += 1;
                let page = walks[at].next().unwrap();
                slice.touch(page, u64::MAX);
            }
            let needed: usize = touched.iter().map(|touches| 4.min(*touches)).sum();
            prop_assert_eq!(slice.faults, needed);
        }

        #[test]
        fn random_faults_ask_for_hardly_anything(
            memory in 512u64..1 << 20,
            pages in prop::collection::vec(any::<prop::sample::Index>(), 1500),
        ) {
            let mut slice = Slice::default();
            for page in pages {
                let page = page.index(usize::try_from(memory).unwrap());
                slice.touch(u64::try_from(page).unwrap(), memory);
            }
            let vain = slice.untouched.len();
            prop_assert!(vain * 20 <= slice.faults, "{vain} in vain of {} faults", slice.faults);
        }

        #[test]
        fn what_is_known_and_asked_for_is_bounded(
            faults in prop::collection::vec((any::<bool>(), 0u64..200, 0u8..8), 0..600),
        ) {
            let mut runs = runs();
            for (high, offset, kind_of) in faults {
                let gfn = if high { u64::MAX - offset } else { offset };
                let want = if kind_of & 1 > 0 { Access::Write } else { Access::Read };
                let missed = kind_of & 2 > 0;
                let had = missed && kind_of & 4 > 0;
                let found = runs.touched(Touch { had, ..touch(gfn, want, missed) }, &|_| true);
                prop_assert!(found.len() <= DEPTH);
                for window in found {
                    let most = if window.is_chunk() { CHUNK } else { WINDOW_MAX[kind(window.stride)] };
                    prop_assert!((1..=most).contains(&window.pages) && window.first != Gfn(gfn));
                    prop_assert!(window.stride != 0 && window.stride.unsigned_abs() <= STRIDE_MAX);
                    prop_assert_eq!(window.frames().count(), usize::from(window.pages));
                }
                prop_assert!(runs.recent.len() <= RECENT && runs.runs.len() <= RUNS);
            }
        }
    }
}
