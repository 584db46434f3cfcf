//! A VM goes on from a checkpoint that its user gives; what of it cannot be is refused before anything is changed.

use crate::guest;
use crate::supervise::{GOES_ON, RUNS, SAVED, child_of, has_gone, named, start, went_on, writing};
use crate::support::{Folder, KEY, Process, ends_well, has_kvm};
use rustix::process::Signal;

/// Ends a VM whose guest knows no power button.
fn stop(vm: Process) {
    vm.signal(Signal::TERM);
    vm.line_with("asked to stop");
    vm.signal(Signal::TERM);
    assert_eq!(vm.end().status, Some(8));
}

/// Why a supervisor with these words begins nothing.
fn refusal(folder: &Folder, more: &[&str]) -> String {
    let words = ["supervise", "bootstrap", "--control", "vm.sock", "--checkpoints", "."];
    let words = [&words[..], &["--secret-file", KEY], more].concat();
    folder.must_refuse(&mut folder.tessera(&words))
}

#[test]
fn kvm_authenticated_checkpoint_is_not_gone_on_from_unchecked() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    let vm = start(&folder, &[], &["local,cpus=1,memory=32M"]);
    let saved = named(&vm.line_with(SAVED));
    went_on(vm);
    let restore = |more: &[&str]| {
        let path = saved.to_string_lossy();
        folder.tessera(&[&["bootstrap", "--restore", &path], more].concat())
    };
    let refused = folder.must_refuse(&mut restore(&[]));
    let says = ["is authenticated", "--secret-file", "--unauthenticated"];
    assert!(says.iter().all(|text| refused.contains(text)), "{refused}");
    for more in [&["--unauthenticated"][..], &["--secret-file", KEY]] {
        stop(Process::start(&mut restore(more)).first_output());
    }
}

/// A record would be left, and the next supervisor take it for one of a VM that has not ended.
#[test]
fn supervisor_begins_nothing_from_what_is_no_checkpoint() {
    let folder = Folder::new();
    let words = ["--restore", "nowhere", "--slice", "local,cpus=1,memory=32M"];
    for more in [&[][..], &["--fits", "cpus=1,memory=32M"]] {
        let refused = refusal(&folder, &[&words[..], more].concat());
        assert!(refused.contains("--restore nowhere: open nowhere"), "{refused}");
    }
}

/// The record of the former VM would be gone, and nobody would go on with it.
#[test]
fn kvm_checkpoint_that_does_not_fit_takes_nothing_of_the_former_vm_away() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    let slice = ["local,cpus=1,memory=32M"];
    let vm = start(&folder, &[], &slice);
    vm.line_with(RUNS);
    let saved = named(&vm.line_with(SAVED));
    let slice_of = child_of(&vm);
    drop(vm);
    has_gone(slice_of);

    let path = saved.to_string_lossy();
    let larger = "local,cpus=2,memory=32M";
    let refused = refusal(&folder, &["--restore", &*path, "--slice", larger]);
    assert!(refused.contains("vCPUs: the checkpoint has 1, and 2 is asked for"), "{refused}");

    let vm = start(&folder, &[], &slice);
    vm.line_with(GOES_ON);
    vm.line_with(RUNS);
    // Its guest runs: a slice answers before that.
    vm.line_with(SAVED);
    stop(vm);
}

/// A disk would be moved to a host that does not have it.
#[test]
fn kvm_slices_are_left_out_only_if_devices_are_known() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    folder.file("disk.qcow2", &guest::qcow2());
    let vm = Process::start(&mut writing(&folder, "restart=every:1"));
    vm.line_with(RUNS);
    let saved = named(&vm.line_with(SAVED));
    ends_well(vm);
    let path = saved.to_string_lossy();
    let room = "cpus=2,memory=32M";
    let slice = format!("local,{room}");
    let words = ["--restore", &*path, "--slice", &slice, "--fits", room];
    let refused = refusal(&folder, &words);
    assert!(refused.contains("with --fits give them too"), "{refused}");
}

/// A record would be left, of a VM that never begins.
#[test]
fn supervisor_begins_no_vm_that_cannot_be() {
    let folder = Folder::new();
    let twice = "127.0.0.1:7,cpus=1,memory=16M";
    let slices = ["local,cpus=1,memory=16M", twice, twice];
    let words = folder.bootstrap(&slices, &["--control", "vm.sock", "--checkpoints", "."]);
    let refused = folder.must_refuse(&mut folder.tessera(&[&["supervise"], &words[..]].concat()));
    assert!(refused.contains("two slices have the same address 127.0.0.1:7"), "{refused}");
}
