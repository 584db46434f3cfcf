//! `tessera vm`, seen from outside: what is asked wrongly, of nobody, or of a slice that has no VM yet.

use crate::support::{Companion, Folder};

#[test]
fn wrong_requests_are_refused() {
    let folder = Folder::new();
    for (arguments, cause) in [
        (&["show"][..], "required arguments were not provided: --control"),
        (&["add", "10.9.0.2:7100"], "required arguments were not provided: --control"),
        (&["add", "host-b.invalid:7100", "--control", "vm.sock"], "look up host-b.invalid: "),
        (&["add", "10.9.0.2", "--control", "vm.sock"], "is no address: write HOST:PORT"),
        (&["cpus", "two", "--control", "vm.sock"], "invalid value 'two' for '[COUNT]'"),
        (&["drain", "slice1", "--control", "vm.sock"], "invalid value 'slice1' for '<SLICE>'"),
        (&["show", "--control", "vm.sock"], "vm.sock, which a running slice makes (--control)"),
    ] {
        let line = folder.must_refuse(&mut folder.tessera(&[&["vm"], arguments].concat()));
        assert!(line.contains(cause), "{arguments:?}: {line}");
    }
}

#[test]
fn companion_that_waits_says_whom_to_ask() {
    let folder = Folder::new();
    let arguments = [&Companion::arguments()[..], &["--control", "vm.sock"]].concat();
    let companion = Companion::run(&mut folder.tessera(&arguments));
    for verb in [&["add", "127.0.0.1:9"][..], &["cpus"], &["drain", "1"], &["pause"]] {
        let all = [&["vm"], verb, &["--control", "vm.sock"]].concat();
        let line = folder.must_refuse(&mut folder.tessera(&all));
        assert!(line.contains("ask the slice that coordinates the VM"), "{verb:?}: {line}");
    }
    drop(companion);
}
