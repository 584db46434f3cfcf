//! Sizes of pages.

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// Bytes of a huge page, and of a chunk.
pub(crate) const HUGE: usize = 2 << 20;
