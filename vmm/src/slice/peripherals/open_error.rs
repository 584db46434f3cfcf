//! Why a device cannot be used on this host.

use std::error::Error;
use std::io;
use thiserror::Error;

/// Why a device of this host cannot be used.
#[derive(Debug, Error)]
pub enum OpenError {
    /// It is not there, or not as it must be.
    #[error("open {what}")]
    Open {
        /// What kind of device.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// No thread for it.
    #[error("start the thread of {what}")]
    Start {
        /// What kind of device.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The operator of this host has not lent it, or not so.
    #[error("{what} is not lent to VMs here; start the companion with --lend {what}")]
    NotLent {
        /// Kind, mode and name.
        what: String,
    },
    /// It cannot be lent.
    #[error("lend {what}")]
    Lend {
        /// Kind, mode and name.
        what: String,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl OpenError {
    /// For `map_err`.
    pub(super) fn of<E: Into<Box<dyn Error + Send + Sync>>>(
        what: &'static str,
    ) -> impl Fn(E) -> Self {
        move |error| Self::Open { what, source: error.into() }
    }
}
