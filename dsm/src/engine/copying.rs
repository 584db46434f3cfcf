//! Copies between guest memory and buffers of the VMM, a page at a time.

use super::command::CopyError;
use crossbeam_channel::Sender;
use wire::{Gfn, PAGE_SIZE};

/// A copy between guest memory and a buffer, in progress.
pub(super) struct Copying {
    pub(super) address: u64,
    pub(super) done: usize,
    pub(super) bytes: Vec<u8>,
    pub(super) write: bool,
    pub(super) reply: Sender<Result<Vec<u8>, CopyError>>,
}

impl Copying {
    /// Page, offset in it, and bytes of the next piece.
    pub(super) fn piece(&self) -> (Gfn, usize, usize) {
        let at = self.address + u64::try_from(self.done).expect("a buffer fits");
        let offset = usize::try_from(at % 4096).expect("less than a page");
        (Gfn(at / 4096), offset, (PAGE_SIZE - offset).min(self.bytes.len() - self.done))
    }
}
