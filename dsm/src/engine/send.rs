//! Frames and pages on their way out.
//!
//! ```text
//!   page ──all zeros──────────────────────────> head alone
//!     ├──the requester lends its memory ──────> written there by the adapter, head after it
//!     └──no room for that, or an ordinary peer─> copied behind the head
//! ```

use super::{BACKLOG_MAX, Engine, EngineError};
use dsm_protocol::{Gfn, Message};
use transport::{Class, SendError};
use wire::{PAGE_SIZE, SliceId};

impl Engine {
    /// Finds out which peers lend their memory. Memory of ours that is lent is pinned as a whole.
    pub(super) fn find_placers(&mut self) {
        let peers = self.transport.peers().iter().copied();
        self.placers = peers.filter(|peer| self.transport.places(*peer)).collect();
        if !self.placers.is_empty() {
            self.store.ram.set_pinned();
        }
    }

    pub(super) fn send_message(
        &mut self,
        to: SliceId,
        message: &Message,
    ) -> Result<(), EngineError> {
        self.trace.sent(to, message);
        let page = message.gfn().filter(|_| message.has_body());
        let Some(gfn) = page else { return self.send_with_body(to, message, &[]) };
        self.store.ram.moved(gfn);
        if self.store.ram.is_zero(gfn) {
            return self.send_with_body(to, message, &[]);
        }
        if self.place(to, message, gfn) {
            return Ok(());
        }
        let mut bytes = [0u8; PAGE_SIZE];
        self.store.ram.read(gfn, 0, &mut bytes);
        self.moved.copies += 1;
        self.send_with_body(to, message, &bytes)
    }

    /// Writes a page of data into the requester's memory and tells it so. False where that cannot be, or
    /// not now.
    ///
    /// The page may stay as it is until the requester has it, for nobody can change it before: it was taken
    /// from the guest here, or may only be read, and both this slice's leave to write it again and new
    /// contents from elsewhere come after the requester's answer. Offers go as bytes: several slices get
    /// one, and processors may set accessed bits in the page meanwhile.
    fn place(&mut self, to: SliceId, message: &Message, gfn: Gfn) -> bool {
        let data = matches!(message, Message::Data { .. });
        let offset = self.store.ram.offset(gfn).and_then(|offset| u64::try_from(offset).ok());
        let Some(offset) = offset.filter(|_| data && self.placers.contains(&to)) else {
            return false;
        };
        if !self.backlog.is_empty() {
            // What waits there goes first.
            return false;
        }
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        message.encode_placed(self.node.epoch(), &mut head);
        let result = self.transport.place(to, Class::Coherence, &head, offset);
        self.head = head;
        self.moved.placed_out += u64::from(result.is_ok());
        // A lost peer is reported by the next poll.
        matches!(result, Ok(()) | Err(SendError::Gone))
    }

    fn send_with_body(
        &mut self,
        to: SliceId,
        message: &Message,
        body: &[u8],
    ) -> Result<(), EngineError> {
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        message.encode(self.node.epoch(), !body.is_empty(), &mut head);
        let result = self.send_frame(to, Class::Coherence, &head, body);
        self.head = head;
        result
    }

    pub(super) fn send_frame(
        &mut self,
        to: SliceId,
        class: Class,
        head: &[u8],
        body: &[u8],
    ) -> Result<(), EngineError> {
        if self.backlog.is_empty() {
            match self.transport.send(to, class, head, body) {
                // A lost peer is reported by the next poll.
                Ok(()) | Err(SendError::Gone) => return Ok(()),
                Err(SendError::Full) => {}
                Err(reason) => return Err(EngineError::Stuck { to, reason }),
            }
        }
        if self.backlog.len() >= BACKLOG_MAX {
            return Err(EngineError::Stuck { to, reason: SendError::Full });
        }
        self.backlog.push_back((to, class, [head, body].concat()));
        Ok(())
    }

    pub(super) fn drain_backlog(&mut self) -> Result<(), EngineError> {
        while let Some((to, class, frame)) = self.backlog.front() {
            match self.transport.send(*to, *class, frame, &[]) {
                Ok(()) | Err(SendError::Gone) => {
                    self.backlog.pop_front();
                }
                Err(SendError::Full) => return Ok(()),
                Err(reason) => return Err(EngineError::Stuck { to: *to, reason }),
            }
        }
        Ok(())
    }
}
