//! `tessera trace`, and the control socket that a slice offers, seen from outside.

use crate::support::{Companion, Folder};

#[test]
fn trace_of_nobody_is_refused() {
    let folder = Folder::new();
    folder.file("map", b"0000000000001000 T _text\n");
    for (arguments, cause) in [
        (&["trace"][..], "required arguments were not provided: --control"),
        (&["trace", "--control", "vm.sock"], "connect to the control socket vm.sock"),
        (&["trace", "--control", "vm.sock", "--top", "0"], "no number from 1 to 4096"),
        (
            &["trace", "--control", "vm.sock", "--interval", "0"],
            "invalid value '0' for '--interval",
        ),
        (&["trace", "--control", "vm.sock", "--count", "x"], "invalid value 'x' for '--count"),
        (&["trace", "--control", "vm.sock", "--symbols", "no"], "read symbols from no"),
        (&["trace", "--control", "vm.sock", "--symbols", "map"], "no symbol _end"),
    ] {
        let line = folder.must_refuse(&mut folder.tessera(arguments));
        assert!(line.contains(cause), "{arguments:?}: {line}");
    }
}

#[test]
fn wrong_choices_for_trace_and_control_are_refused() {
    let folder = Folder::new();
    folder.file("taken", b"");
    let slices = ["local,cpus=1,memory=64M"];
    let line = folder.refuse(&slices, &["--trace", "maybe"]);
    assert!(line.contains("[possible values: on, off]"), "{line}");
    let line = folder.refuse(&slices, &["--control", "taken"]);
    assert!(line.contains("offer a control socket: taken is there and is no socket"), "{line}");
    let line = folder.refuse(&slices, &["--control", "no/vm.sock"]);
    assert!(line.contains("offer a control socket: listen at no/vm.sock"), "{line}");
}

#[test]
fn companion_that_waits_is_asked_and_its_socket_taken_by_nobody_else() {
    let folder = Folder::new();
    let arguments = [&Companion::arguments()[..], &["--control", "vm.sock"]].concat();
    let companion = Companion::run(&mut folder.tessera(&arguments));
    let line = folder.must_refuse(&mut folder.tessera(&["trace", "--control", "vm.sock"]));
    assert!(line.contains("no memory engine runs here"), "{line}");
    let line = folder.must_refuse(&mut folder.tessera(&arguments));
    assert!(line.contains("another process listens at vm.sock"), "{line}");
    drop(companion);
}
