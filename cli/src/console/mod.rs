//! `tessera console`: this terminal at a console of a guest.
//!
//! ```text
//!   keys ──> [Keys: Ctrl-] and what follows] ──> at most 4 KiB ──> socket ──> guest
//!   screen <───────────────────────────────────────────────────── socket <── guest
//!   over: Ctrl-] q, the end of the socket, SIGTERM, SIGINT, SIGHUP
//! ```
//! The terminal passes every key on, Ctrl-C and Ctrl-Z too, so one key is ours. However this ends, the terminal is as it was: also
//! after a panic ([`terminal`]). Input that is no terminal is passed on as it is, and its end ends nothing.

mod keys;
mod terminal;

use anyhow::{Context, Result, bail};
use clap::Args;
use keys::{Keys, Said};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use std::io::{ErrorKind, IsTerminal, Read, Write, stdin, stdout};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use terminal::Terminal;

/// Most bytes on their way to a guest that does not read. Keys wait in the terminal then, but for ours.
const WAITING_BYTES: usize = 4096;
const READ_BYTES: usize = 4096;
const HELP: &str = "\r\n\
    Ctrl-] q       leave; the guest runs on\r\n\
    Ctrl-] w       tell the guest's shell how large this terminal is (types stty rows R cols C)\r\n\
    Ctrl-] Ctrl-]  send Ctrl-]\r\n";

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// The socket of a console: --console socket=PATH of the VM. One client at a time is served; others wait
    #[arg(value_name = "SOCKET")]
    socket: PathBuf,
}

/// Signals that end this, and that it goes on after a stop.
struct Signals {
    end: UnixStream,
    go_on: UnixStream,
}

impl Signals {
    fn listen() -> Result<Self> {
        let pair = || UnixStream::pair().context("listen for signals");
        let ((end, ends), (go_on, goes_on)) = (pair()?, pair()?);
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            let ends = ends.try_clone().context("listen for signals")?;
            pipe::register(signal, ends).context("listen for signals")?;
        }
        pipe::register(SIGCONT, goes_on).context("listen for signals")?;
        go_on.set_nonblocking(true).context("listen for signals")?;
        Ok(Self { end, go_on })
    }

    /// It goes on after a stop: the shell may have changed the terminal.
    fn goes_on(&mut self) -> bool {
        self.go_on.read(&mut [0; 64]).is_ok()
    }
}

/// A connection to the guest, and what is on its way there.
struct Guest {
    socket: UnixStream,
    waiting: Vec<u8>,
}

impl Guest {
    fn connect(path: &PathBuf) -> Result<Self> {
        let name = path.display();
        let socket = UnixStream::connect(path);
        let socket = socket.with_context(|| format!("connect to the console {name}"))?;
        socket.set_nonblocking(true).with_context(|| format!("use the console {name}"))?;
        Ok(Self { socket, waiting: Vec::new() })
    }

    fn has_room(&self) -> bool {
        self.waiting.len() < WAITING_BYTES
    }

    /// Sends as much as it takes; false if it is gone.
    fn send(&mut self) -> Result<bool> {
        while !self.waiting.is_empty() {
            match self.socket.write(&self.waiting) {
                Ok(sent) => drop(self.waiting.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_gone(error.kind()) => return Ok(false),
                Err(error) => return Err(error).context("send keys to the guest"),
            }
        }
        Ok(true)
    }

    /// Shows what it has said; false if it is gone.
    fn show(&mut self) -> Result<bool> {
        let mut bytes = [0; READ_BYTES];
        match self.socket.read(&mut bytes) {
            Ok(0) => Ok(false),
            Ok(count) => show(&bytes[..count]).map(|()| true),
            Err(error) if is_gone(error.kind()) => Ok(false),
            Err(error) if is_later(error.kind()) => Ok(true),
            Err(error) => Err(error).context("read what the guest says"),
        }
    }
}

fn is_gone(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

fn is_later(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn show(bytes: &[u8]) -> Result<()> {
    let mut out = stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).context("show what the guest says")
}

/// Is there until somebody wants the end.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut signals = Signals::listen()?;
    let guest = Guest::connect(&arguments.socket)?;
    let terminal = stdin().is_terminal().then(Terminal::raw).transpose()?;
    if terminal.is_some() {
        crate::log::say(
            "at the console; Ctrl-] and then q leaves it, Ctrl-] and then ? shows more",
        );
    }
    let ended = talk(guest, &mut signals, terminal.as_ref());
    drop(terminal);
    match ended? {
        true => bail!("the console is closed: the VM has ended, or its console has moved"),
        false => Ok(()),
    }
}

/// Passes on until the end; whether the guest ended it.
fn talk(mut guest: Guest, signals: &mut Signals, terminal: Option<&Terminal>) -> Result<bool> {
    let (mut keys, mut has_input) = (Keys::default(), true);
    loop {
        let Ready { end, go_on, keys: typed, guest: said } = wait(&guest, signals, has_input)?;
        if end {
            return Ok(false);
        }
        if go_on && signals.goes_on() {
            terminal.map_or(Ok(()), Terminal::again)?;
        }
        if said && !guest.show()? {
            return Ok(true);
        }
        if typed {
            let mut bytes = [0; READ_BYTES / 4];
            let count = match rustix::io::read(stdin(), &mut bytes) {
                Ok(count) => count,
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(error) => return Err(error).context("read keys"),
            };
            has_input = count > 0;
            // A terminal that is gone types nothing any more.
            if !has_input && terminal.is_some() {
                return Ok(false);
            }
            match terminal {
                None => guest.waiting.extend(&bytes[..count]),
                Some(terminal) => {
                    for said in bytes[..count].iter().filter_map(|key| keys.press(*key)) {
                        match said {
                            Said::Key(key) => guest.waiting.push(key),
                            Said::Leave => return Ok(false),
                            Said::Size => guest.waiting.extend(terminal.size()?.into_bytes()),
                            Said::Help => show(HELP.as_bytes())?,
                        }
                    }
                }
            }
        }
        if !guest.send()? {
            return Ok(true);
        }
    }
}

/// What there is to do.
struct Ready {
    end: bool,
    go_on: bool,
    keys: bool,
    guest: bool,
}

fn wait(guest: &Guest, signals: &Signals, has_input: bool) -> Result<Ready> {
    let input = stdin();
    let out = if guest.waiting.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
    // Keys of ours are heard while the guest reads nothing, but for those behind 4 KiB of others.
    let wants_keys = has_input && guest.has_room();
    let mut all = vec![
        PollFd::from_borrowed_fd(signals.end.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(signals.go_on.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(guest.socket.as_fd(), PollFlags::IN | out),
    ];
    if wants_keys {
        all.push(PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN));
    }
    match poll(&mut all, None) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error).context("wait for keys and for the guest"),
    }
    let heard = |at: usize| {
        let flags = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        all.get(at).is_some_and(|one| one.revents().intersects(flags))
    };
    Ok(Ready { end: heard(0), go_on: heard(1), guest: heard(2), keys: heard(3) })
}
