//! A process that is killed while it writes a checkpoint leaves one only if the manifest has its name. In between nothing is gone
//! on from.

use crate::supervise::letters;
use crate::support::{Companion, Folder, KEY, Process, can_share, has_kvm};
use rustix::process::Signal;

const SIGKILL: i32 = 9;
/// What a part comes to, and what the manifest does.
const PART: [&str; 4] = ["part-created", "chunk-written", "index-written", "part-synced"];
const MANIFEST: [&str; 3] = ["manifest-written", "manifest-synced", "renamed"];

fn words<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["--control", "vm.sock", "--checkpoints", "."], more].concat()
}

/// Asks for a checkpoint; nobody may be left to answer.
fn checkpoint(folder: &Folder) {
    let words = ["vm", "checkpoint", "saved", "--control", "vm.sock"];
    Process::start(&mut folder.tessera(&words)).end();
}

/// Whether a VM goes on from it. What cannot be gone on from is refused.
fn goes_on(folder: &Folder, slices: &[&str]) -> bool {
    let mut all = vec!["bootstrap", "--restore", "saved", "--secret-file", KEY];
    slices.iter().for_each(|slice| all.extend(["--slice", slice]));
    if !folder.has("saved/manifest") {
        folder.must_refuse(&mut folder.tessera(&all));
        return false;
    }
    let vm = Process::start(&mut folder.tessera(&all)).first_output();
    vm.signal(Signal::KILL);
    vm.end();
    true
}

#[test]
fn kvm_bootstrap_that_is_killed_at_any_point_leaves_a_checkpoint_or_none() {
    if !has_kvm() {
        return;
    }
    for point in PART.into_iter().chain(MANIFEST) {
        let folder = Folder::new();
        folder.file("guest", &letters());
        let more = words(&["--kernel", "guest", "--test-kill", point]);
        let slice = ["local,cpus=1,memory=32M"];
        let vm = Process::start(&mut folder.tessera(&folder.bootstrap(&slice, &more)));
        let vm = vm.first_output();
        checkpoint(&folder);
        let end = vm.end();
        assert_eq!((end.status, end.signal), (None, Some(SIGKILL)), "{point}: {end:?}");
        assert_eq!(goes_on(&folder, &slice), point == "renamed", "{point}");
    }
}

#[test]
fn kvm_companion_that_is_killed_at_any_point_of_its_part_leaves_no_checkpoint() {
    if !can_share() {
        return;
    }
    // Its vCPU has stored nothing, so it has no chunk to write.
    for point in PART.into_iter().filter(|point| *point != "chunk-written") {
        let folder = Folder::new();
        folder.file("guest", &letters());
        let own = ["--checkpoints", ".", "--test-kill", point];
        let arguments = [&Companion::arguments()[..], &own].concat();
        let companion = Companion::run(&mut folder.tessera(&arguments));
        let slices = ["local,cpus=1,memory=32M", &companion.slice(1, "32M")];
        let more = words(&["--kernel", "guest"]);
        let vm = Process::start(&mut folder.tessera(&folder.bootstrap(&slices, &more)));
        let vm = vm.first_output();
        checkpoint(&folder);
        let end = companion.process.end();
        assert_eq!((end.status, end.signal), (None, Some(SIGKILL)), "{point}: {end:?}");
        let end = vm.end();
        assert_eq!(end.status, Some(5), "{point}: {end:?}");
        assert!(!goes_on(&folder, &slices[..1]), "{point}");
    }
}
