//! How a slice ends whose memory engine stands still, as in a system call that does not come back: by itself, and with its cause.

use crate::support::{Companion, End, Folder, Process, can_share, deaf};
use rustix::process::Signal;

const LOCAL: &str = "local,cpus=1,memory=64M";
const STOOD_STILL: &str = "it stood still for its lease";

/// A VM of two slices, one of which gets these arguments more, when its guest runs.
fn started(folder: &Folder, bootstrap: &[&str], companion: &[&str]) -> (Process, Process) {
    folder.file("guest", &deaf());
    let arguments = [&Companion::arguments()[..], companion].concat();
    let companion = Companion::run(&mut folder.tessera(&arguments));
    let slices = [LOCAL, &companion.slice(1, "64M")];
    let more = [&["--kernel", "guest"], bootstrap].concat();
    let vm = Process::start(&mut folder.tessera(&folder.bootstrap(&slices, &more)));
    (vm.first_output(), companion.process)
}

fn judge(end: &End, status: i32, said: &str) {
    assert_eq!((end.status, end.signal), (Some(status), None), "{end:?}");
    assert!(end.said.iter().any(|line| line.contains(said)), "{end:?}");
}

#[test]
fn kvm_companion_whose_memory_engine_hangs_ends_by_itself() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    let (vm, companion) = started(&folder, &[], &["--test-hang", "now"]);
    folder.file("now", b"");

    judge(&companion.end(), 6, STOOD_STILL);
    judge(&vm.end(), 5, "slice1 is lost");
}

#[test]
fn kvm_bootstrap_whose_memory_engine_hangs_ends_with_its_report() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    let (vm, companion) = started(&folder, &["--test-hang", "now"], &[]);
    folder.file("now", b"");
    // Whatever it is asked meanwhile.
    vm.signal(Signal::TERM);

    judge(&vm.end(), 6, STOOD_STILL);
    let report: serde_json::Value = serde_json::from_str(&folder.read("run.json")).unwrap();
    assert_eq!(report["status"], 6);
    judge(&companion.end(), 5, "slice0 is lost");
}
