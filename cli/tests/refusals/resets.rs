//! A VM that begins anew when its guest asks for a reset. The kernel of the folder asks for one at once.

use crate::supervise::{child_of, supervised};
use crate::support::{Companion, End, Folder, Process, can_share, has_kvm};
use rustix::process::Signal;

const LOCAL: &str = "local,cpus=1,memory=64M";
const ANEW: &str = "asked for a reset: the VM begins anew";

fn begin(folder: &Folder, slices: &[&str]) -> Process {
    let words = folder.bootstrap(slices, &["--on-reset", "restart"]);
    Process::start(&mut folder.tessera(&words))
}

/// A signal ends it between two lives, before the next one has a guest, or as any VM.
fn stops(vm: Process) -> End {
    vm.signal(Signal::TERM);
    let end = vm.end();
    assert!(matches!(end.status, Some(3 | 8)) || end.signal == Some(15), "{end:?}");
    end
}

#[test]
fn kvm_vm_begins_anew_each_time_that_its_guest_resets() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    let vm = begin(&folder, &[LOCAL]);
    for _ in 0..3 {
        vm.line_with(ANEW);
    }
    stops(vm);
    assert!(folder.has("run.json"));
}

#[test]
fn kvm_companions_that_are_supervised_are_there_again() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    let (companion, address) = supervised(&folder);
    let first = child_of(&companion);
    let vm = begin(&folder, &[LOCAL, &format!("{address},cpus=1,memory=64M")]);
    for _ in 0..2 {
        vm.line_with(ANEW);
    }
    assert_ne!(child_of(&companion), first);
    stops(vm);
}

#[test]
fn kvm_companion_that_does_not_wait_again_is_named() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    let companion = Companion::start(&folder);
    let vm = begin(&folder, &[LOCAL, &companion.slice(1, "64M")]);
    vm.line_with(ANEW);
    assert_eq!(companion.process.end().status, Some(0));
    let end = stops(vm);
    assert_eq!(end.status, Some(3), "{end:?}");
    assert!(end.said.iter().any(|line| line.contains("does not begin anew: it was asked to stop")));
}

#[test]
fn kvm_guest_that_was_asked_to_stop_stays_off() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    let vm = begin(&folder, &[LOCAL]);
    vm.line_with(ANEW);
    let end = stops(vm);
    let said = end.said.iter().chain(&end.log).filter(|line| line.contains(ANEW)).count();
    assert_eq!(said, 0, "{end:?}");
}

#[test]
fn reset_that_means_nothing_is_refused() {
    let folder = Folder::new();
    let words = ["bootstrap", "--restore", "saved", "--on-reset", "restart"];
    let line = folder.must_refuse(&mut folder.tessera(&words));
    assert!(line.contains("--on-reset") && line.contains("--restore"), "{line}");
    let words = ["supervise", "bootstrap", "--slice", LOCAL, "--kernel", "kernel"];
    let own = ["--control", "c", "--checkpoints", ".", "--on-reset", "restart"];
    let line = folder.must_refuse(&mut folder.tessera(&[&words[..], &own].concat()));
    assert!(line.contains("leave --on-reset out"), "{line}");
}
