//! The address space: `mmap`, `madvise`, `mprotect`, `mincore` and `mremap`.

use super::uffd::FakeUffd;
use super::{Backing, CHUNK, FakeKernel, PAGE_BYTES, Part, refusal};
use crate::kernel::error::UffdError;
use crate::kernel::guest_mapping::GuestMapping;
use crate::kernel::span::Span;
use crate::kernel::uffd::Uffd;
use crate::kernel::userfaultfd::{MODE_MISSING, MODE_WP};
use std::fs::File;
use std::io::Error;
use std::ops::Range;

impl GuestMapping for FakeKernel {
    fn start(&self) -> usize {
        self.0.span.start()
    }

    fn userfaultfd(&self) -> Result<Uffd, UffdError> {
        Ok(Uffd::new(FakeUffd::new(self.clone())))
    }

    fn map_file(&self, offset: usize, bytes: usize, file: &File) -> Result<(), Error> {
        self.0.span.map_file(offset, bytes, file)?;
        self.mapped_anew(offset, bytes, Backing::File);
        Ok(())
    }

    fn map_reserved(&self, _: usize, _: usize, _: &File) -> Result<(), Error> {
        Err(refusal(libc::ENOMEM))
    }

    fn map_anonymous(&self, offset: usize, bytes: usize) -> Result<(), Error> {
        self.0.span.map_anonymous(offset, bytes)?;
        self.mapped_anew(offset, bytes, Backing::Anonymous);
        Ok(())
    }

    fn advise(&self, offset: usize, bytes: usize, advice: libc::c_int) -> Result<(), Error> {
        self.others_run();
        let pages = self.pages_at(offset, bytes);
        match advice {
            libc::MADV_DONTNEED => {
                let mut state = self.state();
                for page in pages.clone().filter(|at| state.is_anonymous(*at)) {
                    // Of private memory the contents go too.
                    self.0.span.advise(page * PAGE_BYTES, PAGE_BYTES, advice)?;
                }
                state.split(&pages, false);
                state.unmap(&pages, true);
            }
            libc::MADV_COLLAPSE => self.collapse(&pages)?,
            libc::MADV_POPULATE_WRITE => self.populate(&pages)?,
            // Huge pages by themselves are a matter of speed.
            libc::MADV_HUGEPAGE => {}
            _ => return Err(refusal(libc::EINVAL)),
        }
        self.others_run();
        Ok(())
    }

    fn set_writable(&self, offset: usize, bytes: usize, on: bool) -> Result<(), Error> {
        self.others_run();
        let pages = self.pages_at(offset, bytes);
        let mut state = self.state();
        state.split(&pages, false);
        state.set_part(&pages, |part| part.writable = on);
        drop(state);
        self.others_run();
        Ok(())
    }

    fn residency(&self, offset: usize, pages: &mut [u8]) -> Result<(), Error> {
        self.0.span.residency(offset, pages)
    }

    fn move_pages(&self, offset: usize, bytes: usize, to: &Span) -> Result<(), Error> {
        self.others_run();
        self.0.span.move_pages(offset, bytes, to)?;
        self.state().unmap(&self.pages_at(offset, bytes), false);
        self.others_run();
        Ok(())
    }
}

impl FakeKernel {
    fn collapse(&self, pages: &Range<usize>) -> Result<(), Error> {
        let mut state = self.state();
        let part = state.pages[pages.start].part;
        let alike = state.pages[pages.clone()].iter().all(|page| page.part == part);
        let chunk = pages.start / CHUNK;
        let whole =
            pages.start.is_multiple_of(CHUNK) && pages.len() == CHUNK && state.huge.len() > chunk;
        if !whole || !alike || part.backing != Backing::File || !part.writable {
            return Err(refusal(libc::EINVAL));
        }
        // The file gets its huge page, zeros where it had none, and nothing of the old pages stays mapped.
        let holes: Vec<usize> = pages.clone().filter(|page| !self.file_has(*page)).collect();
        if part.modes & MODE_MISSING != 0 && !holes.is_empty() {
            return Err(refusal(libc::EINVAL));
        }
        holes.into_iter().for_each(|page| self.back(page));
        if !std::mem::replace(&mut state.huge_in_file[chunk], true) {
            state.unmap(pages, true);
        }
        if part.modes & MODE_WP != 0 {
            return Err(refusal(libc::EINVAL));
        }
        state.huge[chunk] = true;
        state.pages[pages.clone()].iter_mut().for_each(|page| page.mapped = true);
        Ok(())
    }

    /// Stores that change nothing, to pages that nobody watches. Of watched ones Linux would have this thread wait.
    fn populate(&self, pages: &Range<usize>) -> Result<(), Error> {
        for page in pages.clone() {
            let part = self.state().pages[page].part;
            if part.modes != 0 || !part.writable {
                return Err(refusal(libc::EINVAL));
            }
            self.touch(usize::MAX, 0, page, true);
        }
        Ok(())
    }

    fn mapped_anew(&self, offset: usize, bytes: usize, backing: Backing) {
        self.others_run();
        let pages = self.pages_at(offset, bytes);
        let mut state = self.state();
        state.unmap(&pages, false);
        state.set_part(&pages, |part| *part = Part { backing, modes: 0, uffd: 0, writable: true });
        drop(state);
        self.others_run();
    }
}
