//! Sizes and bounds of messages.

/// Bytes of a page. The unit of coherence.
pub const PAGE_SIZE: usize = 4096;
/// Bytes of a message head.
pub const HEAD_BYTES: usize = 32;
/// The most entries that one message carries, so that a message always fits a frame.
pub const ENTRIES_MAX: usize = 1024;
/// The most pages that one request asks for.
pub const RUN_MAX: u16 = 64;
/// The most pages whose home moves at once: those of a chunk.
pub const HOME_MOVE_MAX: u16 = 512;
