//! Slices join a VM that runs, take parts of it, and leave again.

use crate::guest::Disk;
use crate::rig::{PAUSE, RESUME, Standby, Vm, is_possible, key, move_to};
use crate::{alone, guest};
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tessera_vmm::control::{AddRequest, DrainRequest, Request};
use tessera_vmm::slice::{HostFacts, Interrupts, Offer, check_forms};
use tessera_vmm::tsc::host_ticks;
use transport::{CarrierKind, Listener, Secret};

fn drain(slice: u16, stay: bool) -> Request {
    Request::Drain(DrainRequest { slice, stay, to: None })
}

/// All slices rest at one moment, and their forms are a cut.
fn assert_whole(vm: &Vm, slices: &[u16]) {
    vm.must(&PAUSE);
    check_forms(&vm.take_forms_of(slices)).unwrap_or_else(|error| panic!("{slices:?}: {error:?}"));
    vm.must(&RESUME);
    vm.moves_on();
}

/// A VM that starts on one slice is given another one, and another one when that has left.
fn grow(interrupts: Interrupts, carrier: CarrierKind, disk: bool) {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let mut vm = Vm::start_lone(interrupts, carrier, disk);
    let whole = vm.placement_of(0).slices[0].memory_mib;
    for slice in 1..=3 {
        vm.add(slice, false);
        let placement = vm.placement_by(&[0, slice]);
        let [here, there] = &placement.slices[..] else { panic!("{placement:?}") };
        assert_eq!((here.vcpus.as_slice(), there.vcpus.as_slice()), (&[0][..], &[1][..]));
        assert_eq!((here.memory_mib, there.memory_mib), (whole, 0));
        vm.moves_on();
        assert_whole(&vm, &[0, slice]);
        vm.relocate(&drain(slice, true));
        vm.relocate(&move_to(0, slice));
        vm.relocate(&move_to(1, slice));
        vm.moves_on();
        assert_whole(&vm, &[0, slice]);
        vm.relocate(&drain(slice, false));
        vm.wait_until_drained(slice);
        vm.moves_on();
    }
    let before = vm.faults(0);
    vm.moves_on();
    assert_eq!(vm.faults(0), before, "nothing of guest memory is watched any more");
    assert_eq!(vm.power_off_alone(0), guest::AGREE, "additions to the page of both are lost");
}

#[test]
fn kvm_lone_slice_is_joined_again_and_again_with_userspace_apics() {
    grow(Interrupts::Userspace, CarrierKind::Shm, false);
    grow(Interrupts::Userspace, CarrierKind::Tcp, true);
}

#[test]
fn kvm_lone_slice_is_joined_again_and_again_with_ghosts() {
    grow(Interrupts::Ghost, CarrierKind::Tcp, false);
    grow(Interrupts::Ghost, CarrierKind::Shm, true);
}

/// A third slice joins two at work, is given everything, and is left alone.
fn take_over(interrupts: Interrupts, carrier: CarrierKind) {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let mut vm = Vm::start(interrupts, carrier, false);
    let whole: u64 = vm.placement().slices.iter().map(|slice| slice.memory_mib).sum();
    vm.add(2, true);
    let placement = vm.placement_by(&[0, 1, 2]);
    assert_eq!((placement.slices.len(), placement.slices[2].vcpus.len()), (3, 0));
    vm.moves_on();
    assert_whole(&vm, &[0, 1, 2]);
    vm.relocate(&move_to(1, 2));
    vm.moves_on();
    assert_whole(&vm, &[0, 1, 2]);
    vm.relocate(&move_to(0, 2));
    vm.relocate(&drain(1, false));
    vm.wait_until_drained(1);
    vm.moves_on();
    assert_whole(&vm, &[0, 2]);
    vm.relocate(&drain(0, false));
    vm.wait_until_drained(0);
    vm.moves_on();
    let placement = vm.placement_of(2);
    assert_eq!((placement.slices.len(), placement.coordinator), (1, 2));
    assert_eq!(placement.slices[0].memory_mib, whole);
    assert_eq!(vm.power_off_alone(2), guest::AGREE, "additions to the page of both are lost");
}

#[test]
fn kvm_third_slice_joins_and_takes_over_with_userspace_apics() {
    take_over(Interrupts::Userspace, CarrierKind::Tcp);
}

#[test]
fn kvm_third_slice_joins_and_takes_over_with_ghosts() {
    take_over(Interrupts::Ghost, CarrierKind::Shm);
}

#[test]
fn kvm_slice_joins_beside_one_that_has_devices_only() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let disk = (Disk::Reads, Standby::None);
    let mut vm = Vm::start_with_disk_apart(Interrupts::Ghost, CarrierKind::Tcp, disk);
    vm.add(2, false);
    let placement = vm.placement_by(&[0, 1, 2]);
    let vcpus: Vec<_> = placement.slices.iter().map(|slice| slice.vcpus.as_slice()).collect();
    assert_eq!(vcpus, [&[0][..], &[], &[1]]);
    vm.moves_on();
    vm.must(&PAUSE);
    vm.must(&RESUME);
    vm.moves_on();
    vm.relocate(&drain(2, false));
    vm.wait_until_drained(2);
    vm.moves_on();
    assert_eq!(vm.power_off(), guest::AGREE, "additions to the page of both are lost");
}

#[test]
fn kvm_slice_that_cannot_join_is_told_why_and_the_vm_goes_on() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let mut vm = Vm::start_lone(Interrupts::Userspace, CarrierKind::Tcp, false);
    let before = vm.placement_of(0);
    let nobody = "127.0.0.1:1".parse().expect("an address");
    let add = |address| Request::Add(AddRequest { address, empty: false, number: None });
    let why = vm.refusal(0, &add(nobody));
    assert!(why.contains("127.0.0.1:1"), "{why}");
    let nothing = Offer { vcpus: Some(0), bytes: Some(0) };
    let address = vm.companion(7, nothing);
    let why = vm.refusal(0, &add(address));
    assert!(why.contains("no cores, no memory"), "{why}");
    // It waits on, for a VM that it can do something for.
    let why = vm.refusal(0, &add(address));
    assert!(why.contains("no cores, no memory"), "{why}");
    vm.let_wait(7);
    vm.moves_on();
    assert_eq!(vm.placement_of(0), before);
    vm.must(&PAUSE);
    let address = vm.companion(1, Offer { vcpus: Some(2), bytes: None });
    assert_eq!(vm.refusal(0, &add(address)), "the VM is paused, or about to be");
    vm.must(&RESUME);
    vm.relocate(&add(address));
    assert_eq!(vm.vcpus_by_slice(), [vec![0], vec![1]]);
    assert_eq!(
        vm.refusal(1, &add(address)),
        "ask slice0, which coordinates the VM, once the guest runs"
    );
    vm.relocate(&drain(0, true));
    let why = vm.refusal(1, &add(address));
    assert!(why.contains("slice0, the bootstrap's, has the secret"), "{why}");
    assert_eq!(vm.power_off_at(0, 1), guest::AGREE);

    let vm = Vm::start_without_secret();
    let why = vm.refusal(0, &add(nobody));
    assert!(
        why.starts_with("no slice can join: the VM was started without --secret-file"),
        "{why}"
    );
    assert_eq!(vm.power_off_alone(0), guest::AGREE);
}

/// How far a newcomer goes before it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Until {
    Called,
    Answered,
    Committed,
    Admitted,
}

/// A newcomer that says what a companion says, and goes away at some point. Gives the address where it listens.
fn newcomer(secret: Secret, until: Until) -> (SocketAddr, JoinHandle<()>) {
    let listener = Listener::bind("127.0.0.1:0".parse().expect("an address"), secret);
    let listener = listener.expect("listen");
    let address = listener.address();
    let thread = thread::spawn(move || {
        let soon = || Instant::now() + Duration::from_secs(60);
        let (_, mut mesh) = listener.accept(Some(soon()), &mut |_| {}).expect("it is called");
        if until == Until::Called {
            return;
        }
        let facts = HostFacts::gather(Interrupts::Userspace).expect("this host can");
        let mut facts = serde_json::to_value(facts).expect("it is JSON");
        facts["offered"] = serde_json::json!({ "vcpus": 2, "bytes": 1 << 30 });
        mesh.answer(Ok(facts.to_string().as_bytes()), soon()).expect("answer");
        if until == Until::Answered {
            return;
        }
        mesh.verdict(&host_ticks, soon()).expect("it is wanted");
        if until == Until::Admitted {
            drop(mesh.into_transport(soon(), &mut |_| {}).expect("it is let in"));
        }
    });
    (address, thread)
}

#[test]
fn kvm_newcomer_that_goes_away_at_any_point_is_missed_by_nobody() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    for (lone, carrier) in [(true, CarrierKind::Tcp), (false, CarrierKind::Shm)] {
        let mut vm = match lone {
            true => Vm::start_lone(Interrupts::Userspace, carrier, false),
            false => Vm::start(Interrupts::Userspace, carrier, false),
        };
        let before = vm.placement_of(0);
        for until in [Until::Called, Until::Answered, Until::Committed, Until::Admitted] {
            let (address, thread) = newcomer(vm.secret.clone(), until);
            let why =
                vm.refusal(0, &Request::Add(AddRequest { address, empty: false, number: None }));
            thread.join().unwrap_or_else(|_| panic!("{until:?}: {why}"));
            vm.moves_on();
            assert_eq!(vm.placement_of(0), before, "{until:?}: {why}");
        }
        // The number of the one that was let in is not used again.
        let slice = u16::try_from(before.slices.len()).expect("it is small") + 1;
        vm.add(slice, true);
        assert_eq!(vm.placement_of(0).slices.last().map(|it| it.slice), Some(slice));
        vm.moves_on();
        assert_eq!(vm.power_off(), guest::AGREE);
    }
}

/// A companion that has nothing of its VM, and goes away with the sender.
fn bystander() -> (SocketAddr, Sender<()>, JoinHandle<()>) {
    let listener = Listener::bind("127.0.0.1:0".parse().expect("an address"), key());
    let listener = listener.expect("listen");
    let (address, (stay, told)) = (listener.address(), channel());
    let thread = thread::spawn(move || {
        let soon = || Instant::now() + Duration::from_secs(60);
        let (_, mut mesh) = listener.accept(Some(soon()), &mut |_| {}).expect("it is called");
        let facts = HostFacts::gather(Interrupts::Userspace).expect("this host can");
        mesh.answer(Ok(&serde_json::to_vec(&facts).expect("it is JSON")), soon()).expect("answer");
        mesh.verdict(&host_ticks, soon()).expect("it is wanted");
        let mut joined = mesh.into_transport(soon(), &mut |_| {}).expect("it is let in");
        while told.try_recv() == Err(TryRecvError::Empty) {
            joined.transport.poll(64, &mut |_| {});
            thread::sleep(Duration::from_millis(1));
        }
    });
    (address, stay, thread)
}

/// A slice with devices only is lost. One that joins later has never heard of it, and must not wait for it.
#[test]
fn kvm_slice_joins_a_vm_that_has_lost_one_and_coordinates_it() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let (address, stay, thread) = bystander();
    let mut vm = Vm::start_beside(address, CarrierKind::Tcp);
    drop(stay);
    thread.join().expect("it goes away");
    // Until the loss is known a pause asks it too.
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(error) = vm.ask(0, &PAUSE) {
        assert!(Instant::now() < end, "{error:?}");
    }
    vm.must(&RESUME);
    vm.add(2, false);
    vm.moves_on();
    vm.relocate(&move_to(1, 0));
    vm.relocate(&move_to(1, 2));
    vm.relocate(&drain(0, true));
    vm.moves_on();
    vm.must_at(2, &PAUSE);
    vm.must_at(2, &RESUME);
    vm.relocate_at(2, &move_to(0, 0));
    vm.moves_on();
    assert_eq!(vm.power_off_at(0, 2), guest::AGREE, "additions to the page of both are lost");
}
