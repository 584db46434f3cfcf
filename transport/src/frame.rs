//! Length-exact frames on a byte stream, and the decoder that turns what arrived back into frames.
//!
//! A frame is an 8-byte little-endian head and `length` bytes:
//!
//! ```text
//!  0        4       5      6        8
//!  | length | class | kind | zero   | payload ...
//! ```
//!
//! A stream carries one class, yet the head repeats it: a peer that mixes streams up is caught at
//! the first frame. The decoder owns one buffer of fixed size, so a length never allocates.

use crate::traits::Class;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a head.
pub const HEAD_BYTES: usize = 8;
/// The same, for sums of lengths as they are on the wire.
pub(crate) const HEAD_BYTES_U32: u32 = 8;
const _: () = assert!(HEAD_BYTES_U32 as usize == HEAD_BYTES);
const _: () = assert!(size_of::<FrameHead>() == HEAD_BYTES);
/// So much of the buffer is used as long as no frame needs more: what is read stays in the cache until it
/// is taken.
const HOT_BYTES: usize = 128 * 1024;
/// A read into less room than this is not worth its system call.
const ROOM_MIN: usize = 16 * 1024;

const KIND_DATA: u8 = 0;
const KIND_HEARTBEAT: u8 = 1;
const KIND_CREDIT: u8 = 2;

/// The head as it is on the wire.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct FrameHead {
    length: U32,
    class: u8,
    kind: u8,
    zero: U16,
}

/// What is wrong with a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is larger than a frame may be.
    #[error("the peer announced a frame of {length} bytes, {most} are allowed")]
    Oversized {
        /// The announced length in bytes.
        length: u32,
        /// The most that its class allows.
        most: u32,
    },
    /// A kind that this version does not know.
    #[error("the peer sent a frame of unknown kind {kind}")]
    UnknownKind {
        /// The kind byte.
        kind: u8,
    },
    /// A class that does not belong on this stream.
    #[error("the peer sent a frame of class {got} on the stream of class {want}")]
    WrongClass {
        /// The class byte that came.
        got: u8,
        /// The class of the stream.
        want: u8,
    },
    /// The reserved bytes are not zero.
    #[error("the peer sent a frame with reserved bytes {value:#06x}")]
    Reserved {
        /// What was there instead of zero.
        value: u16,
    },
    /// A heartbeat that is not sixteen bytes, or a credit that is not four.
    #[error("the peer sent a control frame of kind {kind} with {length} bytes of payload")]
    ControlLength {
        /// The kind byte.
        kind: u8,
        /// The announced length in bytes.
        length: u32,
    },
}

/// One frame, borrowed from the decoder's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// A frame of the user.
    Data(&'a [u8]),
    /// The peer lives.
    Heartbeat(Beat),
    /// The peer accepts this many more bytes.
    Credit(u32),
}

/// What a heartbeat says.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Beat {
    /// A time of whoever sends it, which is sent back to it.
    stamp: U64,
    /// The last stamp that it was sent; 0 for none.
    echo: U64,
}

const BEAT_BYTES: usize = size_of::<Beat>();

impl Beat {
    pub(crate) fn new(stamp: u64, echo: u64) -> Self {
        Self { stamp: U64::new(stamp), echo: U64::new(echo) }
    }

    pub(crate) fn stamp(self) -> u64 {
        self.stamp.get()
    }

    pub(crate) fn echo(self) -> u64 {
        self.echo.get()
    }

    /// What two of them say.
    pub(crate) fn and(self, later: Self) -> Self {
        Self::new(self.stamp().max(later.stamp()), self.echo().max(later.echo()))
    }
}

/// The place of a class in arrays and on the wire.
pub(crate) const fn class_index(class: Class) -> u8 {
    match class {
        Class::Interrupt => 0,
        Class::Coherence => 1,
        Class::Run => 2,
        Class::Bulk => 3,
    }
}

/// The largest payload of a class, in bytes.
pub(crate) fn payload_max(class: Class) -> u32 {
    u32::try_from(class.frame_bytes_max()).expect("a small constant")
}

fn head(length: u32, class: Class, kind: u8) -> [u8; HEAD_BYTES] {
    let head =
        FrameHead { length: U32::new(length), class: class_index(class), kind, zero: U16::ZERO };
    zerocopy::transmute!(head)
}

/// The head of a data frame. `length` was checked by the caller.
pub(crate) fn data_head(length: u32, class: Class) -> [u8; HEAD_BYTES] {
    debug_assert!(length <= payload_max(class));
    head(length, class, KIND_DATA)
}

/// A whole heartbeat.
pub(crate) fn heartbeat(class: Class, beat: Beat) -> [u8; HEAD_BYTES + BEAT_BYTES] {
    let mut frame = [0; HEAD_BYTES + BEAT_BYTES];
    let length = u32::try_from(BEAT_BYTES).expect("a small constant");
    frame[..HEAD_BYTES].copy_from_slice(&head(length, class, KIND_HEARTBEAT));
    frame[HEAD_BYTES..].copy_from_slice(beat.as_bytes());
    frame
}

/// A whole credit frame that grants `bytes`.
pub(crate) fn credit(class: Class, bytes: u32) -> [u8; HEAD_BYTES + 4] {
    let mut frame = [0; HEAD_BYTES + 4];
    frame[..HEAD_BYTES].copy_from_slice(&head(4, class, KIND_CREDIT));
    frame[HEAD_BYTES..].copy_from_slice(&bytes.to_le_bytes());
    frame
}

/// A checked head: the kind and the payload length in bytes.
fn check(bytes: &[u8], class: Class) -> Result<Option<(u8, usize)>, FrameError> {
    let Ok((head, _)) = FrameHead::read_from_prefix(bytes) else { return Ok(None) };
    let length = head.length.get();
    let most = payload_max(class);
    if length > most {
        return Err(FrameError::Oversized { length, most });
    }
    let want = class_index(class);
    if head.class != want {
        return Err(FrameError::WrongClass { got: head.class, want });
    }
    if head.zero != U16::ZERO {
        return Err(FrameError::Reserved { value: head.zero.get() });
    }
    let good = match head.kind {
        KIND_DATA => true,
        KIND_HEARTBEAT => usize::try_from(length) == Ok(BEAT_BYTES),
        KIND_CREDIT => length == 4,
        kind => return Err(FrameError::UnknownKind { kind }),
    };
    if !good {
        return Err(FrameError::ControlLength { kind: head.kind, length });
    }
    Ok(Some((head.kind, usize::try_from(length).expect("a u32 fits usize on x86-64"))))
}

/// Collects the bytes of one stream and cuts them into frames. Its memory is fixed.
#[derive(Debug)]
pub struct Decoder {
    class: Class,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Decoder {
    /// An empty decoder for the stream of `class`.
    #[must_use]
    pub fn new(class: Class) -> Self {
        let bytes = HOT_BYTES + class.frame_bytes_max() + HEAD_BYTES;
        Self { class, buffer: vec![0; bytes].into_boxed_slice(), start: 0, end: 0 }
    }

    /// Room for the next read; empty when whole frames must be taken first.
    pub fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let mut most = self.useful();
        if most < self.end + ROOM_MIN && self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            most = self.useful();
        }
        &mut self.buffer[self.end..most]
    }

    /// Where reading ends: behind the frame that is half here, or at the end of what is kept hot.
    fn useful(&self) -> usize {
        let held = &self.buffer[self.start..self.end];
        // What is wrong is found when the frame is taken.
        let half =
            check(held, self.class).ok().flatten().map_or(0, |(_, length)| length + HEAD_BYTES);
        (self.start + half).max(HOT_BYTES).max(self.end).min(self.buffer.len())
    }

    /// Says that `count` bytes were put into [`Self::room`].
    pub fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.buffer.len());
    }

    /// Takes the next whole frame, if there is one.
    ///
    /// # Errors
    /// The head breaks the format; the stream cannot go on after that.
    pub fn next_frame(&mut self) -> Result<Option<Received<'_>>, FrameError> {
        let held = &self.buffer[self.start..self.end];
        let Some((kind, length)) = check(held, self.class)? else { return Ok(None) };
        if held.len() < HEAD_BYTES + length {
            return Ok(None);
        }
        let payload = &held[HEAD_BYTES..HEAD_BYTES + length];
        self.start += HEAD_BYTES + length;
        Ok(Some(match kind {
            KIND_DATA => Received::Data(payload),
            KIND_HEARTBEAT => {
                Received::Heartbeat(Beat::read_from_bytes(payload).unwrap_or_default())
            }
            _ => Received::Credit(payload.iter().rev().fold(0, |sum, b| sum << 8 | u32::from(*b))),
        }))
    }

    /// The payload's length of a data frame that is only half here, and what is here of the payload.
    pub(crate) fn half_frame(&self) -> Option<(usize, &[u8])> {
        let held = &self.buffer[self.start..self.end];
        let (kind, length) = check(held, self.class).ok()??;
        let here = held.get(HEAD_BYTES..).filter(|here| here.len() < length)?;
        (kind == KIND_DATA).then_some((length, here))
    }

    /// Forgets what is here of that frame: the rest of it is not put into [`Self::room`].
    pub(crate) fn drop_half(&mut self) {
        self.start = self.end;
    }

    /// Whether `next_frame` has something to say (a frame or an error).
    #[must_use]
    pub fn has_frame(&self) -> bool {
        let held = &self.buffer[self.start..self.end];
        match check(held, self.class) {
            Ok(Some((_, length))) => held.len() >= HEAD_BYTES + length,
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Whether the stream stopped inside a frame.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.start != self.end
    }
}

/// What a frame of `length` payload bytes costs of the window.
pub(crate) fn cost(length: u32) -> u32 {
    length + HEAD_BYTES_U32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn feed(
        decoder: &mut Decoder,
        mut bytes: &[u8],
        step: usize,
    ) -> Vec<Result<Vec<u8>, FrameError>> {
        let mut seen = Vec::new();
        while !bytes.is_empty() {
            let room = decoder.room();
            let count = bytes.len().min(step).min(room.len());
            room[..count].copy_from_slice(&bytes[..count]);
            decoder.filled(count);
            bytes = &bytes[count..];
            loop {
                match decoder.next_frame() {
                    Ok(Some(Received::Data(data))) => seen.push(Ok(data.to_vec())),
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(error) => {
                        seen.push(Err(error));
                        return seen;
                    }
                }
            }
        }
        seen
    }

    #[test]
    fn oversized_length_is_refused_by_name() {
        let mut bytes = data_head(0, Class::Bulk);
        bytes[..4].copy_from_slice(&u32::MAX.to_le_bytes());

        let seen = feed(&mut Decoder::new(Class::Bulk), &bytes, 1);

        assert_eq!(seen, vec![Err(FrameError::Oversized { length: u32::MAX, most: 64 * 1024 })]);
    }

    #[test]
    fn frame_of_another_class_is_refused() {
        let bytes = heartbeat(Class::Bulk, Beat::default());

        let seen = feed(&mut Decoder::new(Class::Interrupt), &bytes, 8);

        assert_eq!(seen, vec![Err(FrameError::WrongClass { got: 3, want: 0 })]);
    }

    #[test]
    fn heartbeat_of_another_length_is_refused() {
        for length in [0, 8, 15, 17] {
            let bytes = head(length, Class::Bulk, KIND_HEARTBEAT);
            let seen = feed(&mut Decoder::new(Class::Bulk), &bytes, 8);
            assert_eq!(seen, vec![Err(FrameError::ControlLength { kind: 1, length })]);
        }
    }

    #[test]
    fn beats_say_the_latest_of_both() {
        let both = Beat::new(3, 9).and(Beat::new(4, 0));
        assert_eq!((both.stamp(), both.echo()), (4, 9));
    }

    #[test]
    fn credit_frame_round_trips() {
        let mut decoder = Decoder::new(Class::Bulk);
        let bytes = credit(Class::Bulk, 0x0102_0304);
        decoder.room()[..bytes.len()].copy_from_slice(&bytes);
        decoder.filled(bytes.len());

        assert_eq!(decoder.next_frame(), Ok(Some(Received::Credit(0x0102_0304))));
        assert_eq!(decoder.next_frame(), Ok(None));
    }

    #[test]
    fn half_a_frame_is_seen_and_dropped() {
        let mut decoder = Decoder::new(Class::Bulk);
        let mut bytes = data_head(100, Class::Bulk).to_vec();
        bytes.extend([7; 30]);
        for (count, half) in [(5, None), (8, Some(0)), (38, Some(30))] {
            let mut decoder = Decoder::new(Class::Bulk);
            decoder.room()[..count].copy_from_slice(&bytes[..count]);
            decoder.filled(count);
            assert_eq!(decoder.half_frame().map(|(_, here)| here.len()), half);
        }
        decoder.room()[..38].copy_from_slice(&bytes);
        decoder.filled(38);
        decoder.drop_half();
        assert!(!decoder.is_partial() && decoder.half_frame().is_none());
        let beat = Beat::new(7, u64::MAX);
        let next = heartbeat(Class::Bulk, beat);
        decoder.room()[..next.len()].copy_from_slice(&next);
        decoder.filled(next.len());
        assert_eq!(decoder.next_frame(), Ok(Some(Received::Heartbeat(beat))));
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut(
            sizes in prop::collection::vec(0u32..=payload_max(Class::Run), 0..12),
            step in 1usize..200_000,
        ) {
            let mut bytes = Vec::new();
            let mut sent = Vec::new();
            for (index, size) in sizes.iter().enumerate() {
                let fill = u8::try_from(index).unwrap();
                let payload = vec![fill; usize::try_from(*size).unwrap()];
                bytes.extend_from_slice(&data_head(*size, Class::Run));
                bytes.extend_from_slice(&payload);
                sent.push(Ok(payload));
            }

            let seen = feed(&mut Decoder::new(Class::Run), &bytes, step);

            prop_assert_eq!(seen, sent);
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..4096), step in 1usize..512) {
            let _ = feed(&mut Decoder::new(Class::Interrupt), &bytes, step);
        }
    }
}
