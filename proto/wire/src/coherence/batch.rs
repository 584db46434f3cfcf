//! Pages of a run in one frame: what a [`Message::Data`] each would say, with one head.
//!
//! ```text
//!   head (kind 19: first page, access, count, tag: held, wide: a bit for each page that has a body) | bodies
//! ```
//!
//! To the protocol a batch is its messages, one after another. So it is no [`Message`].

use super::codec::{FLAG_BODY, FLAG_REMOTE_WRITTEN, Head, access_code, decode_access, kind};
use super::error::DecodeError;
use super::message::{Message, PageBody};
use super::sizes::{HEAD_BYTES, PAGE_SIZE};
use super::types::Access;
use crate::{Epoch, Gfn};
use zerocopy::{FromBytes, IntoBytes};

/// The most pages of a batch: a bit for each.
pub const BATCH_MAX: u16 = 64;

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
    /// The bytes do not follow: they are in the receiver's memory already.
    pub remote_written: bool,
}

impl Batch {
    /// How many pages, none of them all zeros, fit a frame of so many bytes: [`BATCH_MAX`] at most.
    #[must_use]
    pub fn pages_in(bytes: usize) -> u16 {
        let pages = bytes.saturating_sub(HEAD_BYTES) / PAGE_SIZE;
        u16::try_from(pages).unwrap_or(BATCH_MAX).min(BATCH_MAX)
    }

    /// Appends the head to `out`. The bodies are the caller's to append.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let head = Head {
            kind: kind::DATA_BATCH,
            access: access_code(self.access),
            flags: if self.remote_written { FLAG_REMOTE_WRITTEN } else { FLAG_BODY },
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
        let Some(batch) = Self::decode_head(bytes, bytes.len())? else { return Ok(None) };
        Ok(bytes.get(HEAD_BYTES..).map(|bodies| (batch, bodies)))
    }

    /// Reads the head of a batch of which so many bytes there are in all, here or elsewhere; `None` if it
    /// is none.
    ///
    /// # Errors
    /// As for [`Self::decode`].
    pub fn decode_head(bytes: &[u8], length: usize) -> Result<Option<Self>, DecodeError> {
        if bytes.first() != Some(&kind::DATA_BATCH) {
            return Ok(None);
        }
        let (head, _) = Head::read_from_prefix(bytes)
            .map_err(|_| DecodeError::Length { have: bytes.len(), need: HEAD_BYTES })?;
        let field = |field| DecodeError::Field { kind: kind::DATA_BATCH, field };
        let (first, pages) = (Gfn(head.gfn.get()), head.count.get());
        let remote_written = head.flags & FLAG_REMOTE_WRITTEN != 0;
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
            remote_written,
        };
        if batch.bodies.checked_shr(u32::from(pages)).unwrap_or(0) != 0 {
            return Err(field("bodies"));
        }
        let carried = if remote_written { 0 } else { batch.bodies.count_ones() };
        let need = PAGE_SIZE * usize::try_from(carried).expect("64 at most");
        if length != HEAD_BYTES + need {
            return Err(DecodeError::Length { have: length, need: HEAD_BYTES + need });
        }
        Ok(Some(batch))
    }

    /// The messages that the batch stands for, with their bodies. `bodies` is what [`Self::decode`] gave.
    pub fn messages<'a>(
        &self,
        bodies: &'a [u8],
    ) -> impl Iterator<Item = (Message, PageBody<'a>)> + use<'a> {
        let Self { first, pages, access, held_us, bodies: bits, remote_written, .. } = *self;
        let mut bodies = bodies.chunks_exact(PAGE_SIZE);
        (0..u64::from(pages)).map(move |at| {
            let gfn = Gfn(first.0 + at);
            let body = match bits & 1 << at != 0 {
                true if remote_written => Some(PageBody::RemoteWritten),
                true => bodies.next().map(PageBody::Bytes),
                false => None,
            };
            let message = Message::Data { gfn, access, acks: 0, held_us, table: None };
            (message, body.unwrap_or(PageBody::Zero))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_fit_with_their_head() {
        let sizes = [0, HEAD_BYTES + PAGE_SIZE - 1, 64 << 10, HEAD_BYTES + 64 * PAGE_SIZE, 1 << 40];
        assert_eq!(sizes.map(Batch::pages_in), [0, 0, 15, 64, 64]);
    }

    #[test]
    fn batch_stands_for_a_message_of_each_page() {
        let batch = Batch {
            epoch: Epoch(7),
            first: Gfn(40),
            pages: 3,
            access: Access::Write,
            held_us: 9,
            bodies: 0b101,
            remote_written: false,
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
    fn remotely_written_batch_has_no_bytes() {
        let whole = Batch {
            epoch: Epoch(7),
            first: Gfn(40),
            pages: BATCH_MAX,
            access: Access::Read,
            held_us: 9,
            bodies: u64::MAX - 2,
            remote_written: true,
        };
        let mut frame = Vec::new();
        whole.encode(&mut frame);
        let (found, bodies) = Batch::decode(&frame).unwrap().unwrap();
        assert_eq!(found, whole);
        let seen: Vec<_> = found.messages(bodies).map(|(_, body)| body).collect();
        assert_eq!(seen[..3], [PageBody::RemoteWritten, PageBody::Zero, PageBody::RemoteWritten]);
        assert_eq!(seen.len(), 64);

        for (pages, bodies) in [(65, 1), (0, 0), (3, 0b1000)] {
            frame.clear();
            Batch { pages, bodies, ..whole }.encode(&mut frame);
            assert!(Batch::decode(&frame).is_err(), "{pages} pages");
        }
        frame.clear();
        whole.encode(&mut frame);
        frame.push(0);
        assert!(Batch::decode(&frame).is_err());
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
