//! It is written down, and goes on on other slices.

use crate::guest::SLICE_BYTES;
use crate::rig::{Vm, is_possible};
use crate::{alone, guest};
use tessera_vmm::slice::{Interrupts, SliceSpec};
use transport::CarrierKind;

/// vCPUs of each slice, and halves of what a slice has at the start, of a VM that has two vCPUs and four halves.
type Layout = &'static [(u32, u64)];

const ONE: Layout = &[(2, 4)];
const TWO: Layout = &[(1, 2), (1, 2)];
const THREE: Layout = &[(1, 1), (0, 2), (1, 1)];

fn slices(of: Layout) -> Vec<SliceSpec> {
    let slice = |(vcpus, halves): &(u32, u64)| SliceSpec {
        vcpus: *vcpus,
        spare_vcpus: 0,
        memory: halves * SLICE_BYTES / 2,
    };
    of.iter().map(slice).collect()
}

/// Goes on from a checkpoint on each of these layouts, one after another.
fn wander(interrupts: Interrupts, disk: bool, layouts: &[Layout]) {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let mut vm = Vm::start(interrupts, CarrierKind::Tcp, disk);
    for (number, layout) in layouts.iter().enumerate() {
        let saved = vm.save(&format!("stop-{number}"));
        vm = Vm::restore(saved, CarrierKind::Shm, slices(layout));
    }
    assert_eq!(vm.power_off_at(0, 0), guest::AGREE, "additions to the page of both are lost");
}

#[test]
fn kvm_vm_goes_on_from_checkpoints_on_other_slices_with_userspace_apics() {
    wander(Interrupts::Userspace, false, &[ONE, TWO, THREE, TWO]);
}

#[test]
fn kvm_vm_goes_on_from_checkpoints_on_other_slices_with_ghosts() {
    wander(Interrupts::Ghost, false, &[ONE, TWO, THREE, TWO]);
}
