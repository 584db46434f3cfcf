//! How vCPUs share memory.

use super::algorithm::Touch;
use crate::simulator::random::Random;

/// A pattern of sharing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Every slice works on its own part of memory.
    Private,
    /// One slice writes a page, the next one reads it; a new page each time while there are any.
    Producer,
    /// Slices take turns in reading and then writing 64 pages: locks, counters.
    Migratory,
    /// All read a page, which one slice writes now and then.
    ReadMostly,
    /// All write a few pages in turn.
    Contended,
    /// A slice reads the part of another in order.
    Scan,
    /// Any slice, any page, one write in four.
    Uniform,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Private,
        Self::Producer,
        Self::Migratory,
        Self::ReadMostly,
        Self::Contended,
        Self::Scan,
        Self::Uniform,
    ];

    /// Name for printing.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Producer => "producer, consumer",
            Self::Migratory => "migratory",
            Self::ReadMostly => "read mostly",
            Self::Contended => "contended writes",
            Self::Scan => "scan of another's",
            Self::Uniform => "uniform",
        }
    }

    /// So many accesses of this pattern. The same seed gives the same.
    pub fn touches(
        self,
        seed: u64,
        slices: u16,
        pages: u64,
        count: u64,
    ) -> impl Iterator<Item = Touch> {
        let mut random = Random::new(seed);
        let all = u64::from(slices);
        let share = pages / all;
        let slice = move |number: u64| u16::try_from(number % all).expect("below the slices");
        (0..count).map(move |at| match self {
            Self::Private => {
                let own = random.below(all);
                let page = own * share + random.below(share);
                Touch { slice: slice(own), page, write: random.below(2) == 0 }
            }
            Self::Producer => {
                let page = at / 2 % pages;
                let first = page % all;
                Touch { slice: slice(first + at % 2), page, write: at % 2 == 0 }
            }
            Self::Migratory => {
                let turn = at / 2;
                let lock = turn % 64.min(pages);
                let page = lock * (pages / 64.min(pages));
                Touch { slice: slice(lock + turn / 64), page, write: at % 2 == 1 }
            }
            Self::ReadMostly => {
                let page = random.below(64.min(pages)) * (pages / 64.min(pages));
                let write = random.below(4 * all) == 0;
                Touch {
                    slice: slice(if write { page + 1 } else { random.below(all) }),
                    page,
                    write,
                }
            }
            Self::Contended => {
                let page = random.below(8.min(pages)) * (pages / 8.min(pages));
                Touch { slice: slice(random.below(all)), page, write: true }
            }
            Self::Scan => {
                let page = at % pages;
                Touch { slice: slice(page / share + 1 + at / pages), page, write: false }
            }
            Self::Uniform => {
                let page = random.below(pages);
                Touch { slice: slice(random.below(all)), page, write: random.below(4) == 0 }
            }
        })
    }
}
