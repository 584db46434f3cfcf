//! A slice that says anything: nothing panics, and another slice is served as before.

use super::{EPOCH, OWNER, PATIENCE, World};
use crate::back_end::{Disk, DiskReply, DiskRequest, MemoryDisk, NicShape, cable};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;
use wire::device::{Agreed, DeviceFrame, DiskAsk, DiskStatus, Part};
use wire::{DeviceId, SliceId};

const DISK: DeviceId = DeviceId(0);
const NIC: DeviceId = DeviceId(1);
const SECTORS: u64 = 64;
const BAD: SliceId = SliceId(1);
const GOOD: SliceId = SliceId(2);

/// What a frame is made of; small numbers, so that frames often fit together.
#[derive(Clone, Debug)]
struct Words {
    kind: u8,
    part: Part,
    wide: u64,
    wider: u64,
    small: u32,
    bytes: Vec<u8>,
}

fn words() -> impl Strategy<Value = Words> {
    let offset = || prop_oneof![Just(0_u32), 0..40_u32, any::<u32>()];
    let wide = || prop_oneof![0..SECTORS + 2, any::<u64>()];
    let total = prop_oneof![0..40_u32, Just(512), Just(4 << 20), any::<u32>()];
    let part = (0..3_u16, 0..4_u16, 0..3_u64, offset(), total).prop_map(
        |(device, queue, tag, offset, total)| {
            let device = DeviceId(device);
            Part { device, queue, tag, offset, total }
        },
    );
    (0..12_u8, part, wide(), wide(), 0..4_u32, vec(any::<u8>(), 0..40)).prop_map(
        |(kind, part, wide, wider, small, bytes)| Words { kind, part, wide, wider, small, bytes },
    )
}

impl Words {
    fn frame(&self) -> DeviceFrame<'_> {
        let Self { part, wide, wider, small, .. } = *self;
        let bytes = &self.bytes[..];
        let (device, queue, tag, connection) = (part.device, part.queue, part.tag, small);
        let ask = |ask| DeviceFrame::DiskRequest { part, ask, bytes };
        match self.kind {
            0 => ask(DiskAsk::Read { sector: wide }),
            1 | 2 => ask(DiskAsk::Write { sector: wide }),
            3 => ask(DiskAsk::Discard { sector: wide, sectors: wider }),
            4 => ask(DiskAsk::WriteZeroes { sector: wide, sectors: wider, unmap: small > 1 }),
            5 => ask(DiskAsk::Flush),
            6 => DeviceFrame::DiskReply { part, status: DiskStatus::Done, bytes },
            7 => DeviceFrame::PacketsOut { part, bytes },
            8 => DeviceFrame::PacketsDone { device, queue, tag },
            9 => DeviceFrame::PacketsIn { part, connection, bytes },
            10 => DeviceFrame::Allow {
                device,
                queue,
                connection,
                packets: wider.to_le_bytes()[0].into(),
            },
            _ => {
                let agreed = (small > 0).then_some(Agreed { features: wide, pairs: queue });
                DeviceFrame::Connect { device, connection, agreed }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn anything_that_a_slice_says_harms_no_other(said in vec(words(), 1..60)) {
        let mut world = World::new(said.len() as u64);
        let below = Arc::new(MemoryDisk::new(SECTORS));
        let (shape, disk) = (MemoryDisk::new(SECTORS).shape(), Arc::<MemoryDisk>::clone(&below));
        world.slice(OWNER).serve_disk(DISK, disk, 1).expect("a thread");
        let nic_shape = NicShape { mac: [2; 6], mtu: 1500, pairs: 2, offloads: 0 };
        let (_far, near) = cable(&nic_shape);
        let _local = world.slice(OWNER).serve_nic(NIC, near).expect("a thread");
        let disk = world.slice(GOOD).remote_disk(DISK, OWNER, shape, 1);
        let _nic = world.slice(GOOD).remote_nic(NIC, OWNER, nic_shape);

        for words in &said {
            let bytes = words.frame().encode(EPOCH);
            // It may be refused, at the slice with the devices and at the one that uses them.
            let _ = world.slice(OWNER).frame(BAD, &bytes);
            let _ = world.slice(GOOD).frame(BAD, &bytes);
        }
        let (sender, replies) = channel();
        for request in [
            DiskRequest::Write { sector: 3, data: vec![7; 512] },
            DiskRequest::Flush,
        ] {
            let sender = sender.clone();
            disk.submit(request, Box::new(move |reply| drop(sender.send(reply))));
        }
        let start = Instant::now();
        for _ in 0..2 {
            let reply = loop {
                if let Ok(reply) = replies.try_recv() {
                    break reply;
                }
                prop_assert!(start.elapsed() < PATIENCE, "the good slice is not answered");
                // The bad slice does not listen.
                world.post.ways.lock().unwrap().remove(&(OWNER, BAD));
                if !world.deliver().expect("a good slice") {
                    thread::yield_now();
                }
            };
            prop_assert_eq!(reply, DiskReply::Done(Vec::new()));
        }
        prop_assert_eq!(below.contents().len() as u64, SECTORS * 512);
    }
}
