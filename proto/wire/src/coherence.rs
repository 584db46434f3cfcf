//! Messages of the coherence protocol and their fixed layout.
//!
//! Every message is a 32-byte little-endian head, followed by nothing, by one page, by table
//! entries, or by directory entries. `docs/protocol/coherence.md` says who sends what and when.
//!
//! ```text
//! 0 kind | 1 access | 2 level | 3 flags | 4 epoch u32 | 8 gfn u64 | 16 slice u16 | 18 count u16 | 20 tag u32 | 24 wide u64
//! ```

pub mod batch;
mod codec;
mod directory;
mod error;
mod message;
mod sizes;
mod types;

pub use error::DecodeError;
pub use message::{Message, PageBody};
pub use sizes::{ENTRIES_MAX, HEAD_BYTES, HOME_MOVE_MAX, PAGE_SIZE, RUN_MAX};
pub use types::{Access, Asked, DirectoryEntry, Entry, Half, Held, HolderKind, Level, Table};
