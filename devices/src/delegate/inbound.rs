//! Messages that arrive in parts. A peer sends the parts of one message without those of another
//! between them, so one unfinished message per peer is all there is: 4 MiB at most.

use super::ExchangeError;
use wire::SliceId;
use wire::device::{DeviceFrame, Part};

#[derive(Debug)]
struct Unfinished {
    /// The first frame but for its bytes: all parts have the same, at offset 0.
    head: DeviceFrame<'static>,
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
        head: DeviceFrame<'static>,
        part: Part,
        bytes: &[u8],
    ) -> Result<Option<Vec<u8>>, ExchangeError> {
        let total = part.total as usize;
        if part.offset == 0 {
            if bytes.len() == total {
                return Ok(Some(bytes.to_vec()));
            }
            let bytes = with_room(bytes, total);
            self.unfinished = Some(Unfinished { head, bytes });
            return Ok(None);
        }
        let expected = self.unfinished.as_mut().filter(|unfinished| {
            unfinished.head == head && unfinished.bytes.len() == part.offset as usize
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

    /// Takes a part of packets on their way out.
    fn take(
        inbound: &mut Inbound,
        part: Part,
        bytes: &[u8],
    ) -> Result<Option<Vec<u8>>, ExchangeError> {
        let part_of = Part { offset: 0, ..part };
        inbound.take(FROM, DeviceFrame::PacketsOut { part: part_of, bytes: &[] }, part, bytes)
    }

    #[test]
    fn parts_in_order_give_the_message_once() {
        let mut inbound = Inbound::default();

        assert_eq!(take(&mut inbound, part(1, 0), b"ab"), Ok(None));
        assert_eq!(take(&mut inbound, part(1, 2), b"cd"), Ok(None));
        let whole = take(&mut inbound, part(1, 4), b"ef");

        assert_eq!(whole, Ok(Some(b"abcdef".to_vec())));
        let again = take(&mut inbound, part(1, 4), b"ef");
        assert_eq!(again, Err(ExchangeError::Part(FROM)));
    }

    #[test]
    fn part_that_does_not_continue_is_refused() {
        let mut inbound = Inbound::default();
        take(&mut inbound, part(1, 0), b"ab").expect("a first part");

        for part in [part(1, 3), part(2, 2), Part { total: 7, ..part(1, 2) }] {
            let refused = take(&mut inbound, part, b"c");
            assert_eq!(refused, Err(ExchangeError::Part(FROM)), "{part:?}");
        }
        let other = DeviceFrame::PacketsIn { part: part(1, 0), connection: 0, bytes: &[] };
        let refused = inbound.take(FROM, other, part(1, 2), b"c");
        assert_eq!(refused, Err(ExchangeError::Part(FROM)));
    }

    #[test]
    fn whole_message_leaves_the_unfinished_one_alone_and_a_first_part_replaces_it() {
        let mut inbound = Inbound::default();
        take(&mut inbound, part(1, 0), b"ab").expect("a first part");

        let whole = Part { total: 1, ..part(2, 0) };
        assert_eq!(take(&mut inbound, whole, b"x"), Ok(Some(b"x".to_vec())));
        assert_eq!(take(&mut inbound, part(1, 2), b"cd"), Ok(None));
        assert_eq!(take(&mut inbound, part(3, 0), b"ab"), Ok(None));
        let refused = take(&mut inbound, part(1, 4), b"ef");

        assert_eq!(refused, Err(ExchangeError::Part(FROM)));
    }
}
