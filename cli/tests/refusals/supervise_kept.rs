//! What supervisors and slices keep of checkpoints that are not needed any more.

use crate::guest;
use crate::supervise::{GOES_ON, RUNS, SAVED, child_of, has_gone, named, writing};
use crate::support::{Folder, PATIENCE, Process, agrees, ends_well, has_kvm};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// States of the disk that nobody has released. One that is released goes as soon as it is merged.
fn states(folder: &Folder) -> Vec<PathBuf> {
    let mark = |state: &Path| PathBuf::from(format!("{}.released", state.display()));
    let is_state = |path: &PathBuf| {
        let number = path.extension().and_then(|it| it.to_str()?.strip_prefix('c'));
        number.is_some_and(|number| number.parse::<u64>().is_ok()) && !mark(path).exists()
    };
    folder.names().into_iter().filter(is_state).collect()
}

/// Waits until only the number of a checkpoint is left.
#[track_caller]
fn is_deleted(checkpoint: &Path) {
    let deadline = Instant::now() + PATIENCE;
    while checkpoint.join("part-0").exists() {
        assert!(Instant::now() < deadline, "{} is not deleted", checkpoint.display());
        thread::sleep(Duration::from_millis(5));
    }
}

/// Each has deleted checkpoints of which the slices were not told.
#[test]
fn kvm_states_of_disks_go_also_when_supervisors_are_killed() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    folder.file("disk.qcow2", &guest::qcow2());
    let start = || Process::start(&mut writing(&folder, "restart=every:1,keep:1"));
    for _ in 0..5 {
        let vm = start();
        vm.line_with(RUNS);
        let saved = [(); 3].map(|()| named(&vm.line_with(SAVED)));
        let child = child_of(&vm);
        is_deleted(&saved[1]);
        vm.signal(Signal::KILL);
        has_gone(child);
    }
    let vm = start();
    vm.line_with(RUNS);
    (0..3).for_each(|_| drop(vm.line_with(SAVED)));
    // Two that are kept, one that is written, one whose deletion is not told of.
    let states = states(&folder);
    assert!((1..=4).contains(&states.len()), "{states:?} of {:#?}", folder.names());
    ends_well(vm);
}

/// A VM that is shut down each night would have more of them each morning.
#[test]
fn kvm_vm_that_has_ended_leaves_no_state_that_no_checkpoint_needs() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    folder.file("disk.qcow2", &guest::qcow2());
    let vm = Process::start(&mut writing(&folder, "restart=every:2,keep:1"));
    vm.line_with(RUNS);
    let saved = [(); 3].map(|()| named(&vm.line_with(SAVED)));
    is_deleted(&saved[1]);
    ends_well(vm);
    let checkpoints = folder.names().into_iter().filter(|path| path.join("part-0").exists());
    let (checkpoints, states) = (checkpoints.count(), states(&folder));
    assert!(checkpoints > 0, "{:#?}", folder.names());
    assert_eq!(states.len(), checkpoints, "{states:?} of {:#?}", folder.names());
}

/// Files of this process in a folder with such a name.
fn files_in(process: Pid, name: &Path) -> usize {
    let all = fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero())).unwrap();
    let targets = all.filter_map(|one| fs::read_link(one.unwrap().path()).ok());
    targets.filter(|target| target.parent() == Some(name)).count()
}

/// Its disk space would be free when the VM ends, and on NFS its folder could not go before.
#[test]
fn kvm_checkpoint_that_a_vm_has_gone_on_from_is_not_kept_open() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    folder.file("disk.qcow2", &guest::qcow2());
    let vm = Process::start(&mut writing(&folder, "restart=every:2,keep:2"));
    vm.line_with(RUNS);
    vm.line_with(SAVED);
    kill_process(child_of(&vm), Signal::KILL).unwrap();
    let from = named(&vm.line_with(GOES_ON));
    vm.line_with(RUNS);
    let open = files_in(child_of(&vm), &from.canonicalize().unwrap());
    assert_eq!(open, 0, "{}", from.display());
    ends_well(vm);
}

/// As systemd stops a unit: a second request would end the VM without its guest.
#[test]
fn kvm_whoever_signals_a_supervisor_and_its_slice_asks_once() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    folder.file("disk.qcow2", &guest::qcow2());
    let vm = Process::start(&mut writing(&folder, "restart=every:1,keep:2"));
    vm.line_with(RUNS);
    vm.line_with(SAVED);
    kill_process(child_of(&vm), Signal::TERM).unwrap();
    vm.signal(Signal::TERM);
    let end = vm.end();
    assert_eq!(end.status, Some(0), "{end:?}");
}

/// It is not known who writes the disk. That does not say that the VM goes on elsewhere.
#[test]
fn kvm_vm_whose_disk_has_no_record_any_more_goes_on() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    folder.file("disk.qcow2", &guest::qcow2());
    let vm = Process::start(&mut writing(&folder, "restart=every:1,keep:2"));
    vm.line_with(RUNS);
    vm.line_with(SAVED);
    let record = folder.names().into_iter().find(|name| name.ends_with("disk.qcow2.tessera"));
    fs::remove_file(record.expect("the disk has a record")).unwrap();
    vm.line_with("the record was taken away or replaced");
    vm.line_with(GOES_ON);
    vm.line_with(RUNS);
    vm.line_with(SAVED);
    vm.signal(Signal::TERM);
    let end = vm.end();
    assert_eq!(end.status, Some(0), "{end:?}");
    // Each of the two vCPUs of the life that ended may have seen that a write failed, and stands still then.
    let not_read = char::from(guest::NOT_READ);
    agrees(&end.output.replacen(not_read, "", 2));
}
