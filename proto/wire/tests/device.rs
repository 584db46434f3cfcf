//! The codec of device frames: each frame survives the wire, no bytes make it panic, and what it
//! accepts it would have written the same way.

use proptest::collection::vec;
use proptest::prelude::*;
use tessera_wire::control::{Control, ControlError};
use tessera_wire::device::{
    Agreed, DeviceError, DeviceFrame, DiskAsk, DiskStatus, HEAD_BYTES, KIND_MIN, MESSAGE_BYTES_MAX,
    PART_BYTES_MAX, Part, is_device_frame, join_packets, split_packets,
};
use tessera_wire::{DeviceId, Epoch};

const EPOCH: Epoch = Epoch(0x0102_0304);

fn ask() -> impl Strategy<Value = DiskAsk> {
    let wide = any::<u64>;
    prop_oneof![
        Just(DiskAsk::Flush),
        wide().prop_map(|sector| DiskAsk::Read { sector }),
        wide().prop_map(|sector| DiskAsk::Write { sector }),
        (wide(), wide()).prop_map(|(sector, sectors)| DiskAsk::Discard { sector, sectors }),
        (wide(), wide(), any::<bool>()).prop_map(|(sector, sectors, unmap)| DiskAsk::WriteZeroes {
            sector,
            sectors,
            unmap
        }),
    ]
}

fn part() -> impl Strategy<Value = Part> {
    (any::<u16>(), any::<u16>(), any::<u64>(), 0..1000_u32, 1..1000_u32).prop_map(
        |(device, queue, tag, offset, total)| Part {
            device: DeviceId(device),
            queue,
            tag,
            offset,
            total,
        },
    )
}

/// Checks one frame whose part is made to fit the bytes.
fn survives(frame: &DeviceFrame<'_>) -> Result<(), TestCaseError> {
    let bytes = frame.encode(EPOCH);
    prop_assert!(is_device_frame(&bytes));
    prop_assert!(matches!(Control::decode(EPOCH, &bytes[..32]), Err(ControlError::Kind(_))));
    prop_assert_eq!(DeviceFrame::decode(EPOCH, &bytes), Ok(*frame));
    let other = DeviceFrame::decode(Epoch(1), &bytes);
    prop_assert_eq!(other, Err(DeviceError::Epoch(EPOCH)));
    Ok(())
}

/// Heads that get past the first checks often enough to reach all of them.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let small = || prop_oneof![Just(0_u32), 0..64_u32, any::<u32>()];
    let wide = || prop_oneof![Just(0_u64), any::<u64>()];
    let head = (KIND_MIN..KIND_MIN + 9, 0_u8..7, any::<[u8; 2]>(), wide(), 0_u32..4);
    let rest = (small(), small(), small(), wide(), wide(), vec(any::<u8>(), 0..64));
    (head, rest).prop_map(|((kind, code, device, tag, queue), rest)| {
        let (offset, total, count, wide, wider, tail) = rest;
        let mut bytes = vec![kind, code, device[0], device[1]];
        bytes.extend_from_slice(&EPOCH.0.to_le_bytes());
        bytes.extend_from_slice(&tag.to_le_bytes());
        for field in [queue, offset, total, count] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes.extend_from_slice(&wide.to_le_bytes());
        bytes.extend_from_slice(&wider.to_le_bytes());
        bytes.extend_from_slice(&tail);
        bytes
    })
}

proptest! {
    #[test]
    fn frame_with_a_part_survives_the_wire(
        part in part(),
        ask in ask(),
        connection in any::<u32>(),
        bytes in vec(any::<u8>(), 1..600),
    ) {
        let whole = part.offset.max(part.total) + 600;
        let with = Part { total: whole, ..part };
        let bare = Part { offset: 0, total: 0, ..part };
        let bytes = &bytes[..];
        match ask {
            DiskAsk::Write { .. } => survives(&DeviceFrame::DiskRequest { part: with, ask, bytes })?,
            DiskAsk::Read { .. } => {
                let part = Part { offset: 0, ..with };
                survives(&DeviceFrame::DiskRequest { part, ask, bytes: &[] })?;
            }
            _ => survives(&DeviceFrame::DiskRequest { part: bare, ask, bytes: &[] })?,
        }
        survives(&DeviceFrame::DiskReply { part: with, status: DiskStatus::Done, bytes })?;
        for status in [DiskStatus::Done, DiskStatus::Failed, DiskStatus::Unsupported] {
            survives(&DeviceFrame::DiskReply { part: bare, status, bytes: &[] })?;
        }
        survives(&DeviceFrame::PacketsOut { part: with, bytes })?;
        survives(&DeviceFrame::PacketsIn { part: with, connection, bytes })?;
    }

    #[test]
    fn frame_without_a_part_survives_the_wire(
        (device, queue, tag) in (any::<u16>(), any::<u16>(), any::<u64>()),
        (connection, packets) in (any::<u32>(), 1..=u32::MAX),
        (features, pairs, on) in (any::<u64>(), 1..=u16::MAX, any::<bool>()),
    ) {
        let device = DeviceId(device);
        survives(&DeviceFrame::PacketsDone { device, queue, tag })?;
        survives(&DeviceFrame::Allow { device, queue, connection, packets })?;
        let agreed = on.then_some(Agreed { features, pairs });
        survives(&DeviceFrame::Connect { device, connection, agreed })?;
    }

    #[test]
    fn decode_of_arbitrary_bytes_never_panics(bytes in vec(any::<u8>(), 0..200)) {
        let _ = DeviceFrame::decode(EPOCH, &bytes);
    }

    #[test]
    fn decode_of_a_plausible_head_gives_what_would_be_written(bytes in plausible()) {
        if let Ok(frame) = DeviceFrame::decode(EPOCH, &bytes) {
            prop_assert_eq!(frame.encode(EPOCH), bytes);
        }
    }

    #[test]
    fn decode_of_a_cut_head_is_refused(bytes in plausible(), cut in 0..HEAD_BYTES) {
        prop_assert!(DeviceFrame::decode(EPOCH, &bytes[..cut]).is_err());
    }

    #[test]
    fn list_of_packets_survives_and_no_bytes_panic(
        packets in vec(vec(any::<u8>(), 1..100), 0..20),
        junk in vec(any::<u8>(), 0..100),
    ) {
        let list = join_packets(&packets);
        prop_assert_eq!(split_packets(&list, 100), Ok(packets.clone()));
        if let Some(longest) = packets.iter().map(Vec::len).max() {
            prop_assert!(split_packets(&list, longest - 1).is_err());
            prop_assert!(split_packets(&list[..list.len() - 1], 100).is_err());
        }
        if let Ok(packets) = split_packets(&junk, 100) {
            prop_assert_eq!(join_packets(&packets), junk);
        }
    }
}

#[test]
fn part_beyond_its_message_is_refused() {
    let part = Part { offset: 8, total: 9, ..Part::default() };
    let frame = DeviceFrame::PacketsOut { part, bytes: &[1, 2] };
    let refused = DeviceError::Field { kind: KIND_MIN + 2, field: "offset" };

    assert_eq!(DeviceFrame::decode(EPOCH, &frame.encode(EPOCH)), Err(refused));
}

#[test]
fn message_or_frame_above_its_bound_is_refused() {
    let total = u32::try_from(MESSAGE_BYTES_MAX + 1).expect("4 MiB");
    let long = DeviceFrame::PacketsOut { part: Part { total, ..Part::default() }, bytes: &[1] };
    let refused = DeviceError::Field { kind: KIND_MIN + 2, field: "total" };
    assert_eq!(DeviceFrame::decode(EPOCH, &long.encode(EPOCH)), Err(refused));

    let bytes = vec![0; PART_BYTES_MAX + 1];
    let part = Part { total: total - 1, ..Part::default() };
    let fat = DeviceFrame::PacketsOut { part, bytes: &bytes };
    let length = HEAD_BYTES + PART_BYTES_MAX + 1;
    assert_eq!(DeviceFrame::decode(EPOCH, &fat.encode(EPOCH)), Err(DeviceError::Length(length)));
}
