//! Forms of a VM of two slices that were not taken from one: what fits is read back, what does not is refused.

use super::*;
use crate::interrupts::saved::{ApicState, KernelApic};
use crate::machine::saved::tests::some_state;
use crate::slice::BOOTSTRAP;
use crate::slice::peripherals::testing::{chipset, devices_state};
use dsm::saved::{Channel, FrameRuns, HolderKind, HoldersState, HomeState, TableScope};
use migrate::saved::encode;
use migrate::{DevicePlace, MemoryPlace, Saved};
use proptest::prelude::*;
use std::slice::from_ref;
use wire::Epoch;

const SLICES: [SliceId; 2] = [SliceId(0), SliceId(1)];

/// A vCPU and memory on each slice; a source of randomness whose queue is at slice 1.
fn placement() -> Placement {
    let memory = [0..8, 8..16].into_iter().zip(SLICES);
    let memory = memory.map(|(frames, home)| MemoryPlace { frames, home }).collect();
    let device = DevicePlace { owner: SliceId(0), queues: vec![SliceId(1)] };
    Placement::new(Epoch(1), SLICES.to_vec(), SLICES.to_vec(), memory, vec![device]).unwrap()
}

fn memory(slice: SliceId, peer: SliceId, (sent, received): (u64, u64)) -> NodeState {
    let home = |first, home| HomeState { first, pages: 8, home };
    let first = u64::from(slice.0) * 8;
    let own = FrameRuns::of(Vec::from([(first, first + 8)].map(|(from, to)| from..to)));
    let holders = HoldersState {
        kind: HolderKind::Exclusive,
        slices: vec![slice],
        widely_shared: false,
        frames: own.clone(),
    };
    NodeState {
        epoch: Epoch(1),
        slice,
        slices: SLICES.to_vec(),
        homes: vec![home(0, SliceId(0)), home(8, SliceId(1))],
        vcpus: 2,
        tables: TableScope::Kernel,
        shared: FrameRuns::default(),
        exclusive: own,
        replicas: Vec::new(),
        directory: vec![holders],
        never_replicas: FrameRuns::default(),
        roots: Vec::new(),
        newest_flush: 0,
        channels: vec![Channel { peer, sent, received }],
    }
}

fn vcpu(id: u16) -> VcpuState {
    let apic = ApicState::Kernel(KernelApic { id: id.into(), ..KernelApic::default() });
    VcpuState { vcpu: id.into(), apic, ..some_state() }
}

/// The forms of both slices. Each has sent the other as many frames as that has received.
fn forms() -> [SliceState; 2] {
    let form = |slice: SliceId, peer: SliceId, (sent, received)| SliceState {
        slice,
        placement: PlacementState::from(&placement()),
        ticks: 1_000,
        vcpus: vec![vcpu(slice.0)],
        chipset: (slice == BOOTSTRAP).then(|| chipset().save()),
        order: OrderState { last: 9 },
        devices: Some(devices_state(slice == SliceId(1))),
        frames: vec![PeerFrames { peer, sent, received }],
        memory: Some(memory(slice, peer, (received + 1, sent + 1))),
    };
    [form(SLICES[0], SLICES[1], (3, 5)), form(SLICES[1], SLICES[0], (5, 3))]
}

fn check(forms: &[SliceState]) -> Result<(), FormError> {
    let bytes: Vec<_> = forms.iter().map(|form| encode(form).unwrap()).collect();
    check_forms(&bytes)
}

fn together(forms: &[SliceState]) -> Disagreement {
    match check(forms) {
        Err(FormError::Together(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn forms_of_one_moment_are_a_cut_in_any_order() {
    let forms = forms();
    check(&forms).unwrap();
    let [one, other] = forms;
    check(&[other.clone(), one.clone()]).unwrap();
    let error = together(from_ref(&one));
    assert_eq!(error, Disagreement::Members { found: vec![SliceId(0)] });
    let error = together(&[one.clone(), one, other]);
    assert_eq!(error, Disagreement::Members { found: [0, 0, 1].map(SliceId).to_vec() });
}

#[test]
fn frame_or_message_on_its_way_is_seen() {
    let mut all = forms();
    all[0].frames[0].sent = 4;
    let (from, to) = (SliceId(0), SliceId(1));
    assert_eq!(together(&all), Disagreement::OnItsWay { from, to, sent: 4, received: 3 });

    let mut all = forms();
    all[1].memory.as_mut().unwrap().channels[0].sent += 1;
    assert!(matches!(together(&all), Disagreement::Memory(_)));
}

#[test]
fn forms_of_different_moments_are_refused() {
    let differ = |what, change: &dyn Fn(&mut SliceState)| {
        let mut all = forms();
        change(&mut all[1]);
        let (one, other) = (SliceId(0), SliceId(1));
        assert_eq!(together(&all), Disagreement::Shape { one, other, what });
    };
    differ("order", &|form| form.order.last = 10);
    differ("placement", &|form| form.placement.epoch = Epoch(2));
    differ("devices", &|form| form.devices.as_mut().unwrap().bus.bridge_command ^= 4);
}

#[test]
fn form_that_contradicts_itself_is_not_written() {
    let refused = |field: &str, at: usize, change: &dyn Fn(&mut SliceState)| {
        let mut all = forms();
        change(&mut all[at]);
        match encode(&all[at]) {
            Err(SavedError::Invalid { source, .. }) => assert_eq!(source.field, field, "{source}"),
            other => panic!("{field}: {other:?}"),
        }
    };
    refused("slice", 0, &|form| form.slice = SliceId(7));
    refused("vcpus", 0, &|form| form.vcpus.clear());
    refused("vcpus", 0, &|form| form.vcpus = vec![vcpu(1)]);
    refused("vcpus", 1, &|form| form.vcpus.push(vcpu(1)));
    refused("chipset", 0, &|form| form.chipset = None);
    refused("chipset", 1, &|form| form.chipset = Some(chipset().save()));
    refused("devices", 1, &|form| form.devices = None);
    refused("devices", 1, &|form| form.devices.as_mut().unwrap().devices.clear());
    // Slice 0 does not serve the queue.
    refused("devices", 0, &|form| form.devices = Some(devices_state(true)));
    refused("frames", 0, &|form| form.frames.clear());
    refused("frames", 0, &|form| form.frames[0].peer = SliceId(0));
    refused("frames", 0, &|form| form.frames[0].sent = u64::MAX);
    refused("memory", 0, &|form| form.memory = None);
    refused("memory", 0, &|form| form.memory.as_mut().unwrap().epoch = Epoch(2));
    let other = memory(SLICES[1], SLICES[0], (1, 1));
    refused("memory", 0, &|form| form.memory = Some(other.clone()));
    refused("memory", 0, &|form| form.placement.memory[1].end = 17);
    refused("last", 1, &|form| form.order.last = u64::MAX);
}

proptest! {
    /// Whatever somebody else has written: an error, or forms that make a cut.
    #[test]
    fn bytes_of_others_are_a_cut_or_an_error(
        which in 0..2_usize, at in any::<prop::sample::Index>(), to in any::<u8>(), cut in any::<bool>(),
    ) {
        let mut bytes: Vec<_> = forms().iter().map(|form| encode(form).unwrap()).collect();
        let at = at.index(bytes[which].len());
        if cut {
            bytes[which].truncate(at);
        } else {
            bytes[which][at] = to;
        }
        let result = check_forms(&bytes);
        prop_assert!(!cut || result.is_err());
    }
}
