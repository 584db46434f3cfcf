//! Hosts that cannot run a slice: no KVM, no permission, no userfaultfd, too little memory.
//!
//! Devices are hidden in a mount namespace of the test's own, so nothing else on the machine
//! notices.

use crate::support::{Companion, Folder, Process, can_change, can_share, has_kvm};
use std::fs;

const LOCAL: &str = "local,cpus=1,memory=64M";
const REMOTE: &str = "127.0.0.1:9,cpus=1,memory=64M";
const NO_KVM: &str = "start the VM: use this host: open /dev/kvm (load kvm_amd or kvm_intel, and \
                      give this user access): ";

#[test]
fn host_without_kvm_is_refused() {
    let hide = "mount -t tmpfs none /dev && exec";
    if !can_change(hide) {
        return;
    }
    let folder = Folder::new();
    let mut command = folder.tessera_after(hide, &folder.bootstrap(&[LOCAL], &[]));

    let line = folder.must_refuse(&mut command);

    assert_eq!(line, format!("{NO_KVM}No such file or directory (os error 2)"));
}

/// A device node on a file system that allows none stands for missing rights: root has them all.
#[test]
fn host_that_gives_no_access_to_kvm_is_refused() {
    let forbid = "mount -t tmpfs -o nodev none /dev && mknod /dev/kvm c 10 232 && exec";
    if !can_change(forbid) {
        return;
    }
    let folder = Folder::new();
    let mut command = folder.tessera_after(forbid, &folder.bootstrap(&[LOCAL], &[]));

    let line = folder.must_refuse(&mut command);

    assert_eq!(line, format!("{NO_KVM}Permission denied (os error 13)"));
}

#[test]
fn host_without_userfaultfd_is_refused_when_memory_is_shared() {
    // Without the device, the system call is left; it needs this capability, or the setting.
    let hide = "mount -t tmpfs none /dev && exec setpriv --bounding-set=-sys_ptrace \
                --inh-caps=-sys_ptrace";
    let setting = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    if !can_change(hide) {
        return;
    }
    if setting.is_ok_and(|text| text.trim() != "0") {
        needs::skip("everybody may use userfaultfd here");
        return;
    }
    let folder = Folder::new();
    let mut command = folder.tessera_after(hide, &folder.bootstrap(&[LOCAL, REMOTE], &[]));

    let line = folder.must_refuse(&mut command);

    assert!(
        line.starts_with("start the VM: use this host: use userfaultfd: open a userfaultfd"),
        "{line}"
    );
}

#[test]
fn kvm_companion_that_may_not_use_kvm_says_so_and_waits_on() {
    let forbid = "mount --bind /dev/kvm /dev/kvm && mount -o remount,bind,nodev /dev/kvm && exec";
    if !can_share() || !can_change(forbid) {
        return;
    }
    let folder = Folder::new();
    let companion = Companion::run(&mut folder.tessera_after(forbid, &Companion::arguments()));

    for _ in 0..2 {
        let line = folder.refuse(&[LOCAL, &companion.slice(1, "64M")], &[]);

        let begins = "start the VM: slice1 refuses: use this host: open /dev/kvm";
        assert!(line.starts_with(begins), "{line}");
        companion.process.line_with("the VM was not started: use this host: open /dev/kvm");
    }
    companion.has_no_caller();
}

#[test]
fn memory_that_the_host_does_not_have_is_refused() {
    let folder = Folder::new();

    let line = folder.refuse(&["local,cpus=1,memory=1019G"], &[]);

    let begins = "start the VM: use this host: the slice is to be home of 1043456 MiB, the host \
                  has ";
    assert!(line.starts_with(begins) && line.ends_with(" MiB available"), "{line}");
}

#[test]
fn huge_pages_that_the_host_does_not_have_are_refused_with_the_way_out() {
    let folder = Folder::new();

    let line = folder.refuse(&["local,cpus=1,memory=900G"], &["--memory", "hugetlbfs"]);

    let begins = "start the VM: use this host: find memory for the slice: memory on hugetlbfs needs \
                  460800 free huge pages of 2 MiB, this host has ";
    assert!(line.starts_with(begins) && line.contains("(sysctl vm.nr_hugepages="), "{line}");
}

#[test]
fn kvm_each_slice_chooses_the_memory_it_is_made_of() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    for (ours, theirs) in [("memfd", "anonymous"), ("anonymous", "memfd")] {
        let arguments = [&Companion::arguments()[..], &["--memory", theirs]].concat();
        let companion = Companion::run(&mut folder.tessera(&arguments));
        let slice = companion.slice(1, "64M");
        let more = ["--limit", "20", "--memory", ours];

        let end =
            Process::start(&mut folder.tessera(&folder.bootstrap(&[LOCAL, &slice], &more))).end();

        // The kernel asks for a reset at once.
        assert_eq!(end.status, Some(3), "{end:?}");
        assert_eq!(companion.process.end().status, Some(0));
        let report = folder.read("run.json");
        let kinds: Vec<&str> = report
            .lines()
            .filter_map(|line| line.trim().strip_prefix("\"memory_kind\": "))
            .collect();
        assert_eq!(kinds, [format!("\"{ours}\","), format!("\"{theirs}\",")]);
    }
}

#[test]
fn kvm_companion_without_huge_pages_refuses_and_waits_on() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    let arguments = [&Companion::arguments()[..], &["--memory", "hugetlbfs"]].concat();
    let companion = Companion::run(&mut folder.tessera(&arguments));

    let line = folder.refuse(&[LOCAL, &companion.slice(1, "900G")], &[]);

    let begins = "start the VM: slice1 refuses: use this host: find memory for the slice: memory on \
                  hugetlbfs needs 460800 free huge pages";
    assert!(line.starts_with(begins), "{line}");
    companion.has_no_caller();
}

#[test]
fn kvm_memory_that_a_companion_does_not_have_is_refused() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    let companion = Companion::start(&folder);

    for _ in 0..3 {
        let line = folder.refuse(&[LOCAL, &companion.slice(1, "900G")], &[]);

        let begins = "start the VM: slice1 refuses: use this host: the slice is to be home of \
                      921600 MiB, the host has ";
        assert!(line.starts_with(begins) && line.ends_with(" MiB available"), "{line}");
        companion.process.line_with("the VM was not started: use this host: the slice is to be");
    }
    companion.has_no_caller();
}

/// Whether ghosts work is the host's business. If they do, the kernel runs and asks for a reset.
#[test]
fn kvm_ghosts_work_or_are_refused_with_the_way_out() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    let arguments = folder.bootstrap(&[LOCAL], &["--interrupts", "ghost", "--limit", "20"]);

    let end = Process::start(&mut folder.tessera(&arguments)).end();

    match end.status {
        Some(3) => println!("not refused: ghosts work here"),
        _ => {
            assert_eq!(end.status, Some(2), "{end:?}");
            assert_eq!(end.said.len(), 1, "{end:?}");
            assert!(end.said[0].contains("slice0 cannot use ghost vCPUs ("), "{end:?}");
            assert!(end.said[0].ends_with("choose --interrupts userspace or auto"), "{end:?}");
        }
    }
}

#[test]
fn lending_without_a_kind_is_refused_with_the_forms() {
    let folder = Folder::new();
    folder.file("disk.img", &[0; 4096]);
    for (lend, says) in [
        ("disk.img", "say what it is and how it may be used: disk:ro:PATH, disk:rw:PATH, tap:NAME"),
        ("vsock:", "the name is missing"),
        ("disk:disk.img", "a disk is lent as disk:ro:PATH or disk:rw:PATH"),
        ("disk:ro:none.img", "lend disk:ro:none.img: No such file or directory"),
        ("tap:lo", "lend tap:lo: it is no tap interface"),
    ] {
        let arguments = [&Companion::arguments()[..], &["--lend", lend]].concat();

        let line = folder.must_refuse(&mut folder.tessera(&arguments));

        assert!(line.contains(says), "{lend}: {line}");
    }
}

#[test]
fn kvm_what_is_lent_otherwise_than_asked_for_is_refused() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    folder.file("disk.img", &[7; 4096]);
    let lends = ["--lend", "disk:ro:disk.img"];
    let companion =
        Companion::run(&mut folder.tessera(&[&Companion::arguments()[..], &lends].concat()));
    let slice = companion.slice(1, "64M");
    for (device, name, lend) in [
        ("--disk", "disk.img,slice=1", "disk:rw:disk.img"),
        ("--console", "file=disk.img,slice=1", "console:file=disk.img"),
        ("--net", "disk.img,slice=1", "tap:disk.img"),
        ("--vsock", "cid=3,socket=disk.img,slice=1", "vsock:disk.img"),
        ("--disk", "./disk.img,readonly,slice=1", "disk:ro:./disk.img"),
    ] {
        let line = folder.refuse(&[LOCAL, &slice], &[device, name]);

        let says =
            format!("{lend} is not lent to VMs here; start the companion with --lend {lend}");
        assert!(
            line.starts_with("start the VM: slice1 refuses: ") && line.contains(&says),
            "{line}"
        );
    }
    let fits = ["--disk", "disk.img,readonly,slice=1", "--limit", "20"];
    let end = Process::start(&mut folder.tessera(&folder.bootstrap(&[LOCAL, &slice], &fits))).end();

    // The kernel asks for a reset at once.
    assert_eq!(end.status, Some(3), "{end:?}");
    assert_eq!(companion.process.end().status, Some(0));
    assert_eq!(folder.read("disk.img"), "\x07".repeat(4096));
}
