//! What a host has of the two things that every VM needs.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Whole cores, and memory in units of 2 MiB. A core with two threads is one: its second thread belongs to the same VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resources {
    /// Cores that run nothing else.
    pub cores: u32,
    /// Units of 2 MiB.
    pub memory: u32,
}

impl Resources {
    /// Nothing.
    pub const NONE: Self = Self { cores: 0, memory: 0 };

    /// So many cores and units.
    #[must_use]
    pub const fn new(cores: u32, memory: u32) -> Self {
        Self { cores, memory }
    }

    /// Whether it is nothing.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Whether there is enough of both.
    #[must_use]
    pub fn fits_in(self, room: Self) -> bool {
        self.cores <= room.cores && self.memory <= room.memory
    }

    /// Both together, each as much as a number can be at most.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            cores: self.cores.saturating_add(other.cores),
            memory: self.memory.saturating_add(other.memory),
        }
    }

    /// What is left, each nothing at least.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            cores: self.cores.saturating_sub(other.cores),
            memory: self.memory.saturating_sub(other.memory),
        }
    }

    /// The lesser of each.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        Self { cores: self.cores.min(other.cores), memory: self.memory.min(other.memory) }
    }

    /// The memory that goes with so many of its cores: the same share of it, rounded down; all of it with all of them.
    #[must_use]
    pub fn memory_with(self, cores: u32) -> u32 {
        if cores >= self.cores {
            return self.memory;
        }
        let share = u64::from(self.memory) * u64::from(cores) / u64::from(self.cores);
        u32::try_from(share).unwrap_or(self.memory)
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cores and {} MiB", self.cores, u64::from(self.memory) * 2)
    }
}
