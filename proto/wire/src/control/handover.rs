//! What slices tell each other about one vCPU, and its bytes.
//!
//! ```text
//! head: 1 event | 2 vector | 3 variant | 8 vCPU u64 | 16 number of the move u64
//!       24 source, or the slice that is named, u16 | 26 target u16 | 28 epoch u32
//! behind it: the state of the vCPU, or the text of a failure
//! ```
//! What arrives at a vCPU has a kind of its own, with `event`, `vector` and the vCPU alone.

use super::cut::CAUSE_BYTES_MAX;
use super::event::{InterruptEvent, decode_event, event_code};
use crate::{Epoch, SliceId, VcpuId};
use std::borrow::Cow;

/// The most bytes of the state of a vCPU.
pub const VCPU_STATE_BYTES_MAX: usize = 60 * 1024;

/// One move of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Move {
    /// Counts the moves that were begun, of any vCPU.
    pub number: u64,
    /// The vCPU.
    pub vcpu: VcpuId,
    /// Where it runs.
    pub from: SliceId,
    /// Where it is to run.
    pub to: SliceId,
}

/// What slices tell each other about one vCPU. `E` is what arrives at a vCPU, `S` its saved state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum VcpuMessage<E, S> {
    /// To the target: can you take it?
    Prepare(Move),
    /// To the coordinator: yes.
    Ready(u64),
    /// To the source: stop it and send its state to the target.
    Stop(Move),
    /// To the target: its state.
    State(u64, S),
    /// To the coordinator: it is restored.
    Installed(u64),
    /// To the coordinator, from source or target: this cannot be done, and why.
    Failed(u64, String),
    /// To the target: the move is given up.
    Discard(u64),
    /// To the source: the move is given up, it runs on.
    Resume(u64),
    /// To all: the placement of this epoch is in force, in which the vCPU is at the target.
    Flip(Move, Epoch),
    /// To the source: the sender knows of the flip.
    Marker(u64),
    /// To the target: the marker of this slice has come here.
    MarkerOf(u64, SliceId),
    /// To the coordinator: all markers have come.
    Settled(u64),
    /// Something for the vCPU, from a slice that takes the receiver for its place.
    Event(E),
    /// Something for the vCPU that went to its former place, and who sent it.
    Straggler(SliceId, E),
}

impl<E, S> VcpuMessage<E, S> {
    /// Its name, for errors.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Prepare(_) => "Prepare",
            Self::Ready(_) => "Ready",
            Self::Stop(_) => "Stop",
            Self::State(..) => "State",
            Self::Installed(_) => "Installed",
            Self::Failed(..) => "Failed",
            Self::Discard(_) => "Discard",
            Self::Resume(_) => "Resume",
            Self::Flip(..) => "Flip",
            Self::Marker(_) => "Marker",
            Self::MarkerOf(..) => "MarkerOf",
            Self::Settled(_) => "Settled",
            Self::Event(_) => "Event",
            Self::Straggler(..) => "Straggler",
        }
    }

    /// Whether the coordinator sends it.
    #[must_use]
    pub fn is_of_coordinator(&self) -> bool {
        matches!(
            self,
            Self::Prepare(_) | Self::Stop(_) | Self::Discard(_) | Self::Resume(_) | Self::Flip(..)
        )
    }

    /// Whether it is for the coordinator.
    #[must_use]
    pub fn is_for_coordinator(&self) -> bool {
        matches!(self, Self::Ready(_) | Self::Installed(_) | Self::Settled(_) | Self::Failed(..))
    }
}

/// What goes over the wire.
pub(super) type VcpuFrame = VcpuMessage<InterruptEvent, Vec<u8>>;

/// Fields of the head, but for the vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) event: (u8, u8),
    pub(super) variant: u8,
    pub(super) number: u64,
    pub(super) slices: [u16; 2],
    pub(super) epoch: u32,
}

impl Fields {
    fn of(variant: u8, number: u64) -> Self {
        Self { variant, number, ..Self::default() }
    }

    fn of_move(variant: u8, one: Move) -> Self {
        Self { slices: [one.from.0, one.to.0], ..Self::of(variant, one.number) }
    }

    /// The last eight bytes of the head.
    pub(super) fn data(self) -> u64 {
        let [from, to] = self.slices.map(u64::from);
        from | to << 16 | u64::from(self.epoch) << 32
    }

    /// The fields from those of a head.
    pub(super) fn new(event: (u8, u8), variant: u8, number: u64, data: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = data.to_le_bytes();
        let slices = [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])];
        Self { event, variant, number, slices, epoch: u32::from_le_bytes([e, f, g, h]) }
    }
}

/// The fields, and what is behind the head. None for an event, which has a kind of its own. A text that is too long is cut.
pub(super) fn encode(message: &VcpuFrame) -> Option<(Fields, Cow<'_, [u8]>)> {
    let mut tail: &[u8] = &[];
    let fields = match message {
        VcpuMessage::Event(_) => return None,
        VcpuMessage::Prepare(one) => Fields::of_move(0, *one),
        VcpuMessage::Ready(number) => Fields::of(1, *number),
        VcpuMessage::Stop(one) => Fields::of_move(2, *one),
        VcpuMessage::State(number, state) => {
            tail = state;
            Fields::of(3, *number)
        }
        VcpuMessage::Installed(number) => Fields::of(4, *number),
        VcpuMessage::Failed(number, why) => {
            tail = &why.as_bytes()[..why.floor_char_boundary(CAUSE_BYTES_MAX)];
            Fields::of(5, *number)
        }
        VcpuMessage::Discard(number) => Fields::of(6, *number),
        VcpuMessage::Resume(number) => Fields::of(7, *number),
        VcpuMessage::Flip(one, epoch) => Fields { epoch: epoch.0, ..Fields::of_move(8, *one) },
        VcpuMessage::Marker(number) => Fields::of(9, *number),
        VcpuMessage::MarkerOf(number, slice) => {
            Fields { slices: [slice.0, 0], ..Fields::of(10, *number) }
        }
        VcpuMessage::Settled(number) => Fields::of(11, *number),
        VcpuMessage::Straggler(slice, event) => {
            Fields { slices: [slice.0, 0], event: event_code(*event), ..Fields::of(12, 0) }
        }
    };
    Some((fields, Cow::Borrowed(tail)))
}

/// The message, or the name of the field that cannot be.
pub(super) fn decode(vcpu: VcpuId, fields: Fields, tail: &[u8]) -> Result<VcpuFrame, &'static str> {
    let Fields { event: (event, vector), variant, number, slices, epoch } = fields;
    let [from, to] = slices.map(SliceId);
    let one = Move { number, vcpu, from, to };
    let message = match variant {
        0 => VcpuMessage::Prepare(one),
        1 => VcpuMessage::Ready(number),
        2 => VcpuMessage::Stop(one),
        3 if tail.len() > VCPU_STATE_BYTES_MAX => return Err("state"),
        3 => return Ok(VcpuMessage::State(number, tail.to_vec())),
        4 => VcpuMessage::Installed(number),
        5 if tail.len() > CAUSE_BYTES_MAX => return Err("cause"),
        5 => {
            let why = std::str::from_utf8(tail).map_err(|_| "cause")?;
            return Ok(VcpuMessage::Failed(number, why.to_owned()));
        }
        6 => VcpuMessage::Discard(number),
        7 => VcpuMessage::Resume(number),
        8 => VcpuMessage::Flip(one, Epoch(epoch)),
        9 => VcpuMessage::Marker(number),
        10 => VcpuMessage::MarkerOf(number, from),
        11 => VcpuMessage::Settled(number),
        12 => VcpuMessage::Straggler(from, decode_event(event, vector).ok_or("event")?),
        _ => return Err("variant"),
    };
    if tail.is_empty() { Ok(message) } else { Err("tail") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VCPU: VcpuId = VcpuId(3);

    fn back(message: &VcpuFrame) -> Result<VcpuFrame, &'static str> {
        let (fields, tail) = encode(message).unwrap();
        let same = Fields::new(fields.event, fields.variant, fields.number, fields.data());
        assert_eq!(same, fields);
        decode(VCPU, fields, &tail)
    }

    #[test]
    fn decode_of_encode_gives_the_message() {
        let one = Move { number: u64::MAX, vcpu: VCPU, from: SliceId(0), to: SliceId(0xfffe) };
        for message in [
            VcpuMessage::Prepare(one),
            VcpuMessage::Ready(1),
            VcpuMessage::Stop(one),
            VcpuMessage::State(7, vec![1; VCPU_STATE_BYTES_MAX]),
            VcpuMessage::State(7, Vec::new()),
            VcpuMessage::Installed(2),
            VcpuMessage::Failed(2, "a page – too late".into()),
            VcpuMessage::Discard(3),
            VcpuMessage::Resume(4),
            VcpuMessage::Flip(one, Epoch(u32::MAX)),
            VcpuMessage::Marker(5),
            VcpuMessage::MarkerOf(6, SliceId(9)),
            VcpuMessage::Settled(8),
            VcpuMessage::Straggler(SliceId(2), InterruptEvent::Startup(0x9a)),
        ] {
            assert_eq!(back(&message), Ok(message));
        }
        assert_eq!(encode(&VcpuMessage::Event(InterruptEvent::Nmi)), None);
    }

    #[test]
    fn long_cause_is_cut_between_characters() {
        let message = VcpuMessage::Failed(1, "é".repeat(CAUSE_BYTES_MAX));
        assert_eq!(back(&message), Ok(VcpuMessage::Failed(1, "é".repeat(CAUSE_BYTES_MAX / 2))));
    }

    #[test]
    fn fields_that_cannot_be_are_refused() {
        let of = |variant| Fields::of(variant, 1);
        let unknown = Fields { event: (1, 0), ..of(12) };
        for (fields, tail, what) in [
            (of(13), &[][..], "variant"),
            (of(0), &[0], "tail"),
            (of(3), &[0; VCPU_STATE_BYTES_MAX + 1], "state"),
            (of(5), &[0xff], "cause"),
            (of(5), &[b'a'; CAUSE_BYTES_MAX + 1], "cause"),
            (unknown, &[], "event"),
        ] {
            assert_eq!(decode(VCPU, fields, tail), Err(what));
        }
    }
}
