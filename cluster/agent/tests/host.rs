//! An agent against its host: a full disk, no descriptors, processes that hide, modes of files. What changes limits of the whole process has
//! one to itself.

use agent::decide::{
    Entry, Generation, Operation, Order, Phase, Reply, Request, Reserved, Settings, Slice,
    SliceName, Term, Vm,
};
use agent::journal::JournalFile;
use agent::runtime::{AgentHandle, AskError, Options, Running};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use scheduler::Resources;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};
use std::{env, fs};

const VM: Vm = Vm(77);
const TERM: Term = Term(1);
const LIMIT: Duration = Duration::from_secs(20);

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("tessera-breaker-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("a folder of its own");
        Self(path)
    }

    fn begin(&self) -> Running {
        let settings = Settings { capacity: Resources::new(1000, 1000) };
        let (program, folder) = ("/bin/sh".into(), self.0.clone());
        Running::begin(Options { settings, program, folder, environment: Vec::new() })
            .expect("an agent begins")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn name(number: u16) -> SliceName {
    SliceName { vm: VM, number }
}

fn ensure(number: u16, script: &str) -> Request {
    let words = vec!["-c".into(), script.into()];
    let order = Order { resources: Resources::new(1, 1), words };
    Request::Ensure { slice: name(number), generation: Generation(1), order }
}

fn reserve(id: u128, lasts: u64) -> Request {
    let (generation, resources) = (Generation(1), Resources::new(1, 1));
    Request::Reserve { operation: Operation(id), slice: name(9), generation, resources, lasts }
}

fn fence() -> Request {
    Request::Fence { vm: VM, generation: Generation(1) }
}

/// Waits until something is there.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + LIMIT;
    loop {
        match look() {
            None if Instant::now() < end => sleep(Duration::from_millis(20)),
            found => return found,
        }
    }
}

fn slice(of: &AgentHandle, number: u16) -> Option<Slice> {
    of.journal().slices.get(&name(number)).cloned()
}

/// The process of a slice that runs.
fn process(of: &AgentHandle, number: u16) -> u32 {
    let running = until(|| match slice(of, number)?.phase {
        Phase::Running(process) => Some(process.id),
        _ => None,
    });
    running.expect("the slice runs")
}

fn kill(id: u32) {
    let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
}

fn state(id: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Runs a test that is ignored in a process of its own, which a write beyond its limit does not end.
fn alone(test: &str) {
    let this = env::current_exe().expect("this program");
    let script = "trap '' XFSZ; exec \"$0\" --ignored --exact \"$1\" --nocapture";
    let status = Command::new("sh").args(["-c", script]).arg(this).arg(test).status();
    assert!(status.expect("a shell").success());
}

fn limited(resource: Resource, most: Option<u64>) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: most, maximum }).expect("a lower limit");
}

#[test]
fn journal_can_be_written_again_when_there_is_room_again() {
    alone("full_disk");
}

#[test]
#[ignore = "has a process to itself"]
fn full_disk() {
    let folder = Folder::new("full");
    let running = folder.begin();
    let handle = running.handle();
    handle.ask(TERM, reserve(1, 600_000)).unwrap();
    limited(Resource::Fsize, Some(0));
    let full = handle.ask(TERM, reserve(2, 600_000));
    assert!(matches!(full, Err(AskError::Journal(_))), "{full:?}");
    limited(Resource::Fsize, getrlimit(Resource::Fsize).maximum);
    fs::write(folder.0.join("room"), [1; 100_000]).expect("there is room again");
    // Nobody asks for three seconds: three ticks.
    let mut last = None;
    for _ in 0..4 {
        sleep(Duration::from_secs(3));
        last = Some(handle.ask(TERM, reserve(3, 600_000)));
        if matches!(last, Some(Ok(_))) {
            return;
        }
    }
    panic!("{last:?}");
}

#[test]
fn slice_that_cannot_be_watched_has_not_ended() {
    alone("no_descriptors");
}

#[test]
#[ignore = "has a process to itself"]
fn no_descriptors() {
    const SLICES: u16 = 30;
    let folder = Folder::new("descriptors");
    let first = folder.begin();
    let mut processes = Vec::new();
    for number in 0..SLICES {
        first.handle().ask(TERM, ensure(number, "exec sleep 600")).unwrap();
        processes.push(process(&first.handle(), number));
    }
    drop(first);
    let open = fs::read_dir("/proc/self/fd").unwrap().count();
    limited(Resource::Nofile, Some(u64::try_from(open).unwrap() + 20));
    let second = folder.begin();
    sleep(Duration::from_secs(2));
    limited(Resource::Nofile, getrlimit(Resource::Nofile).maximum);
    let ended = (0..SLICES).zip(&processes).filter(|(number, id)| {
        let is_ended = slice(&second.handle(), *number).is_some_and(|it| !it.may_run());
        is_ended && state(**id) == Some('S')
    });
    let ended: Vec<_> = ended.collect();
    processes.iter().copied().for_each(kill);
    assert!(ended.is_empty(), "they run, and are said to have ended: {ended:?}");
}

/// As one that was killed while one of its threads is in a file system that does not answer: its first thread has no memory any more, and
/// so no environment, and the others run.
#[test]
fn fence_is_not_confirmed_while_a_thread_runs() {
    let folder = Folder::new("thread");
    let first = folder.begin();
    let python = "exec /usr/bin/python3 -c 'import threading,time,ctypes; \
        threading.Thread(target=lambda: time.sleep(600)).start(); ctypes.CDLL(None).syscall(60, 0)'";
    first.handle().ask(TERM, ensure(0, python)).unwrap();
    let id = process(&first.handle(), 0);
    let is_so = until(|| (state(id)? == 'Z').then_some(()));
    is_so.expect("its first thread has ended");
    assert!(slice(&first.handle(), 0).unwrap().may_run(), "who has started it knows that it runs");
    drop(first);

    let second = folder.begin();
    let (send, fenced) = channel();
    let handle = second.handle();
    let _asks = spawn(move || send.send(handle.ask(Term(2), fence())));
    let fenced = fenced.recv_timeout(Duration::from_secs(5));
    let threads = fs::read_dir(format!("/proc/{id}/task")).map_or(0, Iterator::count);
    kill(id);
    let is_confirmed = matches!(fenced, Ok(Ok(Reply::Fenced(_))));
    assert!(!(is_confirmed && threads > 1), "confirmed while {threads} threads are there");
}

/// What a slice has started is left.
#[test]
fn fence_is_not_confirmed_while_a_child_of_the_slice_runs() {
    let folder = Folder::new("child");
    let running = folder.begin();
    let handle = running.handle();
    let noted = folder.0.join("child");
    let script = format!("sleep 600 & echo $! > {}; exit 5", noted.display());
    handle.ask(TERM, ensure(0, &script)).unwrap();
    until(|| (!slice(&handle, 0)?.may_run()).then_some(())).expect("it ends");
    handle.ask(TERM, fence()).unwrap();
    let child: u32 = fs::read_to_string(&noted).unwrap().trim().parse().unwrap();
    let state = state(child);
    kill(child);
    assert!(!matches!(state, Some('S' | 'R')), "the child is there: {state:?}");
}

/// A reservation is taken off, and a sick agent tries again, only in a second in which nobody asks.
#[test]
fn reservations_expire_while_somebody_asks() {
    let folder = Folder::new("ticks");
    let running = folder.begin();
    let handle = running.handle();
    handle.ask(TERM, reserve(1, 1)).unwrap();
    let gone = until(|| {
        handle.ask(TERM, Request::Release { operation: Operation(2) }).unwrap();
        handle.journal().reserved.is_empty().then_some(())
    });
    assert!(gone.is_some(), "{:?}", handle.journal().reserved);
}

/// Requests that are in the queue behind the end of the agent.
#[test]
fn who_asks_an_agent_that_ends_is_told() {
    for round in 0..20 {
        let folder = Folder::new(&format!("ends-{round}"));
        let running = folder.begin();
        let (send, answers) = channel();
        for id in 0..8 {
            let (handle, send) = (running.handle(), send.clone());
            spawn(move || {
                while handle.ask(TERM, reserve(id, 1)).is_ok() {}
                send.send(()).expect("the test waits");
            });
        }
        drop(running);
        (0..8).for_each(|_| answers.recv_timeout(LIMIT).expect("each is told"));
    }
}

/// The agent is killed, or cannot record, after it has opened the journal and before it has recorded what the restart of the host means.
#[test]
fn restart_of_the_host_is_told_until_it_is_recorded() {
    let folder = Folder::new("boot");
    let path = folder.0.join("journal.redb");
    let before = JournalFile::open(&path, "boot 1", 1).unwrap();
    let (generation, resources) = (Generation(1), Resources::new(1, 1));
    let until = 30 * 24 * 3_600_000;
    let reserved = Reserved { slice: name(0), generation, resources, until };
    before.file.record(&[Entry::Reserved(Operation(1), Some(reserved))]).unwrap();
    drop(before);
    let killed = JournalFile::open(&path, "boot 2", 1).unwrap();
    assert!(killed.host_restarted);
    drop(killed);
    let again = JournalFile::open(&path, "boot 2", 1).unwrap();
    assert!(again.host_restarted, "a reservation of ten minutes lasts for 30 days");
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}

#[test]
fn others_do_not_read_what_slices_say() {
    let folder = Folder::new("modes");
    let running = folder.begin();
    running.handle().ask(TERM, ensure(0, "exit 0")).unwrap();
    let log = folder.0.join("slices").join(format!("{VM}-0.log"));
    let modes = [mode(&log), mode(&folder.0.join("journal.redb"))];
    assert!(modes.iter().all(|mode| mode & 0o077 == 0), "{modes:?}");
}

/// Without CAP_SYS_PTRACE the environment of a process that is not dumpable (PR_SET_DUMPABLE, a program with capabilities of its file)
/// cannot be read. So this process gives its rights up, and is nobody.
#[test]
fn process_that_cannot_be_read_has_not_ended() {
    let this = env::current_exe().expect("this program");
    // Where it is, nobody else may come: it is copied to where all may.
    let copy = env::temp_dir().join(format!("tessera-unread-{}", std::process::id()));
    fs::copy(this, &copy).expect("a copy of this program");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("that all may run");
    let mut command = if rustix::process::geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]);
        command.arg("--inh-caps=-all").arg(&copy);
        command
    } else {
        Command::new(&copy)
    };
    let status = command.args(["--ignored", "--exact", "without_rights", "--nocapture"]).status();
    let _ = fs::remove_file(&copy);
    assert!(status.expect("a process without rights").success());
}

#[test]
#[ignore = "of a user without rights"]
fn without_rights() {
    let folder = Folder::new("dumpable");
    let first = folder.begin();
    let python = "exec /usr/bin/python3 -c 'import time,ctypes; ctypes.CDLL(None).prctl(4, 0); \
        print(1, flush=True); time.sleep(600)'";
    first.handle().ask(TERM, ensure(0, python)).unwrap();
    let id = process(&first.handle(), 0);
    let log = folder.0.join("slices").join(format!("{VM}-0.log"));
    until(|| (!fs::read(&log).ok()?.is_empty()).then_some(())).expect("it is not dumpable");
    let hidden = fs::read(format!("/proc/{id}/environ")).map_err(|error| error.kind());
    assert_eq!(hidden, Err(ErrorKind::PermissionDenied), "else there is nothing to see here");
    drop(first);
    let second = folder.begin();
    sleep(Duration::from_secs(1));
    let phase = slice(&second.handle(), 0).unwrap().phase;
    let is_there = state(id);
    kill(id);
    assert!(
        !(is_there == Some('S') && matches!(phase, Phase::Ended(_))),
        "it sleeps, and {phase:?}"
    );
}

/// Orchestrators, and whoever asks for the end of a VM, decide by the status.
#[test]
fn status_of_a_slice_that_ends_while_nothing_can_be_recorded_is_told() {
    alone("status_while_sick");
}

#[test]
#[ignore = "has a process to itself"]
fn status_while_sick() {
    let folder = Folder::new("sick-status");
    let running = folder.begin();
    let handle = running.handle();
    let script = format!("while [ ! -e {}/go ]; do sleep 0.1; done; exit 4", folder.0.display());
    handle.ask(TERM, ensure(0, &script)).unwrap();
    process(&handle, 0);
    limited(Resource::Fsize, Some(0));
    let _ = handle.ask(TERM, reserve(2, 600_000));
    fs::create_dir(folder.0.join("go")).unwrap();
    sleep(Duration::from_secs(3));
    limited(Resource::Fsize, getrlimit(Resource::Fsize).maximum);
    let ended = until(|| match slice(&handle, 0)?.phase {
        Phase::Ended(end) => Some(end),
        _ => None,
    });
    assert_eq!(ended, Some(agent::decide::End::Status(4)));
}

/// What a slice has started carries its token too, and is taken for the slice.
#[test]
fn child_of_a_slice_that_has_ended_is_not_the_slice() {
    let folder = Folder::new("heir");
    let first = folder.begin();
    let at = folder.0.display();
    let waits = format!("while [ ! -e {at}/go ]; do sleep 0.1; done; exit 5");
    let script = format!("sleep 600 & echo $! > {at}/child; {waits}");
    first.handle().ask(TERM, ensure(0, &script)).unwrap();
    let id = process(&first.handle(), 0);
    drop(first);
    fs::create_dir(folder.0.join("go")).unwrap();
    until(|| state(id).is_none().then_some(())).expect("it ends");
    let child: u32 = fs::read_to_string(folder.0.join("child")).unwrap().trim().parse().unwrap();
    let second = folder.begin();
    sleep(Duration::from_secs(1));
    let phase = slice(&second.handle(), 0).unwrap().phase;
    kill(child);
    assert!(
        matches!(phase, Phase::Ended(_)),
        "{phase:?}; the slice was {id}, its child is {child}"
    );
}
