//! Pages written straight into the memory of the slice that asked for them: by an adapter
//! (`--rdma-memory registered`), or into the memory file of a slice on the same machine.

use super::outbound::Outbound;
use super::page_batch::PageBatch;
use crate::memory::GuestRam;
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
        } else if let Some(memory) = ram.remote_writable() {
            self.is_offered = true;
            if self.transport.expose(&memory) {
                self.remote_writers = self.transport.peers().to_vec();
            }
        }
    }

    /// A slice has joined. A transport offers memory that was offered to its peers to one that comes later, too.
    pub(super) fn add_remote_writer(&mut self, peer: SliceId) {
        let may_write = self.is_offered || self.transport.has_remote_write(peer);
        if may_write && !self.remote_writers.contains(&peer) {
            self.remote_writers.push(peer);
        }
    }

    /// Whether pages may be written into the memory of a peer.
    pub(super) fn has_remote_write(&self, to: SliceId) -> bool {
        self.mechanisms.remote_write && self.transport.has_remote_write(to)
    }

    /// Writes pages of data into the requester's memory and tells it so. False where that is not possible, or not
    /// now, and for pages that are all zeros.
    ///
    /// The pages stay as they are until the requester has them, for nobody can change them before. They were taken from
    /// the guest here, or may only be read. Leave to write them here again, and new contents from elsewhere, come after
    /// the requester's answer.
    pub(super) fn remote_write(&mut self, batch: &PageBatch, ram: &GuestRam, epoch: Epoch) -> bool {
        let Some(piece) = batch.piece(ram).filter(|_| self.has_remote_write(batch.to)) else {
            return false;
        };
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
