//! Pages written straight into the memory of the slice that asked for them: by an adapter
//! (`--rdma-memory registered`), or into the memory file of a slice on the same machine.

use super::outbound::{Outbound, Sending};
use super::page_batch::PageBatch;
use crate::memory::GuestRam;
use dsm_protocol::{Gfn, Message};
use std::sync::Arc;
use transport::{Class, SendError};
use wire::{Epoch, SliceId};

impl Outbound {
    /// Exposes memory to the peers, and finds out who exposes theirs through an adapter. Memory of ours that is
    /// exposed to an adapter is pinned, all of it.
    pub(super) fn find_remote_writers(&mut self, ram: &Arc<GuestRam>) {
        let peers = self.transport.peers().iter().copied();
        self.remote_writers = peers.filter(|peer| self.transport.has_remote_write(*peer)).collect();
        if !self.remote_writers.is_empty() {
            ram.set_pinned();
        } else if let Some(memory) = ram.remote_writable()
            && self.transport.expose(&memory)
        {
            self.remote_writers = self.transport.peers().to_vec();
        }
    }

    /// True for a page of data, not all zeros, for a peer that exposes its memory.
    pub(super) fn may_remote_write(
        &self,
        to: SliceId,
        message: &Message,
        gfn: Gfn,
        ram: &GuestRam,
    ) -> bool {
        let is_data = matches!(message, Message::Data { .. });
        is_data && self.transport.has_remote_write(to) && !ram.is_zero(gfn)
    }

    /// Writes a page of data into the requester's memory and tells it so. False where that is not possible, or not
    /// now.
    ///
    /// The page stays as it is until the requester has it, for nobody can change it before. It was taken from the
    /// guest here, or may only be read. Leave to write it here again, and new contents from elsewhere, come after the
    /// requester's answer. Offers go as bytes: several slices get one, and processors may set accessed bits in the
    /// page meanwhile.
    pub(super) fn remote_write(
        &mut self,
        to: SliceId,
        message: &Message,
        gfn: Gfn,
        sending: &Sending<'_>,
    ) -> bool {
        let offset = sending.ram.offset(gfn).and_then(|offset| u64::try_from(offset).ok());
        let Some(offset) = offset else { return false };
        let written = self.remote_write_at(to, Class::Coherence, (offset, 1), |head| {
            message.encode_remote_written(sending.epoch, head);
        });
        self.moved.remote_writes_out += u64::from(written);
        written
    }

    /// The same for neighbouring pages.
    pub(super) fn remote_write_batch(
        &mut self,
        batch: &PageBatch,
        ram: &GuestRam,
        epoch: Epoch,
    ) -> bool {
        if !self.transport.has_remote_write(batch.to) {
            return false;
        }
        let Some(piece) = batch.piece(ram) else { return false };
        let written = self.remote_write_at(batch.to, batch.class(), piece, |head| {
            batch.head(epoch, true, head);
        });
        self.moved.remote_writes_out += if written { u64::from(batch.full()) } else { 0 };
        written
    }

    /// Writes the pages from a byte offset on, so many.
    fn remote_write_at(
        &mut self,
        to: SliceId,
        class: Class,
        (offset, pages): (u64, u16),
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        if self.backlog.holds(to, class) {
            // What waits there goes first.
            return false;
        }
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        encode(&mut head);
        let result = self.transport.remote_write(to, class, &head, offset, pages);
        self.head = head;
        // A lost peer is reported by the next poll.
        matches!(result, Ok(()) | Err(SendError::Gone))
    }
}
