//! Pages that a slice lacks together again and again.
//!
//! A timer's tick writes the pages of the clock, each after the last, and whoever reads the time on another
//! slice lacks all of these then. Each is a fault and a round trip, one after the other. So it is remembered which
//! pages were lacked soon after a page, and with that page they are asked for:
//!
//! ```text
//!                     lacked soon after (score +1, at most 4)
//!   score 0..2 --------------------------------------------------> score 3..4: asked for together
//!      ^                                                              |
//!      +---- each eighth time nothing is asked for, and was not ------+
//!            lacked then either (score -2)
//! ```
//!
//! A page that was asked for is not lacked, which tells nothing: hence the times when nothing is asked for. Pages
//! that were there, or on their way, tell nothing either.

use std::collections::{BTreeMap, VecDeque};
use wire::{Access, Gfn};

/// From this score on a page is asked for.
const ASKS: u8 = 3;
const SCORE_MAX: u8 = 4;
/// Points for nothing.
const VAIN: u8 = 2;
/// Companions of a page.
const COMPANIONS_MAX: usize = 8;
/// Of so many times once nothing is asked for.
const PROBE: u32 = 8;
/// Pages whose companions are known. Beyond that all are forgotten and learnt again.
const PAGES_MAX: usize = 1 << 12;
/// Pages lacked last that gain companions.
const RECENT: usize = 8;

/// A page, and what is wanted of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lack {
    /// The page.
    pub gfn: Gfn,
    /// The access that the slice has not.
    pub want: Access,
}

#[derive(Clone, Copy, Debug)]
struct Companion {
    lack: Lack,
    score: u8,
    /// It was lacked when its page was, and not asked for: soon it is seen whether it was a companion.
    open: bool,
}

#[derive(Debug, Default)]
struct Known {
    times: u32,
    companions: Vec<Companion>,
}

impl Known {
    /// A page was lacked soon after this one.
    fn followed(&mut self, lack: Lack) {
        if let Some(companion) = self.companions.iter_mut().find(|known| known.lack == lack) {
            if std::mem::take(&mut companion.open) {
                companion.score = SCORE_MAX.min(companion.score + 1);
            }
            return;
        }
        let new = Companion { lack, score: 1, open: false };
        if self.companions.len() < COMPANIONS_MAX {
            return self.companions.push(new);
        }
        // One that comes now and then does not push out those that always come.
        let Some(least) = self.companions.iter_mut().min_by_key(|known| known.score) else {
            return;
        };
        match least.score {
            0 => *least = new,
            _ => least.score -= 1,
        }
    }

    /// This page is lacked: what to ask for with it, unless it is only looked who comes.
    fn lacked(&mut self, only_look: bool, lacks: impl Fn(Lack) -> bool) -> Vec<Lack> {
        let mut asked = Vec::new();
        for companion in &mut self.companions {
            if companion.open {
                companion.score = companion.score.saturating_sub(VAIN);
            }
            companion.open = lacks(companion.lack);
            if companion.open && companion.score >= ASKS && !only_look {
                companion.open = false;
                asked.push(companion.lack);
            }
        }
        asked
    }
}

/// What is known of pages that are lacked together.
#[derive(Debug, Default)]
pub struct Companions {
    pages: BTreeMap<Lack, Known>,
    /// The last first, with their times.
    recent: VecDeque<(Lack, u64)>,
    /// Until then nothing is asked for, or one page's companions would hide those of another.
    look_until_ns: u64,
}

impl Companions {
    /// A page is lacked now, and somebody waits for it: what to ask for with it, of all that `lacks` says are
    /// lacked too. Pages that come within `window_ns` belong together.
    pub fn lacked(
        &mut self,
        lack: Lack,
        now_ns: u64,
        window_ns: u64,
        lacks: impl Fn(Lack) -> bool,
    ) -> Vec<Lack> {
        self.recent.retain(|(_, since)| now_ns.saturating_sub(*since) < window_ns);
        for (leader, _) in self.recent.iter().filter(|(leader, _)| leader.gfn != lack.gfn) {
            if let Some(known) = self.pages.get_mut(leader) {
                known.followed(lack);
            }
        }
        self.recent.retain(|(leader, _)| *leader != lack);
        self.recent.push_front((lack, now_ns));
        self.recent.truncate(RECENT);
        if self.pages.len() >= PAGES_MAX && !self.pages.contains_key(&lack) {
            self.pages.clear();
        }
        let known = self.pages.entry(lack).or_default();
        known.times = known.times.wrapping_add(1);
        if known.times.is_multiple_of(PROBE) {
            self.look_until_ns = now_ns.saturating_add(window_ns);
        }
        known.lacked(now_ns < self.look_until_ns, lacks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WINDOW: u64 = 100;

    fn read(gfn: u64) -> Lack {
        Lack { gfn: Gfn(gfn), want: Access::Read }
    }

    /// A slice that lacks pages in this order, each unless it was asked for before; returns the faults that
    /// it had.
    fn tick(companions: &mut Companions, at: u64, order: &[u64]) -> usize {
        let mut here: Vec<Lack> = Vec::new();
        let mut faults = 0;
        for (step, gfn) in (0..).zip(order) {
            if here.contains(&read(*gfn)) {
                continue;
            }
            faults += 1;
            here.push(read(*gfn));
            let own = here.clone();
            let asked =
                companions.lacked(read(*gfn), at + step, WINDOW, |lack| !own.contains(&lack));
            here.extend(asked);
        }
        faults
    }

    #[test]
    fn pages_lacked_together_are_asked_for_together() {
        let mut companions = Companions::default();
        let faults: Vec<_> =
            (1..=12).map(|n| tick(&mut companions, n * 1000, &[7, 30, 9, 12])).collect();
        // Learnt from the fourth time on; the eighth shows that all are companions still.
        assert_eq!(faults, [4, 4, 4, 1, 1, 1, 1, 4, 1, 1, 1, 1]);
    }

    #[test]
    fn page_that_stays_away_is_asked_for_no_more() {
        let mut companions = Companions::default();
        for n in 1..=7 {
            tick(&mut companions, n * 1000, &[7, 30]);
        }
        let mut asked = 0;
        for n in 8..=100 {
            asked += companions.lacked(read(7), n * 1000, WINDOW, |_| true).len();
        }
        // The first of these is a look, and the one after it finds that nothing came.
        assert_eq!(asked, 0);
    }

    #[test]
    fn pages_far_apart_in_time_are_no_companions() {
        let mut companions = Companions::default();
        for n in 0..100 {
            let gfn = if n % 2 == 0 { 7 } else { 30 };
            assert!(companions.lacked(read(gfn), n * WINDOW, WINDOW, |_| true).is_empty());
        }
    }

    #[test]
    fn page_that_is_here_is_not_asked_for_and_stays_a_companion() {
        let mut companions = Companions::default();
        for n in 1..=3 {
            tick(&mut companions, n * 1000, &[7, 30]);
        }
        for n in 4..=20 {
            assert!(companions.lacked(read(7), n * 1000, WINDOW, |_| false).is_empty());
        }
        assert_eq!(companions.lacked(read(7), 30_000, WINDOW, |_| true), [read(30)]);
    }

    #[test]
    fn writes_and_reads_of_a_page_have_companions_of_their_own() {
        let write = |gfn| Lack { gfn: Gfn(gfn), want: Access::Write };
        let mut companions = Companions::default();
        for n in 1..=4 {
            companions.lacked(write(7), n * 1000, WINDOW, |_| true);
            companions.lacked(write(30), n * 1000 + 1, WINDOW, |_| true);
        }
        assert!(companions.lacked(read(7), 9000, WINDOW, |_| true).is_empty());
        assert_eq!(companions.lacked(write(7), 9500, WINDOW, |_| true), [write(30)]);
    }

    proptest! {
        #[test]
        fn what_is_known_is_bounded_and_only_lacked_pages_are_asked_for(
            faults in prop::collection::vec((0u64..40, any::<bool>(), 0u64..60), 0..400),
        ) {
            let mut companions = Companions::default();
            let mut now = 0;
            for (gfn, write, gap) in faults {
                now += gap;
                let want = if write { Access::Write } else { Access::Read };
                let lack = Lack { gfn: Gfn(gfn), want };
                let asked = companions.lacked(lack, now, WINDOW, |lack| lack.gfn.0 % 3 > 0);
                prop_assert!(asked.len() <= COMPANIONS_MAX);
                prop_assert!(asked.iter().all(|asked| asked.gfn.0 % 3 > 0 && asked.gfn != lack.gfn));
                prop_assert!(companions.recent.len() <= RECENT);
                prop_assert!(companions.pages.values().all(|known| known.companions.len() <= COMPANIONS_MAX));
            }
        }
    }
}
