//! The disk of a slice has its real part on the other one, and comes back, while the guest writes and reads.

use crate::alone;
use crate::guest::{self, Disk};
use crate::rig::{PAUSE, RESUME, STANDBY, Standby, Vm, is_possible};
use std::fs::{self, File};
use tessera_vmm::control::{DrainRequest, Request, SpreadRequest};
use tessera_vmm::slice::{Interrupts, check_forms};
use transport::CarrierKind;

const ROUNDS: usize = 6;
const SPREAD: Request = Request::Spread(SpreadRequest {});

fn drain(slice: u16, stay: bool) -> Request {
    Request::Drain(DrainRequest { slice, stay, to: None })
}

impl Vm {
    /// What each vCPU has written to its sector of the disk. It may be writing.
    fn numbers_on_disk(&self) -> [u64; 2] {
        let disk = fs::read(self.folder.0.join("disk")).expect("read the disk");
        let number = |at: usize| disk[at..at + 8].try_into().map(u64::from_le_bytes);
        [0, 512].map(|at| number(at).expect("8 bytes"))
    }

    /// What the other slice has of the disk is none any more.
    fn spoil_standby(&self) {
        let file = File::options().write(true).open(self.folder.0.join(STANDBY));
        file.and_then(|file| file.set_len(100)).expect("cut it off");
    }
}

/// Everything goes there, and with it the disk, and comes back.
fn there_and_back(interrupts: Interrupts, carrier: CarrierKind) {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start_with(interrupts, carrier, Disk::Writes, Standby::Same);
    let mut coordinator = 0;
    for round in 0..ROUNDS {
        let [from, to] = [(round + 1) % 2, round % 2];
        let [at, next] = [from, to].map(|slice| u16::try_from(slice).expect("it is small"));
        assert_eq!(vm.placement().slices[from].devices, [0]);
        vm.relocate_at(coordinator, &drain(at, true));
        coordinator = next;
        let placement = vm.placement();
        assert_eq!(
            (placement.coordinator, placement.slices[to].devices.as_slice()),
            (next, &[0][..])
        );
        assert!(placement.slices[from].devices.is_empty());
        vm.moves_on();
        vm.must_at(next, &PAUSE);
        check_forms(&vm.take_forms()).unwrap_or_else(|error| panic!("{round}: {error:?}"));
        vm.must_at(next, &RESUME);
        // One of the two asks the disk from the other slice.
        vm.relocate_at(next, &SPREAD);
        vm.moves_on();
    }
    let numbers = vm.numbers_on_disk();
    assert!(numbers.iter().all(|number| (1..1 << 32).contains(number)), "{numbers:x?}");
    assert_eq!(vm.power_off_at(coordinator, coordinator), guest::AGREE, "additions are lost");
}

#[test]
fn kvm_disk_that_is_written_goes_there_and_back_with_userspace_apics() {
    there_and_back(Interrupts::Userspace, CarrierKind::Tcp);
}

#[test]
fn kvm_disk_that_is_written_goes_there_and_back_with_ghosts() {
    there_and_back(Interrupts::Ghost, CarrierKind::Shm);
}

#[test]
fn kvm_slice_leaves_and_its_disk_stays_with_the_vm() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start_with(Interrupts::Userspace, CarrierKind::Shm, Disk::Writes, Standby::Same);
    vm.relocate(&drain(1, false));
    vm.wait_until_drained(1);
    vm.moves_on();
    assert_eq!(vm.placement_of(0).slices[0].devices, [0]);
    assert_eq!(vm.power_off_alone(0), guest::AGREE, "additions are lost");
}

/// The other slice has a file that was the same until the guest began to write.
#[test]
fn kvm_disk_stays_where_it_is_if_the_other_slice_has_another_one() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start_with(Interrupts::Ghost, CarrierKind::Shm, Disk::Writes, Standby::Copy);
    let before = vm.placement();
    for _ in 0..ROUNDS {
        let why = vm.refusal(0, &drain(1, true));
        assert!(why.contains("(device 0 to slice0) failed: "), "{why}");
        assert!(why.contains("does not contain what was on the disk"), "{why}");
        assert_eq!(vm.placement(), before);
        vm.moves_on();
    }
    // It cannot even be tried.
    vm.spoil_standby();
    let why = vm.refusal(0, &drain(1, true));
    assert!(why.contains("slice0 cannot have device 0 at slice0"), "{why}");
    vm.moves_on();
    assert_eq!(vm.placement(), before);
    assert_eq!(vm.power_off(), guest::AGREE, "additions are lost");
}
