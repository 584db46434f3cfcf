//! Real numbers in the memory of a job, and what all processors add up together.

use super::word;
use crate::job::{Job, Memory, PAGE_WORDS, index};
use crate::layout::CPUS_MAX;
use crate::share::barrier;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// An array of real numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reals<'a>(&'a [AtomicU64]);

impl<'a> Reals<'a> {
    pub(super) fn get(self, at: usize) -> f64 {
        f64::from_bits(self.0[at].load(Relaxed))
    }

    pub(super) fn set(self, at: usize, value: f64) {
        self.0[at].store(value.to_bits(), Relaxed);
    }

    /// Adds to an element that is this processor's own.
    pub(super) fn add(self, at: usize, value: f64) {
        self.set(at, self.get(at) + value);
    }

    /// The first elements, on whole pages, and the rest; none if there are not so many.
    pub(super) fn split(self, elements: usize) -> Option<(Self, Self)> {
        let words = elements.next_multiple_of(PAGE_WORDS);
        let (first, rest) = self.0.split_at_checked(words)?;
        Some((Self(&first[..elements]), Self(rest)))
    }

    pub(super) fn len(self) -> usize {
        self.0.len()
    }
}

/// Parts of a sum at most; more would not have places of their own.
pub(super) const PARTS_MAX: usize = PAGE_WORDS / 2;

/// What processors add up together. Each has two places for its parts, by turns: while some still read one, others may write the
/// other, and nobody is two sums ahead.
#[derive(Debug)]
pub(super) struct Sums<'a> {
    parts: Reals<'a>,
    turn: usize,
}

impl<'a> Sums<'a> {
    /// With the memory behind it. None if there is none, or there are too many processors.
    pub(super) fn new(job: &Job, memory: &'a Memory) -> Option<(Self, Reals<'a>)> {
        let rest = Reals(memory.words().get(PAGE_WORDS..)?);
        let (parts, rest) = rest.split(index(CPUS_MAX) * PAGE_WORDS)?;
        (job.all <= CPUS_MAX).then_some((Self { parts, turn: 0 }, rest))
    }

    /// The sum of so many parts, each computed by the processor that it belongs to. None if the others do not come.
    pub(super) fn sum(
        &mut self,
        (job, memory): (&Job, &Memory),
        parts: usize,
        mut part: impl FnMut(usize) -> f64,
    ) -> Option<f64> {
        self.turn = 1 - self.turn;
        let place = |own: u64, part: usize| {
            index(own) * PAGE_WORDS + self.turn * PARTS_MAX + part % PARTS_MAX
        };
        for at in job.part(parts) {
            self.parts.set(place(job.own, at), part(at));
        }
        if !barrier(job, memory) {
            return None;
        }
        let mut sum = 0.0;
        for own in 0..job.all.max(1) {
            for at in (Job { own, ..*job }).part(parts) {
                sum += self.parts.get(place(own, at));
            }
        }
        Some(sum)
    }
}

/// A whole number as a real one.
pub(super) fn real(number: usize) -> f64 {
    f64::from(u32::try_from(word(number)).unwrap_or(u32::MAX))
}
