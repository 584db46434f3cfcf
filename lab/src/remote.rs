//! The near end of an agent's stream: starts commands and hands out what comes back.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, bounded};

use crate::command::{Command, ExitStatus, Stream};
use crate::frame::{CommandId, Frame, FrameError};

/// Output pieces kept per command before the agent's stream is held up.
const QUEUE: usize = 1024;
/// How long one reader that does not read may hold up the others of its host. It loses output until it reads again.
const STALLED: Duration = Duration::from_secs(20);
/// How often whoever waits is asked whether to go on.
const ASKED_EVERY: Duration = Duration::from_millis(200);
const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;

/// What happens to a command, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It wrote these bytes.
    Output(Stream, Vec<u8>),
    /// It ended. Nothing follows.
    Exit(ExitStatus),
    /// It was never started, or its host is gone; why. Nothing follows.
    Lost(String),
}

/// One line of a command's output, without its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where it was written.
    pub stream: Stream,
    /// The text; bytes that are no UTF-8 are replaced.
    pub text: String,
}

#[derive(Debug)]
struct Shared {
    name: String,
    writer: Mutex<UnixStream>,
    /// `None` once the host is gone.
    commands: Mutex<Option<HashMap<CommandId, Sender<Event>>>>,
    next: AtomicU32,
}

/// A connection to the agent of one host. Cloning gives another handle on the same connection.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    shared: Arc<Shared>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Channel {
    /// Waits for the agent's hello and starts reading.
    pub(crate) fn connect(name: &str, stream: UnixStream, limit: Duration) -> Result<Self> {
        Self::connect_stalled(name, stream, limit, STALLED)
    }

    /// The same, with another [`STALLED`].
    pub(crate) fn connect_stalled(
        name: &str,
        stream: UnixStream,
        limit: Duration,
        stalled: Duration,
    ) -> Result<Self> {
        let mut reader = stream.try_clone().context("clone the agent stream")?;
        reader.set_read_timeout(Some(limit)).context("set the time limit of the agent stream")?;
        match Frame::read(&mut reader) {
            Ok(Some(Frame::Hello)) => {}
            Ok(Some(other)) => bail!("the agent of {name} said {other:?} instead of hello"),
            Ok(None) => bail!("{name} ended before its agent answered"),
            Err(FrameError::Stream(error)) if error.kind() == ErrorKind::WouldBlock => {
                bail!("the agent of {name} did not answer within {limit:?}")
            }
            Err(error) => return Err(error).with_context(|| format!("greet {name}")),
        }
        reader.set_read_timeout(None).context("clear the time limit of the agent stream")?;
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            writer: Mutex::new(stream),
            commands: Mutex::new(Some(HashMap::new())),
            next: AtomicU32::new(1),
        });
        let channel = Self { shared: Arc::clone(&shared) };
        thread::Builder::new()
            .name(format!("lab-{name}"))
            .spawn(move || {
                let why = shared.read(&mut reader, stalled);
                shared.lose(&why);
            })
            .context("start the reader of an agent")?;
        Ok(channel)
    }

    /// False once the host is gone.
    pub(crate) fn is_alive(&self) -> bool {
        lock(&self.shared.commands).is_some()
    }

    /// Starts a command; an error to start it arrives as [`Event::Lost`].
    pub(crate) fn spawn(&self, command: &Command) -> Result<RemoteProcess> {
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let (sender, events) = bounded(QUEUE);
        match lock(&self.shared.commands).as_mut() {
            Some(commands) => commands.insert(id, sender),
            None => bail!("{} is gone", self.shared.name),
        };
        let start = Frame::Start(id, command.clone());
        self.shared.send(&start)?;
        Ok(RemoteProcess { channel: self.clone(), id, events, lines: Lines::default(), end: None })
    }

    /// Runs a command to its end; an error when it fails, with what it wrote.
    pub(crate) fn run(&self, command: &Command, limit: Duration) -> Result<String> {
        let (status, lines) = self.spawn(command)?.collect(limit)?;
        let text = lines.into_iter().map(|line| line.text).collect::<Vec<_>>().join("\n");
        if !status.success() {
            bail!("`{command}` on {} ended with {status}: {text}", self.shared.name);
        }
        Ok(text)
    }

    /// Ends the stream, which makes the agent kill what still runs.
    pub(crate) fn close(&self) {
        drop(lock(&self.shared.writer).shutdown(std::net::Shutdown::Both));
    }
}

impl Shared {
    fn send(&self, frame: &Frame) -> Result<()> {
        let mut writer = lock(&self.writer);
        frame.write(&mut *writer).with_context(|| format!("send to the agent of {}", self.name))
    }

    /// Hands out frames until the stream ends; returns why it ended.
    fn read(&self, reader: &mut UnixStream, stalled: Duration) -> String {
        // Those whose output is not read.
        let mut behind = HashSet::new();
        loop {
            let (id, event) = match Frame::read(reader) {
                Ok(Some(Frame::Output(id, stream, bytes))) => (id, Event::Output(stream, bytes)),
                Ok(Some(Frame::Exit(id, status))) => (id, Event::Exit(status)),
                Ok(Some(Frame::Refused(id, why))) => (id, Event::Lost(why)),
                Ok(Some(other)) => return format!("its agent sent {other:?}"),
                Ok(None) => return "its agent's stream ended".to_owned(),
                Err(error) => return format!("{:#}", anyhow!(error)),
            };
            let last = !matches!(event, Event::Output(..));
            let sender = lock(&self.commands).as_mut().and_then(|commands| {
                if last { commands.remove(&id) } else { commands.get(&id).cloned() }
            });
            // A handle that was dropped has nobody to tell; one that never reads loses output, and holds the others up once.
            let Some(sender) = sender else { continue };
            let limit = if !last && behind.contains(&id) { Duration::ZERO } else { stalled };
            match sender.send_timeout(event, limit) {
                Err(SendTimeoutError::Timeout(_)) if !last => drop(behind.insert(id)),
                _ => drop(behind.remove(&id)),
            }
        }
    }

    fn lose(&self, why: &str) {
        let commands = lock(&self.commands).take();
        for sender in commands.into_iter().flatten().map(|(_, sender)| sender) {
            let event = Event::Lost(format!("{} is gone: {why}", self.name));
            drop(sender.send_timeout(event, Duration::from_secs(1)));
        }
    }
}

/// A command that runs in a host. Dropping the handle kills the command.
#[derive(Debug)]
pub struct RemoteProcess {
    channel: Channel,
    id: CommandId,
    events: Receiver<Event>,
    lines: Lines,
    end: Option<Result<ExitStatus, String>>,
}

impl RemoteProcess {
    /// Whether nothing more is kept of its output.
    #[cfg(test)]
    pub(crate) fn is_full(&self) -> bool {
        self.events.is_full()
    }

    /// The next thing that happens, or `None` when nothing did within the limit or all is over.
    pub fn next_event(&mut self, limit: Duration) -> Option<Event> {
        if self.end.is_some() {
            return None;
        }
        let event = match self.events.recv_timeout(limit) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => Event::Lost("its host is gone".to_owned()),
        };
        match &event {
            Event::Output(..) => {}
            Event::Exit(status) => self.end = Some(Ok(*status)),
            Event::Lost(why) => self.end = Some(Err(why.clone())),
        }
        Some(event)
    }

    /// The next whole line, or `None` when there was none within the limit or the command is over.
    pub fn next_line(&mut self, limit: Duration) -> Option<Line> {
        let until = Instant::now() + limit;
        loop {
            if let Some(line) = self.lines.whole.pop_front() {
                return Some(line);
            }
            match self.next_event(until.saturating_duration_since(Instant::now())) {
                Some(Event::Output(stream, bytes)) => self.lines.add(stream, &bytes),
                Some(_) => self.lines.finish(),
                None => return None,
            }
        }
    }

    /// True when the command has ended and every line was taken.
    pub fn is_over(&self) -> bool {
        self.end.is_some() && self.lines.whole.is_empty()
    }

    /// Waits for the end, keeping the lines for [`RemoteProcess::next_line`].
    ///
    /// # Errors
    /// When the command could not be started, its host is gone, or the limit passed.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.wait_while(limit, &mut || Ok(()))
    }

    fn wait_while(
        &mut self,
        limit: Duration,
        go_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<ExitStatus> {
        let until = Instant::now() + limit;
        while self.end.is_none() {
            go_on()?;
            let left = until.saturating_duration_since(Instant::now());
            match self.next_event(left.min(ASKED_EVERY)) {
                Some(Event::Output(stream, bytes)) => self.lines.add(stream, &bytes),
                Some(_) => self.lines.finish(),
                None if left.is_zero() => bail!("the command did not end within {limit:?}"),
                None => {}
            }
        }
        match self.end.clone() {
            Some(Ok(status)) => Ok(status),
            Some(Err(why)) => Err(anyhow!(why)),
            None => bail!("the command did not end within {limit:?}"),
        }
    }

    /// Waits for the end and returns everything it wrote.
    ///
    /// # Errors
    /// As [`RemoteProcess::wait`].
    pub fn collect(&mut self, limit: Duration) -> Result<(ExitStatus, Vec<Line>)> {
        self.collect_while(limit, &mut || Ok(()))
    }

    /// The same as long as `go_on`, which is asked now and then, has no error.
    ///
    /// # Errors
    /// As [`RemoteProcess::wait`], or that of `go_on`.
    pub fn collect_while(
        &mut self,
        limit: Duration,
        go_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<(ExitStatus, Vec<Line>)> {
        let status = self.wait_while(limit, go_on)?;
        Ok((status, self.lines.whole.drain(..).collect()))
    }

    /// A handle that can only send signals, for another thread.
    pub fn handle(&self) -> Signals {
        Signals { channel: self.channel.clone(), id: self.id }
    }

    /// Asks the command to end (SIGTERM).
    ///
    /// # Errors
    /// When the host is gone.
    pub fn terminate(&self) -> Result<()> {
        self.handle().signal(SIGTERM)
    }

    /// Kills the command and its children (SIGKILL).
    ///
    /// # Errors
    /// When the host is gone.
    pub fn kill(&self) -> Result<()> {
        self.handle().kill()
    }
}

/// Sends signals to a command; see [`RemoteProcess::handle`].
#[derive(Clone, Debug)]
pub struct Signals {
    channel: Channel,
    id: CommandId,
}

impl Signals {
    /// Sends a signal by its number to the command and its children.
    ///
    /// # Errors
    /// When the host is gone.
    pub fn signal(&self, number: i32) -> Result<()> {
        self.channel.shared.send(&Frame::Signal(self.id, number))
    }

    /// Kills the command and its children (SIGKILL).
    ///
    /// # Errors
    /// When the host is gone.
    pub fn kill(&self) -> Result<()> {
        self.signal(SIGKILL)
    }

    /// What each thread of the host's processes of this name waits for: its name, the kernel's function, and the system
    /// call's number and arguments.
    ///
    /// # Errors
    /// When the host is gone, or has no such process.
    pub fn threads_of(&self, name: &str, limit: Duration) -> Result<String> {
        let line = format!(
            "for id in $(pidof {name}); do for task in /proc/$id/task/*; do \
             echo \"$(cat $task/comm) in $(cat $task/wchan): $(cat $task/syscall)\"; done; done"
        );
        self.channel.run(&Command::new(["sh", "-c", &line]), limit)
    }
}

impl Drop for RemoteProcess {
    fn drop(&mut self) {
        if self.end.is_none() {
            drop(self.kill());
        }
    }
}

/// Cuts two byte streams into lines.
#[derive(Debug, Default)]
struct Lines {
    out: Vec<u8>,
    error: Vec<u8>,
    whole: VecDeque<Line>,
}

impl Lines {
    fn add(&mut self, stream: Stream, bytes: &[u8]) {
        let rest = match stream {
            Stream::Out => &mut self.out,
            Stream::Error => &mut self.error,
        };
        for &byte in bytes {
            if byte == b'\n' {
                self.whole.push_back(Line { stream, text: text(rest) });
                rest.clear();
            } else {
                rest.push(byte);
            }
        }
    }

    /// What stands without a line end when the command is over is a line too.
    fn finish(&mut self) {
        for stream in [Stream::Out, Stream::Error] {
            let rest = match stream {
                Stream::Out => &mut self.out,
                Stream::Error => &mut self.error,
            };
            if !rest.is_empty() {
                self.whole.push_back(Line { stream, text: text(rest) });
                rest.clear();
            }
        }
    }
}

fn text(bytes: &[u8]) -> String {
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    String::from_utf8_lossy(bytes).into_owned()
}
