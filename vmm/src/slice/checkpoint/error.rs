//! Why there is no checkpoint, or no part of one.

use crate::control::{Activity, Reason};
use crate::slice::cut_link::CutError;
use crate::slice::operations::Busy;
use crate::slice::refusing::{Explains, invalid};
use dsm::{LoadError, SnapshotError, SnapshotLost};
use migrate::{Invalid, SavedError};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use wire::SliceId;

/// Why a slice has no part.
#[derive(Debug, Error)]
pub(crate) enum PartError {
    /// It was not asked for, or given up.
    #[error("no file was made for it")]
    NotReady,
    /// It is asked for something that cannot be.
    #[error("read what is asked for")]
    Request(#[source] SavedError),
    /// Its operator has not said where.
    #[error("its process was started without --checkpoints DIR, the folder for its parts")]
    NoFolder,
    /// A form cannot be written down.
    #[error("encode the saved form")]
    Encode(#[from] SavedError),
    /// The file.
    #[error(transparent)]
    File(#[from] checkpoint::CheckpointError),
    /// There is no thread.
    #[error("start the thread that writes it")]
    Thread(#[source] io::Error),
    /// Its memory cannot be protected, or is not any more.
    #[error("write memory while the guest runs")]
    Snapshot(#[from] SnapshotError),
    /// The same, and the guest may have changed it.
    #[error("write memory while the guest runs")]
    Lost(#[from] SnapshotLost),
    /// Memory has not come from the checkpoint that the VM goes on from.
    #[error("load guest memory")]
    Load(#[source] Arc<LoadError>),
    /// The guest does not stand still any more.
    #[error("the guest goes on before it is written")]
    GoesOn,
}

/// Why there is no checkpoint.
#[derive(Debug, Error)]
pub(crate) enum CheckpointError {
    /// Something else goes on.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// The VM is over, or has not begun.
    #[error("the VM is over, or has not begun")]
    Over,
    /// It has no such name.
    #[error("{}: a checkpoint cannot have this name", .path.display())]
    Name {
        /// What was asked for.
        path: PathBuf,
        /// Why not.
        #[source]
        why: Invalid,
    },
    /// None was written that this slice knows of.
    #[error(
        "no checkpoint was written since this slice has coordinated the VM: the first one cannot be incremental: leave --incremental out"
    )]
    NoBase,
    /// It is not beside the last one.
    #[error("the last checkpoint is {}: an increment of it must be in the same folder", .0.display())]
    BaseElsewhere(PathBuf),
    /// It leads nowhere.
    #[error("{} is no absolute path", .0.display())]
    Relative(PathBuf),
    /// A slice without which the VM goes on is lost, and its devices with it.
    #[error("{0} is lost: a VM that lacks a slice has no checkpoint until it is started again")]
    Lost(SliceId),
    /// What is asked of slices cannot be written down.
    #[error("say what slices are to write")]
    Request(#[from] SavedError),
    /// The description cannot be written down.
    #[error("describe the VM")]
    Describe(#[from] serde_json::Error),
    /// Another one is written.
    #[error(transparent)]
    Refused(#[from] migrate::checkpoint::Refusal),
    /// The manifest.
    #[error(transparent)]
    Manifest(#[from] checkpoint::CheckpointError),
    /// The guest does not stand still any more.
    #[error("the guest goes on before it is written")]
    Runs(#[source] CutError),
    /// A VM that ended with it could not go on.
    #[error("no VM could go on from it: {0}")]
    NotOpened(String),
    /// It was not written, and the VM goes on.
    #[error("there is no checkpoint: {0}")]
    GivenUp(String),
    /// Some slices have not made their files, or not written their parts.
    #[error("{} did not get ready, or did not write, within {limit:?}: does the folder answer there?", names(.slices))]
    Silent {
        /// Which.
        slices: Vec<SliceId>,
        /// The time that they had.
        limit: Duration,
    },
}

impl Explains for CheckpointError {
    fn reason(&self) -> Reason {
        match self {
            Self::Busy(busy) => busy.reason(),
            Self::Over => Reason::Over,
            Self::Name { .. } | Self::Relative(_) | Self::BaseElsewhere(_) => invalid("path"),
            Self::NoBase => invalid("incremental"),
            Self::Lost(slice) => Reason::SliceLost { slice: slice.0 },
            Self::Refused(_) => Reason::Busy(Activity::Checkpointing),
            Self::Silent { .. } => Reason::Silent,
            Self::Request(_)
            | Self::Describe(_)
            | Self::Manifest(_)
            | Self::Runs(_)
            | Self::NotOpened(_)
            | Self::GivenUp(_) => Reason::Failed,
        }
    }
}

/// Slices, for people.
pub(super) fn names(slices: &[SliceId]) -> String {
    slices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
