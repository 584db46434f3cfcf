//! Files that cannot be used: secret, report, kernel, initrd.

use crate::support::{Folder, has_kvm, kernel, put};

const LOCAL: &str = "local,cpus=1,memory=64M";

#[test]
fn bad_secret_files_are_refused_in_both_roles() {
    let folder = Folder::new();
    folder.secret("short.key", &[1; 15], 0o600);
    folder.secret("open.key", &[1; 32], 0o644);
    folder.secret("long.key", &[1; 5000], 0o600);
    for (name, cause) in [
        ("none.key", "cannot read the secret file none.key: No such file or directory"),
        ("two\nlines", "cannot read the secret file two lines: No such file or directory"),
        ("short.key", "the secret has 15 bytes, at least 16 are needed"),
        ("open.key", "the secret file open.key has mode 644"),
        ("long.key", "the secret is longer than 4096 bytes"),
        (".", "the secret file . is not a regular file"),
    ] {
        let companion = ["companion", "--listen", "127.0.0.1:0", "--secret-file", name];

        let here = folder.refuse(&[LOCAL], &["--secret-file", name]);
        let there = folder.must_refuse(&mut folder.tessera(&companion));

        for line in [here, there] {
            let begins = format!("load the VM's secret: {cause}");
            assert!(line.starts_with(&begins), "{name}: {line}");
        }
    }
}

#[test]
fn key_of_a_slice_is_written_once_and_is_no_secret() {
    let folder = Folder::new();
    let slice_key = |slice, out| {
        let arguments = ["slice-key", "--secret-file", "vm.key", "--slice", slice, "--out", out];
        folder.tessera(&arguments)
    };
    let zero = folder.must_refuse(&mut slice_key("0", "zero.key"));
    let beyond = folder.must_refuse(&mut slice_key("64", "beyond.key"));
    assert!(slice_key("2", "two.key").status().unwrap().success());
    let again = folder.must_refuse(&mut slice_key("1", "two.key"));
    let bootstrap = folder.refuse(&[LOCAL], &["--secret-file", "two.key"]);

    assert_eq!(zero, "slice 0 is the bootstrap, which needs the secret of the VM");
    assert_eq!(beyond, "a VM has slices 0 to 63, and no slice 64");
    assert_eq!(again, "write two.key: File exists (os error 17)");
    let key = folder.read("two.key");
    assert!(key.starts_with("tessera-slice-key 2 ") && key.len() == 20 + 64 + 1, "{key}");
    assert_eq!(
        bootstrap,
        "load the VM's secret: the secret file two.key holds the key of one slice; the bootstrap needs \
         the secret of the VM"
    );
    folder.secret("damaged.key", &key.as_bytes()[..50], 0o600);
    let companion = ["companion", "--listen", "127.0.0.1:0", "--secret-file", "damaged.key"];
    let damaged = folder.must_refuse(&mut folder.tessera(&companion));
    assert!(damaged.contains("the key of a slice in damaged.key is damaged"), "{damaged}");
}

#[test]
fn missing_secret_is_refused_in_both_roles() {
    let folder = Folder::new();
    let slices = ["--slice", LOCAL, "--slice", "127.0.0.1:9,cpus=1,memory=64M"];
    let bootstrap = [&["bootstrap", "--kernel", "kernel"], &slices[..]].concat();

    let here = folder.must_refuse(&mut folder.tessera(&bootstrap));
    let there = folder.must_refuse(&mut folder.tessera(&["companion", "--listen", "127.0.0.1:0"]));

    assert_eq!(here, "slices on other hosts need --secret-file");
    assert!(there.contains("not provided: --secret-file <FILE>"), "{there}");
}

#[test]
fn console_that_cannot_be_is_refused_and_leaves_nothing() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    folder.file("taken", b"");
    let open = "start the VM: open the devices of this host: open a console: ";
    for (console, cause) in [
        ("file=none/log", "write console output to none/log: No such file or directory"),
        ("file=.", "write console output to .: Is a directory"),
        ("socket=taken", "offer a console socket: taken is there and is no socket"),
        ("socket=none/s", "offer a console socket: listen at none/s"),
    ] {
        let line = folder.refuse(&[LOCAL], &["--console", "file=log", "--console", console]);
        assert!(line.starts_with(&format!("{open}{cause}")), "{console}: {line}");
    }
    let line = folder.refuse(&[LOCAL], &["--console", "pty"]);
    assert!(line.contains("\"pty\" is none of stdio, file=PATH, socket=PATH"), "{line}");
    let line = folder.refuse(&[LOCAL], &["--console", "stdio,slice=1"]);
    assert!(line.contains("device 0 names slice 1 by slice= or standby=, which the VM"), "{line}");
}

#[test]
fn socket_that_cannot_be_is_refused_and_leaves_nothing() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    folder.file("taken", b"");
    let open = "start the VM: open the devices of this host: open a socket device: ";
    for (path, cause) in
        [("taken", "taken is there and is no socket"), ("none/s", "listen at none/s")]
    {
        let line = folder.refuse(&[LOCAL], &["--vsock", &format!("cid=3,socket={path}")]);
        assert!(line.starts_with(&format!("{open}{cause}")), "{path}: {line}");
    }
}

#[test]
fn report_that_cannot_be_written_is_refused_before_the_run() {
    let folder = Folder::new();
    for (report, cause) in [("none/run.json", "its folder does not exist"), (".", "is a folder")] {
        let arguments = ["bootstrap", "--kernel", "kernel", "--slice", LOCAL, "--report", report];
        let line = folder.must_refuse(&mut folder.tessera(&arguments));
        assert!(line.starts_with("cannot write the report"), "{line}");
        assert!(line.ends_with(cause), "{line}");
    }
}

/// A bzImage of one setup sector that says it has 8 KiB of code, and has 1 KiB.
fn cut_bzimage() -> Vec<u8> {
    let mut image = vec![0; 1024 + 1024];
    image[0x1f1] = 1;
    put(&mut image, 0x1f4, &512_u32.to_le_bytes());
    put(&mut image, 0x1fe, &[0x55, 0xaa, 0xeb, 0x6a]);
    put(&mut image, 0x202, b"HdrS\x0f\x02");
    image[0x211] = 0x81;
    put(&mut image, 0x236, &3_u16.to_le_bytes());
    put(&mut image, 0x258, &(16_u64 << 20).to_le_bytes());
    image
}

#[test]
fn kvm_kernels_that_are_none_are_refused() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    folder.file("text", &b"This is no kernel at all.\n".repeat(100));
    folder.file("short-text", b"no");
    folder.file("empty", b"");
    folder.file("elf", &kernel()[..0x1800]);
    folder.file("elf-head", &kernel()[..30]);
    folder.file("bzimage", &cut_bzimage());
    folder.file("bzimage-head", &cut_bzimage()[..0x210]);
    for (name, cause) in [
        ("text", "text is not a kernel: it is neither a bzImage nor an ELF file"),
        ("short-text", "short-text is not a kernel: it is neither"),
        ("empty", "empty is not a kernel: it is neither"),
        ("elf", "elf is not a kernel: this ELF file is truncated"),
        ("elf-head", "elf-head is not a kernel: this ELF file is truncated"),
        ("bzimage", "bzimage is not a kernel: this bzImage is truncated"),
        ("bzimage-head", "bzimage-head is not a kernel: it is neither"),
        ("none", "cannot read kernel none: No such file or directory"),
        ("/dev/zero", "cannot read kernel /dev/zero: not a regular file"),
    ] {
        let line = folder.refuse(&[LOCAL], &["--kernel", name]);
        let begins = format!("start the VM: prepare the guest's boot: {cause}");
        assert!(line.starts_with(&begins), "{name}: {line}");
    }
}

#[test]
fn kvm_initrds_and_command_lines_that_do_not_fit_are_refused() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    folder.file("empty", b"");
    folder.file("large", &vec![1; 50 << 20]);
    let long = "x".repeat(3000);
    for (option, value, cause) in [
        ("--initrd", "none", "cannot read initrd none: No such file or directory"),
        ("--initrd", ".", "cannot read initrd .: not a regular file"),
        ("--initrd", "empty", "initrd empty is empty"),
        ("--initrd", "large", "initrd of 52428800 bytes does not fit"),
        ("--cmdline", long.as_str(), "command line has 3"),
    ] {
        let line = folder.refuse(&[LOCAL], &[option, value]);
        let begins = format!("start the VM: prepare the guest's boot: {cause}");
        assert!(line.starts_with(&begins), "{option}: {line}");
    }
}
