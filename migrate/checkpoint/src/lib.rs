//! The format of a checkpoint: a folder with one file for each slice, and a manifest that makes it one.
//!
//! ```text
//!   slice 0: PartWriter::create, pages.., section.., finish --PartSummary--.
//!   slice 1: PartWriter::create, pages.., section.., finish --PartSummary--+--> Contents --Checkpoint::commit--> complete
//!
//!      no folder --create--> unfinished --commit (rename of the manifest)--> complete --delete (the manifest first)--> unfinished
//!                                |                                                                                      |
//!                                '------------------------------ delete (the parts) --> no folder <---------------------'
//! ```
//! A folder without a manifest is no checkpoint. [`Checkpoint::open`] looks at everything but the bodies of chunks and sections
//! before its caller sees anything: versions, authentication, bounds, identities, digests and the chain of bases. A body is
//! compared with its digest before anyone sees it. `docs/protocol/checkpoint.md` has the layout of the bytes.
//!
//! A checkpoint with a base is an increment: what it does not mention is as in its base. One without is full: what it does not
//! mention is zero. Frames that several parts have are read from the part of the lowest slice.

#![forbid(unsafe_code)]

pub mod assemble;
mod cache;
mod chain;
mod checkpoint;
mod contents;
mod digest;
mod error;
mod export;
mod files;
mod flusher;
mod folder;
mod frames;
mod index;
mod key;
mod layout;
mod manifest;
mod part;
mod points;
mod read;
mod source;
mod verify;
mod writer;

pub use checkpoint::{Authenticity, Checkpoint, LayerStatistics, Sections, Statistics};
pub use contents::{Base, Contents, PartSummary};
pub use digest::Digest;
pub use error::CheckpointError;
pub use export::export;
pub use folder::{Complete, Listed, State, cut_in, delete, delete_with, list, retire, withdraw};
pub use key::Key;
pub use layout::{
    CHAIN_MAX, CHUNK_BYTES, CHUNK_PAGES, FORMAT_VERSION, FRAMES_END, PAGE_BYTES, PartHead,
    SECTION_BYTES_MAX, SECTION_NAME_MAX, SECTIONS_MAX,
};
pub use manifest::{Manifest, decode_manifest, encode_manifest};
pub use part::Part;
pub use points::{NoPoints, Point, Points};
pub use read::Sink;
pub use source::Source;
pub use verify::Verified;
pub use writer::{Compression, PartWriter};

#[cfg(test)]
mod tests;
