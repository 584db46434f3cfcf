//! Why another slice does not come to coordinate.

use migrate::{Invalid, SavedError};
use std::io;
use thiserror::Error;

/// Why another slice does not come to coordinate.
#[derive(Debug, Error)]
pub(in crate::slice) enum SuccessionError {
    /// It has no platform devices.
    #[error("this slice does not coordinate")]
    NotCoordinating,
    /// Nothing has come from the slice that coordinates.
    #[error("what a coordinator must know has not come")]
    Missing,
    /// What has come cannot be.
    #[error("read or write what a coordinator must know")]
    State(#[from] SavedError),
    /// The platform devices cannot be in that state.
    #[error("set up the platform devices")]
    Chipset(#[from] Invalid),
    /// The two are not at the same change.
    #[error("the coordinator has made {theirs} changes of devices, and this slice {ours}")]
    Order {
        /// Of the coordinator.
        theirs: u64,
        /// Of this slice.
        ours: u64,
    },
    /// No thread.
    #[error("start the threads of a coordinator")]
    Thread(#[from] io::Error),
}
