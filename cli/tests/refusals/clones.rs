//! Clones: other VMs that go on from a checkpoint, beside the original and each other. Each guest writes to its disk all the time and
//! compares what it reads, and all its counts at the end.

use crate::guest;
use crate::support::{Folder, Process, ends_well, has_kvm};

const DISK: &str = "disk.qcow2,format=qcow2";

fn start(folder: &Folder, words: &[&str]) -> Process {
    let fixed = ["bootstrap", "--secret-file", crate::support::KEY];
    Process::start(&mut folder.tessera(&[&fixed, words].concat())).first_output()
}

#[track_caller]
fn does(folder: &Folder, words: &[&str]) -> String {
    let end = Process::start(&mut folder.tessera(words)).end();
    assert_eq!(end.status, Some(0), "{end:?}");
    end.output
}

#[test]
fn kvm_clones_run_beside_the_original() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    folder.file("disk.qcow2", &guest::qcow2());
    folder.file("guest", &guest::image(guest::Disk::Writes));
    let whole = ["--kernel", "guest", "--slice", "local,cpus=2,memory=32M", "--control", "vm.sock"];
    let original = start(&folder, &[&whole[..], &["--disk", DISK]].concat());
    does(&folder, &["vm", "checkpoint", "one", "--control", "vm.sock"]);
    let clone = |name| start(&folder, &["--restore", "one", "--clone", name, "--disk", DISK]);
    let (first, second) = (clone("a"), clone("b"));
    assert!(folder.has("disk.qcow2.clone-a") && folder.has("disk.qcow2.clone-b"));
    for (name, why) in [("a", "is there already"), ("a.b", "cannot be the name of a clone")] {
        let words = [
            "bootstrap",
            "--restore",
            "one",
            "--clone",
            name,
            "--secret-file",
            crate::support::KEY,
        ];
        let end = Process::start(&mut folder.tessera(&words)).end();
        assert_eq!(end.status, Some(2), "{end:?}");
        assert!(end.said[0].contains(why), "{end:?}");
    }
    // The original has a life of its own, and its state is needed still.
    does(&folder, &["vm", "checkpoint", "two", "--control", "vm.sock"]);
    let said = does(&folder, &["checkpoint", "delete", "one"]);
    assert!(said.contains("goes later"), "{said}");
    [original, first, second].into_iter().for_each(ends_well);
    let state =
        folder.names().into_iter().find(|path| path.to_string_lossy().ends_with(".released"));
    let state = state.unwrap();
    assert!(state.with_extension("").exists());
    // They are gone, and so is what they needed.
    for name in ["a", "b"] {
        std::fs::remove_file(folder.named(&format!("disk.qcow2.clone-{name}"))).unwrap();
    }
    assert_eq!(
        does(&folder, &["checkpoint", "delete", "two"]).trim_end().lines().next(),
        Some("deleted")
    );
    assert!(!state.with_extension("").exists(), "{:?}", folder.names());
}
