//! What is done about the kernel's refusals: tried again, in smaller parts, or told.

use super::error::UffdError;
use super::sizes::PAGE;
use super::userfaultfd::{Fault, FaultWatch, Userfaultfd};
use std::io::Error;
use std::os::fd::{AsRawFd, RawFd};

/// What `install` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Installed {
    Done,
    /// There is a mapping already.
    Mapped,
    /// The file has no page there.
    Absent,
    /// Nothing was mapped: the range consists of several parts of the address space (VMAs). Probed pages and pages of
    /// another home are parts of their own, and the kernel maps within one part only.
    Parted,
}

/// A userfaultfd.
#[derive(Debug)]
pub(crate) struct Uffd(Box<dyn Userfaultfd>);

impl Uffd {
    pub(crate) fn new(calls: impl Userfaultfd + 'static) -> Self {
        Self(Box::new(calls))
    }

    pub(crate) fn register(
        &self,
        start: u64,
        len: u64,
        watch: FaultWatch,
    ) -> Result<(), UffdError> {
        let registered = self.0.register(start, len, watch.modes());
        registered.map_err(failed("UFFDIO_REGISTER", start, len))
    }

    /// Reports nothing there any more. All pages are as if never protected; waiters go on.
    pub(crate) fn unregister(&self, start: u64, len: u64) -> Result<(), UffdError> {
        let done = self.0.unregister(start, len);
        done.map_err(failed("UFFDIO_UNREGISTER", start, len))?;
        // The kernel wakes those only who wait for a missing page.
        self.wake(start, len)
    }

    /// Maps, for writing, all pages of a range that the file holds and that are not mapped yet, and
    /// wakes those who wait for them. A range that is more than one part of the address space goes in halves.
    pub(crate) fn install_missing(&self, start: u64, len: u64) -> Result<(), UffdError> {
        let end = start + len;
        let mut at = start;
        while at < end {
            let Err((source, mapped)) = self.0.map_present(at, end - at, false) else {
                return Ok(());
            };
            match (source.raw_os_error(), u64::try_from(mapped)) {
                // Part of the range is done.
                (Some(libc::EAGAIN), Ok(mapped)) => at += mapped,
                (Some(libc::EAGAIN), Err(_)) => {}
                (Some(libc::EEXIST | libc::EFAULT), _) => at += PAGE,
                (Some(libc::ENOENT), _) if end - at > PAGE => {
                    let half = (end - at) / PAGE / 2 * PAGE;
                    self.install_missing(at, half)?;
                    at += half;
                }
                _ => return Err(failed("UFFDIO_CONTINUE", at, end - at)(source)),
            }
        }
        Ok(())
    }

    /// Maps the page that the file holds, and wakes those who wait for it.
    pub(crate) fn install(
        &self,
        start: u64,
        len: u64,
        writable: bool,
    ) -> Result<Installed, UffdError> {
        loop {
            let Err((source, _)) = self.0.map_present(start, len, !writable) else {
                return Ok(Installed::Done);
            };
            match source.raw_os_error() {
                // The address space is changing; the kernel asks to try again.
                Some(libc::EAGAIN) => {}
                Some(libc::EEXIST) => return Ok(Installed::Mapped),
                Some(libc::EFAULT) => return Ok(Installed::Absent),
                // Nothing was mapped: the kernel looks first.
                Some(libc::ENOENT) if len > PAGE => return Ok(Installed::Parted),
                _ => return Err(failed("UFFDIO_CONTINUE", start, len)(source)),
            }
        }
    }

    /// Maps new pages with these contents, where nothing is mapped, and wakes those who wait for them.
    pub(crate) fn copy(&self, start: u64, from: &[u8]) -> Result<(), UffdError> {
        let (mut at, mut rest) = (start, from);
        while let Err((source, copied)) = self.0.copy(at, rest) {
            match (source.raw_os_error(), usize::try_from(copied)) {
                // Part of it is done, or the address space is changing.
                (Some(libc::EAGAIN), copied) => {
                    let done = copied.unwrap_or(0).min(rest.len());
                    rest = &rest[done..];
                    at += u64::try_from(done).unwrap_or(0);
                }
                _ => {
                    let len = u64::try_from(rest.len()).unwrap_or(u64::MAX);
                    return Err(failed("UFFDIO_COPY", at, len)(source));
                }
            }
        }
        Ok(())
    }

    /// Takes write access away, or gives it back and wakes the writers.
    pub(crate) fn protect(&self, start: u64, len: u64, on: bool) -> Result<(), UffdError> {
        loop {
            match self.0.write_protect(start, len, on) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                done => return done.map_err(failed("UFFDIO_WRITEPROTECT", start, len)),
            }
        }
    }

    /// Wakes those who wait for pages of the range; they touch them again.
    pub(crate) fn wake(&self, start: u64, len: u64) -> Result<(), UffdError> {
        self.0.wake(start, len).map_err(failed("UFFDIO_WAKE", start, len))
    }

    /// Reads waiting faults.
    pub(crate) fn read(&self, sink: &mut Vec<Fault>) -> Result<(), Error> {
        self.0.read(sink)
    }
}

fn failed(what: &'static str, start: u64, len: u64) -> impl FnOnce(Error) -> UffdError {
    move |source| UffdError::Call { what, start, len, source }
}

impl AsRawFd for Uffd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.descriptor()
    }
}
