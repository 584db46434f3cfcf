//! Everything of a slice goes to the other one and comes back, again and again.

use crate::rig::{PAUSE, RESUME, Vm, is_possible};
use crate::{alone, guest};
use tessera_vmm::control::{ConsolidateRequest, DrainRequest, Request, SlicePlaces, SpreadRequest};
use tessera_vmm::slice::{Interrupts, check_forms};
use transport::CarrierKind;

const ROUNDS: usize = 6;
const SPREAD: Request = Request::Spread(SpreadRequest {});

fn drain(slice: u16) -> Request {
    Request::Drain(DrainRequest { slice, stay: true })
}

fn come_and_go(interrupts: Interrupts, carrier: CarrierKind, disk: bool) {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start(interrupts, carrier, disk);
    let whole: u64 = vm.placement().slices.iter().map(|slice| slice.memory_mib).sum();
    for round in 0..ROUNDS {
        let way = if round % 2 == 0 { drain(1) } else { CONSOLIDATE };
        if disk {
            let why = vm.refusal(0, drain(1));
            assert!(why.contains("device 0 has its real part there"), "{why}");
            vm.relocate(crate::rig::move_to(1, 0));
        } else {
            let heard = vm.relocate(way);
            let told: Vec<_> = heard.iter().map(|far| far.done).collect();
            assert_eq!(told, (0..heard[0].total).collect::<Vec<_>>(), "{heard:?}");
            let [here, there] = [0, 1].map(|slice| vm.placement().slices[slice].clone());
            assert_eq!((here.vcpus, here.memory_mib), (vec![0, 1], whole));
            assert_eq!(there, SlicePlaces { slice: 1, ..SlicePlaces::default() });
        }
        vm.moves_on();
        vm.must(PAUSE);
        check_forms(&vm.take_forms()).unwrap_or_else(|error| panic!("{round}: {error:?}"));
        vm.must(RESUME);
        vm.relocate(SPREAD);
        assert_eq!(vm.vcpus_by_slice(), [vec![0], vec![1]]);
        assert_eq!(
            vm.refusal(0, SPREAD),
            "nothing to do: vCPUs are spread as evenly as there is room"
        );
        vm.moves_on();
    }
    assert_eq!(vm.power_off(), guest::AGREE, "additions to the page of both are lost");
}

const CONSOLIDATE: Request = Request::Consolidate(ConsolidateRequest { stay: true });

#[test]
fn kvm_slice_is_drained_and_used_again_with_userspace_apics() {
    come_and_go(Interrupts::Userspace, CarrierKind::Shm, false);
}

#[test]
fn kvm_slice_is_drained_and_used_again_with_ghosts() {
    come_and_go(Interrupts::Ghost, CarrierKind::Tcp, false);
}

fn leave(interrupts: Interrupts, carrier: CarrierKind) {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start(interrupts, carrier, false);
    let whole: u64 = vm.placement().slices.iter().map(|slice| slice.memory_mib).sum();
    vm.relocate(Request::Drain(DrainRequest { slice: 1, stay: false }));
    vm.wait_until_drained();
    vm.moves_on();
    let slices = vm.placement_of(0).slices;
    assert_eq!(slices.len(), 1);
    assert_eq!((slices[0].vcpus.as_slice(), slices[0].memory_mib), (&[0, 1][..], whole));
    let before = vm.faults();
    for _ in 0..3 {
        vm.must(PAUSE);
        vm.must(RESUME);
        vm.moves_on();
    }
    assert_eq!(vm.faults(), before, "nothing of guest memory is watched any more");
    assert_eq!(vm.refusal(0, drain(0)), "slice0 is the VM's last slice");
    assert_eq!(vm.power_off_alone(), guest::AGREE, "additions to the page of both are lost");
}

#[test]
fn kvm_drained_slice_leaves_and_the_vm_goes_on_with_userspace_apics() {
    leave(Interrupts::Userspace, CarrierKind::Shm);
    leave(Interrupts::Userspace, CarrierKind::Tcp);
}

#[test]
fn kvm_drained_slice_leaves_and_the_vm_goes_on_with_ghosts() {
    leave(Interrupts::Ghost, CarrierKind::Shm);
    leave(Interrupts::Ghost, CarrierKind::Tcp);
}

#[test]
fn kvm_drain_that_cannot_be_is_refused_and_changes_nothing() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start(Interrupts::Userspace, CarrierKind::Shm, false);
    let before = vm.placement();
    let why = vm.refusal(0, drain(0));
    assert!(why.starts_with("slice0 cannot be drained: it has the serial line"), "{why}");
    assert_eq!(vm.refusal(0, drain(2)), "slice2 is not a member of the VM");
    assert_eq!(vm.refusal(1, drain(1)), "ask the bootstrap slice, once the guest runs");
    vm.must(PAUSE);
    assert_eq!(vm.refusal(0, drain(1)), "the VM is paused, or about to be");
    vm.must(RESUME);
    vm.moves_on();
    assert_eq!(vm.placement(), before);
    assert_eq!(vm.power_off(), guest::AGREE);
}
