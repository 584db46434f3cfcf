//! A lab that stands on its own: brought up by one command, used by others, ended by a third.
//!
//! ```text
//!   up ── starts ──> daemon: Lab + control.sock <── one connection per request ── exec, cut, down, ...
//! ```
//! A request is one line of JSON. The answer is one line of JSON, but for `exec`, which is answered by
//! [`Frame`]s until the command ends; the asker may send signal frames meanwhile, and going away kills
//! the command. A daemon that nobody asks anything for its idle limit ends itself.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};

use crate::command::{Command, ExitStatus, Stream};
use crate::frame::Frame;
use crate::host_number::HostNumber;
use crate::hosts::Config;
use crate::lab::{Lab, LabState};
use crate::remote::Event;
use crate::{cache, namespaces, packages};

/// How long a daemon waits for the next request unless told otherwise.
pub const DEFAULT_IDLE: Duration = Duration::from_secs(60 * 60);
const SOCKET: &str = "control.sock";
const LOG: &str = "daemon.log";
const POLL: Duration = Duration::from_millis(50);
/// Longest request line in bytes.
const MAX_REQUEST: u64 = 256 * 1024;
const DOWN_LIMIT: Duration = Duration::from_secs(30);
/// What the daemon's log says last when the lab is up, and when it is not going to be.
const READY: &str = "lab is up";
const FAILED: &str = "lab failed: ";

/// What can be asked of a daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Request {
    Status,
    Exec { host: HostNumber, command: Command },
    Cut(HostNumber),
    Heal(HostNumber),
    Kill(HostNumber),
    Down,
}

type Answer = std::result::Result<LabState, String>;

/// Starts a daemon by running this program with `arguments` (which must lead to [`run`]), and waits
/// until its lab is up; `say` hears the daemon's progress.
///
/// # Errors
/// When the daemon does not start, ends, or its lab fails; its message is passed on.
pub fn start(name: &str, arguments: &[String], say: &dyn Fn(&str)) -> Result<LabState> {
    if let Ok(state) = status(name) {
        let hosts = state.hosts.len();
        bail!(
            "a lab called '{name}' with {hosts} hosts is up; `./x lab down --name {name}` ends it"
        );
    }
    let folder = cache::run_folder(name)?;
    let parent = folder.parent().context("the run folder has a parent")?;
    fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    // Beside the run folder, which the lab empties when it starts.
    let log_path = folder.with_extension(LOG);
    let log = File::create(&log_path).with_context(|| format!("create {}", log_path.display()))?;
    let own = std::env::current_exe().context("find the running program")?;
    let mut child = Process::new("setsid")
        .arg(own)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("share the daemon's log")?)
        .stderr(log)
        .spawn()
        .context("start the lab daemon by setsid")?;
    let mut told = 0;
    loop {
        let ended = child.try_wait().context("look after the lab daemon")?.is_some();
        let text = fs::read_to_string(&log_path).unwrap_or_default();
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        for line in text.get(told..whole).unwrap_or("").lines() {
            if line == READY {
                return status(name);
            }
            if let Some(why) = line.strip_prefix(FAILED) {
                let rest = text.split_once(FAILED).map_or(why, |(_, rest)| rest);
                bail!("{}", rest.trim());
            }
            say(line);
        }
        told = whole.max(told);
        if ended {
            bail!("the lab daemon ended; its log is {}", log_path.display());
        }
        thread::sleep(POLL);
    }
}

/// Is the daemon: brings the lab up and serves it until it is told to end or nobody asks any more.
///
/// # Errors
/// When the lab does not come up or its control socket fails.
pub fn run(config: &Config, idle: Duration) -> Result<()> {
    // One write, so that who follows the log never sees half a message.
    let say = |text: &str| drop(std::io::stdout().write_all(format!("{text}\n").as_bytes()));
    let served = Lab::up(config, &say).and_then(|lab| {
        let server = Server::bind(Arc::new(lab), Arc::new(AtomicBool::new(false)))?;
        say(READY);
        server.serve(idle)
    });
    if let Err(error) = &served {
        say(&format!("{FAILED}{error:#}"));
    }
    served
}

/// Serves a lab of this process to others, until the flag is set: by the caller, or by a request to
/// end the lab. It is for a thread of its own.
///
/// # Errors
/// When the control socket cannot be made or fails.
pub fn serve(lab: Arc<Lab>, ending: Arc<AtomicBool>) -> Result<()> {
    Server::bind(lab, ending)?.serve(Duration::MAX)
}

/// Serves requests for a lab.
#[derive(Debug)]
struct Server {
    lab: Arc<Lab>,
    listener: UnixListener,
    busy: AtomicUsize,
    last: Mutex<Instant>,
    ending: Arc<AtomicBool>,
}

impl Server {
    fn bind(lab: Arc<Lab>, ending: Arc<AtomicBool>) -> Result<Arc<Self>> {
        let path = lab.folder().join(SOCKET);
        let listener =
            UnixListener::bind(&path).with_context(|| format!("bind {}", path.display()))?;
        listener.set_nonblocking(true).context("prepare the control socket")?;
        Ok(Arc::new(Self {
            lab,
            listener,
            busy: AtomicUsize::new(0),
            last: Mutex::new(Instant::now()),
            ending,
        }))
    }

    fn touch(&self) -> std::sync::MutexGuard<'_, Instant> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(self: Arc<Self>, idle: Duration) -> Result<()> {
        while !self.ending.load(Ordering::SeqCst) {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let server = Arc::clone(&self);
                    server.busy.fetch_add(1, Ordering::SeqCst);
                    thread::spawn(move || {
                        if let Err(error) = server.answer(stream) {
                            drop(writeln!(std::io::stderr(), "request: {error:#}"));
                        }
                        *server.touch() = Instant::now();
                        server.busy.fetch_sub(1, Ordering::SeqCst);
                    });
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => thread::sleep(POLL),
                Err(error) => return Err(error).context("accept a request"),
            }
            let quiet = self.busy.load(Ordering::SeqCst) == 0 && self.touch().elapsed() > idle;
            if quiet {
                drop(writeln!(std::io::stdout(), "no request for {idle:?}: ending"));
                self.ending.store(true, Ordering::SeqCst);
            }
        }
        // Requests share the lab, and what it made is removed when the last one lets go of it.
        let until = Instant::now() + DOWN_LIMIT / 2;
        while self.busy.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn answer(&self, stream: UnixStream) -> Result<()> {
        stream.set_nonblocking(false).context("prepare a request")?;
        let mut reader = BufReader::new(stream.try_clone().context("clone a request")?);
        let mut line = String::new();
        reader.by_ref().take(MAX_REQUEST).read_line(&mut line).context("read a request")?;
        let request: Request = serde_json::from_str(&line).context("parse a request")?;
        let done = match request {
            Request::Exec { host, command } => return self.exec(stream, reader, host, &command),
            Request::Status => Ok(()),
            Request::Cut(host) => self.lab.host(host).and_then(|host| host.cut()),
            Request::Heal(host) => self.lab.host(host).and_then(|host| host.heal()),
            Request::Kill(host) => self.lab.host(host).and_then(|host| host.kill()),
            Request::Down => {
                self.ending.store(true, Ordering::SeqCst);
                Ok(())
            }
        };
        let answer: Answer =
            done.and_then(|()| self.lab.state()).map_err(|error| format!("{error:#}"));
        let mut stream = stream;
        serde_json::to_writer(&mut stream, &answer).context("answer a request")?;
        writeln!(stream).context("answer a request")
    }

    fn exec(
        &self,
        mut stream: UnixStream,
        mut reader: BufReader<UnixStream>,
        host: HostNumber,
        command: &Command,
    ) -> Result<()> {
        let started = self.lab.host(host).and_then(|host| host.spawn(command));
        let mut process = match started {
            Ok(process) => process,
            Err(error) => return Ok(Frame::Refused(0, format!("{error:#}")).write(&mut stream)?),
        };
        let signals = process.handle();
        let asker = thread::spawn(move || {
            while let Ok(Some(Frame::Signal(_, number))) = Frame::read(&mut reader) {
                if signals.signal(number).is_err() {
                    return;
                }
            }
            // The asker is gone, or the command is over and this does nothing.
            drop(signals.kill());
        });
        loop {
            let Some(event) = process.next_event(POLL * 4) else {
                if self.ending.load(Ordering::SeqCst) || asker.is_finished() {
                    return Ok(());
                }
                continue;
            };
            let (frame, last) = match event {
                Event::Output(from, bytes) => (Frame::Output(0, from, bytes), false),
                Event::Exit(status) => (Frame::Exit(0, status), true),
                Event::Lost(why) => (Frame::Refused(0, why), true),
            };
            if frame.write(&mut stream).is_err() || last {
                return Ok(());
            }
        }
    }
}

fn connect(name: &str) -> Result<UnixStream> {
    let path = cache::run_folder(name)?.join(SOCKET);
    UnixStream::connect(&path).with_context(|| {
        format!("no lab called '{name}' is up; `./x lab up --name {name}` starts it")
    })
}

fn ask(name: &str, request: &Request) -> Result<UnixStream> {
    let mut stream = connect(name)?;
    serde_json::to_writer(&mut stream, request).context("ask the lab")?;
    writeln!(stream).context("ask the lab")?;
    Ok(stream)
}

fn ask_for_state(name: &str, request: &Request) -> Result<LabState> {
    let stream = ask(name, request)?;
    stream.set_read_timeout(Some(DOWN_LIMIT)).context("set a time limit")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).context("read the lab's answer")?;
    let answer: Answer = serde_json::from_str(&line).context("parse the lab's answer")?;
    answer.map_err(|why| anyhow!(why))
}

/// State of a daemon's lab.
///
/// # Errors
/// When no such lab is up.
pub fn status(name: &str) -> Result<LabState> {
    ask_for_state(name, &Request::Status)
}

/// Cuts a host off from the network.
///
/// # Errors
/// When no such lab or host is up.
pub fn cut(name: &str, host: HostNumber) -> Result<()> {
    ask_for_state(name, &Request::Cut(host)).map(drop)
}

/// Connects a host again.
///
/// # Errors
/// When no such lab or host is up.
pub fn heal(name: &str, host: HostNumber) -> Result<()> {
    ask_for_state(name, &Request::Heal(host)).map(drop)
}

/// Ends a host as a power cut would.
///
/// # Errors
/// When no such lab or host is up.
pub fn kill(name: &str, host: HostNumber) -> Result<()> {
    ask_for_state(name, &Request::Kill(host)).map(drop)
}

/// A command that runs in a host of a daemon's lab.
#[derive(Debug)]
pub struct Exec {
    stream: UnixStream,
}

/// Starts a command in a host of a daemon's lab.
///
/// # Errors
/// When no such lab is up.
pub fn exec(name: &str, host: HostNumber, command: &Command) -> Result<Exec> {
    let request = Request::Exec { host, command: command.clone() };
    Ok(Exec { stream: ask(name, &request)? })
}

impl Exec {
    /// A second handle, to send signals from another thread.
    ///
    /// # Errors
    /// When the process has no file handle left.
    pub fn handle(&self) -> Result<Self> {
        Ok(Self { stream: self.stream.try_clone().context("clone the request")? })
    }

    /// Sends a signal by its number to the command.
    ///
    /// # Errors
    /// When the lab is gone.
    pub fn signal(&mut self, number: i32) -> Result<()> {
        Frame::Signal(0, number).write(&mut self.stream).context("pass a signal on")
    }

    /// Passes output on until the command ends.
    ///
    /// # Errors
    /// When the command could not be started, or its host or lab is gone.
    pub fn stream(&mut self, mut write: impl FnMut(Stream, &[u8])) -> Result<ExitStatus> {
        loop {
            match Frame::read(&mut self.stream).context("read from the lab")? {
                Some(Frame::Output(_, from, bytes)) => write(from, &bytes),
                Some(Frame::Exit(_, status)) => return Ok(status),
                Some(Frame::Refused(_, why)) => bail!(why),
                Some(other) => bail!("the lab said {other:?}"),
                None => bail!("the lab ended"),
            }
        }
    }
}

/// Ends a daemon's lab and everything in it; returns false when none was up.
///
/// # Errors
/// When something of it is still there after a while.
pub fn down(name: &str) -> Result<bool> {
    let folder = cache::run_folder(name)?;
    let Ok(state) = ask_for_state(name, &Request::Down) else {
        let swept = sweep(&folder)?;
        namespaces::sweep_machine(name)?;
        return Ok(swept > 0);
    };
    let owner = PathBuf::from(format!("/proc/{}", state.owner));
    let until = Instant::now() + DOWN_LIMIT;
    while is_of_lab(&owner, &folder) || owner_runs(&owner) {
        if Instant::now() > until {
            let count = sweep(&folder)?;
            bail!("the daemon (process {}) does not end; {count} processes killed", state.owner);
        }
        thread::sleep(POLL);
    }
    sweep(&folder)?;
    Ok(true)
}

fn owner_runs(process: &Path) -> bool {
    // A zombie has no command line: its parent, not the lab, has to collect it.
    fs::read(process.join("cmdline")).is_ok_and(|line| !line.is_empty())
}

/// True for a QEMU process of the lab in this folder.
fn is_of_lab(process: &Path, folder: &Path) -> bool {
    let Ok(line) = fs::read(process.join("cmdline")) else { return false };
    let line = String::from_utf8_lossy(&line);
    line.contains("qemu-system") && line.contains(&format!("{}/", folder.display()))
}

/// Kills machines whose daemon is gone without ending them. Returns how many there were.
fn sweep(folder: &Path) -> Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir("/proc").context("list processes")?.flatten() {
        if is_of_lab(&entry.path(), folder) {
            let number = entry.file_name().to_string_lossy().parse().ok();
            if let Some(process) = number.and_then(rustix::process::Pid::from_raw) {
                // It may have ended since it was listed.
                _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
                count += 1;
            }
        }
    }
    Ok(count)
}

/// Folder with logs and job folders of a lab.
///
/// # Errors
/// When the name is no lab name.
pub fn folder(name: &str) -> Result<PathBuf> {
    let folder = cache::run_folder(name)?;
    packages::text(&folder)?;
    Ok(folder)
}
