//! The program on this machine: a short run of the litmus and counter tests must pass, and what
//! goes wrong must be told.

use std::process::{Command, Output};
use std::thread;

fn guest_tests(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_guest-tests")).args(args).output().expect("the program starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn two_cpus() -> bool {
    let enough = thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2);
    if !enough {
        needs::skip("needs 2 cpus");
    }
    enough
}

#[test]
fn litmus_and_counters_on_two_cpus_pass() {
    if !two_cpus() {
        return;
    }
    let output = guest_tests(&["run", "--tests", "litmus,count,clock-tsc"]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("TEST litmus-").count(), 16, "{text}");
    assert!(text.contains("GUEST tests_done passed=20 failed=0"), "{text}");
}

#[test]
fn processes_and_page_tables_on_two_cpus_pass() {
    if !two_cpus() {
        return;
    }
    let tests = "tlb,futex,pipe,signal,fork-exec,map-stress,memory,generation,hotplug";
    let output = guest_tests(&["run", "--tests", tests]);
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("TEST hotplug pass skip: only as pid 1"), "{text}");
}

#[test]
fn list_of_tests_names_the_ones_that_run() {
    let output = guest_tests(&["list"]);
    assert!(output.status.success());
    assert!(text(&output).lines().any(|line| line == "tlb-unmap"));
}

#[test]
fn unknown_test_is_refused_with_its_name() {
    let output = guest_tests(&["run", "--tests", "litmos"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("no test is named \"litmos\""));
}

#[test]
fn planted_hang_crash_panic_and_error_are_reported() {
    let output = guest_tests(&["selfcheck"]);
    let text = text(&output);
    // A panic inside a worker prints its message, so only the status counts.
    assert!(output.status.success(), "{text}");
}
