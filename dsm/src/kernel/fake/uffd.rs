//! userfaultfd and its requests.

use super::{Backing, FakeKernel, PAGE_BYTES, Part, State, Waiter, refusal};
use crate::kernel::guest_mapping::GuestMapping;
use crate::kernel::userfaultfd::{Fault, MODE_MINOR, MODE_MISSING, MODE_WP, Userfaultfd};
use std::io::Error;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;

impl FakeKernel {
    /// The pages of a range of addresses, all of which must be in the mapping.
    fn range(&self, start: u64, len: u64) -> Result<Range<usize>, Error> {
        let offset = usize::try_from(start).ok().and_then(|at| at.checked_sub(self.0.span.start()));
        let (Some(offset), Ok(bytes)) = (offset, usize::try_from(len)) else {
            return Err(refusal(libc::EINVAL));
        };
        let pages = self.pages_at(offset, bytes);
        let fits = pages.end <= self.state().pages.len() && !pages.is_empty();
        let aligned = offset % PAGE_BYTES == 0 && bytes % PAGE_BYTES == 0;
        if fits && aligned { Ok(pages) } else { Err(refusal(libc::EINVAL)) }
    }

    /// Maps what a range holds, as long as nothing is in the way: how many pages, and what was.
    fn map_range(
        &self,
        state: &mut State,
        pages: &Range<usize>,
        wp: bool,
    ) -> (usize, Option<libc::c_int>) {
        for (done, page) in pages.clone().enumerate() {
            let refused = match state.pages[page].mapped {
                true => Some(libc::EEXIST),
                false if !self.file_has(page) => Some(libc::EFAULT),
                false => None,
            };
            if refused.is_some() {
                return (done, refused);
            }
            state.pages[page].mapped = true;
            state.pages[page].wp = wp;
        }
        (pages.len(), None)
    }
}

/// One userfaultfd of several.
#[derive(Debug)]
pub(crate) struct FakeUffd {
    kernel: FakeKernel,
    number: usize,
}

impl FakeUffd {
    pub(crate) fn new(kernel: FakeKernel) -> Self {
        let number = kernel.0.uffds.fetch_add(1, Ordering::Relaxed);
        Self { kernel, number }
    }
}

impl Userfaultfd for FakeUffd {
    fn register(&self, start: u64, len: u64, modes: u64) -> Result<(), Error> {
        self.kernel.others_run();
        let pages = self.kernel.range(start, len)?;
        let mut state = self.kernel.state();
        let may = |backing| match backing {
            Backing::Nothing => false,
            Backing::Anonymous => modes & MODE_MINOR == 0,
            Backing::File => true,
        };
        if modes == 0 || !state.pages[pages.clone()].iter().all(|at| may(at.part.backing)) {
            return Err(refusal(libc::EINVAL));
        }
        if state.has_other(&pages, self.number) {
            return Err(refusal(libc::EBUSY));
        }
        state.set_part(&pages, |part| {
            // What has all these modes is left as it is.
            part.modes = if part.modes & modes == modes { part.modes } else { modes };
            part.uffd = self.number;
        });
        drop(state);
        self.kernel.others_run();
        Ok(())
    }

    fn unregister(&self, start: u64, len: u64) -> Result<(), Error> {
        self.kernel.others_run();
        let pages = self.kernel.range(start, len)?;
        let mut state = self.kernel.state();
        if state.has_other(&pages, self.number) {
            return Err(refusal(libc::EINVAL));
        }
        let waits = |modes: u64| modes & MODE_MISSING != 0;
        let woken: Vec<usize> =
            pages.clone().filter(|at| waits(state.pages[*at].part.modes)).collect();
        for page in &mut state.pages[pages] {
            page.wp &= page.part.modes == 0;
            (page.part.modes, page.part.uffd) = (0, 0);
        }
        woken.into_iter().for_each(|page| state.wake(&(page..page + 1)));
        drop(state);
        self.kernel.others_run();
        Ok(())
    }

    fn wake(&self, start: u64, len: u64) -> Result<(), Error> {
        self.kernel.others_run();
        let pages = self.kernel.range(start, len)?;
        self.kernel.state().wake(&pages);
        self.kernel.others_run();
        Ok(())
    }

    fn map_present(&self, start: u64, len: u64, wp: bool) -> Result<(), (Error, i64)> {
        self.kernel.others_run();
        let pages = self.kernel.range(start, len).map_err(|error| (error, 0))?;
        let mut state = self.kernel.state();
        if state.is_busy() {
            return Err((refusal(libc::EAGAIN), -i64::from(libc::EAGAIN)));
        }
        let part = state.pages[pages.start].part;
        let one_part = state.pages[pages.clone()].iter().all(|page| page.part == part);
        let refused = match part {
            _ if !one_part => Some(libc::ENOENT),
            Part { modes: 0, .. } => Some(libc::ENOENT),
            Part { backing: Backing::Anonymous | Backing::Nothing, .. } => Some(libc::EINVAL),
            Part { modes, .. } if wp && modes & MODE_WP == 0 => Some(libc::EINVAL),
            _ => None,
        };
        if let Some(errno) = refused {
            return Err((refusal(errno), -i64::from(errno)));
        }
        let (done, refused) = self.kernel.map_range(&mut state, &pages, wp);
        state.wake(&(pages.start..pages.start + done));
        drop(state);
        self.kernel.others_run();
        match refused {
            None => Ok(()),
            Some(errno) if done == 0 => Err((refusal(errno), -i64::from(errno))),
            Some(_) => {
                let bytes = i64::try_from(done * PAGE_BYTES).expect("a length");
                Err((refusal(libc::EAGAIN), bytes))
            }
        }
    }

    fn copy(&self, start: u64, from: &[u8]) -> Result<(), (Error, i64)> {
        self.kernel.others_run();
        let len = u64::try_from(from.len()).expect("a length");
        let pages = self.kernel.range(start, len).map_err(|error| (error, 0))?;
        let mut state = self.kernel.state();
        if state.is_busy() {
            return Err((refusal(libc::EAGAIN), -i64::from(libc::EAGAIN)));
        }
        let part = state.pages[pages.start].part;
        if part.modes == 0 || !state.pages[pages.clone()].iter().all(|page| page.part == part) {
            return Err((refusal(libc::ENOENT), -i64::from(libc::ENOENT)));
        }
        let there = |page: &usize| {
            state.pages[*page].mapped
                || part.backing == Backing::File && self.kernel.file_has(*page)
        };
        let end = pages.clone().find(there).unwrap_or(pages.end);
        let done = end - pages.start;
        self.kernel.write(pages.start, &from[..done * PAGE_BYTES]);
        for page in &mut state.pages[pages.start..end] {
            (page.mapped, page.wp) = (true, false);
        }
        state.wake(&(pages.start..end));
        drop(state);
        self.kernel.others_run();
        match done {
            _ if end == pages.end => Ok(()),
            0 => Err((refusal(libc::EEXIST), -i64::from(libc::EEXIST))),
            _ => {
                let bytes = i64::try_from(done * PAGE_BYTES).expect("a length");
                Err((refusal(libc::EAGAIN), bytes))
            }
        }
    }

    fn write_protect(&self, start: u64, len: u64, on: bool) -> Result<(), Error> {
        self.kernel.others_run();
        let pages = self.kernel.range(start, len)?;
        let mut state = self.kernel.state();
        if state.is_busy() {
            return Err(refusal(libc::EAGAIN));
        }
        // What lies before a part that is not watched is done all the same.
        let unwatched = |at: &usize| state.pages[*at].part.modes & MODE_WP == 0;
        let end = pages.clone().find(unwatched).unwrap_or(pages.end);
        if on {
            state.split(&(pages.start..end), true);
        }
        for page in &mut state.pages[pages.start..end] {
            page.wp = on;
        }
        if end < pages.end {
            return Err(refusal(libc::ENOENT));
        }
        if !on {
            state.wake(&pages);
        }
        drop(state);
        self.kernel.others_run();
        Ok(())
    }

    fn read(&self, sink: &mut Vec<Fault>) -> Result<(), Error> {
        let mut state = self.kernel.state();
        let unread = |waiter: &&mut Waiter| !waiter.is_read && waiter.uffd == self.number;
        for waiter in state.waiters.iter_mut().filter(unread).take(64) {
            waiter.is_read = true;
            sink.push(waiter.fault);
        }
        Ok(())
    }

    fn descriptor(&self) -> RawFd {
        self.kernel.0.file.as_raw_fd()
    }
}
