//! A VM that begins anew when its guest asks for a reset. The kernel of the folder asks for one at once.

use crate::supervise::{child_of, supervised};
use crate::support::{Companion, End, Folder, Process, can_share, has_kvm, kernel_of};
use rustix::process::Signal;
use std::fs;
use std::time::Duration;

const LOCAL: &str = "local,cpus=1,memory=64M";
const ANEW: &str = "asked for a reset: the VM is to begin anew";

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
fn kvm_companion_that_does_not_wait_again_is_waited_for() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    let companion = Companion::start(&folder);
    let vm = begin(&folder, &[LOCAL, &companion.slice(1, "64M")]);
    vm.line_with(ANEW);
    assert_eq!(companion.process.end().status, Some(0));
    // Longer than the pause before each boot, and until it is ended as any process that has no guest.
    assert!(vm.is_silent(Duration::from_secs(3)));
    let end = stops(vm);
    assert_eq!(end.signal, Some(15), "{end:?}");
}

/// As after an upgrade.
#[test]
fn kvm_program_that_was_removed_begins_anew_all_the_same() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    let words = folder.bootstrap(&[LOCAL], &["--on-reset", "restart"]);
    let vm = Process::start(&mut folder.copied("copy", &words));
    vm.line_with(ANEW);
    fs::remove_file(folder.path("copy")).unwrap();
    vm.line_with(ANEW);
    vm.line_with(ANEW);
    stops(vm);
}

fn has_begun_anew(end: &End) -> bool {
    end.said.iter().chain(&end.log).any(|line| line.contains(ANEW))
}

#[test]
fn kvm_vm_that_is_asked_to_stop_between_two_lives_stays_off() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    let vm = begin(&folder, &[LOCAL]);
    vm.line_with(ANEW);
    let end = stops(vm);
    assert!(!has_begun_anew(&end), "{end:?}");
}

/// It answers the power button with a reset.
#[test]
fn kvm_guest_that_resets_when_it_is_asked_to_stop_stays_off() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    // mov al, 10; out 0xe9, al; mov dx, 0x603; mov al, 1; out dx, al: the button is an event
    let mut code = vec![0xb0, b'\n', 0xe6, 0xe9, 0x66, 0xba, 3, 6, 0xb0, 1, 0xee];
    // mov dx, 0x601; in al, dx; test al, 1; jump back to the in while it was not pressed
    code.extend([0x66, 0xba, 1, 6, 0xec, 0xa8, 1, 0x74, 0xfb]);
    // mov al, 0xfe; out 0x64, al; hlt; jump back to the hlt
    code.extend([0xb0, 0xfe, 0xe6, 0x64, 0xf4, 0xeb, 0xfd]);
    folder.file("rebel", &kernel_of(&code));
    for by_companion in [false, true] {
        let companion = Companion::start(&folder);
        let slice = companion.slice(1, "64M");
        let more = ["--on-reset", "restart", "--kernel", "rebel"];
        let words = folder.bootstrap(&[LOCAL, &slice], &more);
        let vm = Process::start(&mut folder.tessera(&words)).first_output();
        if by_companion {
            // From then on it takes such a request.
            companion.process.line_with("running as ");
        }
        let asked = if by_companion { &companion.process } else { &vm };
        asked.signal(Signal::TERM);
        let end = vm.end();
        assert_eq!(end.status, Some(3), "{end:?}");
        assert!(!has_begun_anew(&end), "{end:?}");
    }
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
