//! Correlated pages: a slice misses them together again and again.
//!
//! A timer's tick writes the pages of the clock, each after the last, and whoever reads the time on another
//! slice misses all of these then. Each is a fault and a round trip, one after the other. So it is remembered which
//! pages were missed soon after a page, and they are asked for with that page (*correlation prefetch*):
//!
//! ```text
//!                     missed soon after (score +1, at most 8)
//!   score 0..3 --------------------------------------------------> score 4..8: asked for together
//!      ^                                                              |
//!      +---- each eighth burst nothing is asked for, and was not -----+
//!            missed then either (score -2)
//! ```
//!
//! A page that was asked for is not missed, which tells nothing. Therefore nothing is asked for now and then (a *look*).
//! Only the first of misses that belong together (a *burst*) can begin a look: one of ten hot pages that each looked
//! every eighth time would keep all of them from being asked for most of the time. A burst that does not end is another
//! one after a while, so there are looks in any case. Pages that were here, or on their way, tell nothing either.
//!
//! A page asked for in vain costs the other slice about as much as one that is not asked for costs this one. So the
//! scores are those that save most after what is asked for in vain is taken off, in recorded misses of a guest
//! (docs/decisions/0016-correlation-prefetch.md).

use super::predictor::{Predictor, Touch};
use super::window::{Miss, Window};
use std::collections::{BTreeMap, VecDeque};

/// From this score on a page is asked for.
const ASKS: u8 = 4;
const SCORE_MAX: u8 = 8;
/// Points for nothing.
const VAIN: u8 = 2;
/// Correlated pages of one page.
const CORRELATED_MAX: usize = 64;
/// Of so many bursts that a page begins, one is a look.
const PROBE: u32 = 8;
/// A burst is over after so many windows, also if misses go on.
const BURST_WINDOWS: u64 = 8;
/// Pages whose correlated pages are known. Beyond that all are forgotten and learnt again.
const PAGES_MAX: usize = 1 << 12;
/// The last misses, which gain correlated pages.
const RECENT: usize = 32;

#[derive(Clone, Copy, Debug)]
struct Correlated {
    miss: Miss,
    score: u8,
    /// It was absent when its page was missed, and not asked for: soon it shows whether it is correlated.
    open: bool,
}

#[derive(Debug, Default)]
struct Known {
    /// Bursts that it has begun.
    bursts: u32,
    correlated: Vec<Correlated>,
}

impl Known {
    /// A page was missed soon after this one.
    fn followed(&mut self, miss: Miss) {
        if let Some(other) = self.correlated.iter_mut().find(|known| known.miss == miss) {
            if std::mem::take(&mut other.open) {
                other.score = SCORE_MAX.min(other.score + 1);
            }
            return;
        }
        let new = Correlated { miss, score: 1, open: false };
        if self.correlated.len() < CORRELATED_MAX {
            return self.correlated.push(new);
        }
        // One that comes now and then does not push out those that always come.
        let Some(least) = self.correlated.iter_mut().min_by_key(|known| known.score) else {
            return;
        };
        match least.score {
            0 => *least = new,
            _ => least.score -= 1,
        }
    }

    /// This page is missed: what to ask for with it. With `only_look` nothing is asked for, to see what comes.
    fn missed(&mut self, only_look: bool, misses: impl Fn(Miss) -> bool) -> Vec<Miss> {
        let mut asked = Vec::new();
        for other in &mut self.correlated {
            if other.open {
                other.score = other.score.saturating_sub(VAIN);
            }
            other.open = misses(other.miss);
            if other.open && other.score >= ASKS && !only_look {
                other.open = false;
                asked.push(other.miss);
            }
        }
        asked
    }
}

/// What is known of correlated pages.
#[derive(Debug, Default)]
pub struct Correlations {
    pages: BTreeMap<Miss, Known>,
    /// The last first, with their times.
    recent: VecDeque<(Miss, u64)>,
    /// When the burst began.
    burst_ns: u64,
    /// Until then nothing is asked for. Otherwise the correlated pages of one page would hide those of another.
    look_until_ns: u64,
}

impl Predictor for Correlations {
    fn touched(&mut self, touch: Touch, lacks: &dyn Fn(Miss) -> bool) -> Vec<Window> {
        let Touch { miss, now_ns, together_ns, .. } = touch;
        self.missed(miss, now_ns, together_ns, lacks).into_iter().map(Window::alone).collect()
    }
}

impl Correlations {
    /// A page is missed, and somebody waits for it: what to ask for with it, of all pages that `misses` says are
    /// missing too. Misses within `window_ns` belong together.
    fn missed(
        &mut self,
        miss: Miss,
        now_ns: u64,
        window_ns: u64,
        misses: impl Fn(Miss) -> bool,
    ) -> Vec<Miss> {
        self.recent.retain(|(_, since)| now_ns.saturating_sub(*since) < window_ns);
        let burst_max_ns = BURST_WINDOWS.saturating_mul(window_ns);
        let begins = self.recent.is_empty() || now_ns.saturating_sub(self.burst_ns) >= burst_max_ns;
        if begins {
            self.burst_ns = now_ns;
        }
        for (leader, _) in self.recent.iter().filter(|(leader, _)| leader.gfn != miss.gfn) {
            if let Some(known) = self.pages.get_mut(leader) {
                known.followed(miss);
            }
        }
        self.recent.retain(|(leader, _)| *leader != miss);
        self.recent.push_front((miss, now_ns));
        self.recent.truncate(RECENT);
        if self.pages.len() >= PAGES_MAX && !self.pages.contains_key(&miss) {
            self.pages.clear();
        }
        let known = self.pages.entry(miss).or_default();
        if begins {
            known.bursts = known.bursts.wrapping_add(1);
            if known.bursts.is_multiple_of(PROBE) {
                self.look_until_ns = now_ns.saturating_add(window_ns);
            }
        }
        known.missed(now_ns < self.look_until_ns, misses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::{Access, Gfn};

    const WINDOW: u64 = 100;

    fn read(gfn: u64) -> Miss {
        Miss { gfn: Gfn(gfn), want: Access::Read }
    }

    /// A slice that misses pages in this order, each unless it was asked for before; returns the faults that
    /// it had.
    fn tick(correlated: &mut Correlations, at: u64, order: &[u64]) -> usize {
        let mut here: Vec<Miss> = Vec::new();
        let mut faults = 0;
        for (step, gfn) in (0..).zip(order) {
            if here.contains(&read(*gfn)) {
                continue;
            }
            faults += 1;
            here.push(read(*gfn));
            let own = here.clone();
            let asked =
                correlated.missed(read(*gfn), at + step, WINDOW, |miss| !own.contains(&miss));
            here.extend(asked);
        }
        faults
    }

    #[test]
    fn pages_missed_together_are_asked_for_together() {
        let mut correlated = Correlations::default();
        let faults: Vec<_> =
            (1..=12).map(|n| tick(&mut correlated, n * 1000, &[7, 30, 9, 12])).collect();
        // Learnt from the fifth time on; the eighth shows that all are still correlated.
        assert_eq!(faults, [4, 4, 4, 4, 1, 1, 1, 4, 1, 1, 1, 1]);
    }

    #[test]
    fn page_that_stays_away_is_asked_for_no_more() {
        let mut correlated = Correlations::default();
        for n in 1..=7 {
            tick(&mut correlated, n * 1000, &[7, 30]);
        }
        let mut asked = 0;
        for n in 8..=100 {
            asked += correlated.missed(read(7), n * 1000, WINDOW, |_| true).len();
        }
        // The first of these is a look, and the one after it finds that nothing came.
        assert_eq!(asked, 0);
    }

    #[test]
    fn only_the_first_page_of_a_burst_begins_a_look() {
        let mut correlated = Correlations::default();
        // Each page was missed by itself once more than the one before: in each burst another one has an eighth miss.
        for page in 0..8 {
            for n in 0..page {
                correlated.missed(read(page), (page * 100 + n) * 1000, WINDOW, |_| false);
            }
        }
        let mut asking = 0;
        for n in 0..48 {
            for page in 0..8 {
                let at = 1_000_000 + n * 1000 + page;
                let asked = correlated.missed(read(page), at, WINDOW, |_| true);
                asking += usize::from(!asked.is_empty());
            }
        }
        // Four bursts to learn; of the 44 behind them six are looks. Nothing comes behind the last page.
        assert_eq!(asking, 7 * 38);
    }

    #[test]
    fn page_that_stays_away_is_asked_for_no_more_though_misses_never_end() {
        let mut correlated = Correlations::default();
        for n in 1..=7 {
            tick(&mut correlated, n * 1000, &[7, 30]);
        }
        // From here on something is missed in each half of a window, and 30 is not among it.
        let mut last_asked = 0;
        for n in 0..1000 {
            let at = 10_000 + n * WINDOW / 2;
            let asked = correlated.missed(read(100 + n % 3), at, WINDOW, |_| false);
            assert!(asked.is_empty());
            if !correlated.missed(read(7), at + 1, WINDOW, |miss| miss == read(30)).is_empty() {
                last_asked = n;
            }
        }
        assert!(last_asked < 500, "{last_asked}");
    }

    #[test]
    fn pages_far_apart_in_time_are_not_correlated() {
        let mut correlated = Correlations::default();
        for n in 0..100 {
            let gfn = if n % 2 == 0 { 7 } else { 30 };
            assert!(correlated.missed(read(gfn), n * WINDOW, WINDOW, |_| true).is_empty());
        }
    }

    #[test]
    fn page_that_is_here_is_not_asked_for_and_stays_correlated() {
        let mut correlated = Correlations::default();
        for n in 1..=5 {
            tick(&mut correlated, n * 1000, &[7, 30]);
        }
        for n in 6..=20 {
            assert!(correlated.missed(read(7), n * 1000, WINDOW, |_| false).is_empty());
        }
        assert_eq!(correlated.missed(read(7), 30_000, WINDOW, |_| true), [read(30)]);
    }

    #[test]
    fn writes_and_reads_of_a_page_are_correlated_apart() {
        let write = |gfn| Miss { gfn: Gfn(gfn), want: Access::Write };
        let mut correlated = Correlations::default();
        for n in 1..=5 {
            correlated.missed(write(7), n * 1000, WINDOW, |_| true);
            correlated.missed(write(30), n * 1000 + 1, WINDOW, |_| true);
        }
        assert!(correlated.missed(read(7), 9000, WINDOW, |_| true).is_empty());
        assert_eq!(correlated.missed(write(7), 9500, WINDOW, |_| true), [write(30)]);
    }

    proptest! {
        #[test]
        fn what_is_known_is_bounded_and_only_missing_pages_are_asked_for(
            faults in prop::collection::vec((0u64..100, any::<bool>(), 0u64..4), 0..1000),
        ) {
            let mut correlated = Correlations::default();
            let mut now = 0;
            for (gfn, write, gap) in faults {
                now += gap;
                let want = if write { Access::Write } else { Access::Read };
                let miss = Miss { gfn: Gfn(gfn), want };
                let asked = correlated.missed(miss, now, WINDOW, |miss| miss.gfn.0 % 3 > 0);
                prop_assert!(asked.len() <= CORRELATED_MAX);
                prop_assert!(asked.iter().all(|asked| asked.gfn.0 % 3 > 0 && asked.gfn != miss.gfn));
                prop_assert!(correlated.recent.len() <= RECENT);
                prop_assert!(correlated.pages.values().all(|known| known.correlated.len() <= CORRELATED_MAX));
            }
        }
    }
}
