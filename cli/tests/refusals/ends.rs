//! How a VM ends that somebody asks to stop: the guest by its power button, or all slices without it.

use crate::support::{
    Companion, End, Folder, PATIENCE, Process, can_share, deaf, has_kvm, kernel_of,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use vmm::control::{Answer, Client, PlacementRequest, Request};

/// Prints a line on the debug console, enables the power button, waits for it, and powers off.
fn listening() -> Vec<u8> {
    kernel_of(&[
        0x66, 0xba, 0x02, 0x06, // mov dx, 0x602 (PM1 enable)
        0x66, 0xb8, 0x00, 0x01, // mov ax, 0x100 (power button)
        0x66, 0xef, // out dx, ax
        0xb0, b'\n', 0xe6, 0xe9, // mov al, '\n'; out 0xe9, al
        0x66, 0xba, 0x00, 0x06, // mov dx, 0x600 (PM1 status)
        0x66, 0xed, // in ax, dx
        0xf6, 0xc4, 0x01, // test ah, 1
        0x74, 0xf9, // jump back to the in
        0x66, 0xba, 0x04, 0x06, // mov dx, 0x604 (PM1 control)
        0x66, 0xb8, 0x00, 0x34, // mov ax, 0x3400 (S5)
        0x66, 0xef, // out dx, ax
        0xf4, 0xeb, 0xfd, // hlt; jump back to the hlt
    ])
}

fn command(folder: &Folder, kernel: &[u8], slices: &[&str], more: &[&str]) -> Command {
    folder.file("guest", kernel);
    let more = [&["--kernel", "guest"], more].concat();
    folder.tessera(&folder.bootstrap(slices, &more))
}

fn start(folder: &Folder, kernel: &[u8], slices: &[&str], more: &[&str]) -> Process {
    Process::start(&mut command(folder, kernel, slices, more)).first_output()
}

fn judge(folder: &Folder, end: &End, status: u8, said: &str) {
    assert_eq!(end.status, Some(i32::from(status)), "{end:?}");
    assert_eq!(end.said, [format!("tessera: {said}")], "{end:?}");
    let report: serde_json::Value = serde_json::from_str(&folder.read("run.json")).unwrap();
    assert_eq!((&report["status"], &report["ending"]), (&status.into(), &said.into()));
}

/// With its standard error in a pipe that nobody reads.
fn start_into(folder: &Folder, kernel: &[u8], more: &[&str], stderr: PipeWriter) -> Process {
    let mut command = command(folder, kernel, &["local,cpus=1,memory=64M"], more);
    Process::start_into(&mut command, stderr).first_output()
}

/// Fills the pipe, again and again until its reader is dropped.
fn fill(writer: &PipeWriter) {
    let mut own = writer.try_clone().unwrap();
    thread::spawn(move || while own.write_all(&[b'x'; 4096]).is_ok() {});
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    while poll(&mut [PollFd::new(writer, PollFlags::OUT)], Some(&at_once)).unwrap() > 0 {
        thread::sleep(Duration::from_millis(1));
    }
}

/// A pipe that takes nothing: a terminal that was stopped, a pager.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = pipe().unwrap();
    fill(&writer);
    (reader, writer)
}

#[test]
fn kvm_first_signal_presses_the_power_button() {
    if !has_kvm() {
        return;
    }
    for signal in [Signal::TERM, Signal::INT] {
        let folder = Folder::new();
        let vm = start(&folder, &listening(), &["local,cpus=1,memory=64M"], &[]);
        vm.signal(signal);
        judge(&folder, &vm.end(), 0, "the guest powered off");
    }
}

#[test]
fn kvm_reader_of_the_console_that_stops_stops_nothing() {
    if !has_kvm() {
        return;
    }
    // More than a pipe and what waits for it can hold, and power off. Nobody reads before that.
    let kernel = kernel_of(&[
        0xb9, 0x00, 0x00, 0x06, 0x00, // mov ecx, 0x60000
        0xb0, b'x', // mov al, 'x'
        0xe6, 0xe9, // out 0xe9, al
        0xff, 0xc9, // dec ecx
        0x75, 0xfa, // jump back to the out
        0x66, 0xba, 0x04, 0x06, // mov dx, 0x604 (PM1 control)
        0x66, 0xb8, 0x00, 0x34, // mov ax, 0x3400 (S5)
        0x66, 0xef, // out dx, ax
        0xf4, 0xeb, 0xfd, // hlt; jump back to the hlt
    ]);
    let folder = Folder::new();
    folder.file("guest", &kernel);
    let arguments = folder.bootstrap(&["local,cpus=1,memory=64M"], &["--kernel", "guest"]);
    let end = Process::start(&mut folder.tessera(&arguments)).end();
    judge(&folder, &end, 0, "the guest powered off");
    assert!(!end.output.is_empty() && end.output.bytes().all(|byte| byte == b'x'));
}

#[test]
fn kvm_second_signal_ends_a_guest_that_does_not_listen() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    let vm = start(&folder, &deaf(), &["local,cpus=1,memory=64M"], &[]);
    vm.signal(Signal::TERM);
    vm.line_with("does not listen to its power button");
    vm.signal(Signal::INT);
    judge(&folder, &vm.end(), 8, "stopped: asked twice, the guest was not waited for");
}

/// Whoever is told of the VM may want its end at once: its process takes the request, and does not just go.
#[test]
fn kvm_vm_that_can_be_seen_can_be_ended() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    let (slices, more) = (["local,cpus=2,memory=64M"], ["--control", "vm.sock"]);
    let vm = Process::start(&mut command(&folder, &listening(), &slices, &more));
    let ask = || {
        let mut client = Client::connect(&folder.path("vm.sock"))?;
        client.ask(&Request::Placement(PlacementRequest {}))
    };
    let deadline = Instant::now() + PATIENCE;
    while !matches!(ask(), Ok(Answer::Placement(_))) {
        assert!(Instant::now() < deadline, "nothing is told of the VM");
        thread::yield_now();
    }
    vm.signal(Signal::TERM);
    judge(&folder, &vm.end(), 0, "the guest powered off");
}

#[test]
fn kvm_guest_that_does_not_shut_down_is_ended_at_the_limit() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    let more = ["--stop-limit", "1"];
    let vm = start(&folder, &deaf(), &["local,cpus=1,memory=64M"], &more);
    vm.signal(Signal::TERM);
    judge(&folder, &vm.end(), 8, "stopped: the guest did not shut down within 1s");
}

#[test]
fn kvm_companion_that_is_asked_has_the_guest_shut_down() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    let companion = Companion::start(&folder);
    let slices = ["local,cpus=1,memory=64M", &companion.slice(1, "64M")];
    let vm = start(&folder, &listening(), &slices, &[]);
    companion.process.line_with("running as ");
    companion.process.signal(Signal::TERM);
    judge(&folder, &vm.end(), 0, "the guest powered off");
    let end = companion.process.end();
    let said = "tessera: the coordinator says that the VM is over: the guest powered off";
    assert_eq!((end.status, &*end.said), (Some(0), &[said.to_owned()][..]), "{end:?}");
}

#[test]
fn kvm_companions_exit_well_when_a_vm_is_stopped_without_its_guest() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    let companion = Companion::start(&folder);
    let slices = ["local,cpus=1,memory=64M", &companion.slice(1, "64M")];
    let vm = start(&folder, &deaf(), &slices, &[]);
    vm.signal(Signal::TERM);
    vm.line_with("does not listen to its power button");
    vm.signal(Signal::TERM);
    judge(&folder, &vm.end(), 8, "stopped: asked twice, the guest was not waited for");
    let end = companion.process.end();
    let said = "tessera: the coordinator says that the VM is over: it was stopped";
    assert_eq!((end.status, &*end.said), (Some(0), &[said.to_owned()][..]), "{end:?}");
}

#[test]
fn companion_that_waits_ends_at_the_first_signal() {
    let folder = Folder::new();
    let companion = Companion::start(&folder);
    companion.process.signal(Signal::TERM);
    let end = companion.process.end();
    // None: by the signal.
    assert_eq!(end.status, None, "{end:?}");
    assert_eq!(end.said, ["tessera: stopped before a guest ran"]);
}

#[test]
fn kvm_reader_of_the_log_that_stops_stops_no_end() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    let (reader, writer) = pipe().unwrap();
    let more = ["--stop-limit", "1"];
    let vm = start_into(&folder, &deaf(), &more, writer.try_clone().unwrap());
    fill(&writer);
    vm.signal(Signal::TERM);
    let end = vm.end();
    assert_eq!((end.status, folder.has("run.json")), (Some(8), true), "{end:?}");
    drop(reader);
}

/// A collector of logs that is started anew, a terminal that is closed.
#[test]
fn kvm_reader_of_the_log_that_goes_away_ends_nothing() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    let (reader, writer) = pipe().unwrap();
    let vm = start_into(&folder, &listening(), &[], writer);
    drop(reader);
    // The guest shuts down in order.
    vm.signal(Signal::TERM);
    let end = vm.end();
    assert_eq!((end.status, folder.has("run.json")), (Some(0), true), "{end:?}");
}

#[test]
fn refusal_that_nobody_reads_has_its_status() {
    let folder = Folder::new();
    let arguments = folder.bootstrap(&["local,cpus=0,memory=64M"], &[]);
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let end = Process::start_into(&mut folder.tessera(&arguments), writer).end();
    assert_eq!(end.status, Some(2), "{end:?}");

    let (reader, writer) = full_pipe();
    let end = Process::start_into(&mut folder.tessera(&arguments), writer).end();
    assert_eq!(end.status, Some(2), "{end:?}");
    drop(reader);
}

#[test]
fn companion_that_nobody_reads_ends_at_the_first_signal() {
    let folder = Folder::new();
    let (reader, writer) = full_pipe();
    let mut command = folder.tessera(&Companion::arguments());
    let companion = Process::start_into(&mut command, writer);
    thread::sleep(Duration::from_millis(200));
    companion.signal(Signal::TERM);
    let end = companion.end();
    assert_eq!((end.status, end.signal), (None, Some(15)), "{end:?}");
    drop(reader);
}

/// It is stopped when the other companion hears of the end, which must not close before it knows.
#[test]
fn kvm_companion_that_is_slow_to_hear_of_the_end_loses_nobody() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    let (quick, slow) = (Companion::start(&folder), Companion::start(&folder));
    let slices = ["local,cpus=1,memory=64M", &quick.slice(1, "64M"), &slow.slice(1, "64M")];
    let vm = start(&folder, &deaf(), &slices, &["--lease", "30000"]);
    slow.process.line_with("running as ");
    slow.process.signal(Signal::STOP);
    vm.signal(Signal::TERM);
    vm.line_with("does not listen to its power button");
    vm.signal(Signal::TERM);
    quick.process.line_with("the VM is over");
    // It would be lost to the other one.
    assert!(quick.process.is_silent(Duration::from_millis(300)), "it closes at once");
    slow.process.signal(Signal::CONT);
    judge(&folder, &vm.end(), 8, "stopped: asked twice, the guest was not waited for");
    for companion in [quick, slow] {
        let end = companion.process.end();
        assert_eq!(end.status, Some(0), "{end:?}");
    }
}
