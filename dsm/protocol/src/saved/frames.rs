//! Sets of frames, as runs.

use migrate::Invalid;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use wire::Gfn;

/// A set of frames: the first frame and the length of each run, ascending. Runs do not touch, so each set has one form.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FrameRuns(Vec<(u64, u64)>);

impl FrameRuns {
    /// The union of ranges that do not overlap, in any order.
    #[must_use]
    pub fn of(mut ranges: Vec<Range<u64>>) -> Self {
        ranges.retain(|range| !range.is_empty());
        ranges.sort_unstable_by_key(|range| range.start);
        let mut runs = Self::default();
        ranges.into_iter().for_each(|range| runs.append(range));
        runs
    }

    /// Adds frames behind all others.
    pub(super) fn append(&mut self, range: Range<u64>) {
        match self.0.last_mut() {
            Some((first, pages)) if *first + *pages == range.start => {
                *pages += range.end - range.start;
            }
            _ => self.0.push((range.start, range.end - range.start)),
        }
    }

    /// The runs. Only of a set that was checked.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(first, pages)| *first..first + pages)
    }

    /// All frames, ascending. Only of a set that was checked.
    pub fn frames(&self) -> impl Iterator<Item = Gfn> + '_ {
        self.ranges().flatten().map(Gfn)
    }

    /// How many frames there are.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.0.iter().map(|(_, pages)| *pages).sum()
    }

    /// True for a set without frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many runs there are.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.0.len()
    }

    /// Whether the frame is in.
    #[must_use]
    pub fn contains(&self, gfn: Gfn) -> bool {
        self.around(gfn.0).is_some()
    }

    /// The run that a frame is in.
    fn around(&self, frame: u64) -> Option<Range<u64>> {
        let after = self.0.partition_point(|(first, _)| *first <= frame);
        let (first, pages) = self.0[..after].last()?;
        (frame - first < *pages).then(|| *first..first + pages)
    }

    /// The frames that are in both.
    pub(super) fn intersection(&self, other: &Self) -> Self {
        let mut both = Self::default();
        let (mut ours, mut theirs) = (self.ranges().peekable(), other.ranges().peekable());
        while let (Some(one), Some(two)) = (ours.peek(), theirs.peek()) {
            let (start, end) = (one.start.max(two.start), one.end.min(two.end));
            if start < end {
                both.append(start..end);
            }
            if one.end <= two.end {
                ours.next()
            } else {
                theirs.next()
            };
        }
        both
    }

    /// The first frame that is in one of two sets and not in the other.
    #[must_use]
    pub fn first_difference(&self, other: &Self) -> Option<Gfn> {
        let pairs = self.0.iter().zip(&other.0);
        for ((first, pages), (other_first, other_pages)) in pairs {
            if first != other_first {
                return Some(Gfn(*first.min(other_first)));
            }
            if pages != other_pages {
                return Some(Gfn(first + pages.min(other_pages)));
            }
        }
        let longer = if self.0.len() > other.0.len() { self } else { other };
        longer.0.get(self.0.len().min(other.0.len())).map(|(first, _)| Gfn(*first))
    }

    /// Whether the runs have frames, ascend, do not touch, and lie within `memory`, which ascends and does not touch.
    pub(super) fn check(&self, field: &'static str, memory: &Self) -> Result<(), Invalid> {
        let mut end = None;
        for (first, pages) in &self.0 {
            Invalid::unless(*pages > 0, field, "a run without frames")?;
            let over = "a run beyond the last frame that can be";
            let last = first.checked_add(*pages).ok_or_else(|| Invalid::new(field, over))?;
            let apart = end.is_none_or(|end| end < *first);
            Invalid::unless(apart, field, "runs that touch, or do not ascend")?;
            let inside = memory.around(*first).is_some_and(|part| last <= part.end);
            Invalid::unless(inside, field, "frames that do not belong there")?;
            end = Some(last);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn of(frames: &BTreeSet<u64>) -> FrameRuns {
        let mut runs = FrameRuns::default();
        frames.iter().for_each(|frame| runs.append(*frame..frame + 1));
        runs
    }

    fn refused(runs: &[(u64, u64)]) -> bool {
        let memory = FrameRuns::of(vec![0..16, 32..64]);
        FrameRuns(runs.to_vec()).check("frames", &memory).is_err()
    }

    #[test]
    fn runs_that_lie_are_refused() {
        assert!(!refused(&[(0, 16), (32, 1), (34, 30)]));
        assert!(refused(&[(0, 0)]), "no frames");
        assert!(refused(&[(0, 2), (2, 1)]), "they touch");
        assert!(refused(&[(4, 2), (0, 1)]), "they descend");
        assert!(refused(&[(0, 4), (3, 4)]), "they overlap");
        assert!(refused(&[(8, 30)]), "there is a hole");
        assert!(refused(&[(60, 5)]), "beyond memory");
        assert!(refused(&[(u64::MAX, 2)]), "beyond all numbers");
        assert!(refused(&[(1, u64::MAX)]), "beyond all numbers");
    }

    proptest! {
        #[test]
        fn set_is_kept_and_differences_are_found(
            one in prop::collection::btree_set(0..60u64, 0..30),
            two in prop::collection::btree_set(0..60u64, 0..30),
        ) {
            let (a, b) = (of(&one), of(&two));
            let all = FrameRuns(vec![(0, 60)]);
            a.check("frames", &all).unwrap();
            prop_assert_eq!(a.frames().map(|gfn| gfn.0).collect::<BTreeSet<_>>(), one.clone());
            prop_assert_eq!(a.pages(), one.len() as u64);
            prop_assert!((0..60).all(|frame| a.contains(Gfn(frame)) == one.contains(&frame)));
            let both: BTreeSet<u64> = one.intersection(&two).copied().collect();
            prop_assert_eq!(a.intersection(&b), of(&both));
            let first = one.symmetric_difference(&two).min().copied();
            prop_assert_eq!(a.first_difference(&b).map(|gfn| gfn.0), first);
            prop_assert_eq!(FrameRuns::of(a.ranges().collect()), a);
        }
    }
}
