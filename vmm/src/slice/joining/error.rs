//! Why a slice has not joined.

use super::MEET_LIMIT;
use crate::control::Reason;
use crate::slice::SliceError;
use crate::slice::channels::Channels;
use crate::slice::refusing::Explains;
use migrate::{PlacementError, SavedError};
use thiserror::Error;
use transport::MeshError;
use wire::{SLICES_MAX, SliceId};

/// Why a slice has not joined. The VM runs on as it was.
#[derive(Debug, Error)]
pub(in crate::slice) enum JoinFailure {
    /// Nobody can join this VM.
    #[error(
        "no slice can join: the VM was started without --secret-file; start it with one the next time"
    )]
    NoSecret,
    /// The secret is elsewhere.
    #[error(
        "no slice can join while {coordinator} coordinates: slice0, the bootstrap's, has the secret; hand the \
         coordination back to it by tessera vm drain {number} --stay, if it is still there and takes most of the vCPUs"
    )]
    Elsewhere {
        /// The slice that coordinates.
        coordinator: SliceId,
        /// Its number.
        number: u16,
    },
    /// All numbers were used.
    #[error("this VM has had {SLICES_MAX} slices, and no number is left for another one")]
    Full,
    /// It cannot have the number that it is to have.
    #[error("no slice can join as {slice}: numbers are {next} to slice{last} now", last = SLICES_MAX - 1)]
    Number {
        /// The number.
        slice: SliceId,
        /// The lowest that is free.
        next: SliceId,
    },
    /// Its host cannot run a slice of this VM.
    #[error(transparent)]
    Host(#[from] SliceError),
    /// Page walks there write, and tables have no replicas.
    #[error(
        "page walks of the companion's host need write access to page tables, which this VM keeps coherent: start \
         the VM with --page-tables replicate"
    )]
    PageTables,
    /// It was not reached.
    #[error("reach the companion")]
    Mesh(#[from] MeshError),
    /// Some slice does not reach it.
    #[error("{slice} does not reach the companion: {why}")]
    Unmet {
        /// Which.
        slice: SliceId,
        /// What it said.
        why: String,
    },
    /// Some slice has not said that it reaches it.
    #[error("{0} has not said within {MEET_LIMIT:?} that it reaches the companion")]
    Silent(SliceId),
    /// There is no such placement.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// What it is to begin with cannot be said.
    #[error("tell the companion how the VM stands")]
    State(#[from] SavedError),
    /// What it is told is no JSON.
    #[error("describe the VM")]
    Blob(#[from] serde_json::Error),
    /// Its plan is gone.
    #[error("it was to join without being called")]
    Uncalled,
}

impl Explains for JoinFailure {
    fn reason(&self) -> Reason {
        match self {
            Self::NoSecret | Self::Elsewhere { .. } | Self::Full | Self::Number { .. } => {
                Reason::Unsupported
            }
            Self::Host(_) | Self::PageTables => Reason::HostUnfit,
            Self::Silent(_) => Reason::Silent,
            Self::Mesh(_)
            | Self::Unmet { .. }
            | Self::Placement(_)
            | Self::State(_)
            | Self::Blob(_)
            | Self::Uncalled => Reason::Failed,
        }
    }
}

impl JoinFailure {
    /// On a slice that has no secret.
    pub(in crate::slice) fn elsewhere(channels: &Channels) -> Self {
        let coordinator = channels.coordinator();
        Self::Elsewhere { coordinator, number: coordinator.0 }
    }
}
