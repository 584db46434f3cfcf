//! How the answer of a back end comes to the worker that waits for it.

use super::super::Doorbell;
use crate::back_end::DiskReply;
use std::sync::mpsc::SyncSender;

/// An answer and the place of its request.
pub(super) type Answer = (usize, DiskReply);

/// Sends an answer to the worker, at the latest when it is dropped: no request is ever forgotten.
pub(super) struct Answering {
    pub(super) place: usize,
    pub(super) answers: SyncSender<Answer>,
    pub(super) doorbell: Doorbell,
    pub(super) reply: DiskReply,
}

impl Answering {
    pub(super) fn with(mut self, reply: DiskReply) {
        self.reply = reply;
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let reply = std::mem::replace(&mut self.reply, DiskReply::Failed);
        // There is a place for each request under way; a worker that is gone wants no answer.
        let _ = self.answers.try_send((self.place, reply));
        self.doorbell.ring();
    }
}
