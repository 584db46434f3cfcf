//! The far end of a host: runs commands and sends their output back as [`Frame`]s.
//!
//! In a QEMU machine the agent is this same program (`xtask lab-agent`, seen through the machine's root
//! file system) on a virtio-serial port. For namespaces on the machine itself it is a thread on one end
//! of a socket pair. One thread reads frames; each command has a thread that waits for it and two that
//! read its output, so a slow command never delays another.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fs, io};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::command::{Command, ExitStatus, Stream};
use crate::frame::{CHUNK, CommandId, Frame};

/// Name of the virtio-serial port the agent answers on.
pub const PORT_NAME: &str = "tessera.agent";
/// Most commands that may run at once on one stream.
const MAX_COMMANDS: usize = 256;
/// How long output that outlives its command (a background child has the pipe) is still waited for.
const OUTPUT_GRACE: Duration = Duration::from_millis(500);

type Writer = Arc<Mutex<Box<dyn Write + Send>>>;
type Running = Arc<Mutex<HashMap<CommandId, Pid>>>;

/// Finds the agent's virtio-serial port in a host and serves it until the lab goes away.
///
/// # Errors
/// When there is no such port or it fails.
pub fn serve_port() -> Result<()> {
    let port = port_device().context("find the agent's virtio-serial port")?;
    let reader = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&port)
        .with_context(|| format!("open {}", port.display()))?;
    let writer: File = reader.try_clone().context("clone the agent port")?;
    serve(reader, Box::new(writer), false)
}

fn port_device() -> Result<PathBuf> {
    for entry in fs::read_dir("/sys/class/virtio-ports")? {
        let entry = entry?;
        if fs::read_to_string(entry.path().join("name"))?.trim() == PORT_NAME {
            return Ok(Path::new("/dev").join(entry.file_name()));
        }
    }
    bail!("no port is called {PORT_NAME}")
}

/// Serves one stream of frames until it ends, then kills whatever still runs.
///
/// `die_with_thread`: commands get a parent-death signal, so they cannot outlive this process.
///
/// # Errors
/// When the stream carries something that is not a frame, or cannot be written.
pub fn serve(
    mut reader: impl Read,
    writer: Box<dyn Write + Send>,
    die_with_thread: bool,
) -> Result<()> {
    let writer: Writer = Arc::new(Mutex::new(writer));
    let running = Running::default();
    send(&writer, &Frame::Hello)?;
    let result = loop {
        match Frame::read(&mut reader) {
            Ok(Some(Frame::Start(id, command))) => {
                if let Err(error) = start(id, &command, &writer, &running, die_with_thread) {
                    send(&writer, &Frame::Refused(id, format!("{error:#}")))?;
                }
            }
            Ok(Some(Frame::Signal(id, signal))) => {
                let group = lock(&running).get(&id).copied();
                if let (Some(group), Some(signal)) = (group, Signal::from_named_raw(signal)) {
                    // The group may be gone already: then its exit frame is on the way.
                    _ = kill_process_group(group, signal);
                }
            }
            Ok(Some(other)) => break Err(anyhow::anyhow!("unexpected frame {other:?}")),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error.into()),
        }
    };
    for group in lock(&running).values() {
        _ = kill_process_group(*group, Signal::KILL);
    }
    result
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A poisoned table of pids or a poisoned writer is still in order: each use is one step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn send(writer: &Writer, frame: &Frame) -> Result<()> {
    frame.write(&mut *lock(writer)).context("write to the lab")
}

fn start(
    id: CommandId,
    command: &Command,
    writer: &Writer,
    running: &Running,
    die_with_thread: bool,
) -> Result<()> {
    let Some(program) = command.arguments.first() else { bail!("the command is empty") };
    if lock(running).len() >= MAX_COMMANDS {
        bail!("{MAX_COMMANDS} commands run already");
    }
    let mut process = if die_with_thread {
        let mut wrapped = Process::new("setpriv");
        wrapped.args(["--pdeathsig", "KILL", "--"]).args(&command.arguments);
        wrapped
    } else {
        let mut plain = Process::new(program);
        plain.args(&command.arguments[1..]);
        plain
    };
    process
        .envs(command.environment.iter().map(|(name, value)| (name, value)))
        .current_dir(command.folder.as_deref().unwrap_or("/"))
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = process.spawn().with_context(|| format!("start {program}"))?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("pid of child")?;
    lock(running).insert(id, group);
    let out = child.stdout.take().map(|pipe| forward(id, Stream::Out, pipe, writer));
    let error = child.stderr.take().map(|pipe| forward(id, Stream::Error, pipe, writer));
    let readers: Vec<_> = out.into_iter().chain(error).collect();
    let (writer, running) = (Arc::clone(writer), Arc::clone(running));
    thread::spawn(move || {
        let status = finish(&mut child, &readers);
        lock(&running).remove(&id);
        // When the lab is gone nobody is left to tell.
        drop(send(&writer, &Frame::Exit(id, status)));
    });
    Ok(())
}

fn forward(
    id: CommandId,
    stream: Stream,
    mut pipe: impl Read + Send + 'static,
    writer: &Writer,
) -> JoinHandle<()> {
    let writer = Arc::clone(writer);
    thread::spawn(move || {
        let mut buffer = vec![0; CHUNK];
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => {
                    let frame = Frame::Output(id, stream, buffer[..count].to_vec());
                    if send(&writer, &frame).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    })
}

/// Waits for the child, then for its output as long as [`OUTPUT_GRACE`] allows.
fn finish(child: &mut Child, readers: &[JoinHandle<()>]) -> ExitStatus {
    let status = match child.wait() {
        Ok(status) => status,
        Err(error) => return lost(&error),
    };
    let limit = Instant::now() + OUTPUT_GRACE;
    while Instant::now() < limit && readers.iter().any(|reader| !reader.is_finished()) {
        thread::sleep(Duration::from_millis(2));
    }
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitStatus::Code(code),
        (None, Some(signal)) => ExitStatus::Signal(signal),
        (None, None) => ExitStatus::Code(255),
    }
}

fn lost(error: &io::Error) -> ExitStatus {
    // The kernel has no status for it, which means that somebody else reaped the child.
    drop(writeln!(io::stderr(), "agent: wait for a command: {error}"));
    ExitStatus::Code(255)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::remote::Channel;

    fn agent() -> Channel {
        agent_stalled(Duration::from_secs(20))
    }

    fn agent_stalled(stalled: Duration) -> Channel {
        let (near, far) = UnixStream::pair().unwrap();
        thread::spawn(move || {
            let writer = Box::new(far.try_clone().unwrap());
            drop(serve(far, writer, false));
        });
        Channel::connect_stalled("agent", near, Duration::from_secs(10), stalled).unwrap()
    }

    #[test]
    fn exit_code_comes_back_with_both_streams() {
        let channel = agent();
        let command = Command::shell("echo seen; echo wrong >&2; exit 7");

        let mut process = channel.spawn(&command).unwrap();
        let (status, lines) = process.collect(Duration::from_secs(20)).unwrap();

        assert_eq!(status, ExitStatus::Code(7));
        let of = |stream| {
            lines.iter().filter(|l| l.stream == stream).map(|l| l.text.clone()).collect::<Vec<_>>()
        };
        assert_eq!(of(Stream::Out), ["seen"]);
        assert_eq!(of(Stream::Error), ["wrong"]);
    }

    /// Its queue is full for ever, and only once does anybody wait for that. Hundreds of its lines are ahead of each answer.
    #[test]
    fn command_whose_output_nobody_reads_does_not_hold_up_others() {
        let channel = agent_stalled(Duration::from_secs(1));
        let mut endless = channel.spawn(&Command::shell("while :; do echo; done")).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while !endless.is_full() {
            assert!(Instant::now() < until, "it says too little");
            thread::sleep(Duration::from_millis(10));
        }
        for _ in 0..3 {
            let said = channel.run(&Command::shell("echo here"), Duration::from_secs(15)).unwrap();
            assert_eq!(said, "here");
        }
        endless.kill().unwrap();
        assert_eq!(endless.wait(Duration::from_secs(20)).unwrap(), ExitStatus::Signal(9));
    }

    #[test]
    fn missing_program_is_refused_with_its_name() {
        let error = agent()
            .spawn(&Command::new(["no-such-program-here"]))
            .unwrap()
            .wait(Duration::from_secs(20));

        assert!(format!("{:#}", error.unwrap_err()).contains("no-such-program-here"));
    }

    #[test]
    fn killed_command_reports_the_signal() {
        let channel = agent();
        let mut process = channel.spawn(&Command::new(["sleep", "1000"])).unwrap();

        process.kill().unwrap();

        assert_eq!(process.wait(Duration::from_secs(20)).unwrap(), ExitStatus::Signal(9));
    }
}
