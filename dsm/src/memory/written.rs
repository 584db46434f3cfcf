//! What a slice has in its memory, as runs of pages, for whoever writes it down.

use super::chunk::{CHUNK_PAGES, ChunkId};
use super::off_file::OffFile;
use super::places::Place;
use super::ram::GuestRam;
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

impl GuestRam {
    /// Gives the contents of these frames to `take`: runs of neighbouring pages, ascending, of at most 2 MiB each. Pages
    /// that nobody has stored to are left out; they are zeros. Nobody stores to the frames meanwhile, and no memory engine
    /// changes where they lie.
    ///
    /// # Errors
    /// The first of `take`.
    pub fn each_run<E>(
        &self,
        frames: Range<u64>,
        mut take: impl FnMut(Gfn, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut bytes = Vec::with_capacity(usize::try_from(CHUNK_PAGES).unwrap_or(0) * PAGE_SIZE);
        let pages = frames.end.saturating_sub(frames.start);
        for (_, piece) in ChunkId::pieces(Gfn(frames.start), pages) {
            let mut next = piece.start;
            while let Some(run) = self.next_run(next..piece.end) {
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

    /// The first pages of these frames, which lie in one chunk, that may have been stored to.
    pub(crate) fn next_run(&self, frames: Range<u64>) -> Option<Range<u64>> {
        let first = self.offset(Gfn(frames.start)).filter(|_| !frames.is_empty())?;
        self.ensure(first);
        // Memory that was made ready is in the file whether it was used or not.
        if self.prepared.is_some() || self.is_pinned() {
            return Some(frames);
        }
        if self.place_at(first) == Place::OffFile {
            // Linux does not say of each page of such memory that it is there: not of one that was swapped out.
            if matches!(self.off_file, OffFile::Anonymous) {
                return Some(frames);
            }
            let is_there = |frame: &u64| !self.is_hole(Gfn(*frame));
            let start = frames.clone().find(is_there)?;
            let end = (start..frames.end).find(|frame| !is_there(frame)).unwrap_or(frames.end);
            return Some(start..end);
        }
        let frame = |at: usize| {
            let pages = at.checked_sub(first)? / PAGE_SIZE;
            Some(frames.start + u64::try_from(pages).ok()?)
        };
        let start = frame(seek(&self.file, first, libc::SEEK_DATA)?)?;
        if start >= frames.end {
            return None;
        }
        let at = self.offset(Gfn(start))?;
        let end = seek(&self.file, at, libc::SEEK_HOLE).and_then(frame).unwrap_or(frames.end);
        Some(start..end.clamp(start + 1, frames.end))
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
        ram.each_run(frames, take).unwrap();
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
    fn memory_that_was_made_ready_is_given_whole() {
        let all = 0..512;
        let all = from_ref(&all);
        let ram = GuestRam::with_memory(all, all, Memory::MemfdPrealloc).unwrap();
        let mut pages = 0;
        let take = |_: Gfn, bytes: &[u8]| {
            pages += bytes.len() / PAGE_SIZE;
            Ok::<(), Infallible>(())
        };
        ram.each_run(0..512, take).unwrap();
        assert_eq!(pages, 512, "the guest stores to it without a word");
    }
}
