//! Shapes and options that make no VM. They are refused before the host is looked at.

use crate::support::Folder;

const LOCAL: &str = "local,cpus=1,memory=64M";
const REMOTE: &str = "127.0.0.1:9,cpus=1,memory=64M";

/// Checks that each list of slices is refused with a line that has the cause in it.
fn slices_are_refused(cases: &[(&[&str], &str)]) {
    let folder = Folder::new();
    for (slices, cause) in cases {
        let line = folder.refuse(slices, &[]);
        assert!(line.contains(cause), "{slices:?}: {line}");
    }
}

/// Checks that each option of one local slice is refused with a line that has the cause in it.
fn options_are_refused(cases: &[(&[&str], &str)]) {
    let folder = Folder::new();
    for (options, cause) in cases {
        let line = folder.refuse(&[LOCAL], options);
        assert!(line.contains(cause), "{options:?}: {line}");
    }
}

#[test]
fn slices_that_are_none_are_refused() {
    slices_are_refused(&[
        (&[], "required arguments were not provided: --slice"),
        (&["local"], "cpus= is missing"),
        (&["local,cpus=1"], "memory= is missing"),
        (&["local,cpus=x,memory=64M"], "cpus=\"x\" is no number"),
        (&["local,cpus=4294967296,memory=64M"], "is no number"),
        (&["local,cpus=-1,memory=64M"], "is no number"),
        (&["local,cpus=1,memory=64P"], "memory=\"64P\" is no size"),
        (&["local,cpus=1,memory=64M,disk=1"], "\"disk\" is none of cpus, max-cpus, memory"),
        (&["local,cpus=1,cpus=1,memory=64M"], "cpus is given twice"),
        (
            &["local,cpus=2,max-cpus=1,memory=64M"],
            "max-cpus= is less than cpus=, which it includes",
        ),
        (&["local,cpus=1,max-cpus=257,memory=64M"], "1 to 256 vCPUs, not 257"),
        (&["nowhere,cpus=1,memory=64M"], "\"nowhere\" is neither `local` nor ADDRESS:PORT"),
    ]);
}

#[test]
fn first_slice_elsewhere_or_second_one_here_is_refused() {
    let cause = "the first --slice must be local and all others must have an address";
    slices_are_refused(&[(&[REMOTE], cause), (&[REMOTE, LOCAL], cause), (&[LOCAL, LOCAL], cause)]);
}

/// The only way to have two slices claim one vCPU: vCPUs are numbered by the order of the slices.
#[test]
fn two_slices_at_one_address_are_refused() {
    slices_are_refused(&[(
        &[LOCAL, REMOTE, "127.0.0.1:9,cpus=2,memory=32M"],
        "two slices have the same address 127.0.0.1:9",
    )]);
}

#[test]
fn impossible_numbers_of_vcpus_are_refused() {
    let many: Vec<String> =
        (1..=32).map(|port| format!("127.0.0.1:{port},cpus=1,memory=2M")).collect();
    let many: Vec<&str> = [LOCAL].into_iter().chain(many.iter().map(String::as_str)).collect();
    slices_are_refused(&[
        (&["local,cpus=0,memory=64M"], "a VM has 1 to 256 vCPUs, not 0"),
        (&["local,cpus=0,memory=64M", REMOTE], "the bootstrap slice runs vCPU 0"),
        (&["local,cpus=257,memory=64M"], "a VM has 1 to 256 vCPUs, not 257"),
        (&["local,cpus=256,memory=64M", REMOTE], "a VM has 1 to 256 vCPUs, not 257"),
        (&many, "a VM has 1 to 32 slices, not 33"),
    ]);
}

#[test]
fn impossible_memory_is_refused() {
    let odd = "memory of slice 1 is 67108865 bytes, which is no multiple of 2 MiB";
    slices_are_refused(&[
        (&["local,cpus=1,memory=63M"], "memory of slice 0 is 66060288 bytes"),
        (&[LOCAL, "127.0.0.1:9,cpus=1,memory=67108865"], odd),
        (&["local,cpus=1,memory=0"], "guest memory is 0 bytes in all, less than 33554432"),
        (&["local,cpus=1,memory=16M"], "less than 33554432"),
        (&["local,cpus=1,memory=1024G"], "does not fit below address 0xff00000000"),
        (&[LOCAL, "127.0.0.1:9,cpus=1,memory=17179869180G"], "does not fit below address"),
    ]);
}

#[test]
fn unknown_choices_are_refused() {
    options_are_refused(&[
        (&["--interrupts", "magic"], "\"magic\" is no choice for interrupts"),
        (&["--page-tables", "magic"], "\"magic\" is no choice for page tables"),
        (&["--guest-preset", "magic"], "[possible values: spread, isolate, none]"),
        (&["--timer-spacing", "magic"], "\"magic\" is no choice for the timer spacing"),
        (&["--timer-spacing", "adaptive:9-1"], "no choice for the timer spacing"),
        (
            &["--memory", "magic"],
            "\"magic\" is no kind of memory; there are: memfd, memfd,prealloc, hugetlbfs",
        ),
        (&["--magic"], "unexpected argument '--magic' found"),
    ]);
}

#[test]
fn numbers_out_of_range_are_refused() {
    options_are_refused(&[
        (&["--guest-clock-rate", "fast"], "invalid value 'fast' for '--guest-clock-rate"),
        (&["--guest-clock-rate", "0"], "\"0\" is no choice for the guest clock rate"),
        (&["--guest-clock-rate", "2"], "\"2\" is no choice for the guest clock rate"),
        (&["--guest-clock-rate", "NaN"], "\"NaN\" is no choice for the guest clock rate"),
        (&["--guest-clock-rate", "inf"], "\"inf\" is no choice for the guest clock rate"),
        (&["--hold", "5"], "\"5\" is not MIN:MAX in microseconds"),
        (&["--hold", "1:x"], "\"1:x\" is not MIN:MAX in microseconds"),
        (&["--hold", "20:10"], "a hold window of 20 to 10 microseconds is impossible"),
        (&["--hold", "0:9999999"], "a hold window of 0 to 9999999 microseconds is impossible"),
        (&["--limit", "soon"], "invalid value 'soon' for '--limit"),
        (&["--lease", "soon"], "invalid value 'soon' for '--lease"),
    ]);
}

#[test]
fn socket_devices_that_are_none_are_refused() {
    let cid = "the address of a guest is 3 to 4294967294";
    options_are_refused(&[
        (&["--vsock", "cid=3"], "the socket is missing: socket=PATH"),
        (&["--vsock", "cid=3,socket="], "the path is missing"),
        (&["--vsock", "socket=s"], "the guest's address is missing: cid=N"),
        (&["--vsock", "cid=x,socket=s"], "cid=\"x\" is no number"),
        (&["--vsock", "cid=2,socket=s"], cid),
        (&["--vsock", "cid=4294967295,socket=s"], cid),
        (&["--vsock", "cid=3,socket=s,port=5"], "\"port=5\" is none of cid=, socket=, slice="),
        (&["--vsock", "cid=3,socket=s,rings=coherent"], "they are always where this device is"),
        (&["--vsock", "cid=3,socket=s,slice=x"], "slice=\"x\" is no number of a slice"),
        (&["--vsock", "cid=3,socket=s,slice=1"], "device 0 names slice 1"),
        (
            &["--vsock", "cid=3,socket=s", "--vsock", "cid=4,socket=t"],
            "cannot be used multiple times",
        ),
    ]);
}

#[test]
fn unknown_role_is_refused() {
    let folder = Folder::new();
    let line = folder.must_refuse(&mut folder.tessera(&["overlord"]));
    assert_eq!(line, "unrecognized subcommand 'overlord'");
}

#[test]
fn listen_address_that_is_none_is_refused() {
    let folder = Folder::new();
    let arguments = ["companion", "--listen", "here", "--secret-file", "vm.key"];
    let line = folder.must_refuse(&mut folder.tessera(&arguments));
    assert!(line.contains("invalid value 'here' for '--listen"), "{line}");
}

/// A VM that goes on has what it began with.
#[test]
fn options_of_a_beginning_are_refused_with_a_checkpoint() {
    let folder = Folder::new();
    let beginning = [
        ("--kernel", "kernel"),
        ("--initrd", "kernel"),
        ("--cmdline", "quiet"),
        ("--guest-preset", "none"),
        ("--node-distance", "20"),
        ("--guest-clock-rate", "0.5"),
    ];
    for (option, value) in beginning {
        let words = ["bootstrap", "--restore", "saved", option, value];
        let line = folder.must_refuse(&mut folder.tessera(&words));
        assert!(line.contains(option) && line.contains("--restore"), "{line}");
    }
}

#[test]
fn clone_of_no_checkpoint_is_refused() {
    let cause = "--clone is of the VM in a checkpoint: give that by --restore";
    options_are_refused(&[(&["--clone", "a"], cause)]);
}
