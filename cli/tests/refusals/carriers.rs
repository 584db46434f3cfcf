//! What carries frames between slices of one host.

use crate::support::{Companion, End, Folder, Process, can_share, deaf};
use rustix::process::Signal;
use serde_json::Value;

/// A VM of two slices on this host that runs, and its companion.
fn over(folder: &Folder, transport: &str) -> (Process, Companion) {
    folder.file("guest", &deaf());
    let companion = Companion::start(folder);
    let slices = ["local,cpus=1,memory=64M", &companion.slice(1, "64M")];
    let more = ["--kernel", "guest", "--transport", transport, "--lease", "500"];
    let vm = Process::start(&mut folder.tessera(&folder.bootstrap(&slices, &more)));
    vm.line_with("frames between slices go over shm");
    companion.process.line_with("frames between slices go over shm");
    (vm.first_output(), companion)
}

fn judge(folder: &Folder, end: &End, status: u8) -> String {
    assert_eq!(end.status, Some(i32::from(status)), "{end:?}");
    let report: Value = serde_json::from_str(&folder.read("run.json")).unwrap();
    assert_eq!(report["status"], status);
    report["ending"].as_str().unwrap().to_owned()
}

#[test]
fn kvm_slices_of_one_host_share_memory_until_the_end() {
    if !can_share() {
        return;
    }
    for transport in ["shm", "shm,tcp"] {
        let folder = Folder::new();
        let (vm, companion) = over(&folder, transport);
        vm.signal(Signal::TERM);
        vm.line_with("does not listen to its power button");
        vm.signal(Signal::TERM);
        judge(&folder, &vm.end(), 8);
        let end = companion.process.end();
        assert_eq!(end.status, Some(0), "{end:?}");
    }
}

/// The socket that lives as long as its process tells of the one, the lease of the other.
#[test]
fn kvm_slice_that_dies_or_stands_still_is_lost_over_shared_memory() {
    if !can_share() {
        return;
    }
    for signal in [Signal::KILL, Signal::STOP] {
        let folder = Folder::new();
        let (vm, companion) = over(&folder, "shm");
        companion.process.signal(signal);
        let ending = judge(&folder, &vm.end(), 5);
        assert!(ending.contains("slice1"), "{ending}");
    }
}
