//! It is written down, and goes on on other slices.

use crate::guest::{Disk, SLICE_BYTES};
use crate::rig::{PAUSE, RESUME, Saved, Standby, Vm, files_of, free_address, is_possible, key};
use crate::{alone, guest, moments};
use checkpoint::Checkpoint;
use devices::back_end::image::{GenerationRecord, ImageDisk, ImageFormat, ImageOptions, Writer};
use devices::layout::GENERATION_ADDRESS;
use migrate::supervise::Lives;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};
use tessera_vmm::control::{CheckpointRequest, Request};
use tessera_vmm::slice::{HostFacts, Interrupts, SliceSpec, saved_spec};
use tessera_vmm::tsc::host_ticks;
use transport::{CarrierKind, Listener, Secret};
use wire::SliceId;

/// Patience with a loaded machine; nothing depends on its value.
const LIMIT: Duration = Duration::from_secs(60);
const ASK_SLICE_0: &str = "ask slice0, which coordinates the VM, once the guest runs";

/// vCPUs of each slice, and halves of what a slice has at the start, of a VM that has two vCPUs and four halves.
pub(crate) type Layout = &'static [(u32, u64)];

pub(crate) const ONE: Layout = &[(2, 4)];
pub(crate) const TWO: Layout = &[(1, 2), (1, 2)];
pub(crate) const THREE: Layout = &[(1, 1), (0, 2), (1, 1)];

pub(crate) fn slices(of: Layout) -> Vec<SliceSpec> {
    let slice = |(vcpus, halves): &(u32, u64)| SliceSpec {
        vcpus: *vcpus,
        spare_vcpus: 0,
        memory: halves * SLICE_BYTES / 2,
    };
    of.iter().map(slice).collect()
}

/// Where the pages of slice 1 begin in its part: behind the head and the form.
fn first_page(folder: &Path) -> usize {
    let checkpoint = Checkpoint::open(folder, None).expect("it is whole");
    let sections = checkpoint.sections(SliceId(1)).expect("it has a part");
    let bytes: u64 = sections.iter().map(|(_, bytes)| bytes).sum();
    64 + usize::try_from(bytes).expect("it fits")
}

/// Waits for what other threads do.
fn wait_until(mut so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !so() {
        assert!(Instant::now() < end, "it does not come about");
        sleep(Duration::from_millis(5));
    }
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

/// It goes from one kind of interrupts to the other and back, with and without a disk, whose interrupts are messages.
#[test]
fn kvm_vm_goes_on_from_a_checkpoint_with_the_other_kind_of_interrupts() {
    let (user, ghost) = (Interrupts::Userspace, Interrupts::Ghost);
    for (disk, first, other) in [(Disk::None, user, ghost), (Disk::Writes, ghost, user)] {
        let _alone = alone();
        if !is_possible() {
            return;
        }
        let mut vm = Vm::start_with(first, CarrierKind::Tcp, disk, Standby::None);
        let turns =
            [other, other, first, other, first].into_iter().zip([TWO, ONE, THREE, TWO, ONE]);
        let mut kind = first;
        for (number, (interrupts, layout)) in turns.enumerate() {
            let mut saved = vm.save(&format!("stop-{number}"));
            let spec = saved_spec(&saved.path(), None).expect("it is whole");
            assert_eq!(spec.interrupts, kind);
            saved.interrupts = Some(interrupts);
            vm = Vm::restore(saved, CarrierKind::Shm, slices(layout));
            kind = interrupts;
        }
        assert_eq!(vm.power_off_at(0, 0), guest::AGREE, "interrupts or additions are lost");
    }
}

/// Each vCPU has a queue of the disk on its own slice. A disk that is written is the same in the end as in the checkpoint.
#[test]
fn kvm_vm_goes_on_from_checkpoints_with_queues_of_a_disk() {
    for disk in [Disk::Reads, Disk::Writes] {
        for interrupts in [Interrupts::Userspace, Interrupts::Ghost] {
            let _alone = alone();
            if !is_possible() {
                return;
            }
            let mut vm = Vm::start_with(interrupts, CarrierKind::Shm, disk, Standby::None);
            for (number, layout) in [ONE, THREE, TWO, ONE].into_iter().enumerate() {
                let saved = vm.save(&format!("stop-{number}"));
                vm = Vm::restore(saved, CarrierKind::Tcp, slices(layout));
            }
            assert_eq!(vm.power_off_at(0, 0), guest::AGREE);
        }
    }
}

/// The guest has written more since, and finds the disk as it was.
#[test]
fn kvm_disk_of_a_checkpoint_is_of_the_moment_of_the_memory() {
    for (name, layout) in [("first", ONE), ("second", TWO)] {
        let _alone = alone();
        if !is_possible() {
            return;
        }
        let (disk, image) = (Disk::Writes, Standby::Qcow2);
        let vm = Vm::start_with(Interrupts::Userspace, CarrierKind::Shm, disk, image);
        for name in ["first", "second"] {
            vm.written(vm.checkpoint(name));
            vm.moves_on();
        }
        let saved = vm.saved(name);
        vm.stop_at_once();
        let vm = Vm::restore(saved, CarrierKind::Tcp, slices(layout));
        vm.moves_on();
        assert_eq!(vm.power_off_at(0, 0), guest::AGREE);
    }
}

/// The guest goes on before a slice that has the disk and nothing else has written its part.
#[test]
fn kvm_live_checkpoints_have_the_disk_of_a_slice_without_memory() {
    for (disk, image) in [(Disk::Reads, Standby::None), (Disk::Writes, Standby::Qcow2)] {
        let _alone = alone();
        if !is_possible() {
            return;
        }
        let (ghost, tcp) = (Interrupts::Ghost, CarrierKind::Tcp);
        let vm = Vm::start_with_disk_apart(ghost, tcp, (disk, image));
        for name in ["first", "second", "third"] {
            vm.written(vm.checkpoint(name));
            vm.moves_on();
        }
        let stands_still = CheckpointRequest { stop: true, ..vm.checkpoint("fourth") };
        vm.written(stands_still);
        let saved = vm.saved("third");
        vm.stop_at_once();
        let vm = Vm::restore(saved, CarrierKind::Shm, slices(&[(2, 4), (0, 0)]));
        vm.moves_on();
        assert_eq!(vm.power_off_at(0, 0), guest::AGREE);
    }
}

/// Whatever a VM is refused for: none of its disks has become another one.
#[test]
fn kvm_vm_that_is_not_restored_leaves_its_disk_as_it_was() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let (disk, image) = (Disk::Writes, Standby::Qcow2);
    let vm = Vm::start_with(Interrupts::Userspace, CarrierKind::Shm, disk, image);
    vm.written(vm.checkpoint("one"));
    vm.moves_on();
    let saved = vm.saved("one");
    vm.stop_at_once();
    let disk = saved.copy_disk();
    let saved = saved.with_disk(disk.clone());
    let before = files_of(&disk);
    let why = Vm::restore_refusal_beside(saved.clone(), slices(TWO), free_address());
    assert!(why.contains("cannot connect to slice1"), "{why}");
    assert!(files_of(&disk) == before, "{why}: the disk is another one");
    let part = saved.path().join("part-1");
    let bytes = fs::read(&part).expect("it is whole");
    let mut damaged = bytes.clone();
    damaged[first_page(&saved.path())] ^= 1;
    fs::write(&part, damaged).expect("damage it");
    for layout in [ONE, TWO, THREE] {
        let why = Vm::restore_refusal(saved.clone(), slices(layout), key());
        assert!(why.contains("part-1"), "{why}");
        assert!(files_of(&disk) == before, "{why}: the disk is another one");
    }
    fs::write(&part, bytes).expect("mend it");
    let _folder = Arc::clone(&saved.folder);
    let vm = Vm::restore(saved, CarrierKind::Shm, slices(TWO));
    assert_eq!(vm.power_off(), guest::AGREE);
    assert!(files_of(&disk).len() > before.len(), "it was put back");
}

/// Somebody uses the disk: that is found before memory is read, or after it if the former life may be who does.
#[test]
fn kvm_vm_that_was_just_lost_opens_its_disk_when_its_memory_is_there() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let (disk, image) = (Disk::Writes, Standby::Qcow2);
    let vm = Vm::start_with(Interrupts::Userspace, CarrierKind::Shm, disk, image);
    let saved = vm.save("one");
    let disk = saved.copy_disk();
    let first = saved.with_disk(disk.clone());
    let last = first.clone().fenced_at(1);
    let part = first.path().join("part-1");
    let bytes = fs::read(&part).expect("it is whole");
    let mut damaged = bytes.clone();
    damaged[first_page(&first.path())] ^= 1;
    let options = ImageOptions::new(&disk, ImageFormat::Qcow2);
    let former = ImageDisk::open(&options).expect("nobody uses it");
    // The disk is on the bootstrap's host, and on that of the companion.
    for layout in [ONE, TWO] {
        fs::write(&part, &damaged).expect("damage it");
        let why = Vm::restore_refusal(first.clone(), slices(layout), key());
        assert!(why.contains("in use"), "{why}");
        let why = Vm::restore_refusal(last.clone(), slices(layout), key());
        assert!(why.contains("part-1"), "{why}");
        fs::write(&part, &bytes).expect("mend it");
        let why = Vm::restore_refusal(last.clone(), slices(layout), key());
        assert!(why.contains("in use"), "{why}");
    }
    let far = last.clone().fenced_at(u64::MAX);
    let why = Vm::restore_refusal(far, slices(TWO), key());
    assert!(why.contains("no time of this boot"), "{why}");
    drop(former);
    let vm = Vm::restore(last, CarrierKind::Shm, slices(TWO));
    assert_eq!(vm.power_off(), guest::AGREE);
}

/// Of a raw image no state is kept, so it is compared.
#[test]
fn kvm_vm_does_not_go_on_with_a_disk_that_was_written_since_it_ended() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let (disk, image) = (Disk::Writes, Standby::None);
    let vm = Vm::start_with(Interrupts::Userspace, CarrierKind::Shm, disk, image);
    let mut saved = vm.save("one");
    let disk = saved.copy_disk();
    let mut bytes = fs::read(&disk).expect("read the disk");
    // The guest does not look there.
    bytes[4000] ^= 1;
    fs::write(&disk, bytes).expect("write the disk");
    saved = saved.with_disk(disk.clone());
    let before = files_of(&disk);
    for layout in [ONE, TWO] {
        let why = Vm::restore_refusal(saved.clone(), slices(layout), key());
        assert!(why.contains("it contains something else"), "{why}");
        assert!(why.contains("--no-disk-guarantee"), "{why}");
        assert!(files_of(&disk) == before, "the disk is another one");
    }
    saved.any_disk = true;
    let vm = Vm::restore(saved, CarrierKind::Shm, slices(TWO));
    assert_eq!(vm.power_off(), guest::AGREE);
}

/// Who goes on from a checkpoint of a VM that runs takes its disk: the first state has made a record, and the former VM writes nothing
/// more.
#[test]
fn kvm_vm_that_runs_loses_its_disk_to_one_that_goes_on_from_its_checkpoint() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let (disk, image) = (Disk::Writes, Standby::Qcow2);
    let vm = Vm::start_with(Interrupts::Userspace, CarrierKind::Shm, disk, image);
    vm.written(vm.checkpoint("one"));
    vm.moves_on();
    let saved = vm.saved("one").with_disk(vm.folder.0.join("disk"));
    let next = Vm::restore(saved, CarrierKind::Shm, slices(ONE));
    let said = vm.failure();
    assert!(said.contains("generation"), "{said}");
    assert_eq!(next.power_off_at(0, 0), guest::AGREE);
}

/// A VM that has written to its disk and is saved, and its identity.
fn saved_with_disk() -> (Saved, [u8; 16]) {
    let (disk, image) = (Disk::Writes, Standby::Qcow2);
    let vm = Vm::start_with(Interrupts::Userspace, CarrierKind::Shm, disk, image);
    let saved = vm.save("one");
    let vm = Checkpoint::open(&saved.path(), None).expect("it is whole").contents().vm;
    (saved, vm)
}

/// A copy of its disk whose record names this life.
fn claimed_copy(saved: &Saved, life: Writer) -> PathBuf {
    let disk = saved.copy_disk();
    drop(GenerationRecord::claim(&disk, life).expect("it is free"));
    disk
}

/// A host's clock was ahead, and has been put back: the record names a life that is later than now.
#[test]
fn kvm_vm_goes_on_after_a_life_that_began_by_a_clock_that_was_ahead() {
    const AHEAD: u64 = 1 << 36;
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let (saved, vm) = saved_with_disk();
    // The disk is on the bootstrap's host, and on that of the companion.
    for layout in [ONE, TWO] {
        let disk = claimed_copy(&saved, Writer { vm, generation: AHEAD });
        let saved = saved.clone().with_disk(disk.clone());
        let next = Vm::restore(saved, CarrierKind::Shm, slices(layout));
        assert_eq!(next.power_off_at(0, 0), guest::AGREE);
        let last = GenerationRecord::last_writer(&disk).expect("there is a record");
        assert_eq!(last, Some(Writer { vm, generation: AHEAD + 1 }));
    }
}

/// Whoever starts a VM again knows its last life. One that is later is somebody else's, and keeps its disk; else it is the next one.
#[test]
fn kvm_vm_that_was_restored_elsewhere_keeps_its_disk_from_who_starts_it_again() {
    const ELSEWHERE: u64 = 40;
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let (saved, vm) = saved_with_disk();
    let life = |generation| Writer { vm, generation };
    // The disk is on the bootstrap's host, and on that of the companion; opened at first, or last.
    for (layout, fenced_at) in [(ONE, None), (TWO, None), (ONE, Some(1)), (TWO, Some(1))] {
        let disk = claimed_copy(&saved, life(ELSEWHERE));
        let before = files_of(&disk);
        let saved = saved.clone().with_disk(disk.clone());
        let saved = fenced_at.map_or_else(|| saved.clone(), |at| saved.clone().fenced_at(at));
        let lives = Lives { last: ELSEWHERE - 1, next: ELSEWHERE };
        let why = Vm::restore_refusal(saved.clone().with_lives(lives), slices(layout), key());
        assert!(why.contains("goes on there as its life 40"), "{why}");
        assert!(files_of(&disk) == before, "the disk is another one");
        let lives = Lives { last: ELSEWHERE, next: ELSEWHERE + 1 };
        let next = Vm::restore(saved.with_lives(lives), CarrierKind::Shm, slices(layout));
        assert_eq!(next.placement_of(0).life, ELSEWHERE + 1);
        assert_eq!(next.power_off_at(0, 0), guest::AGREE);
        let last = GenerationRecord::last_writer(&disk).expect("there is a record");
        assert_eq!(last, Some(life(ELSEWHERE + 1)));
    }
}

/// What was written is of one moment, however the guest goes on after it.
#[test]
fn kvm_checkpoints_of_a_vm_that_runs_on_are_each_of_one_moment() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start(Interrupts::Userspace, CarrierKind::Shm, false);
    let names: Vec<String> = (0..4).map(|number| format!("moment-{number}")).collect();
    for (name, moment) in names.iter().zip(moments(11)) {
        sleep(moment);
        let (compress, stop) = (name.ends_with('2'), name.ends_with('3'));
        let request = CheckpointRequest { compress, stop, ..vm.checkpoint(name) };
        vm.written(request);
        vm.moves_on();
    }
    let saved: Vec<_> = names.iter().map(|name| vm.saved(name)).collect();
    assert_eq!(vm.power_off(), guest::AGREE);
    for (saved, layout) in saved.into_iter().zip([TWO, ONE, THREE, TWO]) {
        let vm = Vm::restore(saved, CarrierKind::Shm, slices(layout));
        assert_eq!(vm.power_off_at(0, 0), guest::AGREE);
    }
}

/// Each increment has what has changed; a VM goes on from each, with its bases.
#[test]
fn kvm_increments_have_what_has_changed_and_are_gone_on_from() {
    for (interrupts, carrier) in
        [(Interrupts::Userspace, CarrierKind::Shm), (Interrupts::Ghost, CarrierKind::Tcp)]
    {
        let _alone = alone();
        if !is_possible() {
            return;
        }
        let vm = Vm::start(interrupts, carrier, false);
        let early = CheckpointRequest { incremental: true, ..vm.checkpoint("early") };
        let refused = vm.refusal(0, &Request::Checkpoint(early));
        assert!(refused.contains("the first one cannot be incremental"), "{refused}");
        let full = vm.written(vm.checkpoint("full"));
        let names = ["one", "two", "three"];
        for name in names {
            vm.moves_on();
            let stop = name == "two";
            let request = CheckpointRequest { incremental: true, stop, ..vm.checkpoint(name) };
            let increment = vm.written(request);
            assert!(increment.pages < full.pages / 2, "{} of {}", increment.pages, full.pages);
        }
        let saved: Vec<_> = names.iter().map(|name| vm.saved(name)).collect();
        assert_eq!(vm.power_off(), guest::AGREE);
        for (saved, layout) in saved.into_iter().zip([ONE, TWO, THREE]) {
            let vm = Vm::restore(saved, CarrierKind::Shm, slices(layout));
            vm.moves_on();
            assert_eq!(vm.power_off_at(0, 0), guest::AGREE);
        }
    }
}

#[test]
fn kvm_checkpoint_that_cannot_be_written_is_refused_and_the_vm_goes_on() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start_with(Interrupts::Userspace, CarrierKind::Shm, Disk::Writes, Standby::None);
    let request = |name: &str| CheckpointRequest { no_disk_guarantee: true, ..vm.checkpoint(name) };
    let raw = vm.refusal(0, &Request::Checkpoint(vm.checkpoint("one")));
    for way in ["--end", "--no-disk-guarantee", "use a qcow2 image"] {
        assert!(raw.contains(way), "{way}: {raw}");
    }
    let relative = CheckpointRequest { path: "here/one".into(), ..request("one") };
    assert_eq!(vm.refusal(0, &Request::Checkpoint(relative)), "here/one is no absolute path");
    let dotted = vm.refusal(0, &Request::Checkpoint(request(".one")));
    assert!(dotted.contains("begins with a dot"), "{dotted}");
    // Nothing of the first is overwritten.
    vm.written(request("one"));
    let digest = || fs::read(vm.saved("one").path().join("manifest")).expect("it is whole");
    let before = digest();
    let again = vm.refusal(0, &Request::Checkpoint(request("one")));
    assert!(again.contains("one"), "{again}");
    assert_eq!(digest(), before);
    // A part that another slice cannot write ends all of it.
    let blocked = vm.saved("two").path();
    fs::create_dir(&blocked).expect("make a folder");
    fs::write(blocked.join("part-1"), "taken").expect("take the name");
    // Slice 0 may still be about its part of the one that was just refused.
    let mut other = String::new();
    wait_until(|| {
        other = vm.refusal(0, &Request::Checkpoint(request("two")));
        !other.contains("is still being made")
    });
    assert!(other.contains("slice1 has not written its part"), "{other}");
    // Others remove their parts when they are told.
    wait_until(|| !blocked.join("part-0").exists());
    assert!(blocked.join("part-1").exists(), "it is of somebody else");
    assert_eq!(vm.refusal(1, &Request::Checkpoint(request("three"))), ASK_SLICE_0);
    vm.must(&PAUSE);
    let paused = vm.refusal(0, &Request::Checkpoint(request("three")));
    assert_eq!(paused, "the VM is paused, or about to be");
    vm.must(&RESUME);
    vm.moves_on();
    assert_eq!(vm.power_off(), guest::AGREE);
}

#[test]
fn kvm_vm_does_not_go_on_from_what_is_not_its_checkpoint() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start(Interrupts::Userspace, CarrierKind::Shm, false);
    let saved = vm.save("one");
    let refusal = |layout: Layout| Vm::restore_refusal(saved.clone(), slices(layout), key());
    let much = refusal(&[(2, 6)]);
    assert!(much.contains("memory: the checkpoint has 32 MiB, and 48 MiB is asked for"), "{much}");
    let more = refusal(&[(3, 4)]);
    assert!(more.contains("vCPUs: the checkpoint has 2, and 3 is asked for"), "{more}");
    let stranger = Secret::from_bytes(b"another secret, of other tests").expect("long enough");
    let other = Vm::restore_refusal(saved.clone(), slices(ONE), stranger);
    assert!(other.contains("restore the VM from a checkpoint"), "{other}");
    // One byte of a page.
    let part = saved.path().join("part-1");
    let bytes = fs::read(&part).expect("it is whole");
    let mut damaged = bytes.clone();
    damaged[first_page(&saved.path())] ^= 1;
    fs::write(&part, damaged).expect("damage it");
    let why = refusal(ONE);
    assert!(why.contains("part-1"), "{why}");
    // Either slice may read it first. The companion waits on, longer than this test.
    let why = refusal(TWO);
    assert!(why.contains("slice1") || why.contains("part-1"), "{why}");
    fs::write(&part, &bytes[..bytes.len() - 1]).expect("cut it");
    assert!(refusal(ONE).contains("part-1"));
    fs::write(&part, bytes).expect("mend it");
    let vm = Vm::restore(saved, CarrierKind::Shm, slices(ONE));
    assert_eq!(vm.power_off_at(0, 0), guest::AGREE);
}

/// What the guest's counter shows when slices are told of it, for how long nobody has waited for this one's memory then, and
/// by how much the counter is ahead of the host's. No clock is read before this slice has its memory. It goes away then.
fn slow_companion(reads_for: Duration) -> (SocketAddr, JoinHandle<(u64, u64, u64)>) {
    let listener = Listener::bind("127.0.0.1:0".parse().expect("an address"), key());
    let listener = listener.expect("listen");
    let address = listener.address();
    let thread = spawn(move || {
        let soon = || Instant::now() + LIMIT;
        let (_, mut mesh) = listener.accept(Some(soon()), &mut |_| {}).expect("it is called");
        let facts = HostFacts::gather(Interrupts::Userspace).expect("this host can");
        mesh.answer(Ok(&serde_json::to_vec(&facts).expect("it is JSON")), soon()).expect("answer");
        mesh.prepare(soon()).expect("it is to read its memory");
        sleep(reads_for);
        let before = host_ticks();
        mesh.answer(Ok(&[]), soon()).expect("answer");
        let launch = mesh.verdict(&host_ticks, soon()).expect("it is wanted");
        let now = host_ticks();
        let launch: serde_json::Value = serde_json::from_slice(&launch).expect("it is JSON");
        let offset = launch["tsc_offsets"][0].as_u64().expect("a number");
        (now.wrapping_add(offset), now - before, offset)
    });
    (address, thread)
}

/// However long a slice reads its memory, the guest's clock does not show it.
#[test]
fn kvm_clock_of_a_restored_vm_is_set_when_all_memory_is_there() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let vm = Vm::start(Interrupts::Userspace, CarrierKind::Shm, false);
    let saved = vm.save("one");
    let shown = |reads_for| {
        let (address, companion) = slow_companion(reads_for);
        let slices = slices(&[(2, 4), (0, 0)]);
        let why = Vm::restore_refusal_beside(saved.clone(), slices, address);
        assert!(why.contains("slice1"), "{why}");
        companion.join().expect("it is asked")
    };
    let (at_once, _, _) = shown(Duration::ZERO);
    let (later, since, offset) = shown(Duration::from_secs(1));
    if offset == 0 {
        needs::leave_out("this KVM does not move the guest's counter");
        return;
    }
    // Both are more than what it showed last.
    let more = later.saturating_sub(at_once);
    assert!(more <= since, "{more} ticks later, and all memory was there for {since}");
}

#[test]
fn kvm_each_restored_vm_has_a_generation_id_of_its_own() {
    let _alone = alone();
    if !is_possible() {
        return;
    }
    let id = |saved: &Saved| {
        let checkpoint = Checkpoint::open(&saved.path(), None).expect("it is whole");
        let mut page = [0; 4096];
        checkpoint.page(GENERATION_ADDRESS / 4096, &mut page).expect("it is whole");
        let at = usize::try_from(GENERATION_ADDRESS % 4096).expect("it is small");
        page[at..at + 16].to_vec()
    };
    let vm = Vm::start(Interrupts::Userspace, CarrierKind::Shm, false);
    vm.written(vm.checkpoint("first"));
    let (first, saved) = (vm.saved("first"), vm.save("last"));
    assert_eq!(id(&first), id(&saved), "it goes on");
    let mut ids = vec![id(&saved)];
    for (name, layout) in [("one", ONE), ("two", TWO)] {
        let vm = Vm::restore(saved.clone(), CarrierKind::Shm, slices(layout));
        ids.push(id(&vm.save(name)));
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3, "{ids:?}");
}
