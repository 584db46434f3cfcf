//! Why a VM does not go on from a checkpoint.

use crate::interrupts::InterruptBackEnd;
use crate::slice::saved::Disagreement;
use crate::slice::spec::SpecError;
use dsm::LoadError;
use migrate::{Invalid, SavedError};
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;
use transport::MeshError;
use wire::SliceId;

/// Why a VM does not go on from a checkpoint. Nothing runs then.
#[derive(Debug, Error)]
pub enum RestoreError {
    /// It cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::CheckpointError),
    /// Anybody may have changed it.
    #[error(
        "{} is authenticated: --secret-file with the secret of its VM checks that nobody has changed it, and \
         --unauthenticated goes on from it unchecked",
        .0.display()
    )]
    NoSecret(PathBuf),
    /// The VM is not described.
    #[error("read what VM it is of")]
    Describe(#[source] serde_json::Error),
    /// The form of a slice cannot be read.
    #[error("read the form of {slice}")]
    Form {
        /// The former slice.
        slice: SliceId,
        /// What is wrong.
        #[source]
        source: SavedError,
    },
    /// The forms are not of one moment.
    #[error("its forms are not a cut of a VM")]
    Together(#[from] Disagreement),
    /// The VM that is asked for cannot be.
    #[error("the VM that is asked for cannot be")]
    Asked(#[source] SpecError),
    /// The VM in it cannot be.
    #[error("its VM cannot be")]
    Spec(#[source] SpecError),
    /// Its parts contradict each other.
    #[error("it contradicts itself: {0} is not that of its VM")]
    Contradicts(&'static str),
    /// This host has no checkpoints.
    #[error("start it with --checkpoints DIR, the folder that has the checkpoint")]
    NoFolder,
    /// The name cannot be one.
    #[error("read the name of the checkpoint")]
    Name(#[source] Invalid),
    /// It has another digest.
    #[error("{} is another checkpoint than the bootstrap's: give --checkpoints the folder that the bootstrap restores from", .0.display())]
    Other(PathBuf),
    /// What is asked for is another VM.
    #[error("{what}: the checkpoint has {saved}, and {asked} is asked for")]
    Shape {
        /// Of what.
        what: &'static str,
        /// In the checkpoint.
        saved: String,
        /// On the command line.
        asked: String,
    },
    /// No clone can be called so.
    #[error("{0:?} cannot be the name of a clone: use letters, digits, '-' and '_', at most 32")]
    CloneName(String),
    /// A clone needs what the original has alone.
    #[error("device {device} cannot be cloned: {why}")]
    Clone {
        /// Its number.
        device: usize,
        /// Why not.
        why: &'static str,
    },
    /// There is no randomness.
    #[error("choose an identity for the clone")]
    Identity(#[source] std::io::Error),
    /// A device is another one.
    #[error("device {device} is not what the guest knows: {why}")]
    Device {
        /// Its number.
        device: usize,
        /// In what it differs.
        why: String,
    },
    /// A host cannot show the guest what it knows of its processors.
    #[error("the processors of {slice} lack what the guest uses: {}; run it on a host that has that", .lacks.join(", "))]
    Lacks {
        /// The slice that was to run there.
        slice: SliceId,
        /// Features.
        lacks: Vec<String>,
    },
    /// A vCPU has something that is not there with other interrupts.
    #[error("vCPU {vcpu} cannot go on with --interrupts {interrupts}")]
    Interrupts {
        /// Its number.
        vcpu: u32,
        /// The kind that it was to have.
        interrupts: InterruptBackEnd,
        /// What there is no equal of.
        #[source]
        source: Invalid,
    },
    /// Former slices of the VM do not take that long to stop.
    #[error("--fenced-at is {0} s from now: it is no time of this boot of the host")]
    FenceFarAway(u64),
    /// The bootstrap has gone while this slice read its memory.
    #[error("nobody waits for this slice any more")]
    Unwanted(#[source] MeshError),
    /// Memory that is read while the guest runs cannot be, as far as is known already.
    #[error("load guest memory")]
    Load(#[source] Arc<LoadError>),
    /// A part of the slice does not take its state.
    #[error("give the slice what it had")]
    State(#[from] Invalid),
}
