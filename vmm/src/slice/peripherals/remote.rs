//! The way to a device of another slice.

use devices::delegate::Exchange;
use wire::{DeviceId, SliceId};

/// A device of another slice.
#[derive(Debug)]
pub(super) struct Remote<'a> {
    pub(super) exchange: &'a Exchange,
    pub(super) device: DeviceId,
    pub(super) owner: SliceId,
    /// Number of queues.
    pub(super) queues: u16,
}
