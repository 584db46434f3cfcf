//! The far end of a console: where its output goes and its input comes from.
//!
//! ```text
//!   worker of queue 1 --write--> [ConsoleBuffer: the last 256 KiB] --"hvc-out"--> file, standard output, client
//!   worker of queue 0 <--bell--- [ConsoleInput: 4 KiB]     <--"hvc-in"--- standard input, client
//! ```
//! A driver waits for its output to be taken, so nothing here may stop it for long: who reads too slowly
//! makes it wait once, and then loses the oldest output.

use super::ConsoleEnd;
use super::buffer::ConsoleBuffer;
use crate::local_socket::{LocalSocket, SocketError};
use crate::slice::console::PanicWatch;
use devices::virtio::Doorbell;
use devices::virtio::console::{ConsoleInput, ConsoleOutput};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Builder};
use std::time::Duration;
use thiserror::Error;

/// Bytes of input read at once.
const INPUT_BYTES: usize = 512;
/// Between tries to bring input to a driver that has no buffer for it.
const INPUT_RETRY: Duration = Duration::from_millis(20);
/// How long the end of the VM waits for output that is on its way.
const FINISH_LIMIT: Duration = Duration::from_secs(1);

/// Why a console has no far end.
#[derive(Debug, Error)]
pub(crate) enum TerminalError {
    /// The file cannot be written.
    #[error("write console output to {}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A folder, a pipe or the like.
    #[error("console output goes to a file; {} is none", .0.display())]
    NoFile(PathBuf),
    /// The socket cannot be had.
    #[error("offer a console socket")]
    Socket(#[from] SocketError),
    /// No event counter.
    #[error("make a doorbell for a console")]
    Doorbell(#[source] io::Error),
}

/// What is at the far end.
#[derive(Debug)]
enum End {
    Stdio,
    File(File),
    Socket(Arc<LocalSocket>),
}

/// A console's far end. It is there before the VM, and works once the VM does.
#[derive(Debug)]
pub(super) struct Terminal {
    /// Taken by the thread that serves it.
    end: Mutex<Option<End>>,
    socket: Option<Arc<LocalSocket>>,
    /// A file that was not there before.
    made: Option<PathBuf>,
    buffer: ConsoleBuffer,
    panicked: Arc<AtomicBool>,
    pub(super) input: ConsoleInput,
    pub(super) doorbell: Doorbell,
}

impl Terminal {
    /// Opens what is named, or takes the file that is open for it. `panicked` is set when a guest's panic
    /// goes by.
    pub(super) fn open(
        end: &ConsoleEnd,
        lent: Option<File>,
        panicked: Arc<AtomicBool>,
    ) -> Result<Self, TerminalError> {
        let mut made = None;
        let end = match (end, lent) {
            (ConsoleEnd::Stdio, _) => End::Stdio,
            (ConsoleEnd::File { .. }, Some(file)) => End::File(file),
            (ConsoleEnd::File { path }, None) => {
                made = (!path.exists()).then(|| path.clone());
                End::File(append_to(path)?)
            }
            (ConsoleEnd::Socket { path }, _) => End::Socket(Arc::new(LocalSocket::open(path)?)),
        };
        let doorbell = Doorbell::new().map_err(TerminalError::Doorbell)?;
        let input = ConsoleInput::new(doorbell.clone());
        let socket = match &end {
            End::Socket(socket) => Some(Arc::clone(socket)),
            End::Stdio | End::File(_) => None,
        };
        let (end, buffer) = (Mutex::new(Some(end)), ConsoleBuffer::default());
        Ok(Self { end, socket, made, buffer, panicked, input, doorbell })
    }

    /// What the worker of the output queue writes to.
    pub(super) fn output(&self) -> ConsoleOutput {
        let buffer = self.buffer.clone();
        Arc::new(Mutex::new(PanicWatch::new(buffer, Arc::clone(&self.panicked))))
    }

    /// Starts to carry bytes. Only the first call does anything.
    pub(super) fn start(&self) -> io::Result<()> {
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (buffer, input) = (self.buffer.clone(), self.input.clone());
        match end {
            None => return Ok(()),
            Some(End::File(file)) => spawn("hvc-out", move || write(&buffer, file))?,
            Some(End::Stdio) => {
                spawn("hvc-out", move || write(&buffer, io::stdout()))?;
                spawn("hvc-in", move || feed(io::stdin(), &input))?;
            }
            Some(End::Socket(socket)) => spawn("hvc-out", move || serve(&socket, &buffer, &input))?,
        }
        Ok(())
    }

    /// The VM is over: lets output that somebody takes get there.
    pub(super) fn finish(&self) {
        self.buffer.finish(FINISH_LIMIT);
        if let Some(socket) = &self.socket {
            socket.remove();
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let end = self.end.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let (Some(path), Some(_)) = (&self.made, end) {
            // The VM was refused. An empty file that stays behind does no harm.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Buffers output of the first serial port in a thread of its own, so that a reader that stops never blocks the
/// devices.
#[derive(Debug)]
pub(crate) struct Relay(ConsoleBuffer);

impl Relay {
    /// Carries to `to`, on a thread of its own.
    pub(crate) fn start(to: Box<dyn Write + Send>) -> io::Result<Self> {
        let buffer = ConsoleBuffer::default();
        let own = buffer.clone();
        spawn("serial-out", move || write(&own, to))?;
        Ok(Self(buffer))
    }

    /// What the port writes to.
    pub(crate) fn output(&self) -> impl Write + Send + 'static {
        self.0.clone()
    }

    /// The VM is over: lets output that somebody takes get there.
    pub(crate) fn finish(&self) {
        self.0.finish(FINISH_LIMIT);
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    Builder::new().name(name.into()).spawn(work).map(drop)
}

/// Opens a file to add to; a pipe that nobody reads does not stop it.
pub(super) fn append_to(path: &Path) -> Result<File, TerminalError> {
    let failed = |source| TerminalError::File { path: path.to_owned(), source };
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600));
    let file = File::from(opened.map_err(|error| failed(error.into()))?);
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(TerminalError::NoFile(path.to_owned()));
    }
    Ok(file)
}

/// Writes until the end. What cannot be written is lost, as with a cable that is not plugged in.
fn write(buffer: &ConsoleBuffer, mut to: impl Write) {
    let mut told = false;
    while let Some(bytes) = buffer.take(&AtomicBool::new(false)) {
        if let Err(error) = to.write_all(&bytes).and_then(|()| to.flush())
            && !told
        {
            tracing::warn!("output of a console is lost: {error}");
            told = true;
        }
    }
}

/// Brings input to the driver until there is no more.
fn feed(mut from: impl Read, input: &ConsoleInput) {
    let mut bytes = [0; INPUT_BYTES];
    loop {
        let mut rest = match from.read(&mut bytes) {
            Ok(0) => return,
            Ok(count) => &bytes[..count],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        while !rest.is_empty() {
            rest = &rest[input.push(rest)..];
            if !rest.is_empty() {
                thread::sleep(INPUT_RETRY);
            }
        }
    }
}

/// Serves one client after the other; who comes second waits until the first is gone.
fn serve(socket: &LocalSocket, buffer: &ConsoleBuffer, input: &ConsoleInput) {
    loop {
        let client = socket.listener().accept().map(|(client, _)| client);
        if let Err(error) = client.and_then(|client| talk(&client, buffer, input)) {
            tracing::debug!("a client of a console: {error}");
            // No descriptors, perhaps.
            thread::sleep(INPUT_RETRY);
        }
    }
}

/// Carries bytes both ways until the client goes.
fn talk(client: &UnixStream, buffer: &ConsoleBuffer, input: &ConsoleInput) -> io::Result<()> {
    let gone = Arc::new(AtomicBool::new(false));
    let (from, own, told, input) =
        (client.try_clone()?, buffer.clone(), Arc::clone(&gone), input.clone());
    spawn("hvc-in", move || {
        feed(from, &input);
        own.interrupt(&told);
    })?;
    let mut to = client;
    let result = loop {
        let Some(bytes) = buffer.take(&gone) else { break Ok(()) };
        let mut rest = &bytes[..];
        let written = loop {
            match to.write(rest) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
            if rest.is_empty() {
                break Ok(());
            }
        };
        if written.is_err() {
            // The next client gets it.
            buffer.give_back(rest);
            break written;
        }
    };
    // Ends the thread that reads, too.
    let _ = client.shutdown(Shutdown::Both);
    result
}

#[cfg(test)]
mod tests;
