//! Pages that are written straight into the memory of the slice that asked for them: by an adapter
//! (`--rdma-memory registered`), or into the memory file of a slice on the same machine.

use crate::engine::Engine;
use crate::parcel::Parcel;
use dsm_protocol::{Gfn, Message};
use transport::{Class, SendError};
use wire::{Epoch, SliceId};

impl Engine {
    /// Lends memory to the peers, and finds out who lends theirs through an adapter. Memory of ours that an
    /// adapter was lent is pinned as a whole.
    pub(crate) fn find_placers(&mut self) {
        let peers = self.transport.peers().iter().copied();
        self.placers = peers.filter(|peer| self.transport.places(*peer)).collect();
        if !self.placers.is_empty() {
            self.store.ram.set_pinned();
        } else if let Some(memory) = self.store.ram.lendable()
            && self.transport.lend(&memory)
        {
            self.placers = self.transport.peers().to_vec();
        }
    }

    /// True for a page of data, not all zeros, for a peer that lends its memory.
    pub(crate) fn may_place(&self, to: SliceId, message: &Message, gfn: Gfn) -> bool {
        let is_data = matches!(message, Message::Data { .. });
        is_data && self.transport.places(to) && !self.store.ram.is_zero(gfn)
    }

    /// Writes a page of data into the requester's memory and tells it so. False where that cannot be, or
    /// not now.
    ///
    /// The page may stay as it is until the requester has it, for nobody can change it before: it was taken
    /// from the guest here, or may only be read, and both this slice's leave to write it again and new
    /// contents from elsewhere come after the requester's answer. Offers go as bytes: several slices get
    /// one, and processors may set accessed bits in the page meanwhile.
    pub(crate) fn place(&mut self, to: SliceId, message: &Message, gfn: Gfn) -> bool {
        let offset = self.store.ram.offset(gfn).and_then(|offset| u64::try_from(offset).ok());
        let Some(offset) = offset else { return false };
        let placed = self.place_at(to, Class::Coherence, offset, 1, |epoch, head| {
            message.encode_placed(epoch, head);
        });
        self.moved.placed_out += u64::from(placed);
        placed
    }

    /// The same for neighbouring pages.
    pub(crate) fn place_parcel(&mut self, parcel: &Parcel) -> bool {
        if !self.transport.places(parcel.to) {
            return false;
        }
        let Some((offset, pages)) = parcel.piece(&self.store.ram) else { return false };
        let placed = self.place_at(parcel.to, parcel.class(), offset, pages, |epoch, head| {
            parcel.head(epoch, true, head);
        });
        self.moved.placed_out += if placed { u64::from(parcel.full()) } else { 0 };
        placed
    }

    fn place_at(
        &mut self,
        to: SliceId,
        class: Class,
        offset: u64,
        pages: u16,
        encode: impl FnOnce(Epoch, &mut Vec<u8>),
    ) -> bool {
        if self.backlog.holds(to, class) {
            // What waits there goes first.
            return false;
        }
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        encode(self.node.epoch(), &mut head);
        let result = self.transport.place(to, class, &head, offset, pages);
        self.head = head;
        // A lost peer is reported by the next poll.
        matches!(result, Ok(()) | Err(SendError::Gone))
    }
}
