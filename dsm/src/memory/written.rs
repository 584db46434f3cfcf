//! What a slice has in its memory, as runs of pages, for whoever writes it down.

use super::chunk::{CHUNK_PAGES, ChunkId};
use super::off_file::OffFile;
use super::places::Place;
use super::ram::GuestRam;
use crate::kernel::GuestMapping as _;
use std::ops::Range;
use std::os::fd::AsRawFd;
use wire::{Gfn, PAGE_SIZE};

#[expect(unsafe_code, reason = "lseek")]
// UNSAFETY: one call that takes no pointers.
fn seek(file: &impl AsRawFd, offset: usize, whence: libc::c_int) -> Option<usize> {
    let offset = i64::try_from(offset).ok()?;
    // SAFETY: lseek takes no pointers.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    usize::try_from(found).ok()
}

/// Looks for pages that may have been stored to, no further than it is asked.
///
/// `SEEK_HOLE` is not used: Linux would look at each page up to the next hole, in one go. That is 22 ms for 2 GiB, in which a kernel
/// without preemption lets nobody else have the processor, as a vCPU that has just gone on.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// Bytes of the file that it has. No hole is ever punched into it.
    has: Range<usize>,
    /// Bytes that were asked for last, a chunk at most, and which of their pages were resident then. What the guest stores to since is not
    /// looked for.
    asked: Range<usize>,
    resident: Vec<u8>,
}

impl Runs {
    /// Up to where the file has pages, from one that it has to the end of a chunk at most.
    fn has_until(&mut self, ram: &GuestRam, range: Range<usize>) -> usize {
        if !self.asked.contains(&range.start) || self.asked.end != range.end {
            self.resident.clear();
            self.resident.resize(range.len().div_ceil(PAGE_SIZE), 0);
            self.asked = range.clone();
            if ram.alias.residency(range.start, &mut self.resident).is_err() {
                // Whatever the rest is, it is read as it is.
                self.resident.fill(1);
            }
        }
        let known = self.resident.iter().skip((range.start - self.asked.start) / PAGE_SIZE);
        let at = range.clone().step_by(PAGE_SIZE);
        let absent = at.zip(known).filter(|(_, byte)| **byte & 1 == 0).map(|(at, _)| at);
        // What is swapped out is not resident, and the file has it.
        let mut holes = absent.filter(|at| seek(&ram.file, *at, libc::SEEK_DATA) != Some(*at));
        holes.next().unwrap_or(range.end)
    }
}

impl Runs {
    /// The first pages of these frames, which lie in one chunk, that may have been stored to.
    pub(crate) fn next(&mut self, ram: &GuestRam, frames: Range<u64>) -> Option<Range<u64>> {
        let first = ram.offset(Gfn(frames.start)).filter(|_| !frames.is_empty())?;
        ram.ensure(first);
        // Memory that was made ready is in the file whether it was used or not.
        if ram.prepared.is_some() || ram.is_pinned() {
            return Some(frames);
        }
        if ram.place_at(first) == Place::OffFile {
            // Linux does not say of each page of such memory that it is there: not of one that was swapped out.
            if matches!(ram.off_file, OffFile::Anonymous) {
                return Some(frames);
            }
            let is_there = |frame: &u64| !ram.is_hole(Gfn(*frame));
            let start = frames.clone().find(is_there)?;
            let end = (start..frames.end).find(|frame| !is_there(frame)).unwrap_or(frames.end);
            return Some(start..end);
        }
        let frame = |at: usize| {
            let pages = at.saturating_sub(first).div_ceil(PAGE_SIZE);
            frames.start + u64::try_from(pages).unwrap_or(u64::MAX)
        };
        if !self.has.contains(&first) {
            let start = seek(&ram.file, first, libc::SEEK_DATA)?;
            if frame(start) >= frames.end {
                return None;
            }
            let pages = usize::try_from(frames.end - frames.start).ok()?;
            self.has = start..self.has_until(ram, start..first + pages * PAGE_SIZE);
        }
        Some(frame(self.has.start)..frame(self.has.end).min(frames.end))
    }
}

impl GuestRam {
    /// Gives the contents of these frames to `take`: runs of neighbouring pages, ascending, of at most 2 MiB each. Pages
    /// that nobody has stored to are left out; they are zeros. Nobody stores to the frames meanwhile, and no memory engine
    /// changes where they lie.
    ///
    /// # Errors
    /// The first of `take`.
    pub fn each_run<E>(
        &self,
        frames: &[Range<u64>],
        mut take: impl FnMut(Gfn, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut bytes = Vec::with_capacity(usize::try_from(CHUNK_PAGES).unwrap_or(0) * PAGE_SIZE);
        let mut runs = Runs::default();
        let pieces = frames.iter().flat_map(|range| {
            ChunkId::pieces(Gfn(range.start), range.end.saturating_sub(range.start))
        });
        for (_, piece) in pieces {
            let mut next = piece.start;
            while let Some(run) = runs.next(self, next..piece.end) {
                bytes.clear();
                run.clone().for_each(|frame| self.append_to(Gfn(frame), &mut bytes));
                take(Gfn(run.start), &bytes)?;
                next = run.end;
            }
        }
        Ok(())
    }

    /// True when the page is known to be zeros without a look at it: nobody has stored to it, nor has it come.
    pub(crate) fn is_surely_zero(&self, gfn: Gfn) -> bool {
        let Some(at) = self.offset(gfn) else { return true };
        let unknown = self.prepared.is_some()
            || self.is_pinned()
            || matches!(self.off_file, OffFile::Anonymous) && self.place_at(at) == Place::OffFile;
        !unknown && self.is_hole(gfn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use std::convert::Infallible;
    use std::slice::from_ref;

    fn runs(ram: &GuestRam, frames: Range<u64>) -> Vec<(u64, usize)> {
        let mut runs = Vec::new();
        let take = |gfn: Gfn, bytes: &[u8]| {
            assert!(bytes.iter().any(|byte| *byte != 0));
            runs.push((gfn.0, bytes.len() / PAGE_SIZE));
            Ok::<(), Infallible>(())
        };
        ram.each_run(&[frames], take).unwrap();
        runs
    }

    #[test]
    fn runs_are_what_was_stored_to_and_nothing_else() {
        for memory in [Memory::Memfd, Memory::Anonymous] {
            // Two blocks, of which the second lies elsewhere in the file.
            let frames = [0..1024, 4096..5120];
            let ram = GuestRam::with_memory(&frames, &frames[..1], memory).unwrap();
            for frame in [3, 4, 511, 512, 900, 4096, 4100] {
                ram.write(Gfn(frame), 7, &[1]);
            }
            assert_eq!(runs(&ram, 4..4), []);
            let (first, second) = (runs(&ram, 0..1024), runs(&ram, 4096..5120));
            if memory == Memory::Memfd {
                assert_eq!(first, [(3, 2), (511, 1), (512, 1), (900, 1)]);
                assert_eq!(runs(&ram, 4..900), [(4, 1), (511, 1), (512, 1)]);
            } else {
                // Huge pages may have more.
                let has =
                    |frame| first.iter().any(|(at, n)| (*at..at + *n as u64).contains(&frame));
                assert!([3, 4, 511, 512, 900].into_iter().all(has), "{first:?}");
            }
            assert_eq!(second, [(4096, 1), (4100, 1)]);
        }
    }

    #[test]
    fn how_far_the_file_has_pages_is_asked_as_far_as_is_wanted() {
        let all = 0..2048;
        let all = from_ref(&all);
        let ram = GuestRam::with_memory(all, all, Memory::Memfd).unwrap();
        (600..1600).for_each(|frame| ram.write(Gfn(frame), 0, &[1]));
        let mut runs = Runs::default();
        assert_eq!(runs.next(&ram, 0..512), None);
        assert_eq!(runs.has, 0..0, "the next pages are of no interest yet");
        for (piece, run) in
            [(512..1024, 600..1024), (1024..1536, 1024..1536), (1536..2048, 1536..1600)]
        {
            assert_eq!(runs.next(&ram, piece), Some(run.clone()));
            let bytes = |frame: u64| usize::try_from(frame).unwrap() * PAGE_SIZE;
            assert_eq!(runs.has, bytes(run.start)..bytes(run.end));
        }
        assert_eq!(runs.next(&ram, 1600..2048), None);
    }

    #[test]
    fn chunk_with_many_holes_is_asked_for_once() {
        let all = 0..512;
        let all = from_ref(&all);
        let ram = GuestRam::with_memory(all, all, Memory::Memfd).unwrap();
        (0..512).step_by(2).for_each(|frame| ram.write(Gfn(frame), 0, &[1]));
        let mut runs = Runs::default();
        let mut next = 0;
        while let Some(run) = runs.next(&ram, next..512) {
            assert_eq!(run.end - run.start, 1);
            assert_eq!(runs.asked, 0..512 * PAGE_SIZE);
            next = run.end;
        }
        assert_eq!(next, 511);
    }

    #[test]
    fn memory_that_was_made_ready_is_given_whole() {
        let all = 0..512;
        let all = from_ref(&all);
        let ram = GuestRam::with_memory(all, all, Memory::MemfdPrealloc).unwrap();
        let mut pages = 0;
        let take = |_: Gfn, bytes: &[u8]| {
            pages += bytes.len() / PAGE_SIZE;
            Ok::<(), Infallible>(())
        };
        ram.each_run(all, take).unwrap();
        assert_eq!(pages, 512, "the guest stores to it without a word");
    }
}
