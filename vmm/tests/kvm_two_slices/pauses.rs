//! It is paused at any moment, and goes on.

use crate::rig::{PAUSE, RESUME, Vm, is_possible};
use crate::{alone, guest, moments};
use std::thread::sleep;
use std::time::Duration;
use tessera_vmm::slice::{Interrupts, check_forms};
use transport::CarrierKind;

const PAUSES: usize = 32;
/// Between two looks at a guest that must not move.
const A_WHILE: Duration = Duration::from_millis(20);

fn pause_and_resume(interrupts: Interrupts, carrier: CarrierKind, disk: bool) {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start(interrupts, carrier, disk);
    let mut last = vm.look();
    vm.moves_on();
    for (number, moment) in moments(7).take(PAUSES).enumerate() {
        // Now and then the next pause comes before anything may have happened.
        let at_once = number % 4 == 3;
        if !at_once {
            sleep(moment);
        }
        vm.must(&PAUSE);

        let before = vm.look();
        check_forms(&vm.take_forms()).unwrap_or_else(|error| panic!("pause {number}: {error:?}"));
        assert!(at_once || before.pages != last.pages, "pause {number}: it has not moved");
        sleep(A_WHILE);
        last = vm.look();
        assert_eq!(before, last, "pause {number}: the guest moves");
        let busy = "the VM is at rest already, or comes to rest, or has not gone on yet";
        assert_eq!(vm.refusal(0, &PAUSE), busy);
        assert_eq!(vm.look(), last, "pause {number}: the refused one did something");

        vm.must(&RESUME);
        if number % 4 != 2 {
            assert_eq!(vm.refusal(0, &RESUME), "the VM is not paused");
            vm.moves_on();
        }
    }
    vm.moves_on();
    assert_eq!(vm.power_off(), guest::AGREE, "additions to the page of both are lost");
}

#[test]
fn kvm_vm_pauses_at_any_moment_and_goes_on_with_userspace_apics() {
    pause_and_resume(Interrupts::Userspace, CarrierKind::Shm, false);
}

#[test]
fn kvm_vm_pauses_at_any_moment_and_goes_on_with_ghosts() {
    pause_and_resume(Interrupts::Ghost, CarrierKind::Tcp, false);
}

/// The disk is of the companion, and each vCPU has a queue of it on its own slice.
#[test]
fn kvm_vm_pauses_at_any_moment_and_goes_on_with_requests_to_a_disk() {
    pause_and_resume(Interrupts::Ghost, CarrierKind::Shm, true);
    pause_and_resume(Interrupts::Userspace, CarrierKind::Tcp, true);
}

#[test]
fn kvm_pause_is_refused_by_companion_which_goes_on() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start(Interrupts::Userspace, CarrierKind::Shm, false);
    for request in [PAUSE, RESUME] {
        assert_eq!(
            vm.refusal(1, &request),
            "ask slice0, which coordinates the VM, once the guest runs"
        );
    }
    vm.moves_on();
    vm.must(&PAUSE);
    assert_eq!(vm.refusal(1, &RESUME), "ask slice0, which coordinates the VM, once the guest runs");
    vm.must(&RESUME);
    vm.moves_on();
    assert_eq!(vm.power_off(), guest::AGREE);
}

#[test]
fn kvm_vm_can_be_stopped_while_it_is_paused() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    for (interrupts, disk) in [(Interrupts::Userspace, true), (Interrupts::Ghost, false)] {
        let vm = Vm::start(interrupts, CarrierKind::Shm, disk);
        vm.must(&PAUSE);
        vm.stop_at_once();
    }
}
