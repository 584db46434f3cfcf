//! Why a file is not opened as a store.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a file is not opened as a store. Nothing of it has changed.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Another process has it, or this one.
    #[error("{0} is in use by another orchestrator")]
    InUse(PathBuf),
    /// A newer version has written it, or something else.
    #[error("{path} has format {found}; this version knows {known}")]
    Format {
        /// Which file.
        path: PathBuf,
        /// What it has.
        found: u64,
        /// What is known here.
        known: u64,
    },
    /// It is damaged, or no store at all.
    #[error("{path} is damaged or no store: {why}; it is left as it is")]
    Corrupt {
        /// Which file.
        path: PathBuf,
        /// What was found.
        why: String,
    },
    /// It is larger than allowed.
    #[error("{path} has {bytes} bytes; {max} are allowed")]
    TooLarge {
        /// Which file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// It cannot be read or written.
    #[error("use {path}, whose folder must be there")]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl OpenError {
    /// Whether it may be gone a while later, with nothing changed: a disk that is full or fails, another process that ends.
    #[must_use]
    pub const fn may_pass(&self) -> bool {
        matches!(self, Self::InUse(_) | Self::Io { .. })
    }
}
