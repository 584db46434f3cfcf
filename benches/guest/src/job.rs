//! The order and its result, in memory that the guest and the benchmark program share.

use core::arch::x86_64::_rdtsc;
use core::hint::spin_loop;
use core::ops::Range;
use core::ptr::with_exposed_provenance_mut;
use core::slice;
use core::sync::atomic::AtomicU64;

/// Words of a page.
pub const PAGE_WORDS: usize = 512;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    /// Nothing: be there.
    Nothing = 0,
    /// Read a word of each page in scattered order, each read by itself timed.
    Read = 1,
    /// The same with writes.
    Write = 2,
    /// Read or write all words in order (`stride` 1), or one word of each page in scattered order.
    Scan = 3,
    /// Follow a chain of addresses through the memory.
    Chase = 4,
    /// Take turns with another processor in raising one word.
    PingPong = 5,
    /// Raise one word as often as possible within a time.
    Count = 6,
    /// Compute as NAS EP does.
    Ep = 7,
    /// Sort as NAS IS does.
    Is = 8,
    /// Lay the keys for [`Kind::Is`].
    IsKeys = 9,
    /// Verify what [`Kind::Is`] found.
    IsCheck = 10,
    /// Solve a sparse system as NAS CG does.
    Cg = 11,
    /// Transform a field as NAS FT does.
    Ft = 12,
    /// Solve on several grids as NAS MG does.
    Mg = 13,
}

/// One order for one processor. All fields are plain words: guest and host agree on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Job {
    /// A [`Kind`].
    pub kind: u64,
    /// Address of the memory, and how many pages of it (a power of two for scattered orders).
    pub memory: u64,
    /// Pages.
    pub pages: u64,
    /// How often; what that means depends on the kind.
    pub rounds: u64,
    /// This processor's number within the workload, or the number of the part that is done.
    pub own: u64,
    /// Processors, or parts.
    pub all: u64,
    /// First word that is touched, in a page or in all.
    pub word: u64,
    /// Nonzero: write where the kind permits both.
    pub write: u64,
    /// Words from one access to the next.
    pub stride: u64,
    /// Time limit in cycles of the time-stamp counter.
    pub cycles: u64,
    /// Address of the samples, 32 bits each, and room for how many.
    pub samples: u64,
    /// Samples at most.
    pub samples_max: u64,
    /// Result: samples taken.
    pub taken: u64,
    /// Result: what was counted.
    pub count: u64,
    /// Result: cycles for everything.
    pub elapsed: u64,
    /// Result: a sum over what was read, so that no read can be left out.
    pub sum: u64,
}

/// Words of a job.
pub const JOB_WORDS: usize = 16;

impl Job {
    /// As words, in the order of the fields.
    #[must_use]
    pub fn words(&self) -> [u64; JOB_WORDS] {
        [
            self.kind,
            self.memory,
            self.pages,
            self.rounds,
            self.own,
            self.all,
            self.word,
            self.write,
            self.stride,
            self.cycles,
            self.samples,
            self.samples_max,
            self.taken,
            self.count,
            self.elapsed,
            self.sum,
        ]
    }

    /// From words in the order of the fields.
    #[must_use]
    pub fn from_words(words: [u64; JOB_WORDS]) -> Self {
        let [kind, memory, pages, rounds, own, all, word, write, more @ ..] = words;
        let [stride, cycles, samples, samples_max, taken, count, elapsed, sum] = more;
        Self {
            kind,
            memory,
            pages,
            rounds,
            own,
            all,
            word,
            write,
            stride,
            cycles,
            samples,
            samples_max,
            taken,
            count,
            elapsed,
            sum,
        }
    }

    /// This processor's part of so many things, or the part that is to be done: about as many in each, in order.
    pub(crate) fn part(&self, things: usize) -> Range<usize> {
        let parts = index(self.all).max(1);
        let border = |part: usize| things * part.min(parts) / parts;
        let own = usize::try_from(self.own).unwrap_or(usize::MAX);
        border(own)..border(own.saturating_add(1))
    }

    /// The kind, if it is one.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        const KINDS: [Kind; 14] = [
            Kind::Nothing,
            Kind::Read,
            Kind::Write,
            Kind::Scan,
            Kind::Chase,
            Kind::PingPong,
            Kind::Count,
            Kind::Ep,
            Kind::Is,
            Kind::IsKeys,
            Kind::IsCheck,
            Kind::Cg,
            Kind::Ft,
            Kind::Mg,
        ];
        usize::try_from(self.kind).ok().and_then(|at| KINDS.get(at)).copied()
    }
}

/// A number of a job as an index; 0 if it is none.
pub(crate) fn index(value: u64) -> usize {
    usize::try_from(value).unwrap_or(0)
}

/// The memory and the samples of a job.
#[derive(Debug)]
pub struct Memory {
    words: &'static [AtomicU64],
    samples: &'static [AtomicU64],
    waiting: Waiting,
}

/// How a processor waits for others at a barrier.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// What it does again and again while the word is as it was seen.
    pub wait: fn(&AtomicU64, u64),
    /// What the last one does once the word has changed.
    pub wake: fn(&AtomicU64),
}

impl Waiting {
    /// It spins. Each has a processor of its own.
    pub const SPINNING: Self = Self { wait: |_, _| spin_loop(), wake: |_| {} };
}

impl Memory {
    /// # Safety
    /// As for [`crate::run`].
    #[expect(unsafe_code, reason = "the job names its memory by address")]
    // UNSAFETY: the caller answers for the addresses in the job.
    #[must_use]
    pub unsafe fn new(job: &Job) -> Self {
        let view = |address: u64, words: u64| -> &'static [AtomicU64] {
            let (Ok(address), Ok(words)) = (usize::try_from(address), usize::try_from(words))
            else {
                return &[];
            };
            if words == 0 {
                return &[];
            }
            // SAFETY: mapped for as long as the job runs, as the caller promises; words of
            // memory that others change are atomics.
            unsafe { slice::from_raw_parts(with_exposed_provenance_mut(address), words) }
        };
        let words = job.pages.saturating_mul(512);
        let samples = view(job.samples, job.samples_max / 2);
        Self { words: view(job.memory, words), samples, waiting: Waiting::SPINNING }
    }

    /// The same with another way to wait at barriers. Where processors are threads of a kernel, of which there may be more than
    /// processors, they had better sleep.
    #[must_use]
    pub fn waiting_by(self, waiting: Waiting) -> Self {
        Self { waiting, ..self }
    }

    /// See [`Self::waiting_by`].
    pub(crate) fn waiting(&self) -> Waiting {
        self.waiting
    }

    /// All words.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        self.words
    }

    /// A word of a page, both modulo what there is.
    #[must_use]
    pub fn word(&self, page: usize, word: usize) -> &AtomicU64 {
        let pages = (self.words.len() / PAGE_WORDS).max(1);
        &self.words[page % pages * PAGE_WORDS + word % PAGE_WORDS]
    }

    /// Keeps a sample of so many cycles, if there is room.
    pub fn sample(&self, job: &mut Job, cycles: u64) {
        use core::sync::atomic::Ordering::Relaxed;
        let Some(pair) = usize::try_from(job.taken / 2).ok().and_then(|at| self.samples.get(at))
        else {
            return;
        };
        let cycles = cycles.min(u64::from(u32::MAX));
        let shift = job.taken % 2 * 32;
        let others = pair.load(Relaxed) & !(u64::from(u32::MAX) << shift);
        pair.store(others | cycles << shift, Relaxed);
        job.taken += 1;
    }
}

/// The time-stamp counter.
#[expect(unsafe_code, reason = "an intrinsic without preconditions that matter here")]
// UNSAFETY: one instruction without memory operands.
#[must_use]
pub fn now() -> u64 {
    // SAFETY: user code may read the counter; CR4.TSD is never set.
    unsafe { _rdtsc() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_up_the_whole() {
        let part = |things, own, all| Job { own, all, ..Job::default() }.part(things);
        let mut next = 0;
        for own in 0..7 {
            let part = part(100, own, 7);
            assert!(part.start == next && (14..=15).contains(&part.len()));
            next = part.end;
        }
        assert_eq!(next, 100);
        assert_eq!(part(100, 0, 0), 0..100);
        assert!(part(100, 7, 7).is_empty() && part(100, u64::MAX, 7).is_empty());
    }
}
