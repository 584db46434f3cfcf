//! Pages of a run in one frame: what a [`Message::Data`] each would say, with one head.
//!
//! ```text
//!   head (kind 19: first page, access, count, tag: held, wide: a bit for each page that has a body) | bodies
//! ```
//!
//! To the protocol a batch is its messages, one after another. So it is no [`Message`].

use super::{
    Access, DecodeError, FLAG_BODY, HEAD_BYTES, Head, Message, PAGE_SIZE, PageBody, access_code,
    decode_access, kind,
};
use crate::{Epoch, Gfn};
use zerocopy::{FromBytes, IntoBytes};

/// The most pages of a batch: more do not fit a frame of 64 KiB.
pub const BATCH_MAX: u16 = 15;

/// Neighbouring pages that were given alike: with nothing to wait for, and none of them a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The epoch.
    pub epoch: Epoch,
    /// The first page.
    pub first: Gfn,
    /// How many, 1 to [`BATCH_MAX`].
    pub pages: u16,
    /// What is given.
    pub access: Access,
    /// For how long the holder kept them after it had been asked, in microseconds.
    pub held_us: u32,
    /// A bit for each page, the lowest for the first: whether its bytes follow. Others are all zeros.
    pub bodies: u64,
}

impl Batch {
    /// Appends the head to `out`. The bodies are the caller's to append.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let head = Head {
            kind: kind::DATA_BATCH,
            access: access_code(self.access),
            flags: FLAG_BODY,
            epoch: self.epoch.0.into(),
            gfn: self.first.0.into(),
            count: self.pages.into(),
            tag: self.held_us.into(),
            wide: self.bodies.into(),
            ..Head::default()
        };
        out.extend_from_slice(head.as_bytes());
    }

    /// Reads a batch and the bodies behind it; `None` if the bytes are none.
    ///
    /// # Errors
    /// The bytes begin as a batch and are not exactly one.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, &[u8])>, DecodeError> {
        if bytes.first() != Some(&kind::DATA_BATCH) {
            return Ok(None);
        }
        let (head, bodies) = Head::read_from_prefix(bytes)
            .map_err(|_| DecodeError::Length { have: bytes.len(), need: HEAD_BYTES })?;
        let field = |field| DecodeError::Field { kind: kind::DATA_BATCH, field };
        let (first, pages) = (Gfn(head.gfn.get()), head.count.get());
        if !(1..=BATCH_MAX).contains(&pages) || first.0.checked_add(u64::from(pages)).is_none() {
            return Err(field("pages"));
        }
        let access = decode_access(head.access).filter(|access| *access != Access::None);
        let batch = Self {
            epoch: Epoch(head.epoch.get()),
            first,
            pages,
            access: access.ok_or_else(|| field("access"))?,
            held_us: head.tag.get(),
            bodies: head.wide.get(),
        };
        if batch.bodies >> pages != 0 {
            return Err(field("bodies"));
        }
        let need = PAGE_SIZE * usize::try_from(batch.bodies.count_ones()).expect("64 at most");
        if bodies.len() != need {
            let need = HEAD_BYTES + need;
            return Err(DecodeError::Length { have: bytes.len(), need });
        }
        Ok(Some((batch, bodies)))
    }

    /// The messages that the batch stands for, with their bodies. `bodies` is what [`Self::decode`] gave.
    pub fn messages<'a>(
        &self,
        bodies: &'a [u8],
    ) -> impl Iterator<Item = (Message, PageBody<'a>)> + use<'a> {
        let Self { first, pages, access, held_us, bodies: bits, .. } = *self;
        let mut bodies = bodies.chunks_exact(PAGE_SIZE);
        (0..u64::from(pages)).map(move |at| {
            let gfn = Gfn(first.0 + at);
            let body = if bits & 1 << at != 0 { bodies.next() } else { None };
            let message = Message::Data { gfn, access, acks: 0, held_us, table: None };
            (message, body.map_or(PageBody::Zero, PageBody::Bytes))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_stands_for_a_message_of_each_page() {
        let batch = Batch {
            epoch: Epoch(7),
            first: Gfn(40),
            pages: 3,
            access: Access::Write,
            held_us: 9,
            bodies: 0b101,
        };
        let mut frame = Vec::new();
        batch.encode(&mut frame);
        frame.extend([[1; PAGE_SIZE], [2; PAGE_SIZE]].concat());

        let (found, bodies) = Batch::decode(&frame).unwrap().unwrap();
        assert_eq!(found, batch);
        let seen: Vec<_> = found.messages(bodies).collect();
        let data = |gfn| Message::Data {
            gfn: Gfn(gfn),
            access: Access::Write,
            acks: 0,
            held_us: 9,
            table: None,
        };
        assert_eq!(seen[0], (data(40), PageBody::Bytes(&[1; PAGE_SIZE])));
        assert_eq!(seen[1], (data(41), PageBody::Zero));
        assert_eq!(seen[2], (data(42), PageBody::Bytes(&[2; PAGE_SIZE])));
        assert_eq!(seen.len(), 3);
    }

    #[test]
    fn message_is_no_batch_and_a_batch_no_message() {
        let mut frame = Vec::new();
        Message::Ready { gfn: Gfn(3) }.encode(Epoch(1), false, &mut frame);
        assert_eq!(Batch::decode(&frame), Ok(None));
        assert_eq!(Batch::decode(&[]), Ok(None));

        frame[0] = kind::DATA_BATCH;
        assert_eq!(Message::decode(&frame), Err(DecodeError::Kind(kind::DATA_BATCH)));
    }
}
