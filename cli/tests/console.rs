//! `tessera console` at a terminal of the test, with a socket of the test for a guest.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

/// A console with both of its ends.
struct Rig {
    folder: PathBuf,
    child: Child,
    /// What a person types and sees.
    person: File,
    /// The terminal itself: it has modes for as long as somebody has it open.
    terminal: OwnedFd,
    guest: UnixStream,
}

impl Rig {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("tessera-console-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let socket = folder.join("console");
        let listener = UnixListener::bind(&socket).unwrap();
        let person =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&person).unwrap();
        unlockpt(&person).unwrap();
        let name = ptsname(&person, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = open(name.as_c_str(), flags, Mode::empty()).unwrap();
        let size = Winsize { ws_row: 41, ws_col: 97, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal, size).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_tessera"))
            .arg("console")
            .arg(&socket)
            .stdin(terminal.try_clone().unwrap())
            .stdout(terminal.try_clone().unwrap())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (guest, _) = listener.accept().unwrap();
        guest.set_read_timeout(Some(PATIENCE)).unwrap();
        let rig = Self { folder, child, person: File::from(person), terminal, guest };
        rig.becomes(true);
        rig
    }

    fn is_raw(&self) -> bool {
        let modes = tcgetattr(&self.terminal).unwrap().local_modes;
        !modes.intersects(LocalModes::ICANON | LocalModes::ISIG | LocalModes::ECHO)
    }

    fn becomes(&self, raw: bool) {
        let deadline = Instant::now() + PATIENCE;
        while self.is_raw() != raw {
            assert!(Instant::now() < deadline, "it does not become raw: {raw}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn types(&mut self, keys: &[u8]) {
        self.person.write_all(keys).unwrap();
    }

    fn guest_hears(&mut self, expected: &[u8]) {
        let mut heard = vec![0; expected.len()];
        self.guest.read_exact(&mut heard).unwrap();
        assert_eq!(heard, expected);
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(id.unwrap(), signal).unwrap();
    }

    /// Its exit status; the terminal is as it was.
    fn ends(mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(Instant::now() < deadline, "it does not end"),
            }
            thread::sleep(Duration::from_millis(5));
        };
        assert!(!self.is_raw());
        status.code()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Both fail for what is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn keys_reach_the_guest_and_its_words_the_screen() {
    let mut rig = Rig::new();

    rig.types(b"ls\r\x03\x1a\x1d\x1d");
    rig.guest_hears(b"ls\r\x03\x1a\x1d");
    rig.guest.write_all(b"a\r\nb").unwrap();
    let (sender, seen) = channel();
    let mut person = rig.person.try_clone().unwrap();
    thread::spawn(move || {
        let mut bytes = [0; 4];
        sender.send(person.read_exact(&mut bytes).map(|()| bytes))
    });
    assert_eq!(&seen.recv_timeout(PATIENCE).unwrap().unwrap(), b"a\r\nb");
    rig.types(b"\x1dw");
    rig.guest_hears(b"stty rows 41 cols 97\r");
    rig.types(b"\x1dq");
    assert_eq!(rig.ends(), Some(0));
}

#[test]
fn terminal_is_as_it_was_when_signals_end_it() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let rig = Rig::new();

        rig.signal(signal);

        assert_eq!(rig.ends(), Some(0), "{signal:?}");
    }
}

#[test]
fn terminal_is_as_it_was_when_the_guest_is_gone() {
    let rig = Rig::new();

    rig.guest.shutdown(std::net::Shutdown::Both).unwrap();

    assert_eq!(rig.ends(), Some(2));
}

#[test]
fn guest_that_reads_nothing_does_not_keep_the_person_there() {
    let mut rig = Rig::new();

    rig.types(&[b'x'; 2000]);
    rig.types(b"\x1dq");

    assert_eq!(rig.ends(), Some(0));
}

#[test]
fn socket_that_is_not_there_is_refused() {
    let mut tessera = Command::new(env!("CARGO_BIN_EXE_tessera"));
    let end = tessera.args(["console", "/nonexistent/console"]).output().unwrap();

    assert_eq!(end.status.code(), Some(2));
    let said = String::from_utf8(end.stderr).unwrap();
    assert!(said.contains("connect to the console /nonexistent/console"), "{said}");
}
