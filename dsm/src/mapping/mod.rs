//! The state of each page in the guest, and the only way to change it.
//!
//! The protocol says what to do with a page ([`dsm_protocol::PageStore`]); this room does it by userfaultfd.
//!
//! ```text
//!                    comes, prefetched         end of the batch, or first touch
//!   unmapped ----------------------> staged or hidden --------------------------+
//!      |  \                                                                     v
//!      |   +--comes, somebody waits----------------------> read-only <--> writable
//!      |                                                       |            |
//!      +<---- invalidated at the end of a step ----------------+------------+
//!                    (`pending_invalidations`)
//!
//!   a chunk:  private --share--> watched, page by page --all pages here for a while, or granted--> private
//! ```
//!
//! A page is *hidden* when it is here and not mapped: its first touch tells that the prefetch was right
//! (`prefetch/prefetched.rs`, `hides` in `prefetch/chunk_fetch.rs`). It is *probed* when a vCPU's worker asked for more
//! than the vCPU may want (`async_faults/probe_pages.rs`). A *replica* has a twin and stays writable (`twins`). All pages
//! of a chunk can be unmapped together (`chunks`).
//!
//! * `store`: what a step of the protocol does to pages. `step_store` is its face towards the protocol.
//! * `chunks` decides which chunks are private, and `share` carries that out.
//! * `alone`: the store of a slice that nobody shares memory with any more.
//! * `protection` knows what is protected while a snapshot is read, and `protect` holds stores up.
//! * `restored`: the store of a slice that goes on from a saved node.
//! * `staged_pages`: pages that came and are not in the memory file yet.
//! * `twins`: replicas of page tables as they were at the last flush.

mod alone;
mod chunks;
mod first_watch;
mod pending_invalidations;
mod protect;
mod protection;
mod restored;
mod share;
mod staged_pages;
mod step_store;
mod store;
mod twins;

pub use chunks::ChunkCounts;
pub(crate) use store::Store;
