//! Guest clocks of two slices of which one's counter runs too fast: they are kept together, or the VM ends.

use crate::support::{Companion, Folder, Process, can_share, deaf};
use rustix::process::Signal;
use serde_json::Value;
use std::thread::sleep;
use std::time::Duration;

/// A VM of two slices; `own` and `others` are more arguments for each.
fn start(folder: &Folder, own: &[&str], others: &[&str]) -> (Process, Companion) {
    folder.file("guest", &deaf());
    let arguments = [&Companion::arguments()[..], others].concat();
    let companion = Companion::run(&mut folder.tessera(&arguments));
    let slices = ["local,cpus=1,memory=64M", &companion.slice(1, "64M")];
    let more = [&["--kernel", "guest"], own].concat();
    let vm = Process::start(&mut folder.tessera(&folder.bootstrap(&slices, &more)));
    (vm.first_output(), companion)
}

fn report(folder: &Folder) -> Value {
    serde_json::from_str(&folder.read("run.json")).unwrap()
}

#[test]
fn kvm_clock_that_drifts_is_kept_with_the_others() {
    if !can_share() {
        return;
    }
    const FAST: [&str; 2] = ["--test-tsc-ppm", "500"];
    for (own, others) in [(&FAST[..], &[][..]), (&[], &FAST)] {
        let folder = Folder::new();
        let (vm, companion) = start(&folder, own, others);
        // Without steps the clocks would be 3 ms apart: three times of what ends the VM.
        sleep(Duration::from_secs(6));
        vm.signal(Signal::TERM);
        vm.line_with("does not listen to its power button");
        vm.signal(Signal::TERM);
        let end = vm.end();
        assert_eq!(end.status, Some(8), "{end:?}");
        drop(companion);
        let slices = report(&folder)["slices"].clone();
        let skew = slices[1]["clock_skew_ns"].as_i64().unwrap();
        let stepped = [0, 1].map(|slice| slices[slice]["clock_stepped_ns"].as_u64().unwrap());
        // The slice that is behind steps; who is fast does not.
        let (behind, fast) = if own.is_empty() { (0, 1) } else { (1, 0) };
        assert!(stepped[behind] > 1_000_000 && stepped[fast] < stepped[behind], "{slices:#}");
        assert!(skew.unsigned_abs() < 1_000_000, "{slices:#}");
    }
}

#[test]
fn kvm_clock_that_is_not_corrected_or_runs_away_ends_the_vm() {
    if !can_share() {
        return;
    }
    let cases: [(&[&str], &[&str]); 2] = [
        (&["--test-clock-uncorrected"], &["--test-tsc-ppm", "2000"]),
        // Beyond what can be made up for in a round.
        (&[], &["--test-tsc-ppm", "50000"]),
    ];
    for (own, others) in cases {
        let folder = Folder::new();
        let (vm, companion) = start(&folder, own, others);
        let end = vm.end();
        assert_eq!(end.status, Some(6), "{end:?}");
        assert!(end.said[0].contains("the guest clock of slice1 is "), "{end:?}");
        assert!(end.said[0].contains("more than 1ms"), "{end:?}");
        assert_eq!(report(&folder)["status"], 6);
        assert_eq!(companion.process.end().status, Some(0));
    }
}
