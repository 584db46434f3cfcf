//! What a device is on this slice, from the point of view of frames. A kind of device whose queues may be away from the
//! real device has two roles, each in the file of its part: who serves, and who asks.

use super::ExchangeError;
use super::inbound::Inbound;
use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use wire::SliceId;
use wire::device::{DeviceFrame, Part};

pub(super) trait Role: Debug + Send + Sync {
    /// Takes a frame of its device. Returns at once.
    ///
    /// # Errors
    /// What the peer must not say, or not to this role ([`Origin::stray`]).
    fn take(&self, frame: DeviceFrame<'_>, peer: &Origin<'_>) -> Result<(), ExchangeError>;

    /// Waits until nothing is under way, or the deadline. Gives the number of requests that are.
    fn wait_until_idle(&self, deadline: Instant) -> usize;

    /// A slice is gone.
    fn lost(&self, slice: SliceId) {
        let _ = slice;
    }
}

/// Who has sent a frame, with what it has begun to say.
#[derive(Debug)]
pub(super) struct Origin<'a> {
    pub(super) slice: SliceId,
    pub(super) inbound: &'a Mutex<Inbound>,
}

impl Origin<'_> {
    /// Adds a part; the whole message's bytes when it was the last one. `head` is the frame but for its bytes.
    pub(super) fn message(
        &self,
        head: impl Fn(Part) -> DeviceFrame<'static>,
        part: Part,
        bytes: &[u8],
    ) -> Result<Option<Vec<u8>>, ExchangeError> {
        let mut inbound = self.inbound.lock().unwrap_or_else(PoisonError::into_inner);
        inbound.take(self.slice, head(Part { offset: 0, ..part }), part, bytes)
    }

    /// The device has no part here that takes such a frame of this slice.
    pub(super) fn stray(&self, frame: &DeviceFrame<'_>) -> ExchangeError {
        ExchangeError::Device { device: frame.device(), from: self.slice }
    }
}
