//! Pages that are fetched before anybody touches them.
//!
//! ```text
//!   touch --> prefetcher: which pages next? --windows--> asked for --come--> prefetched: mapped together,
//!                 |                                                          all but a marker
//!                 +--a chunk of 2 MiB--> chunk_fetch: asked for piece by piece, mapped as one
//!                 +--pages missed together before--> asked for with this one
//! ```
//!
//! This room decides and remembers. The engine steps the protocol with what it says, and [`crate::mapping`] maps what
//! comes.

mod chunk_fetch;
mod prefetched;
mod prefetcher;

pub(crate) use chunk_fetch::{ChunkFetches, Fate, Requested};
pub(crate) use prefetched::{PageRun, Prefetched};
pub(crate) use prefetcher::Prefetcher;
