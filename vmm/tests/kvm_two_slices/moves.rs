//! Its vCPUs move between the slices, each to where the other one was, and to the same.

use crate::checkpoints::{TWO, slices};
use crate::rig::{PAUSE, RESUME, Vm, is_possible, move_to};
use crate::{alone, guest, moments};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tessera_vmm::slice::{Borrow, Interrupts, check_forms};
use transport::CarrierKind;

const MOVES: usize = 60;

fn move_about(interrupts: Interrupts, carrier: CarrierKind, disk: bool) {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start(interrupts, carrier, disk);
    let mut places = [0, 1];
    for (number, moment) in moments(11).take(MOVES).enumerate() {
        let vcpu = usize::from(moment.as_micros() % 2 == 1);
        places[vcpu] = 1 - places[vcpu];
        vm.must(&move_to(vcpu, places[vcpu]));
        let queues: [Vec<_>; 2] = [0, 1].map(|slice| {
            let here = (0..2).filter(|queue| disk && places[usize::from(*queue)] == slice);
            here.map(|queue| (0, queue)).collect()
        });
        assert_eq!(
            [0, 1].map(|slice| vm.placement().slices[slice].queues.clone()),
            queues,
            "queues follow their vCPUs"
        );
        let there = format!("vcpu{vcpu} is on slice{} already", places[vcpu]);
        assert_eq!(vm.refusal(0, &move_to(vcpu, places[vcpu])), there);
        // Now and then the next one goes before anything may have happened.
        if number % 4 != 3 {
            sleep(moment);
            vm.moves_on();
        }
        if number % 8 == 5 {
            vm.must(&PAUSE);
            assert_eq!(
                vm.refusal(0, &move_to(0, 1 - places[0])),
                "the VM is paused, or about to be"
            );
            check_forms(&vm.take_forms()).unwrap_or_else(|error| panic!("{number}: {error:?}"));
            vm.must(&RESUME);
        }
    }
    vm.moves_on();
    assert_eq!(vm.power_off(), guest::AGREE, "additions to the page of both are lost");
}

#[test]
fn kvm_vcpus_move_between_slices_with_userspace_apics() {
    move_about(Interrupts::Userspace, CarrierKind::Shm, false);
}

#[test]
fn kvm_vcpus_move_between_slices_with_ghosts() {
    move_about(Interrupts::Ghost, CarrierKind::Tcp, false);
}

#[test]
fn kvm_vcpus_move_between_slices_with_requests_to_a_disk() {
    move_about(Interrupts::Ghost, CarrierKind::Shm, true);
    move_about(Interrupts::Userspace, CarrierKind::Tcp, true);
}

#[test]
fn kvm_moves_that_cannot_be_are_refused_and_change_nothing() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start(Interrupts::Userspace, CarrierKind::Shm, false);
    for (slice, request, why) in [
        (0, move_to(2, 1), "the VM has no vcpu2"),
        (0, move_to(0, 0), "vcpu0 is on slice0 already"),
        (1, move_to(0, 1), "ask slice0, which coordinates the VM, once the guest runs"),
    ] {
        assert_eq!(vm.refusal(slice, &request), why);
    }
    assert!(vm.refusal(0, &move_to(0, 2)).contains("slice2"));
    vm.moves_on();
    assert_eq!(vm.vcpus_by_slice(), [vec![0], vec![1]]);
    vm.must(&move_to(0, 1));
    assert_eq!(vm.vcpus_by_slice(), [vec![], vec![0, 1]]);
    vm.moves_on();
    assert_eq!(vm.power_off(), guest::AGREE);
}

#[test]
fn kvm_guest_boots_at_home_and_its_vcpus_go_to_their_slices() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    for (interrupts, carrier) in
        [(Interrupts::Ghost, CarrierKind::Tcp), (Interrupts::Userspace, CarrierKind::Shm)]
    {
        let vm = Vm::start_at_home(interrupts, carrier, (Borrow::After(Duration::from_secs(1)), 0));
        let end = Instant::now() + Duration::from_secs(60);
        // Nobody asked for the moves: for a moment one slice knows of one, and the other one does not yet.
        let there = |slice| {
            let other = &vm.placement_of(slice).slices[1];
            (other.vcpus.as_slice(), other.queues.as_slice()) == (&[1], &[(0, 1)])
        };
        while ![0, 1].map(there).iter().all(|there| *there) {
            assert!(Instant::now() < end, "{:?}", [0, 1].map(|slice| vm.placement_of(slice)));
            sleep(Duration::from_millis(20));
        }
        assert_eq!(vm.vcpus_by_slice(), [vec![0], vec![1]]);
        let placement = vm.placement();
        assert!(placement.epoch > 1, "vCPU 1 has moved: {placement:?}");
        vm.moves_on();
        assert_eq!(vm.power_off(), guest::AGREE);
    }
}

/// Also when it is back where it was.
#[test]
fn kvm_vcpu_that_somebody_has_moved_is_left_where_it_is() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let after = Borrow::After(Duration::from_secs(5));
    let vm = Vm::start_at_home(Interrupts::Userspace, CarrierKind::Shm, (after, 0));
    vm.must(&move_to(1, 1));
    // It looks every second.
    sleep(Duration::from_secs(2));
    vm.must(&move_to(1, 0));
    sleep(Duration::from_secs(5));
    assert_eq!(vm.vcpus_by_slice(), [vec![0, 1], vec![]]);
    vm.moves_on();
    assert_eq!(vm.power_off(), guest::AGREE);
}

fn wait_until(vm: &Vm, vcpus: [&[u32]; 2]) {
    let end = Instant::now() + Duration::from_secs(90);
    let is_so = |slice| {
        let all = vm.placement_of(slice).slices;
        [0, 1].iter().all(|at| all[*at].vcpus == vcpus[*at])
    };
    while ![0, 1].into_iter().all(is_so) {
        assert!(Instant::now() < end, "{:?}", [0, 1].map(|slice| vm.placement_of(slice)));
        sleep(Duration::from_millis(20));
    }
}

/// Both vCPUs do little but write what the other one has just written, which one core would do faster.
#[test]
fn kvm_vcpus_that_share_everything_come_home() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    for (interrupts, carrier) in
        [(Interrupts::Ghost, CarrierKind::Tcp), (Interrupts::Userspace, CarrierKind::Shm)]
    {
        let saved = Vm::start(interrupts, carrier, true).save("apart");
        let adaptive = Borrow::Adaptive(Duration::from_secs(1));
        let vm = Vm::restore(saved.borrowing(adaptive), carrier, slices(TWO));
        assert_eq!(vm.vcpus_by_slice(), [vec![0], vec![1]], "they go on where they were");
        wait_until(&vm, [&[0, 1], &[]]);
        vm.moves_on();
        assert_eq!(vm.power_off(), guest::AGREE);
    }
}

/// All threads have one processor, of which vCPUs want more.
#[test]
fn kvm_vcpus_that_are_short_of_processors_go_and_come_back() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let mut one = rustix::thread::CpuSet::new();
    one.set(0);
    rustix::thread::sched_setaffinity(None, &one).expect("threads of this one inherit it");
    let adaptive = Borrow::Adaptive(Duration::from_secs(1));
    // A vCPU that comes later is on its own slice from the start.
    let vm = Vm::start_at_home(Interrupts::Userspace, CarrierKind::Shm, (adaptive, 1));
    wait_until(&vm, [&[0, 1], &[2]]);
    wait_until(&vm, [&[0], &[1, 2]]);
    wait_until(&vm, [&[0, 1], &[2]]);
    vm.moves_on();
    assert_eq!(vm.power_off(), guest::AGREE);
}
