use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::id;
use std::sync::atomic::{AtomicU32, Ordering};

/// Longest wait for bytes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A path that goes away with its test.
struct Name(PathBuf);

impl Name {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("tessera-terminal-{}-{number}", id())))
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn open(end: &ConsoleEnd) -> Result<Terminal, TerminalError> {
    Terminal::open(end, None, Arc::default())
}

fn say(terminal: &Terminal, text: &[u8]) {
    terminal.output().lock().unwrap().write_all(text).unwrap();
}

#[test]
fn output_is_added_to_a_file_and_there_when_the_vm_is_over() {
    let name = Name::new();
    fs::write(&name.0, b"before\n").unwrap();
    let panicked = Arc::new(AtomicBool::new(false));
    let end = ConsoleEnd::File { path: name.0.clone() };
    let terminal = Terminal::open(&end, None, Arc::clone(&panicked)).unwrap();
    terminal.start().unwrap();
    terminal.start().unwrap();
    say(&terminal, b"login: ");
    say(&terminal, b"Kernel panic - not syncing: x");

    terminal.finish();

    assert_eq!(fs::read(&name.0).unwrap(), b"before\nlogin: Kernel panic - not syncing: x");
    assert!(panicked.load(Ordering::Relaxed));
}

#[test]
fn file_that_was_made_for_a_vm_that_never_was_goes() {
    let name = Name::new();
    let end = ConsoleEnd::File { path: name.0.clone() };
    drop(open(&end).unwrap());
    assert!(!name.0.exists());
    fs::write(&name.0, b"kept").unwrap();
    drop(open(&end).unwrap());
    assert_eq!(fs::read(&name.0).unwrap(), b"kept");
}

#[test]
fn what_is_no_file_is_refused() {
    let fails = |end: ConsoleEnd| open(&end).unwrap_err();
    let pipe = Name::new();
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe.0, Mode::from_raw_mode(0o600)).unwrap();
    let reader = OFlags::RDONLY | OFlags::NONBLOCK;
    for keep in [false, true] {
        let _reader = keep.then(|| rustix::fs::open(&pipe.0, reader, Mode::empty()).unwrap());
        let error = fails(ConsoleEnd::File { path: pipe.0.clone() });
        assert_eq!(matches!(error, TerminalError::NoFile(_)), keep, "{error:?}");
    }
    let folder = std::env::temp_dir();
    assert!(matches!(fails(ConsoleEnd::File { path: folder.clone() }), TerminalError::File { .. }));
    assert!(matches!(
        fails(ConsoleEnd::Socket { path: folder }),
        TerminalError::Socket(SocketError::NoSocket(_))
    ));
}

#[test]
fn clients_of_a_socket_come_one_after_the_other_and_both_ways_work() {
    let name = Name::new();
    let end = ConsoleEnd::Socket { path: name.0.clone() };
    let terminal = open(&end).unwrap();
    assert_eq!(fs::metadata(&name.0).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(open(&end), Err(TerminalError::Socket(SocketError::Taken(_)))));
    terminal.start().unwrap();
    say(&terminal, b"early ");
    for _ in 0..2 {
        let mut client = UnixStream::connect(&name.0).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        say(&terminal, b"word");
        let mut seen = Vec::new();
        while !seen.ends_with(b"word") {
            let mut bytes = [0; 16];
            let count = client.read(&mut bytes).unwrap();
            assert!(count > 0);
            seen.extend(&bytes[..count]);
        }
        client.write_all(b"typed").unwrap();
    }
    let until = std::time::Instant::now() + PATIENCE;
    while terminal.input.waiting() < 10 && std::time::Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(terminal.input.waiting(), 10);
    terminal.finish();
    assert!(!name.0.exists());
}
