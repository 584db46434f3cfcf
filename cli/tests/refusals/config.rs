//! VM files: what is refused of them and beside them, and that a VM of one is the VM of the options.

use crate::guest;
use crate::support::{Companion, Folder, KEY, Process, can_share, ends_well};
use std::net::TcpListener;

const VM: &str = "\
apiVersion: tessera/v1
kind: VirtualMachine
metadata: { name: web }
spec:
  vcpus: 2
  memory: 64M
  guest: { kernel: guest }
";

fn refuse(folder: &Folder, name: &str, more: &[&str]) -> String {
    let arguments = [&["bootstrap", "--config", name, "--secret-file", KEY], more].concat();
    folder.must_refuse(&mut folder.tessera(&arguments))
}

#[test]
fn files_that_are_no_vm_are_refused_on_one_line() {
    let folder = Folder::new();
    for (name, text, cause) in [
        ("vm.txt", VM.to_owned(), "ends with none of .toml, .yaml, .yml, .json"),
        ("vm.yaml", VM.replace("vcpus", "cpus"), "vm.yaml: line 5, column 3: unknown field `cpus`"),
        ("vm.yaml", VM.replace("64M", "63M"), "vm.yaml: spec.memory: 63M is no multiple of 2M"),
        ("vm.yaml", format!("{VM}  run: halted\n"), "this VM is not to run"),
        ("vm.toml", VM.to_owned(), "vm.toml: line 1, "),
        ("vm.yaml", VM.to_owned(), "guest"),
        ("vm.yaml", "x".repeat(300_000), "it has 262145 bytes; a VM file has at most 262144"),
    ] {
        folder.file(name, text.as_bytes());

        let line = refuse(&folder, name, &[]);
        assert!(line.contains(cause), "{line}");
    }
    let line = refuse(&folder, "nobody.toml", &[]);
    assert!(line.contains("open the VM file nobody.toml"), "{line}");
}

#[test]
fn options_that_say_what_the_file_says_are_refused() {
    let folder = Folder::new();
    folder.file("vm.yaml", VM.as_bytes());
    for (option, value) in [
        ("--slice", "local,cpus=1,memory=64M"),
        ("--kernel", "kernel"),
        ("--initrd", "kernel"),
        ("--cmdline", "quiet"),
        ("--guest-preset", "none"),
        ("--borrow", "adaptive"),
        ("--disk", "guest.raw"),
        ("--net", "tap0"),
    ] {
        let line = refuse(&folder, "vm.yaml", &[option, value]);

        for word in [option, "cannot be used with", "--config <FILE>"] {
            assert!(line.contains(word), "{option}: {line}");
        }
    }
}

/// One slice here, and one at a host that is named.
#[test]
fn kvm_vm_of_a_file_runs_and_ends_as_that_of_options() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    folder.file("guest", &guest::image(guest::Disk::None));
    // Free a moment ago: nobody else takes it so soon.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let named = format!("localhost:{port}");
    let arguments = ["companion", "--listen", &named, "--secret-file", KEY];
    let companion = Companion::run(&mut folder.tessera(&arguments));
    assert_eq!(companion.address.port(), port);
    let slices = format!(
        "  slices:\n  - {{ vcpus: 1, memory: 32M }}\n  - {{ address: \"{named}\", vcpus: 1, memory: 32M }}\n"
    );
    folder.file("vm.yaml", format!("{VM}{slices}").as_bytes());
    let arguments = ["bootstrap", "--config", "vm.yaml", "--secret-file", KEY];

    let vm = Process::start(&mut folder.tessera(&arguments));

    vm.line_with(&format!("{named} is "));
    ends_well(vm.first_output());
}
