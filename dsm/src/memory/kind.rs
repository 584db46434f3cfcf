//! What private chunks are made of: a choice of the user, for each slice by itself.
//!
//! | choice | a private chunk lies | huge pages come | the first page for another slice costs |
//! |---|---|---|---|
//! | `memfd` | in the memory file | by collapsing full chunks, see [`super::huge`] | a few system calls |
//! | `memfd,prealloc` | the same | at the start, see `prepare` | the same |
//! | `anonymous` | in private memory | at the guest's first touch (transparent huge pages) | a copy of 2 MiB |
//! | `hugetlbfs` | in pages set aside by the administrator | always | a copy of 2 MiB |
//!
//! Shared chunks, and those that were shared once, lie in the memory file. With `memfd,prealloc` the slice has
//! memory for all pages of the VM from the start, those of other homes too: none is waited for later.

use super::chunk::{CHUNK_PAGES, whole_chunks};
use super::error::RamError;
use std::fmt::{self, Display};
use std::fs;
use std::ops::Range;
use std::str::FromStr;
use thiserror::Error;

/// What private chunks are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// The memory file.
    #[default]
    Memfd,
    /// The memory file, with memory for the whole VM from the start.
    MemfdPrealloc,
    /// Huge pages of hugetlbfs (2 MiB).
    Hugetlbfs,
    /// Private memory with transparent huge pages.
    Anonymous,
}

/// A word that names no kind of memory.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no kind of memory; there are: memfd, memfd,prealloc, hugetlbfs, anonymous")]
pub struct UnknownMemory(String);

impl FromStr for Memory {
    type Err = UnknownMemory;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "memfd" => Ok(Self::Memfd),
            "memfd,prealloc" => Ok(Self::MemfdPrealloc),
            "hugetlbfs" => Ok(Self::Hugetlbfs),
            "anonymous" => Ok(Self::Anonymous),
            _ => Err(UnknownMemory(text.into())),
        }
    }
}

impl Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memfd => "memfd",
            Self::MemfdPrealloc => "memfd,prealloc",
            Self::Hugetlbfs => "hugetlbfs",
            Self::Anonymous => "anonymous",
        })
    }
}

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

impl Memory {
    /// Checks that the host has the huge pages for memory of these frames.
    ///
    /// # Errors
    /// Too few are free; the text says how to get them.
    pub fn check(self, own: &[Range<u64>]) -> Result<(), RamError> {
        if self != Self::Hugetlbfs {
            return Ok(());
        }
        let needed: u64 = whole_chunks(own).iter().map(|range| range.end - range.start).sum();
        let read = |name: &str| -> u64 {
            let text = fs::read_to_string(format!("{POOL}/{name}")).unwrap_or_default();
            text.trim().parse().unwrap_or(0)
        };
        let claimed = read("resv_hugepages");
        let beyond = read("nr_overcommit_hugepages").saturating_sub(read("surplus_hugepages"));
        let free = (read("free_hugepages") + beyond).saturating_sub(claimed);
        if free >= needed {
            return Ok(());
        }
        Err(RamError::HugePages { needed, free, total: read("nr_hugepages") + needed - free })
    }

    /// MiB of memory of these frames that do not count as available memory of the host, because they
    /// were set aside before.
    #[must_use]
    pub fn set_aside_mib(self, own: &[Range<u64>]) -> u64 {
        let pages: u64 =
            whole_chunks(own).iter().map(|range| (range.end - range.start) * CHUNK_PAGES).sum();
        if self == Self::Hugetlbfs { pages / 256 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    #[test]
    fn every_kind_is_read_as_it_is_written() {
        let all = [Memory::Memfd, Memory::MemfdPrealloc, Memory::Hugetlbfs, Memory::Anonymous];
        for memory in all {
            assert_eq!(memory.to_string().parse(), Ok(memory));
        }
        let error = "ramfs".parse::<Memory>().unwrap_err();
        assert!(error.to_string().contains("memfd, memfd,prealloc, hugetlbfs"), "{error}");
    }

    #[test]
    fn too_few_huge_pages_are_refused_with_the_number_to_set() {
        // More than any machine has.
        let own = from_ref(&(0..1u64 << 44));
        assert!(Memory::Memfd.check(own).is_ok());
        let error = Memory::Hugetlbfs.check(own).unwrap_err().to_string();
        assert!(error.contains("sysctl vm.nr_hugepages="), "{error}");
    }
}
