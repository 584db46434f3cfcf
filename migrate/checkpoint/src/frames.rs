//! A set of frames as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// Frames that a writer has been given, as ranges that neither meet nor overlap.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrameSet(BTreeMap<u64, u64>);

impl FrameSet {
    /// Takes frames in.
    ///
    /// # Errors
    /// One of them, which is there already. Nothing has changed then.
    pub(crate) fn insert(&mut self, frames: Range<u64>) -> Result<(), u64> {
        if frames.is_empty() {
            return Ok(());
        }
        let (mut start, mut end) = (frames.start, frames.end);
        if let Some((&before, &before_end)) = self.0.range(..=start).next_back() {
            if before_end > start {
                return Err(start);
            }
            if before_end == start {
                start = before;
            }
        }
        if let Some((&after, &after_end)) = self.0.range(frames.start..).next() {
            if after < end {
                return Err(after);
            }
            if after == end {
                self.0.remove(&after);
                end = after_end;
            }
        }
        self.0.insert(start, end);
        Ok(())
    }

    /// Takes frames in, whether they are there or not.
    pub(crate) fn add(&mut self, frames: Range<u64>) {
        let (mut start, mut end) = (frames.start, frames.end);
        if let Some((&before, &before_end)) = self.0.range(..start).next_back()
            && before_end >= start
        {
            (start, end) = (before, end.max(before_end));
        }
        while let Some((&next, &next_end)) = self.0.range(start..=end).next() {
            self.0.remove(&next);
            end = end.max(next_end);
        }
        self.0.insert(start, end);
    }

    /// The ranges, from the lowest on.
    pub(crate) fn ranges(&self) -> impl ExactSizeIterator<Item = Range<u64>> {
        self.0.iter().map(|(start, end)| *start..*end)
    }
}

/// The part of a range that is in another.
pub(crate) fn common(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    one.start.max(other.start)..one.end.min(other.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn set_is_as_one_of_single_frames(
            ranges in prop::collection::vec((0_u64..64, 0_u64..6), 0..40),
        ) {
            let (mut set, mut model) = (FrameSet::default(), BTreeSet::new());
            for (start, length) in ranges {
                let frames = start..start + length;
                let known = frames.clone().find(|frame| model.contains(frame));
                match set.insert(frames.clone()) {
                    Ok(()) => {
                        prop_assert_eq!(known, None);
                        model.extend(frames);
                    }
                    Err(frame) => prop_assert!(frames.contains(&frame) && model.contains(&frame)),
                }
                prop_assert!(set.ranges().flatten().eq(model.iter().copied()));
            }
            let ranges: Vec<_> = set.ranges().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
        }

        #[test]
        fn union_is_as_one_of_single_frames(
            ranges in prop::collection::vec((0_u64..64, 1_u64..6), 0..40),
        ) {
            let (mut set, mut model) = (FrameSet::default(), BTreeSet::new());
            for (start, length) in ranges {
                set.add(start..start + length);
                model.extend(start..start + length);
                prop_assert!(set.ranges().flatten().eq(model.iter().copied()));
            }
            let ranges: Vec<_> = set.ranges().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}
