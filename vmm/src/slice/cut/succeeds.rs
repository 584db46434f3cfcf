//! What a slice does when another one is to coordinate: seen from the cut, at which that happens.

use crate::slice::peripherals::OrderState;
use std::error::Error;
use std::fmt;
use wire::SliceId;

/// Why a slice does not come to coordinate.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// A slice's part in handing the coordination over, while all slices are at rest.
pub(crate) trait Succeeds: fmt::Debug + Send + Sync {
    /// The coordinator sends the next one what it must know.
    ///
    /// # Errors
    /// There is nothing to send.
    fn hand_over(&self, to: SliceId, order: OrderState) -> Result<(), Failure>;

    /// The next one gets ready, at this change of the devices. Nothing is in force yet.
    ///
    /// # Errors
    /// Nothing has come, or it cannot be.
    fn prepare(&self, order: OrderState) -> Result<(), Failure>;

    /// It coordinates, after the slice `before`, which goes on with this cut.
    ///
    /// # Errors
    /// It cannot, and nobody coordinates: the VM must end.
    fn take_over(&self, before: SliceId, cut: u64) -> Result<(), Failure>;

    /// This slice coordinates no longer.
    fn step_down(&self);
}
