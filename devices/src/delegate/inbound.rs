//! Messages that arrive in parts. A peer sends the parts of one message without those of another
//! between them, so one unfinished message per peer is all there is: 4 MiB at most.

use super::ExchangeError;
use wire::SliceId;
use wire::device::{DiskAsk, DiskStatus, Part};

/// Which message a part belongs to, next to its device, queue and tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Request(DiskAsk),
    Reply(DiskStatus),
    Out,
    In(u32),
}

#[derive(Debug)]
struct Unfinished {
    kind: Kind,
    /// With an offset of 0.
    part: Part,
    bytes: Vec<u8>,
}

/// What one peer has begun to say.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    unfinished: Option<Unfinished>,
}

impl Inbound {
    /// Takes a part; the whole message's bytes when it was the last one.
    ///
    /// A first part of another message gives up the one before: its sender did too.
    pub(super) fn take(
        &mut self,
        from: SliceId,
        kind: Kind,
        part: Part,
        bytes: &[u8],
    ) -> Result<Option<Vec<u8>>, ExchangeError> {
        let total = part.total as usize;
        if part.offset == 0 {
            if bytes.len() == total {
                return Ok(Some(bytes.to_vec()));
            }
            let bytes = with_room(bytes, total);
            self.unfinished = Some(Unfinished { kind, part, bytes });
            return Ok(None);
        }
        let expected = self.unfinished.as_mut().filter(|unfinished| {
            unfinished.kind == kind
                && unfinished.part == (Part { offset: 0, ..part })
                && unfinished.bytes.len() == part.offset as usize
        });
        let unfinished = expected.ok_or(ExchangeError::Part(from))?;
        unfinished.bytes.extend_from_slice(bytes);
        if unfinished.bytes.len() < total {
            return Ok(None);
        }
        Ok(self.unfinished.take().map(|unfinished| unfinished.bytes))
    }

    /// Gives up what is unfinished.
    pub(super) fn clear(&mut self) {
        self.unfinished = None;
    }
}

/// The first part in a vector with room for the rest; the decoder has bounded `total`.
fn with_room(bytes: &[u8], total: usize) -> Vec<u8> {
    let mut all = Vec::with_capacity(total);
    all.extend_from_slice(bytes);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: SliceId = SliceId(1);

    fn part(tag: u64, offset: u32) -> Part {
        Part { tag, offset, total: 6, ..Part::default() }
    }

    #[test]
    fn parts_in_order_give_the_message_once() {
        let mut inbound = Inbound::default();

        assert_eq!(inbound.take(FROM, Kind::Out, part(1, 0), b"ab"), Ok(None));
        assert_eq!(inbound.take(FROM, Kind::Out, part(1, 2), b"cd"), Ok(None));
        let whole = inbound.take(FROM, Kind::Out, part(1, 4), b"ef");

        assert_eq!(whole, Ok(Some(b"abcdef".to_vec())));
        let again = inbound.take(FROM, Kind::Out, part(1, 4), b"ef");
        assert_eq!(again, Err(ExchangeError::Part(FROM)));
    }

    #[test]
    fn part_that_does_not_continue_is_refused() {
        let mut inbound = Inbound::default();
        inbound.take(FROM, Kind::Out, part(1, 0), b"ab").expect("a first part");

        for (kind, part) in [
            (Kind::Out, part(1, 3)),
            (Kind::Out, part(2, 2)),
            (Kind::In(0), part(1, 2)),
            (Kind::Out, Part { total: 7, ..part(1, 2) }),
        ] {
            let refused = inbound.take(FROM, kind, part, b"c");
            assert_eq!(refused, Err(ExchangeError::Part(FROM)), "{kind:?} {part:?}");
        }
    }

    #[test]
    fn whole_message_leaves_the_unfinished_one_alone_and_a_first_part_replaces_it() {
        let mut inbound = Inbound::default();
        inbound.take(FROM, Kind::Out, part(1, 0), b"ab").expect("a first part");

        let whole = Part { total: 1, ..part(2, 0) };
        assert_eq!(inbound.take(FROM, Kind::Out, whole, b"x"), Ok(Some(b"x".to_vec())));
        assert_eq!(inbound.take(FROM, Kind::Out, part(1, 2), b"cd"), Ok(None));
        assert_eq!(inbound.take(FROM, Kind::Out, part(3, 0), b"ab"), Ok(None));
        let refused = inbound.take(FROM, Kind::Out, part(1, 4), b"ef");

        assert_eq!(refused, Err(ExchangeError::Part(FROM)));
    }
}
