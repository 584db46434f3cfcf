//! It goes on before its memory is read.

use crate::checkpoints::{ONE, THREE, TWO, slices};
use crate::rig::{Saved, Standby, UNTOUCHED, Vm, is_possible};
use crate::{alone, guest};
use std::fs;
use std::thread;
use std::time::Duration;
use tessera_vmm::control::{CheckpointRequest, ClientError, Reason, Request};
use tessera_vmm::slice::Interrupts;
use transport::CarrierKind;

/// What nobody needs comes at once, after a while, or never in the time of a test.
const AT_ONCE: Duration = Duration::ZERO;
const SOON: Duration = Duration::from_millis(300);
const NEVER: Duration = Duration::from_secs(100_000);

/// From one checkpoint to the next, whether all of the former one has come or not. The guest stands still while they are written.
#[test]
fn kvm_vm_goes_on_before_its_memory_is_read() {
    for (interrupts, pause) in [(Interrupts::Userspace, AT_ONCE), (Interrupts::Ghost, NEVER)] {
        let _alone = alone();
        if !is_possible() {
            return;
        }
        let mut vm = Vm::start(interrupts, CarrierKind::Tcp, true);
        for (number, layout) in [ONE, TWO, THREE, TWO].into_iter().enumerate() {
            let saved = vm.save(&format!("stop-{number}")).lazily(pause);
            vm = Vm::restore(saved, CarrierKind::Shm, slices(layout));
        }
        assert_eq!(vm.power_off_at(0, 0), guest::AGREE, "additions or memory are lost");
    }
}

/// Checkpoints of a VM that runs on, and increments, are written when all memory has come.
#[test]
fn kvm_increments_are_gone_on_from_before_their_memory_is_read() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start(Interrupts::Userspace, CarrierKind::Shm, false);
    vm.written(vm.checkpoint("full"));
    let names = ["one", "two", "three"];
    for name in names {
        vm.moves_on();
        vm.written(CheckpointRequest { incremental: true, ..vm.checkpoint(name) });
    }
    let saved: Vec<_> = names.iter().map(|name| vm.saved(name)).collect();
    assert_eq!(vm.power_off(), guest::AGREE);
    for ((saved, layout), name) in saved.into_iter().zip([ONE, TWO, THREE]).zip(names) {
        let vm = Vm::restore(saved.lazily(SOON), CarrierKind::Shm, slices(layout));
        // It waits until all has come, and then has what the guest never touched.
        let full = format!("full-{name}");
        let written = vm.written(vm.checkpoint(&full));
        assert!(written.pages > 1000, "{written:?}");
        let saved = vm.saved(&full);
        vm.moves_on();
        assert_eq!(vm.power_off_at(0, 0), guest::AGREE);
        let vm = Vm::restore(saved, CarrierKind::Shm, slices(TWO));
        assert_eq!(vm.power_off(), guest::AGREE);
    }
}

/// One that is to stand still meanwhile has everything, too: what has not come is read for it.
#[test]
fn kvm_checkpoint_of_a_vm_whose_memory_has_not_come_has_all_of_it() {
    for layout in [ONE, TWO] {
        let _alone = alone();
        if !is_possible() {
            return;
        }
        let vm = Vm::start(Interrupts::Userspace, CarrierKind::Shm, false);
        let saved = vm.save("one");
        let untouched = pages_of(&saved, UNTOUCHED);
        assert_eq!(untouched, 1024);
        let vm = Vm::restore(saved.lazily(NEVER), CarrierKind::Tcp, slices(layout));
        vm.written(CheckpointRequest { stop: true, ..vm.checkpoint("two") });
        vm.moves_on();
        let saved = vm.saved("two");
        assert_eq!(pages_of(&saved, UNTOUCHED), untouched);
        assert_eq!(vm.power_off_at(0, 0), guest::AGREE);
    }
}

/// How many pages of a checkpoint are full of this.
fn pages_of(saved: &Saved, byte: u8) -> usize {
    let checkpoint = checkpoint::Checkpoint::open(&saved.path(), None).expect("it is whole");
    let mut pages = 0;
    let counted = checkpoint.read::<checkpoint::CheckpointError>(0..u64::MAX, &mut |_, bytes| {
        pages += bytes.chunks(4096).filter(|page| page.iter().all(|at| *at == byte)).count();
        Ok(())
    });
    counted.expect("it is whole");
    pages
}

/// A byte of memory that the guest never touches is another one: it is found when that is read, and no guest goes on with it.
#[test]
fn kvm_damage_that_is_found_late_ends_the_vm_and_says_where() {
    // On three slices it would be in what comes first on one of them, and the VM would not begin.
    for layout in [ONE, TWO] {
        let _alone = alone();
        if !is_possible() {
            return;
        }
        let vm = Vm::start_with(
            Interrupts::Userspace,
            CarrierKind::Shm,
            guest::Disk::Writes,
            Standby::Qcow2,
        );
        let saved = vm.save("one");
        let part = saved.path().join("part-0");
        let mut bytes = fs::read(&part).expect("it is whole");
        let first = bytes.windows(64).position(|at| at.iter().all(|byte| *byte == UNTOUCHED));
        // In the middle, where no chunk of the file has other pages, too.
        bytes[first.expect("it has such pages") + (2 << 20)] ^= 1;
        fs::write(&part, bytes).expect("damage it");

        let vm = Vm::restore(saved.lazily(NEVER), CarrierKind::Shm, slices(layout));
        // It runs, and all of its memory is asked for, once all slices have said that they run.
        let request = CheckpointRequest { stop: true, ..vm.checkpoint("two") };
        let refused = loop {
            match vm.ask(0, &Request::Checkpoint(request.clone())) {
                Err(ClientError::Refused(refusal)) if refusal.reason == Reason::Paused => {}
                other => break other,
            }
            thread::sleep(Duration::from_millis(10));
        };
        let said = vm.failure();
        assert!(said.contains("part-0") && said.contains("without --lazy"), "{refused:?}: {said}");
        assert!(!vm.saved("two").path().join("manifest").exists(), "{refused:?}");
    }
}
