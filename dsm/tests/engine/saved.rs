//! Engines at rest, and the forms of their nodes.

use crate::support::{Saved, Silent, Slice, over_shm, saved, start, start_from, stop};
use dsm_protocol::saved::{FrameRuns, NodeState};
use migrate::saved::{decode, encode};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::thread::scope;
use tessera_dsm::{GuestRam, Memory, NodeConfig, Replicate};
use wire::{Gfn, VcpuId};

const FRAMES: u64 = 1024;
const ROOT: u64 = 3;

#[test]
fn uffd_engines_come_to_rest_and_go_on() {
    let slices = start(FRAMES, Memory::default(), Replicate::KernelTables, |_| Box::new(Silent));
    let Some(slices) = slices else { return };
    for (vcpu, slice) in (0..).zip(&slices) {
        slice.handle.set_root(VcpuId(vcpu), Gfn(ROOT));
    }
    let frames = [5, FRAMES / 2 + 5, FRAMES - 1];
    // The kernel's half of a root, to which entries are only added.
    let entries = [(301, 8 << 12 | 0x63), (302, 9 << 12 | 0x63), (303, 10 << 12 | 0x63)];
    for (round, (index, entry)) in (1..).zip(entries) {
        scope(|threads| {
            for slice in &slices {
                threads.spawn(move || {
                    for frame in frames {
                        slice.word(frame, 1).fetch_add(round, Ordering::SeqCst);
                    }
                });
            }
        });
        // A table that both have: the last change is only in this slice's replica until it comes to rest.
        let _ = slices[1].word(ROOT, index).load(Ordering::SeqCst);
        slices[0].word(ROOT, index).store(entry, Ordering::SeqCst);

        let states = saved(&slices);

        let home = &states[0];
        assert!(home.replicas.iter().any(|replica| replica.page == Gfn(ROOT)), "{home:?}");
        let kept: u64 = home.keepers().iter().map(|(_, frames)| frames.pages()).sum();
        assert_eq!(kept, FRAMES / 2);
        for state in &states {
            assert_eq!(decode::<NodeState>(&encode(state).unwrap()).unwrap(), *state);
        }
        // What a slice has not got until it rests, both have then.
        assert_eq!(slices[1].word(ROOT, index).load(Ordering::SeqCst), entry);
        slices.iter().for_each(|slice| slice.handle.go_on());
    }
    for slice in &slices {
        for frame in frames {
            assert_eq!(slice.word(frame, 1).load(Ordering::SeqCst), 2 * (1 + 2 + 3));
        }
    }
    stop(slices);
}

type Image = BTreeMap<Gfn, Vec<u8>>;

/// Each page that is not all zeros, from the slice that has the truth about it.
fn image(slices: &[Slice; 2], states: &[NodeState]) -> Image {
    let keepers = states.iter().flat_map(NodeState::keepers);
    let pages = keepers.flat_map(|(keeper, frames): (_, FrameRuns)| {
        let ram = &slices[usize::from(keeper.0)].ram;
        let page = |gfn| {
            let mut bytes = vec![0; 4096];
            ram.read(gfn, 0, &mut bytes);
            (gfn, bytes)
        };
        frames.frames().map(page).collect::<Vec<_>>()
    });
    pages.filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0)).collect()
}

/// Pages that the node has get their contents. All others get bytes that nobody may ever see.
fn fill(image: &Image, ram: &GuestRam, state: &NodeState) {
    for gfn in (0..FRAMES).map(Gfn) {
        let is_replica = state.replicas.iter().any(|replica| replica.page == gfn);
        if is_replica || state.shared.contains(gfn) || state.exclusive.contains(gfn) {
            if let Some(bytes) = image.get(&gfn) {
                ram.write(gfn, 0, bytes);
            }
        } else {
            ram.write(gfn, 0, &[0xee; 4096]);
        }
    }
}

fn restored(slices: [Slice; 2], memory: Memory) -> [Slice; 2] {
    let states = saved(&slices);
    let image = image(&slices, &states);
    stop(slices);
    let configure = |node: &mut NodeConfig| {
        node.replicate = Replicate::KernelTables;
        // Messages of the time before must not count.
        node.epoch = wire::Epoch(states[0].epoch.0 + 1);
    };
    let fill = |ram: &GuestRam, state: &NodeState| fill(&image, ram, state);
    let from: Saved<'_> = (&states, &fill);
    start_from(FRAMES, memory, configure, |_| Box::new(Silent), over_shm, Some(from)).unwrap()
}

/// Private chunks, shared ones, pages of either home at either slice, read by both, and a replica: all are as before, a
/// page that is not here comes from where it is, and readers see what the other one stores.
#[test]
fn uffd_new_engines_go_on_from_saved_nodes() {
    for memory in [Memory::Memfd, Memory::MemfdPrealloc, Memory::Anonymous] {
        let slices = start(FRAMES, memory, Replicate::KernelTables, |_| Box::new(Silent));
        let Some(mut slices) = slices else { return };
        let frames: Vec<u64> = (4..FRAMES).step_by(37).collect();
        let mut sums = vec![0; frames.len()];
        for round in 0..3_u64 {
            for (vcpu, slice) in (0..).zip(&slices) {
                slice.handle.set_root(VcpuId(vcpu), Gfn(ROOT));
            }
            let entry = (round + 8) << 12 | 0x63;
            let index = 301 + usize::try_from(round).unwrap();
            let _ = slices[1].word(ROOT, index).load(Ordering::SeqCst);
            slices[0].word(ROOT, index).store(entry, Ordering::SeqCst);
            for (at, frame) in frames.iter().enumerate() {
                // Which slice stores, and whether the other one reads, goes through all cases.
                let case = at + usize::try_from(round).unwrap();
                let (writer, reader) = (&slices[case % 2], &slices[1 - case % 2]);
                writer.word(*frame, 5).fetch_add(round + 1, Ordering::SeqCst);
                sums[at] += round + 1;
                if case % 3 == 0 {
                    assert_eq!(reader.word(*frame, 5).load(Ordering::SeqCst), sums[at]);
                }
            }

            slices = restored(slices, memory);

            assert_eq!(slices[1].word(ROOT, index).load(Ordering::SeqCst), entry);
            for (at, frame) in frames.iter().enumerate().filter(|(at, _)| at % 2 == 0) {
                for slice in &slices {
                    assert_eq!(slice.word(*frame, 5).load(Ordering::SeqCst), sums[at], "{memory}");
                }
            }
        }
        for (at, frame) in frames.iter().enumerate() {
            for slice in &slices {
                slice.word(*frame, 5).fetch_add(1, Ordering::SeqCst);
            }
            let sum = slices[0].word(*frame, 5).load(Ordering::SeqCst);
            assert_eq!(sum, sums[at] + 2, "frame {frame} of {memory}");
        }
        stop(slices);
    }
}
