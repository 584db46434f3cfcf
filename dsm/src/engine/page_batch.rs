//! Pages of data that go out in one frame, from where they lie: neighbours together, and each other page alone.
//!
//! A page that is sent stays as it is until the receiver has it
//! ([`Outbound::remote_write`](super::outbound::Outbound::remote_write) says why). So it goes from guest memory into the
//! transport without a copy in between. If some pages in the middle are all zeros, the others are put side by side
//! first, and only their bytes travel.
#![expect(unsafe_code, reason = "guest memory that nobody can change is read in place")]
// UNSAFETY: the transport reads bytes where they lie; the protocol keeps these as they are meanwhile.

use crate::memory::GuestRam;
use dsm_protocol::{Access, Gfn, Message, Table};
use transport::Class;
use wire::{BATCH_MAX, Batch, Epoch, SliceId};

/// Pages that are not all zeros, if they follow one another: how many come before them, and how many they are.
pub(crate) fn one_piece(bodies: u64) -> Option<(u64, u64)> {
    let (skipped, count) = (bodies.trailing_zeros(), bodies.count_ones());
    let together = bodies.checked_shr(skipped)?.trailing_ones() == count;
    together.then_some((u64::from(skipped), u64::from(count)))
}

/// Pages that go out together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PageBatch {
    pub(crate) to: SliceId,
    first: Gfn,
    pub(crate) pages: u16,
    access: Access,
    held_us: u32,
    /// Acknowledgements that belong to the page, and what table it is. Such a page goes alone.
    acks: u16,
    table: Option<Table>,
    /// A bit for each page that is not all zeros.
    bodies: u64,
}

impl PageBatch {
    /// Takes the page of a message in; false if the message is no data, does not belong to the pages that are here, or
    /// would be more than so many.
    pub(crate) fn take(
        &mut self,
        to: SliceId,
        message: &Message,
        ram: &GuestRam,
        most: u16,
    ) -> bool {
        let Message::Data { gfn, access, acks, held_us, table } = *message else {
            return false;
        };
        if self.pages == 0 {
            *self = Self { to, first: gfn, pages: 0, access, held_us, acks, table, bodies: 0 };
        } else if acks > 0 || table.is_some() {
            return false;
        }
        let next = Gfn(self.first.0 + u64::from(self.pages));
        let alike = (self.to, self.access, self.held_us, self.acks, self.table)
            == (to, access, held_us, acks, table);
        if !alike || next != gfn || self.pages >= most.min(BATCH_MAX) {
            return false;
        }
        if !ram.is_zero(gfn) {
            self.bodies |= 1 << self.pages;
        }
        self.pages += 1;
        true
    }

    /// Several pages are a run. Such answers may overtake others and be overtaken ([`Message::is_of_run`]).
    pub(crate) fn class(&self) -> Class {
        if self.pages > 1 { Class::Run } else { Class::Coherence }
    }

    /// How many pages are not all zeros.
    pub(crate) fn full(&self) -> u32 {
        self.bodies.count_ones()
    }

    /// The first and the last page that are not all zeros, if they lie in one piece of the file, with the
    /// offset of the first in bytes: what is to be written remotely.
    pub(crate) fn piece(&self, ram: &GuestRam) -> Option<(u64, u16)> {
        let last = self.bodies.checked_ilog2()?;
        let skipped = self.bodies.trailing_zeros();
        let pages = u16::try_from(last - skipped + 1).ok()?;
        let start = ram.file_run(Gfn(self.first.0 + u64::from(skipped)), u64::from(pages))?;
        Some((u64::try_from(start).ok()?, pages))
    }

    /// The bytes of the pages that are not all zeros: where they lie, if that is in one piece. Otherwise
    /// they are copied to `spare`; with how many were.
    pub(crate) fn body<'a>(&self, ram: &'a GuestRam, spare: &'a mut Vec<u8>) -> (&'a [u8], u32) {
        let Self { first, pages, bodies, .. } = *self;
        spare.clear();
        if bodies == 0 {
            return (spare, 0);
        }
        if let Some((skipped, count)) = one_piece(bodies) {
            // SAFETY: the pages were given away or may only be read, and the receiver does not have them
            // yet; see `Outbound::remote_write`.
            if let Some(bytes) = unsafe { ram.stable_bytes(Gfn(first.0 + skipped), count) } {
                return (bytes, 0);
            }
        }
        let pages = (0..u64::from(pages)).filter(|at| bodies & 1 << at != 0);
        pages.for_each(|at| ram.append_to(Gfn(first.0 + at), spare));
        (spare, bodies.count_ones())
    }

    /// Appends the head of the frame: one page travels as the message that it came in.
    pub(crate) fn head(&self, epoch: Epoch, remote_written: bool, head: &mut Vec<u8>) {
        let Self { first, pages, access, held_us, acks, table, bodies, .. } = *self;
        if pages > 1 {
            return Batch { epoch, first, pages, access, held_us, bodies, remote_written }
                .encode(head);
        }
        let message = Message::Data { gfn: first, access, acks, held_us, table };
        if remote_written {
            message.encode_remote_written(epoch, head);
        } else {
            message.encode(epoch, bodies != 0, head);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;
    use transport::RUN_BYTES_MAX;

    fn data(gfn: u64) -> Message {
        Message::Data { gfn: Gfn(gfn), access: Access::Write, acks: 0, held_us: 0, table: None }
    }

    /// A batch of the pages from 3 on, of which some are not all zeros.
    fn page_batch(ram: &GuestRam, pages: u64, full: &[u64]) -> PageBatch {
        full.iter().for_each(|gfn| ram.write(Gfn(*gfn), 9, &[u8::try_from(*gfn).unwrap()]));
        let mut page_batch = PageBatch::default();
        for gfn in 3..3 + pages {
            assert!(page_batch.take(SliceId(1), &data(gfn), ram, 64), "{gfn}");
        }
        page_batch
    }

    #[test]
    fn one_piece_has_no_holes() {
        let pieces = [0, 1, 0b1100, u64::MAX, 1 << 63, 0b101, u64::MAX - 2].map(one_piece);
        let (whole, last) = (Some((0, 64)), Some((63, 1)));
        assert_eq!(pieces, [None, Some((0, 1)), Some((2, 2)), whole, last, None, None]);
    }

    #[test]
    fn pages_side_by_side_go_from_where_they_lie() {
        let ram = GuestRam::new(from_ref(&(0..64))).unwrap();
        let page_batch = page_batch(&ram, 6, &[4, 5, 6]);
        assert_eq!((page_batch.full(), page_batch.piece(&ram)), (3, Some((4 * 4096, 3))));
        let mut spare = Vec::new();
        let (body, copied) = page_batch.body(&ram, &mut spare);
        assert_eq!((body.len(), body[9], body[2 * 4096 + 9]), (3 * 4096, 4, 6));
        assert_eq!((copied, spare.capacity()), (0, 0));
    }

    #[test]
    fn pages_of_zeros_between_do_not_travel_as_bytes() {
        let ram = GuestRam::new(from_ref(&(0..64))).unwrap();
        let page_batch = page_batch(&ram, 6, &[4, 7]);
        assert_eq!(page_batch.piece(&ram), Some((4 * 4096, 4)));
        let mut spare = Vec::new();
        let (body, copied) = page_batch.body(&ram, &mut spare);
        assert_eq!((body.len(), body[9], body[4096 + 9], copied), (2 * 4096, 4, 7, 2));
    }

    #[test]
    fn batch_takes_what_a_frame_does() {
        let ram = GuestRam::new(from_ref(&(0..128))).unwrap();
        let full: Vec<u64> = (3..67).filter(|gfn| gfn % 3 > 0).collect();
        let mut page_batch = page_batch(&ram, 64, &full);
        assert!(!page_batch.take(SliceId(1), &data(67), &ram, 100), "full");
        let mut spare = Vec::new();
        let body = page_batch.body(&ram, &mut spare).0;
        let seen: Vec<_> = body.chunks(4096).map(|page| u64::from(page[9])).collect();
        assert_eq!(seen, full);
        let mut frame = Vec::new();
        page_batch.head(Epoch(1), false, &mut frame);
        frame.extend_from_slice(body);
        let (batch, _) = Batch::decode(&frame).unwrap().unwrap();
        assert_eq!((batch.pages, batch.bodies.count_ones()), (64, page_batch.full()));
        assert!(frame.len() <= RUN_BYTES_MAX);
    }

    #[test]
    fn page_with_acknowledgements_goes_alone() {
        let ram = GuestRam::new(from_ref(&(0..64))).unwrap();
        let alone = |gfn, acks| match data(gfn) {
            Message::Data { gfn, access, held_us, table, .. } => {
                Message::Data { gfn, access, acks, held_us, table }
            }
            other => other,
        };
        for (first, second) in [(0, 2), (2, 0), (2, 2)] {
            let mut batch = PageBatch::default();
            assert!(batch.take(SliceId(1), &alone(3, first), &ram, 64));
            assert!(!batch.take(SliceId(1), &alone(4, second), &ram, 64));
            let mut head = Vec::new();
            batch.head(Epoch(1), false, &mut head);
            let (_, message, _) = Message::decode(&head).unwrap();
            assert_eq!(message, alone(3, first));
        }
    }

    #[test]
    fn pages_of_different_blocks_are_not_one_piece() {
        let ram = GuestRam::new(&[0..5, 5..64]).unwrap();
        let page_batch = page_batch(&ram, 4, &[3, 4, 5, 6]);
        assert_eq!(page_batch.piece(&ram), None);
        let mut spare = Vec::new();
        assert_eq!(page_batch.body(&ram, &mut spare).0.len(), 4 * 4096);
    }
}
