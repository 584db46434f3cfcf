//! The processes of slices: started, found again, watched and ended.
//!
//! ```text
//!   start --> process, which carries IDENTITY:TOKEN in its environment --ends--> told, with its status
//!                └── the agent is killed: it goes on; the next agent finds it by what it carries, and hears of its end without a status
//! ```
//! A process is named by a descriptor (pidfd), never by a number alone: numbers come again. It has ended when the kernel says so of the
//! descriptor: one whose first thread has ended may have others that run still, and what cannot be looked at has not ended.

use crate::decide::{End, Manner, Process, SliceName, Token};
use crate::logs;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open,
    pidfd_send_signal, waitid,
};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use std::{env, io, thread};

/// The name of what a slice's process carries.
const CARRIED: &str = "TESSERA_SLICE";
/// The name of what says which slice it is: its log names it so.
const NAMED: &str = "TESSERA_NAME";
/// What else it has of the agent's environment.
const KEPT: [&str; 4] = ["PATH", "RUST_BACKTRACE", "TESSERA_LOG", "TESSERA_LOG_FORMAT"];

/// Between two attempts to wait for the end of a process.
const POLL_AGAIN: Duration = Duration::from_millis(100);

/// How processes of slices are started here.
#[derive(Clone, Debug)]
pub struct Processes {
    /// The program, for all words.
    pub program: PathBuf,
    /// What slices say is written here, a file for each.
    pub logs: PathBuf,
    /// That of the journal.
    pub identity: String,
    /// What else they have in their environment.
    pub environment: Vec<(String, String)>,
}

impl Processes {
    /// Starts a slice. It goes on when the agent ends. `tell` hears of its end.
    ///
    /// # Errors
    /// It could not be started, or not be watched; then it has been ended.
    pub fn start(
        &self,
        slice: SliceName,
        token: Token,
        words: &[String],
        tell: impl FnOnce(End) + Send + 'static,
    ) -> io::Result<Process> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.logs)?;
        let log = logs::open(&self.log(slice))?;
        let kept = KEPT.iter().filter_map(|name| Some((name, env::var_os(name)?)));
        // Who waits is there before there is something to wait for.
        let (hand_over, handed) = mpsc::channel::<Child>();
        let wait = move || handed.recv().map(|mut child| tell(wait_for(&mut child)));
        thread::Builder::new().name("slice-end".into()).spawn(wait)?;
        let mut child = Command::new(&self.program)
            .args(words)
            .env_clear()
            .envs(kept)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env(NAMED, format!("vms/{}/slices/{}", slice.vm, slice.number))
            .env(CARRIED, self.carried(token))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()?;
        let id = child.id();
        // Nobody has waited for it yet: it has its number still, even if it has ended.
        let Ok(began) = began(id) else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(io::Error::other("/proc does not show it"));
        };
        let _ = hand_over.send(child);
        Ok(Process { id, began })
    }

    /// Where a slice's words are.
    #[must_use]
    pub fn log(&self, slice: SliceName) -> PathBuf {
        self.logs.join(format!("{}-{}.log", slice.vm, slice.number))
    }

    fn carried(&self, token: Token) -> String {
        format!("{}:{token}", self.identity)
    }

    /// All processes that carry tokens of this journal. Of those that are known it is enough to ask [`is_there`].
    ///
    /// # Errors
    /// One cannot be looked at: what it carries is not known.
    pub fn find(&self) -> io::Result<BTreeMap<Token, Process>> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            if let Some((token, process)) = self.token_of(id)? {
                // What a slice has started carries the same, and began later.
                let first = found.entry(token).or_insert(process);
                if process.began < first.began {
                    *first = process;
                }
            }
        }
        Ok(found)
    }

    fn token_of(&self, id: u32) -> io::Result<Option<(Token, Process)>> {
        let Some(began) = unless_gone(began(id))? else { return Ok(None) };
        let environment = match unless_gone(fs::read(format!("/proc/{id}/environ"))) {
            // One of another program that hides is no slice.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !self.is_named(id) => {
                None
            }
            environment => environment?,
        };
        let carried = environment.iter().flat_map(|all| all.split(|byte| *byte == 0));
        let carried = carried.filter_map(|variable| std::str::from_utf8(variable).ok());
        let of = |text: &str| {
            let (identity, token) =
                text.strip_prefix(CARRIED)?.strip_prefix('=')?.split_once(':')?;
            (identity == self.identity).then(|| token.parse().ok()).flatten()
        };
        let token = carried.filter_map(of).next();
        Ok(token.map(|token| (Token(token), Process { id, began })))
    }

    /// Whether a process has the name of the program of slices, as far as the kernel keeps it.
    fn is_named(&self, id: u32) -> bool {
        let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
        let program = self.program.file_name().map(|name| name.to_string_lossy().into_owned());
        program.is_none_or(|program| program.starts_with(name.trim_end()))
    }
}

/// None for a process that has ended meanwhile.
fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether this error says that there is no such process.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// Whether a process is there still, with any of its threads.
///
/// # Errors
/// That cannot be found out.
pub fn is_there(process: Process) -> io::Result<bool> {
    let Some(descriptor) = unless_gone(open(process))? else { return Ok(false) };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&now)) {
            Ok(ended) => return Ok(ended == 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Hears of the end of a process that a former agent has started; how it ended nobody can say.
///
/// # Errors
/// It cannot be watched.
pub fn watch(process: Process, tell: impl FnOnce(End) + Send + 'static) -> io::Result<()> {
    let Some(descriptor) = unless_gone(open(process))? else {
        tell(End::Unseen);
        return Ok(());
    };
    let wait = move || {
        while poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None).is_err() {
            thread::sleep(POLL_AGAIN);
        }
        tell(End::Unseen);
    };
    thread::Builder::new().name("slice-end".into()).spawn(wait).map(drop)
}

/// Waits for the end of a slice that this agent has started. What it has started itself ends with it: the number of its group is nobody
/// else's until it has been waited for.
fn wait_for(child: &mut Child) -> End {
    let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(id) = id {
        let ends = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while matches!(waitid(WaitId::Pid(id), ends), Err(Errno::INTR)) {}
        // It fails if there is nobody else.
        let _ = kill_process_group(id, Signal::KILL);
    }
    ended(&child.wait())
}

/// Has a process end. One that has ended needs nothing.
pub fn end(process: Process, manner: Manner) {
    let signal = match manner {
        Manner::Orderly => Signal::TERM,
        Manner::AtOnce => Signal::KILL,
    };
    // Either fails for one that has ended.
    let _ = open(process).map(|descriptor| pidfd_send_signal(&descriptor, signal));
}

/// A descriptor of this process, and of no other one with its number.
fn open(process: Process) -> io::Result<OwnedFd> {
    let gone = || io::Error::from(Errno::SRCH);
    let id = i32::try_from(process.id).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
    let descriptor = pidfd_open(id, PidfdFlags::empty())?;
    // The descriptor is of whoever has the number now; if that is this process, it was before too.
    if began(process.id)? == process.began { Ok(descriptor) } else { Err(gone()) }
}

fn ended(status: &io::Result<ExitStatus>) -> End {
    let Ok(status) = status else { return End::Unseen };
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Status(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, signal) => {
            End::Signal(signal.and_then(|signal| u8::try_from(signal).ok()).unwrap_or(u8::MAX))
        }
    }
}

/// When a process began: field 22 of its `stat`; the name in field 2 may have spaces and brackets.
fn began(id: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(Path::new("/proc").join(id.to_string()).join("stat"))?;
    parse_began(&stat).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

fn parse_began(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::Vm;
    use crate::logs::tests::Folder;
    use std::time::Instant;

    const SLICE: SliceName = SliceName { vm: Vm(5), number: 1 };

    /// Processes of a shell.
    fn processes(name: &str) -> (Folder, Processes) {
        let logs = env::temp_dir().join(format!("tessera-{name}-{}", std::process::id()));
        let identity = format!("{name}-{}", std::process::id());
        let environment = vec![("SAID".to_owned(), "so".to_owned())];
        (Folder(logs.clone()), Processes { program: "/bin/sh".into(), logs, identity, environment })
    }

    fn start(of: &Processes, token: u64, script: &str) -> (Process, mpsc::Receiver<End>) {
        let (send, ends) = mpsc::channel();
        let words = ["-c".to_owned(), script.to_owned()];
        let tell = move |end| send.send(end).unwrap();
        (of.start(SLICE, Token(token), &words, tell).unwrap(), ends)
    }

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn process_is_found_by_what_it_carries_and_ended_once() {
        let (_folder, of) = processes("found");
        // It stops and becomes no other program: a process that does carries nothing meanwhile.
        let (process, ends) = start(&of, 3, "echo here; kill -STOP $$");
        let found = BTreeMap::from([(Token(3), process)]);
        let end_of_wait = Instant::now() + LIMIT;
        while fs::read_to_string(of.log(SLICE)).unwrap() != "here\n" {
            assert!(Instant::now() < end_of_wait);
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(of.find().unwrap(), found);
        let others = Processes { identity: "another".into(), ..of.clone() };
        assert_eq!(others.find().unwrap(), BTreeMap::new());

        let (send, unseen) = mpsc::channel();
        watch(process, move |end| send.send(end).unwrap()).unwrap();
        let later = Process { began: process.began + 1, ..process };
        end(later, Manner::AtOnce);
        let (send, gone) = mpsc::channel();
        watch(later, move |end| send.send(end).unwrap()).unwrap();
        assert_eq!(gone.recv_timeout(LIMIT), Ok(End::Unseen), "another process with its number");
        assert!(is_there(process).unwrap() && !is_there(later).unwrap());
        assert_eq!(of.find().unwrap().len(), 1);
        end(process, Manner::AtOnce);
        assert_eq!(ends.recv_timeout(LIMIT), Ok(End::Signal(9)));
        assert_eq!(unseen.recv_timeout(LIMIT), Ok(End::Unseen));
        assert_eq!(of.find().unwrap(), BTreeMap::new());
        end(process, Manner::Orderly);
    }

    #[test]
    fn slice_has_its_name_and_what_else_it_is_given() {
        let (_folder, of) = processes("named");
        let (_, ends) = start(&of, 1, "echo $TESSERA_NAME $SAID $HOME");
        assert_eq!(ends.recv_timeout(LIMIT), Ok(End::Status(0)));
        let name = format!("vms/{}/slices/1", SLICE.vm);
        assert_eq!(fs::read_to_string(of.log(SLICE)).unwrap(), format!("{name} so\n"));
    }

    #[test]
    fn status_is_told() {
        let (_folder, of) = processes("status");
        assert_eq!(start(&of, 1, "exit 7").1.recv_timeout(LIMIT), Ok(End::Status(7)));
        let missing = Processes { program: "/nowhere/tessera".into(), ..of.clone() };
        assert!(missing.start(SLICE, Token(2), &[], |_| ()).is_err());
    }

    #[test]
    fn beginning_is_read_behind_any_name() {
        let fields: Vec<String> = (3..=52).map(|field: u32| field.to_string()).collect();
        let stat = |name: &str| format!("17 ({name}) {}", fields.join(" "));
        assert_eq!(parse_began(&stat("tessera")), Some(22));
        assert_eq!(parse_began(&stat("a b) 1 (c")), Some(22));
        assert_eq!(parse_began("17 tessera"), None);
        assert_eq!(parse_began("17 (x) 1 2"), None);
    }
}
