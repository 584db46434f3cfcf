//! Guest memory of one slice: what it is made of, where each chunk of it lies, and its contents.
//!
//! This room owns the memory file, its two mappings, and the memory of private chunks that lies elsewhere. It does
//! not know who holds a page: [`crate::mapping`] does.
//!
//! ```text
//!             guest mapping (watched)   alias (never watched)
//!                        \                 /
//!   frame --layout--> offset in the memory file <--into_file-- off file (anonymous, hugetlbfs)
//!                            |
//!                            +-- places: where each chunk is    backed: which pages the file has
//!                            +-- written: what there is to write down
//!                            +-- lazy: contents that are elsewhere yet (source); loading: which; loader: its threads
//!                            +-- huge, prepare: chunks on huge pages, later or from the start
//! ```

mod absent;
mod backed;
mod chunk;
mod contents;
mod device_pages;
mod error;
mod huge;
mod into_file;
mod kind;
mod layout;
mod lazy;
mod loader;
mod loading;
mod off_file;
mod places;
mod prepare;
mod prepared;
mod ram;
mod smaps;
mod source;
mod written;

pub(crate) use chunk::{CHUNK_PAGES, ChunkId, whole_chunks};
pub use device_pages::DeviceUse;
pub use error::RamError;
pub use huge::HugePages;
#[cfg(feature = "simulate")]
pub(crate) use huge::pass as collapse_pass;
pub use into_file::ShareError;
pub use kind::{Memory, UnknownMemory};
pub use loader::{Loader, Pace};
pub use loading::Loaded;
pub(crate) use places::Place;
pub use ram::GuestRam;
pub use source::{Give, LoadError, Source};
pub(crate) use written::Runs;
