//! Which slice is home of which frame: what the placement says, with the moves that are over.

use migrate::{MemoryPlace, Placement};
use std::ops::Range;
use thiserror::Error;
use wire::{Gfn, SliceId};

/// A contiguous run of frames with one home.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HomeRange {
    /// The frames.
    pub frames: Range<u64>,
    /// Their home.
    pub home: SliceId,
}

/// Why ranges do not make a table.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HomeError {
    /// Two ranges claim one frame.
    #[error("build the home table: frame {0:#x} has two homes")]
    Overlap(u64),
    /// A range without frames.
    #[error("build the home table: an empty range at frame {0:#x}")]
    Empty(u64),
}

/// The home of every frame of guest memory. Ranges are sorted and disjoint; there may be holes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HomeTable {
    ranges: Vec<HomeRange>,
}

impl HomeTable {
    /// Sorts and checks the ranges, and makes one of neighbours with one home.
    ///
    /// # Errors
    /// Empty or overlapping ranges.
    pub fn new(mut ranges: Vec<HomeRange>) -> Result<Self, HomeError> {
        ranges.sort_by_key(|range| range.frames.start);
        for range in &ranges {
            if range.frames.is_empty() {
                return Err(HomeError::Empty(range.frames.start));
            }
        }
        for pair in ranges.windows(2) {
            if pair[0].frames.end > pair[1].frames.start {
                return Err(HomeError::Overlap(pair[1].frames.start));
            }
        }
        // One form for each table, however it came to be.
        ranges.dedup_by(|next, range| {
            let touch = range.home == next.home && range.frames.end == next.frames.start;
            if touch {
                range.frames.end = next.frames.end;
            }
            touch
        });
        Ok(Self { ranges })
    }

    /// The home of a frame, or `None` where there is no memory.
    #[must_use]
    pub fn home(&self, gfn: Gfn) -> Option<SliceId> {
        let after = self.ranges.partition_point(|range| range.frames.start <= gfn.0);
        let range = self.ranges[..after].last()?;
        range.frames.contains(&gfn.0).then_some(range.home)
    }

    /// Frames that all have a home get another one.
    pub(crate) fn rehome(&mut self, frames: &Range<u64>, to: SliceId) {
        let mut next: Vec<HomeRange> = Vec::with_capacity(self.ranges.len() + 2);
        let mut push = |frames: Range<u64>, home| match next.last_mut() {
            _ if frames.is_empty() => {}
            Some(last) if last.home == home && last.frames.end == frames.start => {
                last.frames.end = frames.end;
            }
            _ => next.push(HomeRange { frames, home }),
        };
        for HomeRange { frames: range, home } in &self.ranges {
            let start = range.start.max(frames.start).min(range.end);
            let end = range.end.min(frames.end).max(start);
            push(range.start..start, *home);
            push(start..end, to);
            push(end..range.end, *home);
        }
        self.ranges = next;
    }

    /// The first of these frames that has no memory.
    #[must_use]
    pub fn first_hole(&self, frames: &Range<u64>) -> Option<u64> {
        let mut at = frames.start;
        for range in &self.ranges {
            if range.frames.contains(&at) {
                at = range.frames.end;
            }
        }
        (at < frames.end).then_some(at)
    }

    /// The ranges, ascending.
    #[must_use]
    pub fn ranges(&self) -> &[HomeRange] {
        &self.ranges
    }

    /// One past the highest frame.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.ranges.last().map_or(0, |range| range.frames.end)
    }
}

/// Homes are derived from the placement, and from nothing else.
impl From<&Placement> for HomeTable {
    fn from(placement: &Placement) -> Self {
        let range =
            |place: &MemoryPlace| HomeRange { frames: place.frames.clone(), home: place.home };
        // A placement is sorted, and has no empty ranges and no overlap.
        Self { ranges: placement.memory().iter().map(range).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use migrate::Change;
    use proptest::prelude::*;
    use wire::Epoch;

    fn range(frames: Range<u64>, home: u16) -> HomeRange {
        HomeRange { frames, home: SliceId(home) }
    }

    #[test]
    fn home_with_hole_gives_none_in_the_hole() {
        let table = HomeTable::new(vec![range(8..16, 1), range(0..4, 0)]).unwrap();

        assert_eq!(table.home(Gfn(3)), Some(SliceId(0)));
        assert_eq!(table.home(Gfn(4)), None);
        assert_eq!(table.home(Gfn(8)), Some(SliceId(1)));
        assert_eq!(table.home(Gfn(16)), None);
        let holes = [0..4, 0..5, 8..16, 9..17, 4..8].map(|frames| table.first_hole(&frames));
        assert_eq!(holes, [None, Some(4), None, Some(16), Some(4)]);
    }

    proptest! {
        /// A table that followed each move is the one of the placement after all of them.
        #[test]
        fn homes_that_moved_are_those_of_the_placement(
            moves in prop::collection::vec((0_u64..64, 1_u64..64, 0_u16..3), 0..20),
        ) {
            let members = (0..3).map(SliceId).collect();
            let memory = [(0..40, 0), (44..64, 1)]
                .map(|(frames, home)| MemoryPlace { frames, home: SliceId(home) });
            let mut placement =
                Placement::new(Epoch(1), members, vec![SliceId(0)], memory.to_vec(), Vec::new()).unwrap();
            let mut homes = HomeTable::from(&placement);
            for (start, count, to) in moves {
                let (frames, to) = (start..(start + count).min(64), SliceId(to));
                if let Ok(next) = placement.next(&[Change::Memory { frames: frames.clone(), to }]) {
                    placement = next;
                    homes.rehome(&frames, to);
                }
                prop_assert_eq!(&homes, &HomeTable::from(&placement));
                prop_assert_eq!(HomeTable::new(homes.ranges().to_vec()), Ok(homes.clone()));
            }
        }
    }

    #[test]
    fn new_with_overlap_names_the_frame() {
        let result = HomeTable::new(vec![range(0..9, 0), range(8..16, 1)]);

        assert_eq!(result, Err(HomeError::Overlap(8)));
    }
}
