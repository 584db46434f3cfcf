//! Decodes coherence frames that came, and steps the protocol with them.
//!
//! ```text
//!   frame ------------------------------------------> messages, with the bytes of their pages
//!   head of a run --all pages missing here--> direct receive: its bytes go where they belong --> messages
//!             \--anything else--> it comes as a frame
//! ```

use super::page_batch::one_piece;
use crate::error::EngineError;
use crate::mapping::Store;
use crate::observe::{Classifier, Company, PageMoves, Trace};
use dsm_protocol::{Access, Effect, Gfn, Input, Message, Node};
use transport::{Class, DirectReceive};
use wire::coherence::HEAD_BYTES;
use wire::{Batch, Epoch, PageBody, SliceId};

/// What a coherence frame changes.
pub(crate) struct Inbox<'a> {
    pub(crate) node: &'a mut Node,
    pub(crate) store: &'a mut Store,
    pub(crate) classifier: &'a mut Classifier,
    pub(crate) trace: &'a mut Trace,
    pub(crate) effects: &'a mut Vec<Effect>,
    pub(crate) remote_writers: &'a [SliceId],
    pub(crate) moved: &'a mut PageMoves,
}

impl Inbox<'_> {
    /// Decodes one coherence frame and steps the protocol with it.
    pub(crate) fn take(
        &mut self,
        now: u64,
        from: SliceId,
        class: Class,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let garbage = |source| EngineError::Garbage { from, source };
        if let Some((batch, bodies)) = Batch::decode(bytes).map_err(garbage)? {
            return self.batch(now, from, &batch, bodies);
        }
        let (epoch, message, body) = Message::decode(bytes).map_err(garbage)?;
        if class == Class::Run && !message.is_of_run() {
            return Err(EngineError::OutOfOrder { from });
        }
        self.trace.received(from, &message, Company::Alone);
        self.count(from, body)?;
        self.message(now, from, epoch, message, body)
    }

    fn batch(
        &mut self,
        now: u64,
        from: SliceId,
        batch: &Batch,
        bodies: &[u8],
    ) -> Result<(), EngineError> {
        batch.messages(bodies).try_for_each(|(message, body)| {
            self.trace.received(from, &message, Company::InRun);
            self.count(from, Some(body))?;
            self.message(now, from, batch.epoch, message, Some(body))
        })
    }

    /// Where to receive the bytes of a run whose head has come. Nowhere if one of its pages is not missing here, or is
    /// new to the memory file: that takes a new page better from a buffer.
    pub(crate) fn direct_receive(&self, head: &[u8], length: usize) -> Option<DirectReceive> {
        if !self.node.mechanisms().direct_receive {
            return None;
        }
        // Errors are found when the whole frame is there.
        let batch = Batch::decode_head(head, length).ok().flatten()?;
        if batch.remote_written || batch.epoch != self.node.epoch() {
            return None;
        }
        let (skipped, count) = one_piece(batch.bodies)?;
        let first = batch.first.0 + skipped;
        let (store, node) = (&self.store, &self.node);
        let is_missing = |gfn: Gfn| {
            node.access(gfn) == Access::None && node.is_waiting(gfn) && !store.ram.is_new(gfn)
        };
        if !(first..first + count).map(Gfn).all(is_missing) {
            return None;
        }
        let start = store.ram.file_run(Gfn(first), count)?;
        Some(DirectReceive { head: HEAD_BYTES, offset: u64::try_from(start).ok()? })
    }

    /// The bytes of a run are where [`Self::direct_receive`] said.
    pub(crate) fn directly_received(
        &mut self,
        now: u64,
        from: SliceId,
        head: &[u8],
        length: usize,
    ) -> Result<(), EngineError> {
        let garbage = |source| EngineError::Garbage { from, source };
        let Some(batch) = Batch::decode_head(head, length).map_err(garbage)? else { return Ok(()) };
        self.moved.direct_received += u64::from(batch.bodies.count_ones());
        let remote_written = Batch { remote_written: true, ..batch };
        remote_written.messages(&[]).try_for_each(|(message, body)| {
            self.trace.received(from, &message, Company::InRun);
            self.message(now, from, batch.epoch, message, Some(body))
        })
    }

    /// Counts a body that came.
    fn count(&mut self, from: SliceId, body: Option<PageBody<'_>>) -> Result<(), EngineError> {
        match body {
            Some(PageBody::RemoteWritten) if !self.remote_writers.contains(&from) => {
                return Err(EngineError::NotExposed { from });
            }
            Some(PageBody::RemoteWritten) => self.moved.remote_writes_in += 1,
            Some(PageBody::Bytes(_)) => self.moved.copies += 1,
            _ => {}
        }
        Ok(())
    }

    fn message(
        &mut self,
        now: u64,
        from: SliceId,
        epoch: Epoch,
        message: Message,
        body: Option<PageBody<'_>>,
    ) -> Result<(), EngineError> {
        if let (true, Some(gfn)) = (message.has_body(), message.gfn()) {
            self.store.ram.moved(gfn);
        }
        let root = match &message {
            Message::Root { vcpu, gfn } => Some((*vcpu, *gfn)),
            _ => None,
        };
        let input = Input::Message { from, epoch, message };
        self.node.step(now, input, &mut self.store.with_body(body), self.effects)?;
        // The node has checked it.
        if let Some((vcpu, gfn)) = root {
            self.classifier.set_root(vcpu, gfn);
        }
        self.store.take_failure().map_or(Ok(()), Err)
    }
}
