//! What cannot begin now, and may a while later: an address that the host does not have yet, a disk that is full or not mounted yet.
//!
//! Whoever has started it is told by an exit status of its own. The units of the packages try again then, and not where the options are wrong.

use anyhow::Error;

/// Another attempt may do better, with nothing changed.
const STATUS_LATER: u8 = 1;

/// Says why; the exit status.
pub(crate) fn later(error: &Error) -> u8 {
    tracing::error!("{error:#}");
    STATUS_LATER
}
