//! The way of a private chunk into the memory file.
//!
//! ```text
//!   1 watched for absent pages   2 pages moved away, or unmapped: whoever touches the chunk waits
//!   3 copied into the file       4 file mapped in their place     5 the waiters go on
//! ```
//!
//! From step 2 on nobody can store to the old pages. Before step 4 nobody sees the new ones. So no store is lost.
//! KVM follows by its MMU notifiers.
#![expect(unsafe_code, reason = "a view of pages that nobody else can reach")]
// UNSAFETY: see `copy`.

use super::chunk::ChunkId;
use super::off_file::OffFile;
use super::places::Place;
use super::ram::GuestRam;
use crate::kernel::{FaultWatch, GuestMapping, HUGE, Span, Uffd, UffdError};
use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::with_exposed_provenance;
use std::slice;
use thiserror::Error;
use wire::PAGE_SIZE;

/// Why a chunk could not be brought into the file.
#[derive(Debug, Error)]
pub enum ShareError {
    /// userfaultfd failed.
    #[error("stop the vCPUs at a chunk of memory")]
    Userfaultfd(#[from] UffdError),
    /// A system call failed.
    #[error("{what} while a chunk of memory goes into the memory file")]
    Call {
        /// Which.
        what: &'static str,
        /// The cause.
        #[source]
        source: Error,
    },
}

impl GuestRam {
    /// Brings a chunk that is [`Place::OffFile`] into the file. Afterwards it is [`Place::Plain`], and
    /// nothing of it is mapped in the guest mapping.
    pub(crate) fn bring_into_file(&self, chunk: ChunkId, uffd: &Uffd) -> Result<(), ShareError> {
        let Some(offset) = self.offset(chunk.first()) else { return Ok(()) };
        let call = |what| move |source| ShareError::Call { what, source };
        let start = u64::try_from(self.guest.start() + offset).expect("an address fits u64");
        let len = u64::try_from(HUGE).expect("2 MiB");
        match &self.off_file {
            OffFile::None => return Ok(()),
            OffFile::Anonymous => {
                uffd.register(start, len, FaultWatch::Absent)?;
                let aside = Span::reserve(HUGE).map_err(call("reserve addresses"))?;
                self.guest.move_pages(offset, HUGE, &aside).map_err(call("move the pages"))?;
                self.copy(aside.start(), offset).map_err(call("copy"))?;
            }
            OffFile::Huge(_, alias) => {
                uffd.register(start, len, FaultWatch::AbsentInFile)?;
                let unmapped = self.guest.advise(offset, HUGE, libc::MADV_DONTNEED);
                unmapped.map_err(call("unmap the pages"))?;
                self.copy(alias.start() + offset, offset).map_err(call("copy"))?;
            }
        }
        self.guest.map_file(offset, HUGE, &self.file).map_err(call("map the file"))?;
        if let Err(error) = self.guest.advise(offset, HUGE, libc::MADV_HUGEPAGE) {
            tracing::debug!("no transparent huge pages: {error}");
        }
        self.set_place(chunk, Place::Plain);
        uffd.wake(start, len)?;
        if let OffFile::Huge(file, alias) = &self.off_file {
            free(file, offset).map_err(call("free the huge page"))?;
            // Else a stray touch would take a huge page again.
            alias.map_anonymous(offset, HUGE).map_err(call("unmap the huge page"))?;
        }
        Ok(())
    }

    /// Copies a chunk into the file, pages of zeros left out.
    fn copy(&self, from: usize, offset: usize) -> Result<(), Error> {
        // SAFETY: a whole chunk is mapped there, readable. The vCPUs' mapping of these pages is
        // gone, and of this process only this thread knows the address: nobody stores to it.
        let bytes = unsafe { slice::from_raw_parts(with_exposed_provenance::<u8>(from), HUGE) };
        let full = |from: usize| bytes[from..from + PAGE_SIZE] != [0; PAGE_SIZE];
        let mut at = 0;
        while at < HUGE {
            let pages = (at..HUGE).step_by(PAGE_SIZE).take_while(|from| full(*from)).count();
            let len = pages * PAGE_SIZE;
            let position = u64::try_from(offset + at).map_err(Error::other)?;
            self.file.write_all_at(&bytes[at..at + len], position)?;
            // The page behind the run is one of zeros.
            at += len + PAGE_SIZE;
        }
        Ok(())
    }
}

/// Gives the huge page at an offset back.
fn free(file: &File, offset: usize) -> Result<(), Error> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let offset = libc::off_t::try_from(offset).map_err(Error::other)?;
    let len = libc::off_t::try_from(HUGE).map_err(Error::other)?;
    // SAFETY: the call takes no pointers.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) };
    if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}
