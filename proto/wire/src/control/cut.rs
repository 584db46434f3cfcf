//! What slices tell each other about a cut, and its bytes.
//!
//! ```text
//! head: 1 variant | 2 step | 3 whether counts follow | 8 number of the cut | 16 the slice that leaves, joins or is to coordinate u16,
//!       or a device that moves: new place u16, device u16, former place u16, zeros; or the number of a checkpoint
//! behind it: the counts of each peer, 40 bytes each, or the text of a failure
//! counts:    0 peer u16 | 2 zeros | 8 sent: frames u64, messages u64 | 24 received: frames u64, messages u64
//! ```

use crate::{SLICES_MAX, SliceId};
use std::fmt;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most bytes of the text of a failure.
pub const CAUSE_BYTES_MAX: usize = 1024;
/// The most peers that a slice counts.
const PEERS_MAX: usize = SLICES_MAX as usize;

/// The real part of a device goes to another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceMove {
    /// The device, by its number on the bus.
    pub device: u16,
    /// The slice that has it.
    pub from: SliceId,
    /// The slice that is to have it.
    pub to: SliceId,
}

impl DeviceMove {
    fn code(self) -> u64 {
        u64::from(self.to.0) | u64::from(self.device) << 16 | u64::from(self.from.0) << 32
    }

    fn of_code(code: u64) -> Option<Self> {
        let part = |at: u32| u16::try_from(code >> at & 0xffff).ok();
        let (to, device, from) = (part(0)?, part(16)?, part(32)?);
        (code >> 48 == 0).then_some(Self { device, from: SliceId(from), to: SliceId(to) })
    }
}

/// A step of a slice to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CutStep {
    /// Its vCPUs leave the guest, and what they have sent to vCPUs of other slices has left this one.
    Vcpus,
    /// Queues of devices are served no more, and nothing is asked of a back end.
    Queues,
    /// Its device thread makes no change.
    Devices,
    /// Its memory engine begins nothing, and nothing is under way there.
    Memory,
    /// It counts.
    Count,
    /// It looks whether it can do without this slice, which is to leave.
    MayPart(SliceId),
    /// This slice is a member no longer.
    Part(SliceId),
    /// The coordinator sends what this slice, which is to coordinate, must know; that slice looks whether it can.
    MayCoordinate(SliceId),
    /// This slice coordinates.
    Coordinate(SliceId),
    /// It looks whether this slice can join, and takes it into its transport. The newcomer itself: it begins as a slice that
    /// has nothing.
    MayJoin(SliceId),
    /// This slice is a member.
    Join(SliceId),
    /// It looks whether a device may have its real part at another slice.
    MayMove(DeviceMove),
    /// The slice that has it closes it, and tells the other one what it is.
    CloseDevice(DeviceMove),
    /// The other one opens it, and looks whether it is that.
    OpenDevice(DeviceMove),
    /// It is there.
    DeviceMoved(DeviceMove),
    /// It takes its form for the checkpoint of this number, and begins to write its part.
    Capture(u64),
    /// Nobody asks for it: a slice of a VM that is restored says that it is at rest, with all that it had.
    Begin,
}

impl CutStep {
    /// Whether there is no way back once a slice has taken it: the others must take it too, or the VM ends.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(
            self,
            Self::Part(_)
                | Self::Coordinate(_)
                | Self::Join(_)
                | Self::DeviceMoved(_)
                | Self::Begin
        )
    }

    /// Whether slices take it again if what they have sent and received does not agree yet.
    #[must_use]
    pub fn is_repeated(self) -> bool {
        matches!(self, Self::Devices | Self::Memory | Self::Count)
    }

    /// All steps to rest, in their order.
    pub const ALL: [Self; 5] =
        [Self::Vcpus, Self::Queues, Self::Devices, Self::Memory, Self::Count];

    /// The slice that is to leave, to coordinate or to join, the device that moves, or the checkpoint.
    fn about(self) -> u64 {
        match self {
            Self::MayPart(slice)
            | Self::Part(slice)
            | Self::MayCoordinate(slice)
            | Self::Coordinate(slice)
            | Self::MayJoin(slice)
            | Self::Join(slice) => slice.0.into(),
            Self::MayMove(moved)
            | Self::CloseDevice(moved)
            | Self::OpenDevice(moved)
            | Self::DeviceMoved(moved) => moved.code(),
            Self::Capture(number) => number,
            Self::Vcpus
            | Self::Queues
            | Self::Devices
            | Self::Memory
            | Self::Count
            | Self::Begin => 0,
        }
    }
}

impl fmt::Display for CutStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vcpus => "the vCPUs",
            Self::Queues => "the queues",
            Self::Devices => "the devices",
            Self::Memory => "the memory engine",
            Self::Count => "the counts",
            Self::Capture(_) => "its part of the checkpoint",
            Self::Begin => "what was restored",
            Self::MayPart(slice) | Self::Part(slice) => {
                return write!(f, "what it knows of {slice}");
            }
            Self::MayCoordinate(slice) | Self::Coordinate(slice) => {
                return write!(f, "the coordination, which goes to {slice},");
            }
            Self::MayJoin(slice) | Self::Join(slice) => {
                return write!(f, "its part in a VM with {slice}");
            }
            Self::MayMove(moved)
            | Self::CloseDevice(moved)
            | Self::OpenDevice(moved)
            | Self::DeviceMoved(moved) => {
                return write!(f, "device {}, which goes to {},", moved.device, moved.to);
            }
        })
    }
}

/// What went between a slice and another since both have been there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerCounts {
    /// The other.
    pub peer: SliceId,
    /// To it: frames with state of the guest, and messages of the memory engine.
    pub sent: [u64; 2],
    /// From it.
    pub received: [u64; 2],
}

/// What slices tell each other about a cut. All of it has the number of the cut.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CutMessage {
    /// To a slice: take this step. [`CutStep::Devices`] and what follows may come again.
    Take(u64, CutStep),
    /// To the coordinator: the step is taken.
    Taken(u64, CutStep),
    /// To the coordinator: the slice counted, ascending by peer. None: something has come since it rests, and it must rest
    /// once more.
    Counted(u64, Option<Vec<PeerCounts>>),
    /// To the coordinator: the step cannot be taken, and why.
    Failed(u64, String),
    /// To a slice: run again.
    GoOn(u64),
    /// To the coordinator: it runs.
    GoesOn(u64),
    /// To a slice at rest: it is no member any more, nobody will miss it, and it is to end.
    Dismiss(u64),
    /// To the slice that coordinates now, from the one that did: all slices run, and it may begin the next cut.
    HandedOver(u64),
}

impl CutMessage {
    /// The number of its cut.
    #[must_use]
    pub fn number(&self) -> u64 {
        match self {
            Self::Take(number, _)
            | Self::Taken(number, _)
            | Self::Counted(number, _)
            | Self::Failed(number, _)
            | Self::GoOn(number)
            | Self::GoesOn(number)
            | Self::Dismiss(number)
            | Self::HandedOver(number) => *number,
        }
    }

    /// Whether it goes from the coordinator to the part of a slice that rests.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        matches!(self, Self::Take(..) | Self::GoOn(_) | Self::Dismiss(_))
    }
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Counts {
    peer: U16,
    zeros: [u8; 6],
    sent: [U64; 2],
    received: [U64; 2],
}

/// Fields of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) variant: u8,
    pub(super) step: u8,
    pub(super) has_counts: u8,
    pub(super) number: u64,
    /// The slice, the device that moves, or the checkpoint.
    pub(super) about: u64,
}

/// Most bytes behind the head.
pub(super) const TAIL_BYTES_MAX: usize = PEERS_MAX * size_of::<Counts>();

const _: () = assert!(CAUSE_BYTES_MAX <= TAIL_BYTES_MAX);

fn step_code(step: CutStep) -> u8 {
    match step {
        CutStep::Vcpus => 0,
        CutStep::Queues => 1,
        CutStep::Devices => 2,
        CutStep::Memory => 3,
        CutStep::Count => 4,
        CutStep::MayPart(_) => 5,
        CutStep::Part(_) => 6,
        CutStep::MayCoordinate(_) => 7,
        CutStep::Coordinate(_) => 8,
        CutStep::MayJoin(_) => 9,
        CutStep::Join(_) => 10,
        CutStep::MayMove(_) => 11,
        CutStep::CloseDevice(_) => 12,
        CutStep::OpenDevice(_) => 13,
        CutStep::DeviceMoved(_) => 14,
        CutStep::Capture(_) => 15,
        CutStep::Begin => 16,
    }
}

/// The fields, and what is behind the head. A text that is too long is cut.
pub(super) fn encode(message: &CutMessage) -> (Fields, Vec<u8>) {
    let (variant, step, has_counts, tail) = match message {
        CutMessage::Take(_, step) => (0, step_code(*step), 0, Vec::new()),
        CutMessage::Taken(_, step) => (1, step_code(*step), 0, Vec::new()),
        CutMessage::Counted(_, None) => (2, 0, 0, Vec::new()),
        CutMessage::Counted(_, Some(counts)) => (2, 0, 1, encode_counts(counts)),
        CutMessage::Failed(_, why) => (3, 0, 0, shortened(why).as_bytes().to_vec()),
        CutMessage::GoOn(_) => (4, 0, 0, Vec::new()),
        CutMessage::GoesOn(_) => (5, 0, 0, Vec::new()),
        CutMessage::Dismiss(_) => (6, 0, 0, Vec::new()),
        CutMessage::HandedOver(_) => (7, 0, 0, Vec::new()),
    };
    let about = match message {
        CutMessage::Take(_, step) | CutMessage::Taken(_, step) => step.about(),
        _ => 0,
    };
    (Fields { variant, step, has_counts, number: message.number(), about }, tail)
}

/// As much of a text as may be sent.
pub(super) fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(CAUSE_BYTES_MAX)]
}

fn encode_counts(counts: &[PeerCounts]) -> Vec<u8> {
    let encoded = |counts: &PeerCounts| Counts {
        peer: counts.peer.0.into(),
        zeros: [0; 6],
        sent: counts.sent.map(U64::new),
        received: counts.received.map(U64::new),
    };
    let encoded: Vec<Counts> = counts.iter().take(PEERS_MAX).map(encoded).collect();
    encoded.as_slice().as_bytes().to_vec()
}

/// The message, or the name of the field that cannot be.
pub(super) fn decode(fields: Fields, tail: &[u8]) -> Result<CutMessage, &'static str> {
    let Fields { variant, step, has_counts, number, about } = fields;
    let step_of = || step_of(step, about);
    let message = match variant {
        0 => CutMessage::Take(number, step_of()?),
        1 => CutMessage::Taken(number, step_of()?),
        2 if has_counts == 1 => return Ok(CutMessage::Counted(number, Some(decode_counts(tail)?))),
        2 => CutMessage::Counted(number, None),
        3 if tail.len() > CAUSE_BYTES_MAX => return Err("cause"),
        3 => {
            let why = std::str::from_utf8(tail).map_err(|_| "cause")?;
            return Ok(CutMessage::Failed(number, why.to_owned()));
        }
        4 => CutMessage::GoOn(number),
        5 => CutMessage::GoesOn(number),
        6 => CutMessage::Dismiss(number),
        7 => CutMessage::HandedOver(number),
        _ => return Err("variant"),
    };
    if tail.is_empty() { Ok(message) } else { Err("tail") }
}

fn step_of(step: u8, about: u64) -> Result<CutStep, &'static str> {
    let moved = || DeviceMove::of_code(about).ok_or("device");
    match step {
        11 => return Ok(CutStep::MayMove(moved()?)),
        12 => return Ok(CutStep::CloseDevice(moved()?)),
        13 => return Ok(CutStep::OpenDevice(moved()?)),
        14 => return Ok(CutStep::DeviceMoved(moved()?)),
        15 => return Ok(CutStep::Capture(about)),
        16 => return Ok(CutStep::Begin),
        _ => {}
    }
    let slice = SliceId(u16::try_from(about).map_err(|_| "slice")?);
    match step {
        5 => Ok(CutStep::MayPart(slice)),
        6 => Ok(CutStep::Part(slice)),
        7 => Ok(CutStep::MayCoordinate(slice)),
        8 => Ok(CutStep::Coordinate(slice)),
        9 => Ok(CutStep::MayJoin(slice)),
        10 => Ok(CutStep::Join(slice)),
        step => CutStep::ALL.get(usize::from(step)).copied().ok_or("step"),
    }
}

fn decode_counts(tail: &[u8]) -> Result<Vec<PeerCounts>, &'static str> {
    let counts = <[Counts]>::ref_from_bytes(tail).map_err(|_| "counts")?;
    let decoded = |counts: &Counts| PeerCounts {
        peer: SliceId(counts.peer.get()),
        sent: counts.sent.map(U64::get),
        received: counts.received.map(U64::get),
    };
    Ok(counts.iter().map(decoded).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOVED: DeviceMove = DeviceMove { device: 3, from: SliceId(0x102), to: SliceId(u16::MAX) };

    #[test]
    fn decode_of_encode_gives_the_message() {
        let counts = |peer: u16| PeerCounts { peer: SliceId(peer), sent: [1, 2], received: [3, 4] };
        let messages = [
            CutMessage::Take(7, CutStep::Vcpus),
            CutMessage::Taken(u64::MAX, CutStep::Count),
            CutMessage::Counted(7, None),
            CutMessage::Counted(7, Some(Vec::new())),
            CutMessage::Counted(7, Some(vec![counts(0), counts(2)])),
            CutMessage::Failed(7, "vCPU 1 waits for a page – too long".into()),
            CutMessage::GoOn(0),
            CutMessage::GoesOn(1),
            CutMessage::Take(7, CutStep::MayPart(SliceId(2))),
            CutMessage::Taken(7, CutStep::Part(SliceId(u16::MAX))),
            CutMessage::Dismiss(7),
            CutMessage::Take(7, CutStep::MayCoordinate(SliceId(1))),
            CutMessage::Taken(7, CutStep::Coordinate(SliceId(1))),
            CutMessage::HandedOver(7),
            CutMessage::Take(7, CutStep::MayJoin(SliceId(3))),
            CutMessage::Taken(7, CutStep::Join(SliceId(3))),
            CutMessage::Take(7, CutStep::MayMove(MOVED)),
            CutMessage::Taken(7, CutStep::CloseDevice(MOVED)),
            CutMessage::Take(7, CutStep::OpenDevice(MOVED)),
            CutMessage::Take(7, CutStep::DeviceMoved(MOVED)),
            CutMessage::Take(7, CutStep::Capture(u64::MAX)),
            CutMessage::Taken(1, CutStep::Begin),
        ];
        for message in messages {
            let (fields, tail) = encode(&message);
            assert_eq!(decode(fields, &tail), Ok(message));
        }
    }

    #[test]
    fn long_cause_is_cut_between_characters() {
        let (fields, tail) = encode(&CutMessage::Failed(1, "é".repeat(CAUSE_BYTES_MAX)));
        let Ok(CutMessage::Failed(1, why)) = decode(fields, &tail) else { panic!() };
        assert_eq!(why, "é".repeat(CAUSE_BYTES_MAX / 2));
    }

    #[test]
    fn fields_that_cannot_be_are_refused() {
        let good = Fields { variant: 0, step: 0, has_counts: 0, number: 1, about: 0 };
        for (fields, tail, what) in [
            (Fields { step: 17, ..good }, &[][..], "step"),
            (Fields { variant: 8, ..good }, &[], "variant"),
            (Fields { step: 5, about: 1 << 16, ..good }, &[], "slice"),
            (Fields { step: 14, about: 1 << 48, ..good }, &[], "device"),
            (good, &[0], "tail"),
            (Fields { variant: 2, ..good }, &[0; 40], "tail"),
            (Fields { variant: 2, has_counts: 1, ..good }, &[0; 41], "counts"),
            (Fields { variant: 3, ..good }, &[0xff], "cause"),
            (Fields { variant: 3, ..good }, &[b'a'; CAUSE_BYTES_MAX + 1], "cause"),
        ] {
            assert_eq!(decode(fields, tail), Err(what));
        }
    }
}
