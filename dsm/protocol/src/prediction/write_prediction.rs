//! Pages that this slice writes soon after it has read them, as a lock or a counter.
//!
//! Such a page is asked for with write access when it is read, which saves the upgrade:
//!
//! ```text
//!                 write seen (score +2, at most 3)
//!   score 0..1 ------------------------------------> score 2..3: a read asks for write access
//!      ^                                                  |
//!      +------- came in vain: went unwritten (score -2) --+
//! ```
//!
//! To the protocol that is a slice that writes. Whether it did is seen when the page goes: its
//! contents are compared, by their hash, with those that came. A page that was written and has the
//! same contents again, as a lock taken and released, counts as unwritten; it is asked for
//! reading next time, and the upgrade that follows counts for two.
//!
//! The idea is that of migratory sharing (Stenström, Brorsson, Sandberg, ISCA 1993). There the home
//! decides, for all alike. That took half of the upgrades away here as well, but brought 8 reads for
//! 12 upgrades saved, for slices that only look at a page were given it too.

use std::collections::BTreeMap;
use wire::{Access, Gfn};

/// From this score on a read asks for write access.
const PREDICTS: u8 = 2;
const SCORE_MAX: u8 = 3;
/// Pages watched at a time. Beyond that all is forgotten and learnt again.
const WATCHED_MAX: usize = 1 << 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Visit {
    /// Not here, or here for another reason.
    #[default]
    None,
    /// Came for reading.
    Read,
    /// Asked for writing on a read, not here yet.
    Predicted,
    /// Came so, with contents of this hash.
    Came(u64),
}

#[derive(Clone, Copy, Debug, Default)]
struct Page {
    score: u8,
    visit: Visit,
}

impl Page {
    fn good(&mut self, points: u8) {
        self.score = SCORE_MAX.min(self.score + points);
    }

    fn bad(&mut self) {
        self.score = self.score.saturating_sub(2);
    }
}

/// What this slice did with the pages that came.
#[derive(Debug, Default)]
pub struct WritePrediction {
    pages: BTreeMap<Gfn, Page>,
    /// Reads that asked for write access.
    pub predicted: u64,
    /// Of these, pages that went unwritten.
    pub in_vain: u64,
}

impl WritePrediction {
    fn page(&mut self, gfn: Gfn) -> &mut Page {
        if self.pages.len() >= WATCHED_MAX && !self.pages.contains_key(&gfn) {
            self.pages.clear();
        }
        self.pages.entry(gfn).or_default()
    }

    /// Whether a read of the page would ask for write access.
    pub fn predicts(&self, gfn: Gfn) -> bool {
        self.pages.get(&gfn).is_some_and(|page| page.score >= PREDICTS)
    }

    /// The access to ask for on a fault that finds `held`: more than a read needs, where this slice always
    /// writes next.
    pub fn fault(&mut self, gfn: Gfn, held: Access, want: Access) -> Access {
        match (held, want) {
            (Access::Read, _) => self.upgrade(gfn),
            (_, Access::Write) => self.write(gfn),
            _ => return self.read(gfn),
        }
        want
    }

    /// A page that is not here is read: the access to ask for.
    fn read(&mut self, gfn: Gfn) -> Access {
        let page = self.page(gfn);
        if page.visit == Visit::Read {
            // It went without having been written.
            page.bad();
        }
        if page.score < PREDICTS {
            page.visit = Visit::Read;
            return Access::Read;
        }
        page.visit = Visit::Predicted;
        self.predicted += 1;
        Access::Write
    }

    /// A page that is not here is written. That tells less than an upgrade: a slice may write a page
    /// at some times and only read it at others.
    fn write(&mut self, gfn: Gfn) {
        let page = self.page(gfn);
        page.visit = Visit::None;
        page.good(1);
    }

    /// A page that came for reading is written.
    fn upgrade(&mut self, gfn: Gfn) {
        let page = self.page(gfn);
        if page.visit == Visit::Read {
            page.good(2);
        }
        page.visit = Visit::None;
    }

    /// The page is here with write access; `hash` is called if its contents matter.
    pub fn came(&mut self, gfn: Gfn, hash: impl FnOnce() -> u64) {
        if let Some(page) = self.pages.get_mut(&gfn).filter(|page| page.visit == Visit::Predicted) {
            page.visit = Visit::Came(hash());
        }
    }

    /// The page can no longer be written here.
    pub fn goes(&mut self, gfn: Gfn, hash: impl FnOnce() -> u64) {
        let Some(page) = self.pages.get_mut(&gfn) else { return };
        let Visit::Came(before) = page.visit else { return };
        page.visit = Visit::None;
        if hash() == before {
            page.bad();
            self.in_vain += 1;
        } else {
            page.good(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Gfn = Gfn(7);

    /// A read that is followed by a write; what was asked for.
    fn read_and_write(prediction: &mut WritePrediction) -> Access {
        let asked = prediction.read(PAGE);
        match asked {
            Access::Write => {
                prediction.came(PAGE, || 1);
                prediction.goes(PAGE, || 2);
            }
            _ => prediction.upgrade(PAGE),
        }
        asked
    }

    fn only_read(prediction: &mut WritePrediction) -> Access {
        let asked = prediction.read(PAGE);
        if asked == Access::Write {
            prediction.came(PAGE, || 1);
            prediction.goes(PAGE, || 1);
        }
        asked
    }

    #[test]
    fn page_written_after_each_read_is_predicted_from_the_second_on() {
        let mut prediction = WritePrediction::default();
        assert_eq!(read_and_write(&mut prediction), Access::Read);
        for _ in 0..10 {
            assert_eq!(read_and_write(&mut prediction), Access::Write);
        }
        assert_eq!((prediction.predicted, prediction.in_vain), (10, 0));
    }

    #[test]
    fn page_only_read_is_never_predicted() {
        let mut prediction = WritePrediction::default();
        for _ in 0..10 {
            assert_eq!(only_read(&mut prediction), Access::Read);
        }
        assert_eq!(prediction.predicted, 0);
    }

    #[test]
    fn prediction_that_ended_is_forgotten() {
        let mut prediction = WritePrediction::default();
        for _ in 0..5 {
            read_and_write(&mut prediction);
        }
        let asked: Vec<Access> = (0..5).map(|_| only_read(&mut prediction)).collect();
        assert_eq!(asked[0], Access::Write);
        assert_eq!(asked[1..], [Access::Read; 4]);
        assert_eq!(prediction.in_vain, 1);
    }

    #[test]
    fn page_written_at_some_times_and_read_at_others_is_not_predicted() {
        let mut prediction = WritePrediction::default();
        for _ in 0..10 {
            prediction.write(PAGE);
            assert_eq!(only_read(&mut prediction), Access::Read);
            assert_eq!(only_read(&mut prediction), Access::Read);
        }
    }

    #[test]
    fn contents_are_hashed_only_for_predicted_pages() {
        let mut prediction = WritePrediction::default();
        prediction.read(PAGE);
        prediction.came(PAGE, || panic!("came for reading"));
        prediction.goes(PAGE, || panic!("came for reading"));
        prediction.goes(Gfn(8), || panic!("never seen"));
    }

    #[test]
    fn watched_pages_are_bounded() {
        let mut prediction = WritePrediction::default();
        for gfn in 0..200_000 {
            prediction.read(Gfn(gfn));
            assert!(prediction.pages.len() <= WATCHED_MAX);
        }
    }
}
