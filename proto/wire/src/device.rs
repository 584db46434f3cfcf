//! Frames of delegated devices: what a front end on one slice and a back end on another say.
//!
//! A frame is a 48-byte little-endian head and the bytes of one part of a message. Kinds start at
//! 64, so that the first byte tells these frames from control frames. `docs/protocol/devices.md` says
//! who sends what and when.
//!
//! ```text
//! 0 kind | 1 code | 2 device u16 | 4 epoch u32 | 8 tag u64 | 16 queue u16 | 18 zero u16
//! 20 offset u32 | 24 total u32 | 28 count u32 | 32 wide u64 | 40 wider u64 | 48 bytes
//! ```
//!
//! A message whose bytes do not fit one frame travels in parts: the same head with a growing offset.
//! Parts of one message follow each other in order, and no other part comes between them.

use crate::{DeviceId, Epoch};
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

mod packets;

pub use packets::{PacketsError, count_packets, join_packets, packets_bytes, split_packets};

/// Bytes of a frame's head.
pub const HEAD_BYTES: usize = 48;
/// Most bytes of a frame with its head: as many as the transport takes.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;
/// Most bytes of a part.
pub const PART_BYTES_MAX: usize = FRAME_BYTES_MAX - HEAD_BYTES;
/// Most bytes of a message, all parts together.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// The first kind. Lower ones are control frames.
pub const KIND_MIN: u8 = 64;

/// Where some bytes belong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Part {
    /// The device.
    pub device: DeviceId,
    /// The queue pair of a network device; 0 for disks.
    pub queue: u16,
    /// The message, as its sender counts; a reply repeats the tag of its request.
    pub tag: u64,
    /// Where these bytes start in the message.
    pub offset: u32,
    /// Bytes of the whole message. A read has no bytes: it says here how many it wants.
    pub total: u32,
}

/// What is asked of a disk. Sectors are of 512 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiskAsk {
    /// Send `total` bytes from this sector on.
    Read {
        /// First sector.
        sector: u64,
    },
    /// Write the message's bytes from this sector on.
    Write {
        /// First sector.
        sector: u64,
    },
    /// Make durable what was answered before.
    Flush,
    /// Contents are not needed.
    Discard {
        /// First sector.
        sector: u64,
        /// Number of sectors.
        sectors: u64,
    },
    /// Reads give zeros from here on.
    WriteZeroes {
        /// First sector.
        sector: u64,
        /// Number of sectors.
        sectors: u64,
        /// Room may be given back.
        unmap: bool,
    },
}

/// How a request of a disk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiskStatus {
    /// Done; the message's bytes are what was read.
    Done,
    /// Failed.
    Failed,
    /// The disk cannot do that.
    Unsupported,
}

/// A frame about a delegated device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFrame<'a> {
    /// To the slice with the disk.
    DiskRequest {
        /// Where `bytes` belong.
        part: Part,
        /// What is asked. The same in all parts.
        ask: DiskAsk,
        /// Bytes of a write.
        bytes: &'a [u8],
    },
    /// To the slice with the front end.
    DiskReply {
        /// Where `bytes` belong.
        part: Part,
        /// How it ended. The same in all parts.
        status: DiskStatus,
        /// Bytes of a read.
        bytes: &'a [u8],
    },
    /// To the slice with the network: packets of one queue pair, as [`join_packets`] writes them.
    PacketsOut {
        /// Where `bytes` belong.
        part: Part,
        /// Bytes of the list.
        bytes: &'a [u8],
    },
    /// To the slice with the front end: the packets of that tag have left.
    PacketsDone {
        /// The device.
        device: DeviceId,
        /// The queue pair.
        queue: u16,
        /// The tag.
        tag: u64,
    },
    /// To the slice with the front end: packets for the guest.
    PacketsIn {
        /// Where `bytes` belong.
        part: Part,
        /// The connection that allowed them.
        connection: u32,
        /// Bytes of the list.
        bytes: &'a [u8],
    },
    /// To the slice with the network: so many more packets may come.
    Allow {
        /// The device.
        device: DeviceId,
        /// The queue pair.
        queue: u16,
        /// The connection.
        connection: u32,
        /// How many more, at least one.
        packets: u32,
    },
    /// To the slice with the network: the guest has agreed to features, or has gone.
    Connect {
        /// The device.
        device: DeviceId,
        /// Numbers the connections of this sender, upwards.
        connection: u32,
        /// `VIRTIO_NET_F_*` and queue pairs; nothing ends the connection.
        agreed: Option<Agreed>,
    },
}

/// What a network's front end has agreed on with its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Agreed {
    /// Feature bits of virtio.
    pub features: u64,
    /// Queue pairs in use, at least one.
    pub pairs: u16,
}

/// Why bytes are not a frame of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// Too short, too long, or not what the head says.
    #[error("decode a device frame: {0} bytes do not fit its head")]
    Length(usize),
    /// A kind that this version does not know.
    #[error("decode a device frame: unknown kind {0}")]
    Kind(u8),
    /// A field outside its range.
    #[error("decode a device frame of kind {kind}: field {field} is out of range")]
    Field {
        /// The kind.
        kind: u8,
        /// The field.
        field: &'static str,
    },
    /// From another epoch.
    #[error("decode a device frame: it is of {0}")]
    Epoch(Epoch),
}

#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
struct Head {
    kind: u8,
    code: u8,
    device: U16,
    epoch: U32,
    tag: U64,
    queue: U16,
    zero: U16,
    offset: U32,
    total: U32,
    count: U32,
    wide: U64,
    wider: U64,
}

const _: () = assert!(size_of::<Head>() == HEAD_BYTES);

/// Kinds on the wire. Their numbers never change meaning.
mod kind {
    pub(super) const DISK_REQUEST: u8 = crate::device::KIND_MIN;
    pub(super) const DISK_REPLY: u8 = 65;
    pub(super) const PACKETS_OUT: u8 = 66;
    pub(super) const PACKETS_DONE: u8 = 67;
    pub(super) const PACKETS_IN: u8 = 68;
    pub(super) const ALLOW: u8 = 69;
    pub(super) const CONNECT: u8 = 70;
}

/// True when a frame is one of these and not a control frame.
#[must_use]
pub fn is_device_frame(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|kind| *kind >= KIND_MIN)
}

impl<'a> DeviceFrame<'a> {
    /// The device that it is about.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        match *self {
            Self::DiskRequest { part, .. }
            | Self::DiskReply { part, .. }
            | Self::PacketsOut { part, .. }
            | Self::PacketsIn { part, .. } => part.device,
            Self::PacketsDone { device, .. }
            | Self::Allow { device, .. }
            | Self::Connect { device, .. } => device,
        }
    }

    /// The frame's bytes. The caller keeps part and bytes within their bounds.
    #[must_use]
    pub fn encode(&self, epoch: Epoch) -> Vec<u8> {
        let (mut head, bytes) = self.to_head();
        head.epoch = epoch.0.into();
        let mut frame = Vec::with_capacity(HEAD_BYTES + bytes.len());
        frame.extend_from_slice(head.as_bytes());
        frame.extend_from_slice(bytes);
        frame
    }

    fn to_head(self) -> (Head, &'a [u8]) {
        match self {
            Self::DiskRequest { part, ask, bytes } => {
                let mut head = part_head(kind::DISK_REQUEST, part);
                let (code, sector, sectors) = ask_code(ask);
                (head.code, head.wide, head.wider) = (code, sector.into(), sectors.into());
                (head, bytes)
            }
            Self::DiskReply { part, status, bytes } => {
                let head = part_head(kind::DISK_REPLY, part);
                (Head { code: status_code(status), ..head }, bytes)
            }
            Self::PacketsOut { part, bytes } => (part_head(kind::PACKETS_OUT, part), bytes),
            Self::PacketsIn { part, connection, bytes } => {
                let head = part_head(kind::PACKETS_IN, part);
                (Head { count: connection.into(), ..head }, bytes)
            }
            Self::PacketsDone { device, queue, tag } => {
                let part = Part { device, queue, tag, ..Part::default() };
                (part_head(kind::PACKETS_DONE, part), &[])
            }
            Self::Allow { device, queue, connection, packets } => {
                let head = part_head(kind::ALLOW, Part { device, queue, ..Part::default() });
                (Head { count: connection.into(), wide: u64::from(packets).into(), ..head }, &[])
            }
            Self::Connect { device, connection, agreed } => {
                let queue = agreed.map_or(0, |agreed| agreed.pairs);
                let head = part_head(kind::CONNECT, Part { device, queue, ..Part::default() });
                let wide = agreed.map_or(0, |agreed| agreed.features).into();
                let code = u8::from(agreed.is_some());
                (Head { code, count: connection.into(), wide, ..head }, &[])
            }
        }
    }

    /// Reads a frame of this epoch.
    ///
    /// # Errors
    /// Any byte string that is not exactly one frame of this version and epoch, as
    /// [`DeviceFrame::encode`] writes it. Fields that a kind does not use are zero.
    pub fn decode(epoch: Epoch, bytes: &'a [u8]) -> Result<Self, DeviceError> {
        let (head, tail) =
            Head::read_from_prefix(bytes).map_err(|_| DeviceError::Length(bytes.len()))?;
        if bytes.len() > FRAME_BYTES_MAX {
            return Err(DeviceError::Length(bytes.len()));
        }
        if head.epoch.get() != epoch.0 {
            return Err(DeviceError::Epoch(Epoch(head.epoch.get())));
        }
        let frame = from_head(&head, tail)?;
        let (mut again, body) = frame.to_head();
        again.epoch = head.epoch;
        if again != head {
            return Err(DeviceError::Field { kind: head.kind, field: "unused" });
        }
        if body.len() != tail.len() {
            return Err(DeviceError::Length(bytes.len()));
        }
        Ok(frame)
    }
}

fn part_head(kind: u8, part: Part) -> Head {
    Head {
        kind,
        device: part.device.0.into(),
        tag: part.tag.into(),
        queue: part.queue.into(),
        offset: part.offset.into(),
        total: part.total.into(),
        ..Head::default()
    }
}

fn from_head<'a>(head: &Head, tail: &'a [u8]) -> Result<DeviceFrame<'a>, DeviceError> {
    let field = |field| DeviceError::Field { kind: head.kind, field };
    let part = Part {
        device: DeviceId(head.device.get()),
        queue: head.queue.get(),
        tag: head.tag.get(),
        offset: head.offset.get(),
        total: head.total.get(),
    };
    let (device, queue, connection) = (part.device, part.queue, head.count.get());
    Ok(match head.kind {
        kind::DISK_REQUEST => {
            let ask = decode_ask(head).ok_or_else(|| field("code"))?;
            match ask {
                DiskAsk::Write { .. } => check_part(head, tail)?,
                DiskAsk::Read { .. } if total_ok(head) && head.offset.get() == 0 => {}
                _ if head.total.get() == 0 && head.offset.get() == 0 => {}
                _ => return Err(field("total")),
            }
            let bytes = if matches!(ask, DiskAsk::Write { .. }) { tail } else { &[] };
            DeviceFrame::DiskRequest { part, ask, bytes }
        }
        kind::DISK_REPLY => {
            let status = decode_status(head.code).ok_or_else(|| field("code"))?;
            // A reply without bytes has no part.
            if status != DiskStatus::Done || head.total.get() == 0 {
                if head.total.get() != 0 || head.offset.get() != 0 || !tail.is_empty() {
                    return Err(field("total"));
                }
            } else {
                check_part(head, tail)?;
            }
            DeviceFrame::DiskReply { part, status, bytes: tail }
        }
        kind::PACKETS_OUT => {
            check_part(head, tail)?;
            DeviceFrame::PacketsOut { part, bytes: tail }
        }
        kind::PACKETS_IN => {
            check_part(head, tail)?;
            DeviceFrame::PacketsIn { part, connection, bytes: tail }
        }
        kind::PACKETS_DONE => DeviceFrame::PacketsDone { device, queue, tag: part.tag },
        kind::ALLOW => {
            let packets = u32::try_from(head.wide.get()).ok().filter(|packets| *packets > 0);
            let packets = packets.ok_or_else(|| field("packets"))?;
            DeviceFrame::Allow { device, queue, connection, packets }
        }
        kind::CONNECT => {
            let agreed = match (head.code, queue) {
                (0, _) => None,
                (1, pairs) if pairs > 0 => Some(Agreed { features: head.wide.get(), pairs }),
                _ => return Err(field("pairs")),
            };
            DeviceFrame::Connect { device, connection, agreed }
        }
        other => return Err(DeviceError::Kind(other)),
    })
}

/// True when the length of the message is one that a message may have.
fn total_ok(head: &Head) -> bool {
    (1..=MESSAGE_BYTES_MAX).contains(&(head.total.get() as usize))
}

/// The part lies in its message and has bytes.
fn check_part(head: &Head, tail: &[u8]) -> Result<(), DeviceError> {
    if !total_ok(head) {
        return Err(DeviceError::Field { kind: head.kind, field: "total" });
    }
    let end = u64::from(head.offset.get()) + tail.len() as u64;
    if tail.is_empty() || end > u64::from(head.total.get()) {
        return Err(DeviceError::Field { kind: head.kind, field: "offset" });
    }
    Ok(())
}

fn ask_code(ask: DiskAsk) -> (u8, u64, u64) {
    match ask {
        DiskAsk::Read { sector } => (0, sector, 0),
        DiskAsk::Write { sector } => (1, sector, 0),
        DiskAsk::Flush => (2, 0, 0),
        DiskAsk::Discard { sector, sectors } => (3, sector, sectors),
        DiskAsk::WriteZeroes { sector, sectors, unmap } => (4 + u8::from(unmap), sector, sectors),
    }
}

fn decode_ask(head: &Head) -> Option<DiskAsk> {
    let (sector, sectors) = (head.wide.get(), head.wider.get());
    match head.code {
        0 => Some(DiskAsk::Read { sector }),
        1 => Some(DiskAsk::Write { sector }),
        2 => Some(DiskAsk::Flush),
        3 => Some(DiskAsk::Discard { sector, sectors }),
        4 | 5 => Some(DiskAsk::WriteZeroes { sector, sectors, unmap: head.code == 5 }),
        _ => None,
    }
}

fn status_code(status: DiskStatus) -> u8 {
    match status {
        DiskStatus::Done => 0,
        DiskStatus::Failed => 1,
        DiskStatus::Unsupported => 2,
    }
}

fn decode_status(code: u8) -> Option<DiskStatus> {
    match code {
        0 => Some(DiskStatus::Done),
        1 => Some(DiskStatus::Failed),
        2 => Some(DiskStatus::Unsupported),
        _ => None,
    }
}
