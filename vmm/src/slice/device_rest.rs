//! What a device thread is asked for that is to rest.

use crossbeam_channel::{Receiver, Sender, bounded};
use std::convert::Infallible;

/// A rest: it says how far it has come, and then does nothing until whoever asked lets go.
#[derive(Debug)]
pub(crate) struct Pause {
    last: Sender<u64>,
    end: Receiver<Infallible>,
}

impl Pause {
    /// The pause, where the number of the last change is told, and what ends it when it is dropped.
    pub(super) fn new() -> (Self, Receiver<u64>, Sender<Infallible>) {
        let ((last, told), (until, end)) = (bounded(1), bounded(0));
        (Self { last, end }, told, until)
    }

    /// Rests after this change, on the device thread, until whoever asked lets go.
    pub(super) fn hold(self, last: u64) {
        // Whoever has given up is told nothing, and has let go.
        if self.last.try_send(last).is_ok() {
            let _ = self.end.recv();
        }
    }
}
