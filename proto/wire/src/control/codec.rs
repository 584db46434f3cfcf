//! Control frames as bytes.

use super::event::{decode_event, event_code};
use super::frames::{
    CLOSED_DEVICE_BYTES_MAX, COORDINATOR_STATE_BYTES_MAX, Control, DeviceCall, EndCause,
    QUEUE_STATE_BYTES_MAX, SUMMONS_BYTES_MAX, SliceLoad, Space,
};
use super::handover::VcpuMessage;
use super::{change, checkpoint, cut, handover};
use crate::{Epoch, SliceId, VcpuId};
use std::borrow::Cow;
use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most bytes of a report.
pub const REPORT_BYTES_MAX: usize = 60 * 1024;
const HEAD_BYTES: usize = 32;

/// Why bytes are not a control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ControlError {
    /// Too short, or longer than the kind allows.
    #[error("decode a control frame: {0} bytes do not fit its kind")]
    Length(usize),
    /// A kind that this version does not know.
    #[error("decode a control frame: unknown kind {0}")]
    Kind(u8),
    /// A field outside its range.
    #[error("decode a control frame of kind {kind}: field {field} is out of range")]
    Field {
        /// The kind.
        kind: u8,
        /// The field.
        field: &'static str,
    },
    /// From another epoch.
    #[error("decode a control frame: it is of {0}")]
    Epoch(Epoch),
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    kind: u8,
    event: u8,
    vector: u8,
    length: u8,
    epoch: U32,
    id: U64,
    address: U64,
    data: U64,
}

const _: () = assert!(size_of::<Head>() == HEAD_BYTES);

impl Head {
    /// The fields of a change.
    fn change(&self) -> change::Fields {
        let Self { event, vector, length, address, data, .. } = self;
        change::Fields {
            event: *event,
            vector: *vector,
            length: *length,
            address: address.get(),
            data: data.get(),
        }
    }
}

/// Kinds on the wire. Their numbers never change meaning.
mod kind {
    pub(super) const INTERRUPT: u8 = 1;
    pub(super) const CALL: u8 = 2;
    pub(super) const ANSWER: u8 = 3;
    pub(super) const END_OF_INTERRUPT: u8 = 4;
    pub(super) const WANT_END: u8 = 5;
    pub(super) const ASK_REPORT: u8 = 6;
    pub(super) const REPORT: u8 = 7;
    pub(super) const END: u8 = 8;
    pub(super) const APPLY: u8 = 9;
    pub(super) const APPLIED: u8 = 10;
    pub(super) const BROKEN: u8 = 11;
    pub(super) const DOORBELL: u8 = 12;
    pub(super) const WANT_STOP: u8 = 13;
    pub(super) const CLOCK_PING: u8 = 14;
    pub(super) const CLOCK_PONG: u8 = 15;
    pub(super) const CLOCK_STEP: u8 = 16;
    pub(super) const END_SEEN: u8 = 17;
    pub(super) const CUT: u8 = 18;
    pub(super) const HANDOVER: u8 = 19;
    pub(super) const PULL: u8 = 20;
    pub(super) const PULLED: u8 = 21;
    pub(super) const QUEUE_STATE: u8 = 22;
    pub(super) const COORDINATOR_STATE: u8 = 23;
    pub(super) const WANT_LEAVE: u8 = 24;
    pub(super) const LEAVE_REFUSED: u8 = 25;
    pub(super) const SUMMONS: u8 = 26;
    pub(super) const MET: u8 = 27;
    pub(super) const CLOSED_DEVICE: u8 = 28;
    pub(super) const CHECKPOINT: u8 = 29;
    pub(super) const ASK_LOAD: u8 = 30;
    pub(super) const LOAD: u8 = 31;
}

impl Control {
    /// Number of this kind.
    fn kind(&self) -> u8 {
        match self {
            Self::Vcpu { message: VcpuMessage::Event(_), .. } => kind::INTERRUPT,
            Self::Vcpu { .. } => kind::HANDOVER,
            Self::Call(_) => kind::CALL,
            Self::Answer { .. } => kind::ANSWER,
            Self::EndOfInterrupt { .. } => kind::END_OF_INTERRUPT,
            Self::WantEnd(_) => kind::WANT_END,
            Self::WantStop => kind::WANT_STOP,
            Self::EndSeen => kind::END_SEEN,
            Self::ClockPing { .. } => kind::CLOCK_PING,
            Self::ClockPong { .. } => kind::CLOCK_PONG,
            Self::ClockStep { .. } => kind::CLOCK_STEP,
            Self::AskReport => kind::ASK_REPORT,
            Self::Report(_) => kind::REPORT,
            Self::AskLoad => kind::ASK_LOAD,
            Self::Load(_) => kind::LOAD,
            Self::End(_) => kind::END,
            Self::Apply { .. } => kind::APPLY,
            Self::Applied { .. } => kind::APPLIED,
            Self::Broken { .. } => kind::BROKEN,
            Self::Doorbell { .. } => kind::DOORBELL,
            Self::QueueState { .. } => kind::QUEUE_STATE,
            Self::Cut(_) => kind::CUT,
            Self::Checkpoint(_) => kind::CHECKPOINT,
            Self::Pull { .. } => kind::PULL,
            Self::Pulled { .. } => kind::PULLED,
            Self::CoordinatorState(_) => kind::COORDINATOR_STATE,
            Self::WantLeave => kind::WANT_LEAVE,
            Self::LeaveRefused(_) => kind::LEAVE_REFUSED,
            Self::Summons { .. } => kind::SUMMONS,
            Self::Met { .. } => kind::MET,
            Self::ClosedDevice { .. } => kind::CLOSED_DEVICE,
        }
    }

    /// The frame's bytes.
    #[must_use]
    pub fn encode(&self, epoch: Epoch) -> Vec<u8> {
        let mut head = Head { epoch: epoch.0.into(), ..Head::default() };
        let mut tail: Cow<'_, [u8]> = Cow::Borrowed(&[]);
        head.kind = self.kind();
        match self {
            Self::Vcpu { vcpu, message } => {
                head.id = u64::from(vcpu.0).into();
                tail = encode_vcpu(message, &mut head);
            }
            Self::Call(call) => encode_call(*call, &mut head),
            Self::Answer { id, data } => {
                head.id = (*id).into();
                head.data = (*data).into();
            }
            Self::EndOfInterrupt { vector } => head.vector = *vector,
            Self::WantEnd(cause) | Self::End(cause) => {
                head.event = cause_code(*cause);
            }
            Self::ClockPing { .. }
            | Self::ClockPong { .. }
            | Self::ClockStep { .. }
            | Self::Load(_) => encode_numbers(self, &mut head),
            Self::Summons { id, bytes } => {
                head.id = (*id).into();
                tail = Cow::Borrowed(bytes);
            }
            Self::Report(bytes) | Self::CoordinatorState(bytes) => {
                tail = Cow::Borrowed(bytes);
            }
            Self::Apply { sequence, change } => {
                head.id = (*sequence).into();
                let fields = change::encode(*change);
                (head.event, head.vector, head.length) =
                    (fields.event, fields.vector, fields.length);
                (head.address, head.data) = (fields.address.into(), fields.data.into());
            }
            Self::Applied { sequence } => head.id = (*sequence).into(),
            Self::Broken { .. }
            | Self::Doorbell { .. }
            | Self::QueueState { .. }
            | Self::ClosedDevice { .. } => tail = Cow::Borrowed(encode_device(self, &mut head)),
            Self::Cut(message) => {
                let (fields, bytes) = cut::encode(message);
                (head.event, head.vector) = (fields.variant, fields.step);
                (head.length, head.id) = (fields.has_counts, fields.number.into());
                head.address = fields.about.into();
                tail = Cow::Owned(bytes);
            }
            Self::Checkpoint(message) => {
                tail = Cow::Borrowed(encode_checkpoint(message, &mut head));
            }
            Self::Pull { id, from, first, frames } => {
                [head.vector, head.length] = from.0.to_le_bytes();
                (head.id, head.address, head.data) =
                    ((*id).into(), (*first).into(), (*frames).into());
            }
            Self::Pulled { id, failure } => {
                head.id = (*id).into();
                tail = Cow::Borrowed(cut::shortened(failure).as_bytes());
            }
            Self::LeaveRefused(why) => tail = Cow::Borrowed(cut::shortened(why).as_bytes()),
            Self::Met { id, slice, failure } => {
                head.id = (*id).into();
                head.address = u64::from(slice.0).into();
                tail = Cow::Borrowed(cut::shortened(failure).as_bytes());
            }
            Self::WantStop | Self::EndSeen | Self::AskReport | Self::AskLoad | Self::WantLeave => {}
        }
        [head.as_bytes(), &tail].concat()
    }

    /// Reads a frame of this epoch.
    ///
    /// # Errors
    /// Any byte string that is not exactly one frame of this version and epoch.
    pub fn decode(epoch: Epoch, bytes: &[u8]) -> Result<Self, ControlError> {
        let (head, tail) =
            Head::read_from_prefix(bytes).map_err(|_| ControlError::Length(bytes.len()))?;
        if tail.len() > tail_bytes_max(head.kind) {
            return Err(ControlError::Length(bytes.len()));
        }
        if head.epoch.get() != epoch.0 {
            return Err(ControlError::Epoch(Epoch(head.epoch.get())));
        }
        let field = |field| ControlError::Field { kind: head.kind, field };
        let vcpu = || u32::try_from(head.id.get()).map(VcpuId).map_err(|_| field("vcpu"));
        let cause = || decode_cause(head.event).ok_or_else(|| field("cause"));
        Ok(match head.kind {
            kind::INTERRUPT => {
                let event = decode_event(head.event, head.vector).ok_or_else(|| field("event"))?;
                Self::Vcpu { vcpu: vcpu()?, message: VcpuMessage::Event(event) }
            }
            kind::HANDOVER => {
                let (event, variant) = ((head.event, head.vector), head.length);
                let fields =
                    handover::Fields::new(event, variant, head.address.get(), head.data.get());
                let vcpu = vcpu()?;
                let message = handover::decode(vcpu, fields, tail).map_err(field)?;
                Self::Vcpu { vcpu, message }
            }
            kind::CALL => Self::Call(decode_call(&head).ok_or_else(|| field("call"))?),
            kind::ANSWER => Self::Answer { id: head.id.get(), data: head.data.get() },
            kind::END_OF_INTERRUPT => Self::EndOfInterrupt { vector: head.vector },
            kind::WANT_END => Self::WantEnd(cause()?),
            kind::CLOCK_PING | kind::CLOCK_PONG | kind::CLOCK_STEP | kind::LOAD => {
                decode_numbers(&head)
            }
            kind::WANT_STOP => Self::WantStop,
            kind::END_SEEN => Self::EndSeen,
            kind::ASK_REPORT => Self::AskReport,
            kind::REPORT => Self::Report(tail.to_vec()),
            kind::ASK_LOAD => Self::AskLoad,
            kind::END => Self::End(cause()?),
            kind::APPLY => Self::Apply {
                sequence: head.id.get(),
                change: change::decode(head.change()).ok_or_else(|| field("change"))?,
            },
            kind::APPLIED => Self::Applied { sequence: head.id.get() },
            kind::BROKEN | kind::DOORBELL | kind::QUEUE_STATE | kind::CLOSED_DEVICE => {
                decode_device(&head, tail).map_err(field)?
            }
            kind::CUT => Self::Cut(decode_cut(&head, tail).map_err(field)?),
            kind::CHECKPOINT => decode_checkpoint(&head, tail).map_err(field)?,
            kind::PULL | kind::PULLED => decode_pull(&head, tail).map_err(field)?,
            kind::COORDINATOR_STATE => Self::CoordinatorState(tail.to_vec()),
            kind::WANT_LEAVE => Self::WantLeave,
            kind::LEAVE_REFUSED => Self::LeaveRefused(text(tail).ok_or_else(|| field("why"))?),
            kind::SUMMONS => Self::Summons { id: head.id.get(), bytes: tail.to_vec() },
            kind::MET => Self::Met {
                id: head.id.get(),
                slice: SliceId(small(head.address).ok_or_else(|| field("slice"))?),
                failure: text(tail).ok_or_else(|| field("failure"))?,
            },
            other => return Err(ControlError::Kind(other)),
        })
    }
}

/// How many bytes may follow the head.
fn tail_bytes_max(kind: u8) -> usize {
    match kind {
        kind::REPORT => REPORT_BYTES_MAX,
        kind::CUT => cut::TAIL_BYTES_MAX,
        kind::HANDOVER => handover::VCPU_STATE_BYTES_MAX,
        kind::PULLED | kind::LEAVE_REFUSED | kind::MET => cut::CAUSE_BYTES_MAX,
        kind::SUMMONS => SUMMONS_BYTES_MAX,
        kind::CHECKPOINT => checkpoint::CHECKPOINT_BYTES_MAX,
        kind::COORDINATOR_STATE => COORDINATOR_STATE_BYTES_MAX,
        kind::QUEUE_STATE => QUEUE_STATE_BYTES_MAX,
        kind::CLOSED_DEVICE => CLOSED_DEVICE_BYTES_MAX,
        _ => 0,
    }
}

fn encode_vcpu<'a>(message: &'a handover::VcpuFrame, head: &mut Head) -> Cow<'a, [u8]> {
    if let VcpuMessage::Event(event) = message {
        (head.event, head.vector) = event_code(*event);
    }
    let Some((fields, tail)) = handover::encode(message) else { return Cow::Borrowed(&[]) };
    (head.event, head.vector) = fields.event;
    (head.length, head.address, head.data) =
        (fields.variant, fields.number.into(), fields.data().into());
    tail
}

fn encode_call(call: DeviceCall, head: &mut Head) {
    head.id = call.id.into();
    head.event = u8::from(call.write) | u8::from(call.space == Space::Memory) << 1;
    head.length = call.length;
    head.address = call.address.into();
    head.data = call.data.into();
}

/// A frame about the clock, or what vCPUs have done: numbers, and any will do.
fn encode_numbers(frame: &Control, head: &mut Head) {
    match frame {
        Control::ClockPing { id } => head.id = (*id).into(),
        Control::ClockPong { id, ticks, stepped } => {
            (head.id, head.data, head.address) = ((*id).into(), (*ticks).into(), (*stepped).into());
        }
        Control::ClockStep { sum } => head.data = (*sum).into(),
        Control::Load(SliceLoad { run_us, delayed_us, waited_us }) => {
            (head.id, head.address, head.data) =
                ((*run_us).into(), (*delayed_us).into(), (*waited_us).into());
        }
        _ => {}
    }
}

/// Such a frame.
fn decode_numbers(head: &Head) -> Control {
    let (id, address, data) = (head.id.get(), head.address.get(), head.data.get());
    match head.kind {
        kind::CLOCK_PING => Control::ClockPing { id },
        kind::CLOCK_PONG => Control::ClockPong { id, ticks: data, stepped: address },
        kind::LOAD => Control::Load(SliceLoad { run_us: id, delayed_us: address, waited_us: data }),
        _ => Control::ClockStep { sum: data },
    }
}

/// A frame about one device or one of its queues; what is behind the head.
fn encode_device<'a>(frame: &'a Control, head: &mut Head) -> &'a [u8] {
    let (device, queue, id, tail) = match frame {
        Control::Broken { device } => (*device, 0, 0, &[][..]),
        Control::Doorbell { device, queue } => (*device, *queue, 0, &[][..]),
        Control::QueueState { device, queue, placement, state } => {
            (*device, *queue, u64::from(placement.0), &state[..])
        }
        Control::ClosedDevice { device, cut, state } => (*device, 0, *cut, &state[..]),
        _ => return &[],
    };
    (head.id, head.address, head.data) =
        (id.into(), u64::from(device).into(), u64::from(queue).into());
    tail
}

/// Such a frame, or the name of the field that cannot be.
fn decode_device(head: &Head, tail: &[u8]) -> Result<Control, &'static str> {
    let device = small(head.address).ok_or("device")?;
    let queue = || small(head.data).ok_or("queue");
    let (cut, state) = (head.id.get(), tail.to_vec());
    Ok(match head.kind {
        kind::BROKEN => Control::Broken { device },
        kind::DOORBELL => Control::Doorbell { device, queue: queue()? },
        kind::CLOSED_DEVICE => Control::ClosedDevice { device, cut, state },
        _ => {
            let placement = u32::try_from(head.id.get()).map(Epoch).map_err(|_| "placement")?;
            Control::QueueState { device, queue: queue()?, placement, state }
        }
    })
}

fn decode_cut(head: &Head, tail: &[u8]) -> Result<cut::CutMessage, &'static str> {
    let fields = cut::Fields {
        variant: head.event,
        step: head.vector,
        has_counts: head.length,
        number: head.id.get(),
        about: head.address.get(),
    };
    cut::decode(fields, tail)
}

fn encode_checkpoint<'a>(message: &'a checkpoint::CheckpointMessage, head: &mut Head) -> &'a [u8] {
    let (variant, number, tail) = checkpoint::encode(message);
    (head.event, head.id) = (variant, number.into());
    tail
}

fn decode_checkpoint(head: &Head, tail: &[u8]) -> Result<Control, &'static str> {
    checkpoint::decode(head.event, head.id.get(), tail).map(Control::Checkpoint)
}

fn decode_call(head: &Head) -> Option<DeviceCall> {
    let valid = matches!(head.length, 1 | 2 | 4 | 8) && head.event < 4;
    let space = if head.event & 2 == 0 { Space::Port } else { Space::Memory };
    let port = space == Space::Memory || head.address.get() <= u64::from(u16::MAX);
    (valid && port).then_some(DeviceCall {
        id: head.id.get(),
        space,
        write: head.event & 1 != 0,
        address: head.address.get(),
        length: head.length,
        data: head.data.get(),
    })
}

/// A frame about pages that go home, or the name of the field that cannot be.
fn decode_pull(head: &Head, tail: &[u8]) -> Result<Control, &'static str> {
    let id = head.id.get();
    if head.kind == kind::PULLED {
        return Ok(Control::Pulled { id, failure: text(tail).ok_or("failure")? });
    }
    let from = SliceId(u16::from_le_bytes([head.vector, head.length]));
    Ok(Control::Pull { id, from, first: head.address.get(), frames: head.data.get() })
}

/// A text for people.
fn text(tail: &[u8]) -> Option<String> {
    std::str::from_utf8(tail).ok().map(str::to_owned)
}

/// A number of 16 bits.
fn small(value: U64) -> Option<u16> {
    u16::try_from(value.get()).ok()
}

fn cause_code(cause: EndCause) -> u8 {
    match cause {
        EndCause::PowerOff => 0,
        EndCause::Reset => 1,
        EndCause::GuestPanic => 2,
        EndCause::Failure => 3,
        EndCause::TimeLimit => 4,
        EndCause::Stopped => 5,
        EndCause::Saved => 6,
        EndCause::Overtaken => 7,
    }
}

fn decode_cause(code: u8) -> Option<EndCause> {
    match code {
        0 => Some(EndCause::PowerOff),
        1 => Some(EndCause::Reset),
        2 => Some(EndCause::GuestPanic),
        3 => Some(EndCause::Failure),
        4 => Some(EndCause::TimeLimit),
        5 => Some(EndCause::Stopped),
        6 => Some(EndCause::Saved),
        7 => Some(EndCause::Overtaken),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::InterruptEvent;

    const EPOCH: Epoch = Epoch(7);

    fn queue_state(state: Vec<u8>) -> Control {
        Control::QueueState { device: 3, queue: 128, placement: Epoch(u32::MAX), state }
    }

    #[test]
    fn decode_of_encode_gives_the_frame() {
        let call = DeviceCall {
            id: 9,
            space: Space::Memory,
            write: true,
            address: 0xfec0_0010,
            length: 4,
            data: 0x1_0000,
        };
        let frames = [
            Control::Vcpu {
                vcpu: VcpuId(3),
                message: VcpuMessage::Event(InterruptEvent::Startup(0x9a)),
            },
            Control::Vcpu { vcpu: VcpuId(3), message: VcpuMessage::State(4, vec![1, 2]) },
            Control::Call(call),
            Control::Answer { id: 9, data: u64::MAX },
            Control::EndOfInterrupt { vector: 0x31 },
            Control::WantEnd(EndCause::GuestPanic),
            Control::WantStop,
            Control::EndSeen,
            Control::ClockPing { id: 3 },
            Control::ClockPong { id: 3, ticks: u64::MAX, stepped: 7 },
            Control::ClockStep { sum: 1 << 40 },
            Control::End(EndCause::Stopped),
            Control::AskReport,
            Control::Report(b"{}".to_vec()),
            Control::AskLoad,
            Control::Load(SliceLoad { run_us: u64::MAX, delayed_us: 1 << 40, waited_us: 3 }),
            Control::End(EndCause::PowerOff),
            Control::Apply {
                sequence: 7,
                change: change::OrderedChange::Write { address: 0xe000_0004, length: 2, data: 6 },
            },
            Control::Applied { sequence: 8 },
            Control::Broken { device: 3 },
            Control::Doorbell { device: 1, queue: 2 },
            queue_state(Vec::new()),
            queue_state(vec![7; QUEUE_STATE_BYTES_MAX]),
            Control::Cut(cut::CutMessage::Failed(3, "no".into())),
            Control::Checkpoint(checkpoint::CheckpointMessage::Failed(3, "no".into())),
            Control::Pull { id: 4, from: SliceId(0x102), first: 1 << 40, frames: 512 },
            Control::Pulled { id: 4, failure: String::new() },
            Control::Pulled { id: 5, failure: "the pages have not come".into() },
            Control::CoordinatorState(vec![7; COORDINATOR_STATE_BYTES_MAX]),
            Control::WantLeave,
            Control::LeaveRefused("a page is there still".into()),
            Control::Summons { id: 3, bytes: vec![7; SUMMONS_BYTES_MAX] },
            Control::Met {
                id: u64::MAX,
                slice: SliceId(u16::MAX),
                failure: "nobody listens".into(),
            },
            Control::ClosedDevice {
                device: 3,
                cut: 1 << 40,
                state: vec![7; CLOSED_DEVICE_BYTES_MAX],
            },
        ];

        for frame in frames {
            assert_eq!(Control::decode(EPOCH, &frame.encode(EPOCH)), Ok(frame));
        }
    }

    #[test]
    fn decode_of_another_epoch_is_refused() {
        let bytes = Control::AskReport.encode(Epoch(6));

        assert_eq!(Control::decode(EPOCH, &bytes), Err(ControlError::Epoch(Epoch(6))));
    }

    #[test]
    fn decode_with_bytes_behind_the_head_is_refused() {
        let mut bytes = Control::AskReport.encode(EPOCH);
        bytes.push(0);

        assert_eq!(Control::decode(EPOCH, &bytes), Err(ControlError::Length(33)));
    }

    #[test]
    fn state_of_a_queue_that_cannot_be_is_refused() {
        let bytes = queue_state(vec![7; QUEUE_STATE_BYTES_MAX + 1]).encode(EPOCH);
        assert_eq!(Control::decode(EPOCH, &bytes), Err(ControlError::Length(bytes.len())));
        for (at, name) in [(18, "device"), (26, "queue"), (12, "placement")] {
            let mut bytes = queue_state(vec![7]).encode(EPOCH);
            bytes[at] = 1;
            let field = ControlError::Field { kind: kind::QUEUE_STATE, field: name };
            assert_eq!(Control::decode(EPOCH, &bytes), Err(field));
        }
    }
}
