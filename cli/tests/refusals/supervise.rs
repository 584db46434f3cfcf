//! A VM that is lost goes on by itself, and one that has ended stays so. The guests print `A` when they begin, and another letter
//! now and then: whoever prints `A` again has not gone on.

use crate::guest;
use crate::support::{
    Companion, Folder, KEY, PATIENCE, Process, agrees, can_share, ends_well, has_kvm, kernel_of,
};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, OpenOptions};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

pub(crate) const RUNS: &str = "the VM runs";
pub(crate) const SAVED: &str = "is there";
pub(crate) const GOES_ON: &str = "the VM goes on from ";

/// Prints `A`, and `B` again and again.
pub(crate) fn letters() -> Vec<u8> {
    kernel_of(&[
        0xb0, b'A', 0xe6, 0xe9, // mov al, 'A'; out 0xe9, al
        0xb9, 0x00, 0x00, 0x40, 0x00, // mov ecx, 0x400000
        0xff, 0xc9, // dec ecx
        0x75, 0xfc, // jump back to the dec
        0xb0, b'B', 0xe6, 0xe9, // mov al, 'B'; out 0xe9, al
        0xb0, b'\n', 0xe6, 0xe9, // the same with a new line
        0xeb, 0xed, // jump back to the first mov of ecx
    ])
}

pub(crate) fn start(folder: &Folder, own: &[&str], slices: &[&str]) -> Process {
    start_guest(folder, &letters(), own, slices)
}

fn start_guest(folder: &Folder, guest: &[u8], own: &[&str], slices: &[&str]) -> Process {
    Process::start(&mut command_for(folder, "restart=every:1,keep:2", (guest, own), slices))
}

fn command_for(
    folder: &Folder,
    policy: &str,
    (guest, own): (&[u8], &[&str]),
    slices: &[&str],
) -> Command {
    folder.file("guest", guest);
    // A busy machine lets a process stand still for a second: a loss that no test has made would use up a companion.
    let fixed = ["--kernel", "guest", "--checkpoints", ".", "--lease", "2000"];
    let control = ["--control", "vm.sock"];
    let control = if own.contains(&"--control") { &[][..] } else { &control };
    let more = [&["--on-lost", policy, "--patience", "1"], &fixed[..], control, own].concat();
    folder.tessera(&[&["supervise"], &folder.bootstrap(slices, &more)[..]].concat())
}

const DISK: [&str; 2] = ["--disk", "disk.qcow2,format=qcow2"];

/// A VM of one slice whose guest writes to the disk in the folder.
pub(crate) fn writing(folder: &Folder, policy: &str) -> Command {
    let guest = guest::image(guest::Disk::Writes);
    command_for(folder, policy, (&guest, &DISK), &["local,cpus=2,memory=32M"])
}

/// A companion that waits again, and its address.
pub(crate) fn supervised(folder: &Folder) -> (Process, String) {
    // Free a moment ago: nobody else takes it so soon.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let words = ["supervise", "companion", "--listen", &address, "--secret-file", KEY];
    let words = [&words[..], &["--checkpoints", "."]].concat();
    let process = Process::start(&mut folder.tessera(&words));
    process.line_with("waiting for a bootstrap at ");
    (process, address)
}

fn companion(folder: &Folder, own: &[&str]) -> Companion {
    let words = [&Companion::arguments()[..], &["--checkpoints", "."], own].concat();
    Companion::run(&mut folder.tessera(&words))
}

/// The process that one supervises.
pub(crate) fn child_of(process: &Process) -> Pid {
    let tasks = format!("/proc/{0}/task/{0}/children", process.id());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let children = fs::read_to_string(&tasks).unwrap();
        let first = children.split_whitespace().next().and_then(|id| id.parse().ok());
        match first.and_then(Pid::from_raw) {
            Some(child) => return child,
            None => assert!(Instant::now() < deadline, "it has no child"),
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The checkpoint that such a line names.
pub(crate) fn named(line: &str) -> PathBuf {
    let word = line.split_whitespace().find(|word| word.contains("/supervised-"));
    PathBuf::from(word.unwrap().trim_end_matches(':'))
}

/// Ends it, and looks whether the guest has begun once and no more.
pub(crate) fn went_on(process: Process) {
    // Its guest runs: a slice answers before that, and who is asked to stop then has no guest to stop.
    process.line_with(SAVED);
    process.signal(Signal::TERM);
    process.line_with("asked to stop");
    process.signal(Signal::TERM);
    let end = process.end();
    assert_eq!(end.status, Some(8), "{end:?}");
    assert_eq!(end.output.matches('A').count(), 1, "{end:?}");
}

#[test]
fn kvm_vm_whose_companion_is_killed_goes_on_with_the_next_one() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    let (companion, address) = supervised(&folder);
    let slices = ["local,cpus=1,memory=32M".to_owned(), format!("{address},cpus=1,memory=32M")];
    let vm = start(&folder, &[], &slices.each_ref().map(String::as_str));
    for _ in 0..2 {
        vm.line_with(RUNS);
        vm.line_with(SAVED);
        let saved = named(&vm.line_with(SAVED));
        kill_process(child_of(&companion), Signal::KILL).unwrap();
        vm.line_with("slice1 is lost");
        // It may have had another one written just before.
        assert!(named(&vm.line_with(GOES_ON)) >= saved);
    }
    // The bootstrap's own process: stopped from outside, and killed.
    for signal in [Signal::STOP, Signal::KILL] {
        vm.line_with(RUNS);
        vm.line_with(SAVED);
        kill_process(child_of(&vm), signal).unwrap();
        vm.line_with("the VM has ended (signal 9)");
        vm.line_with(GOES_ON);
    }
    vm.line_with(RUNS);
    went_on(vm);
}

#[test]
fn kvm_vm_goes_on_on_a_spare_and_then_on_what_is_left() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    let (first, spare) = (companion(&folder, &[]), companion(&folder, &[]));
    let reserve = spare.address.to_string();
    let own = ["--spare", &reserve, "--fits", "cpus=2,memory=64M"];
    let vm = start(&folder, &own, &["local,cpus=1,memory=32M", &first.slice(1, "32M")]);
    vm.line_with(RUNS);
    vm.line_with(SAVED);
    first.process.signal(Signal::KILL);
    let line = vm.line_with(GOES_ON);
    assert!(line.ends_with(&format!("slice 0 here, slice 1 at {reserve}")), "{line}");
    vm.line_with(RUNS);
    vm.line_with(SAVED);
    spare.process.signal(Signal::KILL);
    let line = vm.line_with(GOES_ON);
    assert!(line.ends_with(": slice 0 here"), "{line}");
    vm.line_with(RUNS);
    vm.line_with(SAVED);
    went_on(vm);
}

/// Both vCPUs of the guest write to the disk all the time and compare what they read. One of them is on the slice that has the disk,
/// which is stopped; the disk and the vCPU are elsewhere when it goes on.
#[test]
fn kvm_slice_that_stood_still_writes_nothing_when_it_goes_on() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    folder.file("disk.qcow2", &guest::qcow2());
    let lend = ["--lend", "disk:rw:disk.qcow2"];
    let [first, spare] = [(); 2].map(|()| companion(&folder, &lend));
    let reserve = spare.address.to_string();
    let disk = "disk.qcow2,format=qcow2,slice=1";
    let own = ["--spare", &reserve, "--disk", disk];
    let slices = ["local,cpus=1,memory=16M", &first.slice(1, "16M")];
    let vm = start_guest(&folder, &guest::image(guest::Disk::Writes), &own, &slices);
    vm.line_with(RUNS);
    vm.line_with(SAVED);
    first.process.signal(Signal::STOP);
    vm.line_with("slice1 is lost");
    assert!(vm.line_with(GOES_ON).ends_with(&reserve));
    vm.line_with(RUNS);
    vm.line_with(SAVED);
    // What the disk was until then; the slice that stands still has it open. A system call that it had decided on may be made still
    // (`devices/src/back_end/image/guard.rs`): it has time for that, and for nothing else.
    let abandoned = folder.named("disk.qcow2.abandoned-");
    for signal in [Signal::CONT, Signal::STOP] {
        first.process.signal(signal);
        thread::sleep(Duration::from_millis(200));
    }
    let before = fs::read(&abandoned).unwrap();
    first.process.signal(Signal::CONT);
    let end = first.process.end();
    assert_eq!(end.status, Some(6), "{end:?}");
    assert_eq!(fs::read(&abandoned).unwrap(), before);
    vm.line_with(SAVED);
    ends_well(vm);
}

/// A user has the VM with the disk in the folder go on from there, without a supervisor.
fn restored_elsewhere(folder: &Folder, checkpoint: &Path) -> Process {
    let words = ["bootstrap", "--restore", checkpoint.to_str().unwrap(), "--secret-file", KEY];
    Process::start(&mut folder.tessera(&[&words[..], &DISK].concat())).first_output()
}

/// A service manager that starts the supervisor again does not take it back either.
fn stays_elsewhere(mut supervisor: Command, vm: Process) {
    let again = Process::start(&mut supervisor).end();
    assert!(again.said.iter().any(|line| line.contains("end it there")), "{again:?}");
    ends_well(vm);
}

/// Its host stands still, and an operator has the VM go on elsewhere. Then that host comes back, with the supervisor of before.
#[test]
fn kvm_vm_that_goes_on_elsewhere_is_not_taken_back_by_the_supervisor_of_before() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    folder.file("disk.qcow2", &guest::qcow2());
    let begin = || writing(&folder, "restart=every:3,keep:2");
    let before = Process::start(&mut begin());
    before.line_with(RUNS);
    let newest = named(&before.line_with(SAVED));
    let child = child_of(&before);
    before.signal(Signal::STOP);
    kill_process(child, Signal::STOP).unwrap();

    let now = restored_elsewhere(&folder, &newest);
    thread::sleep(Duration::from_secs(1));
    kill_process(child, Signal::CONT).unwrap();
    before.signal(Signal::CONT);

    // Else it would be the later one again, and what the VM has done since would be lost.
    before.line_with("it was restored elsewhere");
    let end = before.end();
    assert!(!end.said.iter().any(|line| line.contains(GOES_ON)), "{end:?}");
    stays_elsewhere(begin(), now);
}

/// The same while the supervisor has nothing that runs: it is about to start the VM again.
#[test]
fn kvm_vm_that_was_lost_and_restored_elsewhere_is_not_taken_back() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    folder.file("disk.qcow2", &guest::qcow2());
    let begin = || writing(&folder, "restart=every:3,keep:2");
    let before = Process::start(&mut begin());
    before.line_with(RUNS);
    before.line_with(SAVED);
    // A life of its own after that, whose number is in the record: it is not somebody else's.
    kill_process(child_of(&before), Signal::KILL).unwrap();
    before.line_with(GOES_ON);
    before.line_with(RUNS);
    let newest = named(&before.line_with(SAVED));
    let child = child_of(&before);
    before.signal(Signal::STOP);
    kill_process(child, Signal::KILL).unwrap();

    let now = restored_elsewhere(&folder, &newest);
    before.signal(Signal::CONT);

    let said = before.line_with("the VM was restored elsewhere, and goes on there as its life ");
    assert!(said.contains("slice0"), "{said}");
    let end = before.end();
    assert_eq!(end.status, Some(9), "{end:?}");
    stays_elsewhere(begin(), now);
}

/// Most of its checkpoints are increments, and old ones go, with what disks keep for them.
#[test]
fn kvm_vm_of_a_long_life_has_few_checkpoints_and_states_of_its_disk() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    folder.file("disk.qcow2", &guest::qcow2());
    let mut command = writing(&folder, "restart=every:1,keep:2,full:3");
    // A pipe that nobody empties would have no room for the guest's last word.
    folder.file("output", &[]);
    let output = OpenOptions::new().append(true).open(folder.named("output")).unwrap();
    let vm = Process::start(command.stdout(output));
    let count = |is_so: fn(&str, &Path) -> bool| {
        let names = folder.names().into_iter();
        names.filter(|path| is_so(&path.file_name().unwrap().to_string_lossy(), path)).count()
    };
    // Those that are being deleted have none any more.
    let is_checkpoint =
        |name: &str, path: &Path| name.starts_with("supervised-") && path.join("part-0").exists();
    let is_state = |name: &str, _: &Path| {
        name.starts_with("disk.qcow2.c") && !name.contains(".released") && !name.contains(".next")
    };
    for life in 0..2 {
        vm.line_with(RUNS);
        let mut bytes = Vec::new();
        for _ in 0..9 {
            let saved = named(&vm.line_with(SAVED));
            bytes.push(fs::metadata(saved.join("part-0")).unwrap().len());
        }
        assert!(bytes[1] < bytes[0] && bytes[2] < bytes[0] && bytes[4] < bytes[3], "{bytes:?}");
        // Four that are kept, one that is written, one whose deletion is not told of, one that is being merged.
        let (checkpoints, states) = (count(is_checkpoint), count(is_state));
        assert!(checkpoints <= 6 && states <= 8, "{checkpoints}, {states}: {:#?}", folder.names());
        if life == 0 {
            kill_process(child_of(&vm), Signal::KILL).unwrap();
        }
    }
    vm.signal(Signal::TERM);
    let end = vm.end();
    assert_eq!(end.status, Some(0), "{end:?}");
    agrees(&folder.read("output"));
}

#[test]
fn kvm_vm_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    let vm = start(&folder, &[], &["local,cpus=1,memory=32M"]);
    vm.line_with(RUNS);
    let older = named(&vm.line_with(SAVED));
    let newest = named(&vm.line_with(SAVED));
    kill_process(child_of(&vm), Signal::KILL).unwrap();
    let part = newest.join("part-0");
    let mut bytes = fs::read(&part).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&part, bytes).unwrap();
    assert_eq!(named(&vm.line_with(GOES_ON)), newest);
    vm.line_with("cannot be gone on from");
    assert_eq!(named(&vm.line_with(GOES_ON)), older);
    vm.line_with(RUNS);
    went_on(vm);
}

/// Each byte of the newest one is right, and the state of its disk is not. More than one is kept for that.
#[test]
fn kvm_vm_whose_newest_state_of_a_disk_was_touched_goes_on_from_the_one_before() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    folder.file("disk.qcow2", &guest::qcow2());
    let vm = Process::start(&mut writing(&folder, "restart=every:2,keep:2"));
    vm.line_with(RUNS);
    let older = named(&vm.line_with(SAVED));
    let newest = named(&vm.line_with(SAVED));
    kill_process(child_of(&vm), Signal::KILL).unwrap();
    let cut = checkpoint::cut_in(&newest).unwrap();
    let state = File::open(newest.with_file_name(format!("disk.qcow2.c{cut}"))).unwrap();
    state.set_modified(SystemTime::now()).unwrap();
    assert_eq!(named(&vm.line_with(GOES_ON)), newest);
    vm.line_with("is not what it was at the checkpoint");
    assert_eq!(named(&vm.line_with(GOES_ON)), older);
    vm.line_with(RUNS);
    ends_well(vm);
}

#[test]
fn kvm_vm_that_has_ended_is_not_started_again() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    let words = folder
        .bootstrap(&["local,cpus=1,memory=32M"], &["--control", "vm.sock", "--checkpoints", "."]);
    let end = Process::start(&mut folder.tessera(&[&["supervise"], &words[..]].concat())).end();
    assert_eq!(end.status, Some(3), "{end:?}");
    assert_eq!(end.said.last().unwrap(), "tessera: supervisor: the VM has ended", "{end:?}");
}

#[test]
fn kvm_vm_ends_with_its_supervisor() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    let vm = start(&folder, &[], &["local,cpus=1,memory=32M"]);
    vm.line_with(RUNS);
    let child = child_of(&vm);
    vm.signal(Signal::KILL);
    has_gone(child);
}

/// Waits for the end of a process that is nobody's child any more.
pub(crate) fn has_gone(process: Pid) {
    let deadline = Instant::now() + PATIENCE;
    let path = format!("/proc/{}/stat", process.as_raw_nonzero());
    // Whoever inherits it may leave it as a zombie.
    while fs::read_to_string(&path).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(Instant::now() < deadline, "the slice runs on");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The supervisor is killed, with its slice. The next one finds what it has left.
#[test]
fn kvm_supervisor_that_starts_again_goes_on_from_the_newest_checkpoint() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    folder.file("disk.qcow2", &guest::qcow2());
    let (companion, address) = supervised(&folder);
    let guest = guest::image(guest::Disk::Writes);
    let slices = ["local,cpus=1,memory=16M".to_owned(), format!("{address},cpus=1,memory=16M")];
    let slices = slices.each_ref().map(String::as_str);
    let vm = start_guest(&folder, &guest, &DISK, &slices);
    vm.line_with(RUNS);
    vm.line_with(SAVED);
    let saved = named(&vm.line_with(SAVED));
    // Two of one VM would be worse than none.
    start_guest(&folder, &guest, &DISK, &slices).line_with("another supervisor with this control");
    drop(vm);
    companion.line_with("is to wait again");

    let refuse = |more: &[&str]| {
        let own = [&DISK[..], more].concat();
        let mut command = command_for(&folder, "restart=every:1", (&guest, &own), &slices);
        folder.must_refuse(&mut command)
    };
    let refused = refuse(&["--cmdline", "other"]);
    assert!(
        refused.contains("with another cmdline") && refused.contains(".supervised"),
        "{refused}"
    );
    // By another socket it is another VM, which would find a later disk.
    let refused = refuse(&["--control", "other.sock"]);
    assert!(refused.contains("disk.qcow2") && refused.contains("--restore"), "{refused}");

    let vm = start_guest(&folder, &guest, &DISK, &slices);
    vm.line_with("has not ended, and goes on, with");
    let from = named(&vm.line_with(GOES_ON));
    let number = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.rsplit('-').next().unwrap().parse::<u64>().unwrap()
    };
    assert!(number(&from) >= number(&saved), "{from:?} is older than {saved:?}");
    vm.line_with(RUNS);
    let next = named(&vm.line_with(SAVED));
    assert!(number(&next) > number(&from), "{next:?} is not after {from:?}");
    ends_well(vm);
    // It has ended: what begins now is another VM.
    assert!(!folder.names().iter().any(|path| path.to_string_lossy().contains(".supervised")));
    drop(companion);
}

/// Somebody has its disk for a while.
#[test]
fn kvm_vm_that_is_refused_waits_and_goes_on() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    folder.file("disk.qcow2", &guest::qcow2());
    let vm = Process::start(&mut writing(&folder, "restart=every:1,keep:2"));
    vm.line_with(RUNS);
    vm.line_with(SAVED);
    kill_process(child_of(&vm), Signal::KILL).unwrap();
    vm.line_with("the VM has ended (signal 9)");
    let disk = OpenOptions::new().read(true).write(true).open(folder.named("disk.qcow2")).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while disk.try_lock().is_err() {
        assert!(Instant::now() < deadline, "the slice has the disk");
    }
    for _ in 0..2 {
        vm.line_with(GOES_ON);
        let line = vm.line_with("the VM was refused (status 2), and waits for ");
        assert!(line.contains("its checkpoint is whole"), "{line}");
    }
    drop(disk);
    vm.line_with(GOES_ON);
    vm.line_with(RUNS);
    ends_well(vm);
}

/// Names of checkpoints say which VM's they are, whenever it began.
#[test]
fn kvm_vms_that_begin_in_one_folder_have_their_own_checkpoints() {
    if !has_kvm() {
        return;
    }
    let folder = Folder::new();
    let begin = |socket| start(&folder, &["--control", socket], &["local,cpus=1,memory=32M"]);
    let vms = ["one.sock", "two.sock"].map(begin);
    let saved = vms.each_ref().map(|vm| {
        vm.line_with(SAVED);
        named(&vm.line_with(SAVED))
    });
    let name = |path: &PathBuf| path.to_string_lossy().rsplit_once('-').unwrap().0.to_owned();
    assert_ne!(name(&saved[0]), name(&saved[1]));
    vms.into_iter().for_each(went_on);
}

#[test]
fn supervisor_needs_what_it_asks_for_checkpoints_with() {
    let folder = Folder::new();
    let refuse = |more: &[&str]| {
        let words = folder.bootstrap(&["local,cpus=1,memory=32M"], more);
        folder.must_refuse(&mut folder.tessera(&[&["supervise"], &words[..]].concat()))
    };
    assert!(refuse(&["--control", "vm.sock"]).contains("--checkpoints"));
    assert!(refuse(&["--checkpoints", "."]).contains("--control"));
    assert!(refuse(&["--control", "s", "--checkpoints", "nowhere"]).contains("nowhere"));
    let often = refuse(&["--control", "s", "--checkpoints", ".", "--on-lost", "restart=every:0"]);
    assert!(often.contains("every:"), "{often}");
}
