//! Runs the binary in a folder of its own, with every wait bounded and every process ended.

use crate::guest;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, PipeWriter, Read};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio, id};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// No step of these tests takes longer, except a peer that says nothing.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
/// Secret of the tests' VMs.
pub(crate) const SECRET: [u8; 32] = [7; 32];
const BINARY: &str = env!("CARGO_BIN_EXE_tessera");
/// Exit status of what is refused.
const REFUSED: i32 = 2;
/// Exit status when a slice is lost.
const LOST: i32 = 5;
pub(crate) const KEY: &str = "vm.key";
const KERNEL: &str = "kernel";

/// A folder that goes away with its test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// With the secret and a kernel in it.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tessera-refusals-{}-{number}", id()));
        fs::create_dir(&path).unwrap();
        let folder = Self(path);
        folder.secret(KEY, &SECRET, 0o600);
        folder.file(KERNEL, &kernel());
        folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn file(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.join(name).exists()
    }

    pub(crate) fn secret(&self, name: &str, bytes: &[u8], mode: u32) {
        self.file(name, bytes);
        fs::set_permissions(self.0.join(name), Permissions::from_mode(mode)).unwrap();
    }

    pub(crate) fn names(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        names.sort();
        names
    }

    /// The file whose name begins so.
    pub(crate) fn named(&self, begin: &str) -> PathBuf {
        let is_so = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begin))
        };
        self.names().into_iter().find(is_so).unwrap_or_else(|| panic!("there is no {begin}..."))
    }

    /// The binary with arguments.
    pub(crate) fn tessera(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(arguments);
        self.in_here(command)
    }

    /// The binary in a mount namespace of its own, after shell has changed that. The change ends in
    /// `exec`, so that the process that is ended is the binary.
    pub(crate) fn tessera_after(&self, change: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &format!("{change} \"$@\""), "sh", BINARY]);
        command.args(arguments);
        self.in_here(command)
    }

    /// A copy of the binary in this folder. Another process writes it: a child of another test might hold what is open for that.
    pub(crate) fn copied(&self, name: &str, arguments: &[&str]) -> Command {
        let copied = Command::new("cp").arg(BINARY).arg(self.path(name)).status();
        assert!(copied.unwrap().success());
        let mut command = Command::new(self.path(name));
        command.args(arguments);
        self.in_here(command)
    }

    fn in_here(&self, mut command: Command) -> Command {
        command
            .current_dir(&self.0)
            .env_remove("TESSERA_LOG")
            .env_remove("TESSERA_LOG_FORMAT")
            .stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command
    }

    /// Arguments of a bootstrap that would start, were it not for `more`.
    pub(crate) fn bootstrap<'a>(&self, slices: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
        let mut arguments = vec!["bootstrap", "--report", "run.json"];
        for (option, value) in [("--secret-file", KEY), ("--kernel", KERNEL)] {
            if !more.contains(&option) {
                arguments.extend([option, value]);
            }
        }
        slices.iter().for_each(|slice| arguments.extend(["--slice", slice]));
        arguments.extend(more);
        arguments
    }

    /// Runs a bootstrap that must be refused; returns the cause.
    pub(crate) fn refuse(&self, slices: &[&str], more: &[&str]) -> String {
        self.must_refuse(&mut self.tessera(&self.bootstrap(slices, more)))
    }

    /// Runs a bootstrap that must find a slice lost; returns the cause.
    pub(crate) fn lose(&self, slices: &[&str]) -> String {
        self.must_end(&mut self.tessera(&self.bootstrap(slices, &[])), LOST)
    }

    /// Runs what must be refused. Returns the cause.
    pub(crate) fn must_refuse(&self, command: &mut Command) -> String {
        self.must_end(command, REFUSED)
    }

    /// Runs what must not start: a status, one line, nothing left. Returns the line.
    fn must_end(&self, command: &mut Command, status: i32) -> String {
        let before = self.names();

        let process = Process::start(command);
        let group = process.child.id();
        let end = process.end();

        assert_eq!(end.status, Some(status), "{end:?}");
        assert_eq!(end.output, "", "{end:?}");
        assert_eq!(end.said.len(), 1, "{end:?}");
        let line = end.said[0].strip_prefix("tessera: ").unwrap_or_else(|| panic!("{end:?}"));
        assert_eq!(self.names(), before, "{line}");
        assert_eq!(members_of(group), Vec::<String>::new(), "{line}");
        line.to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that stays behind is no reason to fail.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) status: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) output: String,
    /// Lines on standard error that are not of the log.
    pub(crate) said: Vec<String>,
    /// Those of the log. Both only as far as they have not been read before.
    pub(crate) log: Vec<String>,
}

/// A running process.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            let mut lines = stderr.lines().map_while(Result::ok);
            lines.all(|line| sender.send(line).is_ok())
        });
        Self { child, lines }
    }

    /// Its standard error goes to a pipe of the test.
    pub(crate) fn start_into(command: &mut Command, stderr: PipeWriter) -> Self {
        let child = command.stderr(stderr).spawn().unwrap();
        let (_, lines) = channel();
        Self { child, lines }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to this process.
    pub(crate) fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(id.unwrap(), signal).unwrap();
    }

    /// Waits until it has printed something: the guest runs. What was read is gone.
    pub(crate) fn first_output(mut self) -> Self {
        let mut stdout = self.child.stdout.take().unwrap();
        let (sender, first) = channel();
        thread::spawn(move || {
            let read = stdout.read(&mut [0]);
            sender.send((read, stdout))
        });
        match first.recv_timeout(PATIENCE) {
            Ok((Ok(1), stdout)) => self.child.stdout = Some(stdout),
            other => panic!("it prints nothing: {other:?}; {:?}", self.end()),
        }
        self
    }

    /// Waits for its own end.
    pub(crate) fn end(mut self) -> End {
        let deadline = Instant::now() + PATIENCE;
        let mut lines = Vec::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it does not end: {lines:#?}"),
            }
        }
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() < deadline => thread::sleep(POLL),
                None => panic!("it does not end: {lines:#?}"),
            }
        };
        let mut output = String::new();
        // Nothing, if it goes elsewhere.
        if let Some(mut stdout) = self.child.stdout.take() {
            stdout.read_to_string(&mut output).unwrap();
        }
        let (log, said) = lines.into_iter().partition(|line| is_log(line));
        End { status: status.code(), signal: status.signal(), output, said, log }
    }

    /// The next line on standard error that has `text` in it.
    pub(crate) fn line_with(&self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => seen.push(line),
                Err(error) => panic!("no line with {text:?} ({error}): {seen:#?}"),
            }
        }
    }

    /// Whether it runs on and says nothing for so long.
    pub(crate) fn is_silent(&self, time: Duration) -> bool {
        self.lines.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// By the power button: the guest compares what it has counted.
#[track_caller]
pub(crate) fn ends_well(vm: Process) {
    vm.signal(Signal::TERM);
    let end = vm.end();
    assert_eq!(end.status, Some(0), "{end:?}");
    agrees(&end.output);
}

/// What a guest has printed: it found nothing wrong, and at the end all its counts agree.
#[track_caller]
pub(crate) fn agrees(output: &str) {
    assert_eq!(output.bytes().last(), Some(guest::AGREE), "{output:?}");
    let wrong = [guest::DIFFER, guest::EXCEPTION, guest::NOT_READ];
    assert!(!output.bytes().any(|letter| wrong.contains(&letter)), "{output:?}");
}

/// A companion that waits on loopback.
pub(crate) struct Companion {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
}

impl Companion {
    pub(crate) fn start(folder: &Folder) -> Self {
        Self::run(&mut folder.tessera(&Self::arguments()))
    }

    pub(crate) fn arguments() -> [&'static str; 5] {
        ["companion", "--listen", "127.0.0.1:0", "--secret-file", KEY]
    }

    pub(crate) fn run(command: &mut Command) -> Self {
        let process = Process::start(command);
        let line = process.line_with("waiting for a bootstrap at ");
        let address = line.rsplit(' ').next().unwrap().parse().unwrap();
        Self { process, address }
    }

    /// Grammar of a slice on it.
    pub(crate) fn slice(&self, vcpus: u32, memory: &str) -> String {
        format!("{},cpus={vcpus},memory={memory}", self.address)
    }

    /// Waits until only the listening socket is open, and the pair by which signals reach their thread.
    pub(crate) fn has_no_caller(&self) {
        let folder = format!("/proc/{}/fd", self.process.child.id());
        let deadline = Instant::now() + PATIENCE;
        loop {
            let entries = fs::read_dir(&folder).unwrap().map_while(Result::ok);
            let names = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
            let sockets = names.filter(|name| name.to_string_lossy().starts_with("socket:"));
            match sockets.count() {
                3 => return,
                _ if Instant::now() < deadline => thread::sleep(POLL),
                count => panic!("the companion has {count} sockets"),
            }
        }
    }
}

/// `2026-11-21T03:00:00.000000Z  INFO text`
fn is_log(line: &str) -> bool {
    let mut words = line.split_whitespace();
    words.next().is_some_and(|time| time.ends_with('Z') && time.contains('T'))
        && words.next().is_some_and(|level| ["ERROR", "WARN", "INFO"].contains(&level))
}

/// Processes of a process group, as /proc shows them.
fn members_of(group: u32) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().map_while(Result::ok);
    let states = entries.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let number = group.to_string();
    let in_group = |state: &String| {
        // Behind the name: state, parent, group.
        let rest = state.rsplit_once(')').map_or("", |(_, rest)| rest);
        rest.split_whitespace().nth(2) == Some(&number)
    };
    states.filter(in_group).collect()
}

/// Whether this machine can be a host of a VM of one slice.
pub(crate) fn has_kvm() -> bool {
    needs::kvm()
}

/// Whether this machine can be a host of a VM of several slices.
pub(crate) fn can_share() -> bool {
    has_kvm() && needs::uffd_device()
}

/// Whether the change works in a mount namespace; says so when not.
pub(crate) fn can_change(change: &str) -> bool {
    let test = format!("{change} true");
    let status = Command::new("unshare")
        .args(["-m", "sh", "-c", &test])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let can = status.is_ok_and(|status| status.success());
    if !can {
        needs::skip(&format!("unshare -m sh -c '{test}' fails here (it needs root)"));
    }
    can
}

pub(crate) fn put(image: &mut [u8], offset: usize, bytes: &[u8]) {
    image[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// A kernel that asks the keyboard controller for a reset at once.
pub(crate) fn kernel() -> Vec<u8> {
    // mov al, 0xfe; out 0x64, al; hlt; jump back to the hlt
    kernel_of(&[0xb0, 0xfe, 0xe6, 0x64, 0xf4, 0xeb, 0xfd])
}

/// A 64-bit ELF kernel at 16 MiB with this code.
pub(crate) fn kernel_of(code: &[u8]) -> Vec<u8> {
    const LOAD: u64 = 16 << 20;
    let mut image = vec![0; 0x2000];
    put(&mut image, 0, b"\x7fELF\x02\x01\x01");
    put(&mut image, 18, &62_u16.to_le_bytes());
    put(&mut image, 24, &LOAD.to_le_bytes());
    put(&mut image, 32, &64_u64.to_le_bytes());
    put(&mut image, 54, &[56, 0, 1, 0]);
    put(&mut image, 64, &1_u32.to_le_bytes());
    for (offset, value) in [(8, 0x1000), (24, LOAD), (32, 0x1000), (40, 0x1000_u64)] {
        put(&mut image, 64 + offset, &value.to_le_bytes());
    }
    put(&mut image, 0x1000, code);
    image
}

/// Prints a line and heeds nothing.
pub(crate) fn deaf() -> Vec<u8> {
    kernel_of(&[0xb0, b'\n', 0xe6, 0xe9, 0xeb, 0xfe])
}
