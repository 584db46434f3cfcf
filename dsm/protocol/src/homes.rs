//! Which slice is home of which frame: a pure function of the epoch.

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
    /// Sorts and checks the ranges.
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
        Ok(Self { ranges })
    }

    /// The home of a frame, or `None` where there is no memory.
    #[must_use]
    pub fn home(&self, gfn: Gfn) -> Option<SliceId> {
        let after = self.ranges.partition_point(|range| range.frames.start <= gfn.0);
        let range = self.ranges[..after].last()?;
        range.frames.contains(&gfn.0).then_some(range.home)
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

#[cfg(test)]
mod tests {
    use super::*;

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
    }

    #[test]
    fn new_with_overlap_names_the_frame() {
        let result = HomeTable::new(vec![range(0..9, 0), range(8..16, 1)]);

        assert_eq!(result, Err(HomeError::Overlap(8)));
    }
}
