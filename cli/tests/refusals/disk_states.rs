//! Whose the states of disks are, when a checkpoint is deleted, or a copy of it.

use crate::guest;
use crate::support::{Folder, KEY, Process, ends_well, has_kvm};
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

const DISK: &str = "disk.qcow2,format=qcow2";

#[track_caller]
fn does(folder: &Folder, words: &[&str]) -> String {
    let end = Process::start(&mut folder.tessera(words)).end();
    assert_eq!(end.status, Some(0), "{end:?}");
    end.output
}

#[track_caller]
fn refuses(folder: &Folder, words: &[&str], why: &str) {
    let line = folder.must_refuse(&mut folder.tessera(words));
    assert!(line.contains(why), "{line}");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// The states that are released.
fn marks(folder: &Folder) -> usize {
    let is_mark = |path: &&PathBuf| path.extension().is_some_and(|it| it == "released");
    folder.names().iter().filter(is_mark).count()
}

#[test]
fn kvm_states_of_disks_go_with_the_checkpoint_that_they_are_kept_for_and_no_other() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    folder.file("disk.qcow2", &guest::qcow2());
    folder.file("guest", &guest::image(guest::Disk::Writes));
    let start = || {
        let words =
            ["bootstrap", "--secret-file", KEY, "--kernel", "guest", "--control", "vm.sock"];
        let shape = ["--slice", "local,cpus=2,memory=32M", "--disk", DISK];
        Process::start(&mut folder.tessera(&[&words[..], &shape].concat())).first_output()
    };
    let vm = start();
    let root = folder.named("disk.qcow2").parent().unwrap().to_owned();
    does(&folder, &["vm", "checkpoint", "one", "--control", "vm.sock"]);
    does(&folder, &["vm", "checkpoint", "two", "--incremental", "--control", "vm.sock"]);
    ends_well(vm);

    // A copy elsewhere: the original has to go on from them.
    copy(&root.join("one"), &root.join("elsewhere/one"));
    refuses(&folder, &["checkpoint", "delete", "elsewhere/one"], "this is a copy or an export");
    assert!(folder.has("elsewhere/one/manifest"));
    does(&folder, &["checkpoint", "delete", "elsewhere/one", "--keep-disks"]);
    assert!(!folder.has("elsewhere/one") && marks(&folder) == 0);

    // One that is being exported.
    fs::create_dir(root.join("half")).unwrap();
    fs::copy(root.join("two/part-0"), root.join("half/part-0")).unwrap();
    refuses(&folder, &["checkpoint", "delete", "two"], "it is being exported");
    fs::remove_dir_all(root.join("half")).unwrap();

    // An export beside it, which needs them when it goes. That its base is missing hides nothing.
    does(&folder, &["checkpoint", "export", "two", "exported", "--secret-file", KEY]);
    fs::remove_dir_all(root.join("one")).unwrap();
    refuses(
        &folder,
        &["checkpoint", "delete", "two", "--secret-file", "other.key"],
        "load the VM's secret",
    );
    let said = does(&folder, &["checkpoint", "delete", "two", "--secret-file", KEY]);
    assert!(said.contains("the states of its disks stay: exported needs them"), "{said}");
    assert_eq!(marks(&folder), 0);

    // Another VM has the disk now.
    let other = start();
    does(&folder, &["vm", "checkpoint", "three", "--control", "vm.sock"]);
    // Its guest finds on the disk what it has not written.
    other.signal(Signal::KILL);
    assert_eq!(other.end().status, None);
    refuses(&folder, &["checkpoint", "delete", "exported"], "the record beside it is of");
    assert!(folder.has("exported/manifest"));
    does(&folder, &["checkpoint", "delete", "exported", "--give-up-disks"]);
    let states = || {
        let names = folder.names();
        let names = names.iter().filter_map(|path| path.file_name()?.to_str());
        names.filter(|name| name.starts_with("disk.qcow2.c")).count()
    };
    // That of the first, whose checkpoint nobody has deleted, and that of the last.
    assert_eq!((states(), marks(&folder)), (2, 0), "{:?}", folder.names());
}

/// Nobody would ever delete what it has left: its number is known to no one.
#[test]
fn kvm_checkpoint_that_the_end_of_its_vm_interrupts_leaves_nothing() {
    if !has_kvm() {
        return;
    }
    for delay in (0..30).map(Duration::from_millis) {
        let folder = Folder::new();
        folder.file("disk.qcow2", &guest::qcow2());
        folder.file("guest", &guest::image(guest::Disk::Writes));
        let words =
            ["bootstrap", "--secret-file", KEY, "--kernel", "guest", "--control", "vm.sock"];
        let shape = ["--slice", "local,cpus=2,memory=32M", "--disk", DISK];
        let vm = Process::start(&mut folder.tessera(&[&words[..], &shape].concat()));
        let vm = vm.first_output();
        let asks = ["vm", "checkpoint", "one", "--control", "vm.sock"];
        let asks = Process::start(&mut folder.tessera(&asks));
        sleep(delay);
        ends_well(vm);
        asks.end();
        if folder.has("one/manifest") {
            does(&folder, &["checkpoint", "delete", "one", "--secret-file", KEY]);
        }
        let is_kept = |path: &&PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let mark = PathBuf::from(format!("{}.released", path.display()));
            name.starts_with("disk.qcow2.c") && !name.ends_with(".released") && !mark.exists()
        };
        let names = folder.names();
        let kept: Vec<_> = names.iter().filter(is_kept).collect();
        assert!(!folder.has("one") && kept.is_empty(), "after {delay:?}: {kept:?} of {names:#?}");
    }
}
