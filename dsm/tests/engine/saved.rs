//! Engines at rest, and the forms of their nodes.

use crate::support::{LIMIT, Silent, Slice, start, stop};
use dsm_protocol::saved::{NodeState, check_all};
use migrate::saved::{decode, encode};
use std::sync::atomic::Ordering;
use std::thread::scope;
use std::time::Instant;
use tessera_dsm::{Memory, Replicate};
use wire::{Gfn, VcpuId};

const FRAMES: u64 = 1024;
const ROOT: u64 = 3;

/// Brings both to rest and saves both, again while a message of one has not come to the other.
fn saved(slices: &[Slice; 2]) -> Vec<NodeState> {
    for slice in slices {
        slice.handle.rest(LIMIT).unwrap();
    }
    let end = Instant::now() + LIMIT;
    loop {
        let states = slices.iter().map(|slice| slice.handle.save(LIMIT).unwrap());
        let states: Vec<NodeState> = states.collect();
        match check_all(&states) {
            Ok(()) => return states,
            Err(disagreement) => assert!(Instant::now() < end, "{disagreement}"),
        }
    }
}

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
