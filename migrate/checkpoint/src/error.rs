//! Why a checkpoint is not written, read or deleted.

use migrate::SavedError;
use migrate::saved::Invalid;
use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;
use wire::SliceId;

/// What is wrong, on one line.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system refused something.
    #[error("{what} {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// With which file or folder.
        path: PathBuf,
        /// What it said.
        #[source]
        source: io::Error,
    },
    /// There is one already; checkpoints are never overwritten.
    #[error("{} exists already", folder.display())]
    Exists {
        /// Its folder.
        folder: PathBuf,
    },
    /// There is no manifest: it was never finished, or is being written or deleted.
    #[error("{} is no checkpoint: it has no manifest; it was not finished, or checkpoints are in it (tessera checkpoint list)", folder.display())]
    Unfinished {
        /// The folder.
        folder: PathBuf,
    },
    /// There is nothing of a checkpoint in it, or something else.
    #[error("{} is no folder of a checkpoint: {why}", folder.display())]
    NoCheckpoint {
        /// The folder.
        folder: PathBuf,
        /// What is there, or is not.
        why: String,
    },
    /// Bytes are not those that were written.
    #[error("{} is damaged: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        why: String,
    },
    /// A later version of this program has written it.
    #[error("{} has {what} {found}, this program knows {known}", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// Of what: the format's version, features, the kind of a section.
        what: &'static str,
        /// What is in the file.
        found: u32,
        /// What could be read.
        known: u32,
    },
    /// The manifest is sound, and its fields are of another version or do not fit together.
    #[error("read {}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// Which, and why.
        #[source]
        source: SavedError,
    },
    /// What is to be committed cannot be.
    #[error("contents of a checkpoint: {0}")]
    Contents(#[from] Invalid),
    /// The manifest is not of the VM whose secret was given, or somebody has changed it.
    #[error("{} is not authenticated by this secret: give that of the VM which wrote it; if it is that, somebody has changed the manifest", path.display())]
    NotAuthentic {
        /// The manifest.
        path: PathBuf,
    },
    /// A secret was given, and anybody can have written the manifest.
    #[error("{} is not authenticated: it was written without a secret, and anybody may have changed it since: leave --secret-file out, or go on with --unauthenticated", path.display())]
    NotAuthenticated {
        /// The manifest.
        path: PathBuf,
    },
    /// What was asked makes a new manifest of one that is authenticated.
    #[error("{} is authenticated: give the secret of its VM (--secret-file)", path.display())]
    NeedsSecret {
        /// The manifest.
        path: PathBuf,
    },
    /// A part is not the one that the manifest is about.
    #[error("{} is no part of this checkpoint: {why}", path.display())]
    OtherPart {
        /// The part.
        path: PathBuf,
        /// What differs.
        why: String,
    },
    /// The base is not the one that the increment is of.
    #[error("base {} of {}: {why}", base.display(), of.display())]
    Base {
        /// The increment.
        of: PathBuf,
        /// The base.
        base: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Another checkpoint would be lost with it.
    #[error("{} cannot be deleted: {increment} {why}", folder.display())]
    HasIncrement {
        /// What was to be deleted.
        folder: PathBuf,
        /// The name of the other.
        increment: String,
        /// Why the other needs it.
        why: String,
    },
    /// A frame was given twice to a writer.
    #[error("frame {frame:#x} is in the part already")]
    Twice {
        /// The frame.
        frame: u64,
    },
    /// Frames that are none of this VM, or none at all.
    #[error("frames {first:#x} to {end:#x}: {why}")]
    Frames {
        /// The first.
        first: u64,
        /// One past the last.
        end: u64,
        /// What is wrong with them.
        why: &'static str,
    },
    /// A section cannot be written.
    #[error("section {name:?}: {why}")]
    Section {
        /// Its name.
        name: String,
        /// Why not.
        why: String,
    },
    /// There is no such section.
    #[error("{slice} has no section {name:?}")]
    NoSection {
        /// Of which slice.
        slice: SliceId,
        /// Its name.
        name: String,
    },
    /// Two slices had different contents of one page, at one cut.
    #[error("frame {frame:#x} differs between {one} and {other}")]
    Differs {
        /// The frame.
        frame: u64,
        /// The slice that is read.
        one: SliceId,
        /// The other.
        other: SliceId,
    },
}

impl CheckpointError {
    /// Gives an error of the operating system its place.
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, path: path.to_path_buf(), source }
    }

    /// Whether the operating system does not let something be read that is there, or may be: it may at another time.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        let is_gone = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
        };
        matches!(self, Self::Io { source, .. } if !is_gone(source))
    }

    /// What is wrong with all that it comes from, on one line.
    pub(crate) fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        text
    }

    pub(crate) fn damaged(path: &Path, why: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_path_buf(), why: why.into() }
    }
}
