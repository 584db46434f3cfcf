//! Memory of private chunks that do not lie in the memory file. [`super::into_file`] brings a chunk of it into the
//! file.

use super::kind::Memory;
use crate::kernel::{GuestMapping, Span, memory_file};
use std::fs::File;
use std::io::Error;
use std::ops::Range;

/// The memory of private chunks outside the file.
#[derive(Debug)]
pub(crate) enum OffFile {
    /// There are none.
    None,
    /// Private memory, in the guest mapping.
    Anonymous,
    /// A file of huge pages, and its alias.
    Huge(File, Span),
}

impl OffFile {
    /// Maps such memory in place of the file, where chunks are this slice's own.
    pub(crate) fn new(
        memory: Memory,
        guest: &dyn GuestMapping,
        bytes: usize,
        own: &[Range<usize>],
    ) -> Result<Self, Error> {
        match memory {
            Memory::Memfd | Memory::MemfdPrealloc => Ok(Self::None),
            Memory::Anonymous => {
                for range in own {
                    guest.map_anonymous(range.start, range.len())?;
                    if let Err(error) = guest.advise(range.start, range.len(), libc::MADV_HUGEPAGE)
                    {
                        tracing::warn!("this kernel has no transparent huge pages: {error}");
                    }
                }
                Ok(Self::Anonymous)
            }
            Memory::Hugetlbfs => {
                const KIND: libc::c_uint = libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
                let file = memory_file(c"tessera-huge-pages", KIND)?;
                file.set_len(u64::try_from(bytes).map_err(Error::other)?)?;
                let alias = Span::reserve(bytes)?;
                for range in own {
                    guest.map_reserved(range.start, range.len(), &file)?;
                    alias.map_reserved(range.start, range.len(), &file)?;
                }
                Ok(Self::Huge(file, alias))
            }
        }
    }

    /// First address of the alias of such memory.
    pub(crate) fn alias(&self, guest: &dyn GuestMapping) -> Option<usize> {
        match self {
            Self::None => None,
            // It is not watched, so touching it waits for nobody.
            Self::Anonymous => Some(guest.start()),
            Self::Huge(_, alias) => Some(alias.start()),
        }
    }

    /// True when the page was not touched yet, as far as can be told.
    pub(crate) fn is_hole(&self, guest: &dyn GuestMapping, offset: usize) -> bool {
        let absent = |mapping: &dyn GuestMapping| {
            let mut page = [1];
            mapping.residency(offset, &mut page).is_ok() && page[0] & 1 == 0
        };
        match self {
            Self::None => false,
            Self::Anonymous => absent(guest),
            Self::Huge(_, alias) => absent(guest) && absent(alias),
        }
    }
}
