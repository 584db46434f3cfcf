//! Everything of a slice goes to the other one and comes back, again and again.

use crate::rig::{PAUSE, RESUME, Vm, is_possible, move_to};
use crate::{alone, guest};
use std::thread;
use std::time::Duration;
use tessera_vmm::control::{
    AdviseRequest, Answer, ClientError, ConsolidateRequest, DrainRequest, Request, SlicePlaces,
    SpreadRequest,
};
use tessera_vmm::slice::{Interrupts, check_forms};
use transport::CarrierKind;

const ROUNDS: usize = 6;
const SPREAD: Request = Request::Spread(SpreadRequest {});

fn drain(slice: u16) -> Request {
    Request::Drain(DrainRequest { slice, stay: true, to: None })
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
            let why = vm.refusal(0, &drain(1));
            assert!(why.contains("device 0 has its real part there"), "{why}");
            vm.relocate(&move_to(1, 0));
        } else {
            let heard = vm.relocate(&way);
            let told: Vec<_> = heard.iter().map(|far| far.done).collect();
            assert_eq!(told, (0..heard[0].total).collect::<Vec<_>>(), "{heard:?}");
            let [here, there] = [0, 1].map(|slice| vm.placement().slices[slice].clone());
            assert_eq!((here.vcpus, here.memory_mib), (vec![0, 1], whole));
            assert_eq!(there, SlicePlaces { slice: 1, ..SlicePlaces::default() });
        }
        vm.moves_on();
        vm.must(&PAUSE);
        check_forms(&vm.take_forms()).unwrap_or_else(|error| panic!("{round}: {error:?}"));
        vm.must(&RESUME);
        vm.relocate(&SPREAD);
        assert_eq!(vm.vcpus_by_slice(), [vec![0], vec![1]]);
        assert_eq!(
            vm.refusal(0, &SPREAD),
            "nothing to do: vCPUs are spread as evenly as there is room"
        );
        vm.moves_on();
    }
    assert_eq!(vm.power_off(), guest::AGREE, "additions to the page of both are lost");
}

const ASK_SLICE0: &str = "ask slice0, which coordinates the VM, once the guest runs";
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
    vm.relocate(&Request::Drain(DrainRequest { slice: 1, stay: false, to: None }));
    vm.wait_until_drained(1);
    vm.moves_on();
    let slices = vm.placement_of(0).slices;
    assert_eq!(slices.len(), 1);
    assert_eq!((slices[0].vcpus.as_slice(), slices[0].memory_mib), (&[0, 1][..], whole));
    let before = vm.faults(0);
    for _ in 0..3 {
        vm.must(&PAUSE);
        vm.must(&RESUME);
        vm.moves_on();
    }
    assert_eq!(vm.faults(0), before, "nothing of guest memory is watched any more");
    assert_eq!(vm.refusal(0, &drain(0)), "slice0 is the VM's last slice");
    assert_eq!(vm.power_off_alone(0), guest::AGREE, "additions to the page of both are lost");
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
    assert_eq!(vm.refusal(0, &drain(2)), "slice2 is not a member of the VM");
    assert_eq!(vm.refusal(1, &drain(1)), ASK_SLICE0);
    vm.must(&PAUSE);
    assert_eq!(vm.refusal(0, &drain(1)), "the VM is paused, or about to be");
    vm.must(&RESUME);
    vm.moves_on();
    assert_eq!(vm.placement(), before);
    assert_eq!(vm.power_off(), guest::AGREE);
}

/// Everything goes to the other slice, the coordination too, and comes back.
fn coordinate_in_turns(interrupts: Interrupts, carrier: CarrierKind) {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start(interrupts, carrier, false);
    let whole: u64 = vm.placement().slices.iter().map(|slice| slice.memory_mib).sum();
    for round in 0..ROUNDS {
        let [from, to] = [round % 2, 1 - round % 2];
        let [at, next] = [from, to].map(|slice| u16::try_from(slice).expect("it is small"));
        vm.relocate_at(at, &drain(at));
        let placement = vm.placement();
        assert_eq!(placement.coordinator, next);
        let there = &placement.slices[to];
        assert_eq!((there.vcpus.as_slice(), there.memory_mib), (&[0, 1][..], whole));
        vm.moves_on();
        let why = vm.refusal(at, &PAUSE);
        assert_eq!(why, format!("ask slice{to}, which coordinates the VM, once the guest runs"));
        vm.must_at(next, &PAUSE);
        check_forms(&vm.take_forms()).unwrap_or_else(|error| panic!("{round}: {error:?}"));
        vm.must_at(next, &RESUME);
        vm.relocate_at(next, &SPREAD);
        vm.moves_on();
        vm.relocate_at(next, &CONSOLIDATE);
        assert_eq!(vm.placement().coordinator, next, "nothing else speaks for another one");
    }
    assert_eq!(vm.power_off_at(1, 0), guest::AGREE, "additions to the page of both are lost");
}

#[test]
fn kvm_coordination_goes_there_and_back_with_userspace_apics() {
    coordinate_in_turns(Interrupts::Userspace, CarrierKind::Tcp);
}

#[test]
fn kvm_coordination_goes_there_and_back_with_ghosts() {
    coordinate_in_turns(Interrupts::Ghost, CarrierKind::Shm);
}

fn bootstrap_leaves(interrupts: Interrupts, carrier: CarrierKind, disk: bool) {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start(interrupts, carrier, disk);
    vm.relocate(&Request::Drain(DrainRequest { slice: 0, stay: false, to: None }));
    vm.wait_until_drained(0);
    vm.moves_on();
    let placement = vm.placement_of(1);
    assert_eq!((placement.slices.len(), placement.coordinator), (1, 1));
    let before = vm.faults(1);
    for _ in 0..3 {
        vm.must_at(1, &PAUSE);
        vm.must_at(1, &RESUME);
        vm.moves_on();
    }
    assert_eq!(vm.faults(1), before, "nothing of guest memory is watched any more");
    assert_eq!(vm.refusal(1, &drain(1)), "slice1 is the VM's last slice");
    assert_eq!(vm.power_off_alone(1), guest::AGREE, "additions to the page of both are lost");
}

#[test]
fn kvm_bootstrap_slice_leaves_and_the_vm_goes_on_with_userspace_apics() {
    bootstrap_leaves(Interrupts::Userspace, CarrierKind::Shm, true);
    bootstrap_leaves(Interrupts::Userspace, CarrierKind::Tcp, false);
}

#[test]
fn kvm_bootstrap_slice_leaves_and_the_vm_goes_on_with_ghosts() {
    bootstrap_leaves(Interrupts::Ghost, CarrierKind::Shm, false);
    bootstrap_leaves(Interrupts::Ghost, CarrierKind::Tcp, true);
}

/// Its end has another life begin as soon as other slices must have missed it, and none misses a slice that has left.
#[test]
fn kvm_supervised_bootstrap_slice_does_not_leave() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start_supervised();
    let before = vm.placement();
    let leave = Request::Drain(DrainRequest { slice: 0, stay: false, to: None });
    let refused = || {
        let why = vm.refusal(0, &leave);
        assert!(why.contains("slice0 cannot leave, for its VM is supervised there"), "{why}");
    };
    refused();
    assert_eq!(vm.placement(), before);
    // It may have nothing, and is asked for checkpoints still.
    let whole: u64 = before.slices.iter().map(|slice| slice.memory_mib).sum();
    vm.relocate(&drain(0));
    vm.moves_on();
    let emptied = vm.placement();
    let there = &emptied.slices[1];
    assert_eq!(emptied.coordinator, 0);
    assert_eq!((there.vcpus.as_slice(), there.memory_mib), (&[0, 1][..], whole));
    vm.must(&PAUSE);
    check_forms(&vm.take_forms()).unwrap_or_else(|error| panic!("{error:?}"));
    vm.must(&RESUME);
    refused();
    vm.relocate(&SPREAD);
    vm.moves_on();
    // Of two slices that would do, that one is kept which does not leave.
    vm.relocate(&Request::Consolidate(ConsolidateRequest { stay: false }));
    vm.wait_until_drained(1);
    vm.moves_on();
    assert_eq!(vm.power_off_alone(0), guest::AGREE, "additions to the page of both are lost");
}

/// A program asks the next coordinator until it is heard, which may be while the cut lasts: not all slices know then.
#[test]
fn kvm_next_coordinator_begins_nothing_before_all_know_it() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start(Interrupts::Userspace, CarrierKind::Shm, false);
    for round in 0..10 * ROUNDS {
        let [at, next] =
            [round % 2, 1 - round % 2].map(|slice| u16::try_from(slice).expect("it is small"));
        thread::scope(|threads| {
            let ask = || {
                while matches!(vm.ask(next, &move_to(1, at)), Err(ClientError::Refused(_))) {
                    thread::sleep(Duration::from_micros(500));
                }
            };
            threads.spawn(ask);
            vm.relocate_at(at, &drain(at));
        });
        vm.moves_on();
    }
    assert_eq!(vm.power_off_at(1, 0), guest::AGREE, "additions to the page of both are lost");
}

#[test]
fn kvm_advice_is_words_and_moves_nothing() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start(Interrupts::Userspace, CarrierKind::Tcp, false);
    let before = vm.placement();
    let advise = |seconds| Request::Advise(AdviseRequest { seconds });
    assert_eq!(vm.refusal(0, &advise(1)), "1 s are not between 6 and 600");
    assert_eq!(vm.refusal(1, &advise(6)), ASK_SLICE0);
    let advice = match vm.ask(0, &advise(6)) {
        Ok(Answer::Advice(advice)) => advice,
        other => panic!("{other:?}"),
    };
    // Whether there is any depends on how steadily the two add to one page.
    assert!(advice.proposals.iter().all(|line| line.starts_with("move all of ")), "{advice:?}");
    assert_eq!(vm.placement(), before);
    vm.moves_on();
    assert_eq!(vm.power_off(), guest::AGREE);
}

#[test]
fn kvm_request_to_stop_is_heard_while_another_slice_comes_to_coordinate() {
    for after in 0..12 {
        let _alone = alone();
        if !is_possible() {
            return;
        }
        let vm = Vm::start(Interrupts::Userspace, CarrierKind::Shm, false);
        let asked = u16::from(after % 2 == 1);
        let found = vm.power_off_amid(&drain(0), Duration::from_millis(after * 12), asked);
        assert_eq!(found, guest::AGREE, "{after}: additions to the page of both are lost");
    }
}
