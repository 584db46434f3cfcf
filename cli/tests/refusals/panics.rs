//! How a slice ends that has a defect: a panic of any thread is a power cut, told by one line.

use crate::support::{Companion, End, Folder, Process, can_share, deaf, has_kvm, kernel_of};
use std::fs;

const LOCAL: &str = "local,cpus=1,memory=64M";
/// What the kernel ends a process by that is to end at once.
const SIGKILL: i32 = 9;

/// A guest that reads a port that nobody has, for ever.
fn idle() -> Vec<u8> {
    kernel_of(&[0xe4, 0x80, 0xeb, 0xfc])
}

/// Ended by the signal, one line said.
fn judge(end: &End, slice: &str, thread: &str) {
    assert_eq!((end.status, end.signal), (None, Some(SIGKILL)), "{end:?}");
    let start = format!("tessera: {slice}: thread {thread} panicked at ");
    let [line] = &end.said[..] else { panic!("{end:?}") };
    assert!(line.starts_with(&start) && line.ends_with(": as --test-panic asks for"), "{end:?}");
}

#[test]
fn kvm_panic_of_any_thread_ends_the_process_as_a_kill_does() {
    if !has_kvm() {
        return;
    }
    for thread in ["vcpu0", "devices"] {
        let folder = Folder::new();
        folder.file("guest", &idle());
        let more = ["--kernel", "guest", "--test-panic", thread];
        let vm = Process::start(&mut folder.tessera(&folder.bootstrap(&[LOCAL], &more)));
        judge(&vm.end(), "slice0", thread);
        assert!(!folder.has("run.json"), "nothing was unwound, so nothing reported");
    }
}

/// The connections stay open until a core is written.
#[test]
fn kvm_core_of_a_slice_would_have_no_memory() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    folder.file("guest", &deaf());
    let vm = folder.bootstrap(&[LOCAL], &["--kernel", "guest"]);
    let vm = Process::start(&mut folder.tessera(&vm)).first_output();
    let filter = fs::read_to_string(format!("/proc/{}/coredump_filter", vm.id())).unwrap();
    assert_eq!(u32::from_str_radix(filter.trim(), 16), Ok(0x10));
}

#[test]
fn kvm_panic_of_the_memory_engine_is_a_lost_slice_to_the_others() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    folder.file("guest", &idle());
    let arguments = [&Companion::arguments()[..], &["--test-panic", "dsm"]].concat();
    let companion = Companion::run(&mut folder.tessera(&arguments));
    let slices = [LOCAL, &companion.slice(1, "64M")];
    let more = ["--kernel", "guest"];
    let vm = Process::start(&mut folder.tessera(&folder.bootstrap(&slices, &more)));

    judge(&companion.process.end(), "slice1", "dsm");
    let end = vm.end();
    assert_eq!(end.status, Some(5), "{end:?}");
    assert!(end.said.iter().any(|line| line.contains("slice1 is lost")), "{end:?}");
}
