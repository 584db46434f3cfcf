//! The processes of slices: started, found again, watched and ended.
//!
//! ```text
//!   start --> process, which carries IDENTITY:TOKEN in its environment --ends--> told, with its status
//!                └── the agent is killed: it goes on; the next agent finds it by what it carries, and hears of its end without a status
//! ```
//! A process is named by a descriptor (pidfd), never by a number alone: numbers come again.

use crate::decide::{End, Manner, Process, SliceName, Token};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;

/// The name of what a slice's process carries.
const CARRIED: &str = "TESSERA_SLICE";

/// How processes of slices are started here.
#[derive(Clone, Debug)]
pub struct Processes {
    /// The program, for all words.
    pub program: PathBuf,
    /// What slices say is written here, a file for each.
    pub logs: PathBuf,
    /// That of the journal.
    pub identity: String,
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
        fs::create_dir_all(&self.logs)?;
        let log = OpenOptions::new().create(true).append(true).open(self.log(slice))?;
        // Who waits is there before there is something to wait for.
        let (hand_over, handed) = mpsc::channel::<Child>();
        let wait = move || handed.recv().map(|mut child| tell(ended(&child.wait())));
        thread::Builder::new().name("slice-end".into()).spawn(wait)?;
        let mut child = Command::new(&self.program)
            .args(words)
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

    /// All processes that carry tokens of this journal.
    ///
    /// # Errors
    /// The list of processes cannot be read.
    pub fn find(&self) -> io::Result<BTreeMap<Token, Process>> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            // One that ends meanwhile is none.
            if let Some((token, process)) = self.token_of(id) {
                // What a slice has started carries the same, and began later.
                let first = found.entry(token).or_insert(process);
                if process.began < first.began {
                    *first = process;
                }
            }
        }
        Ok(found)
    }

    fn token_of(&self, id: u32) -> Option<(Token, Process)> {
        let began = began(id).ok()?;
        let environment = fs::read(format!("/proc/{id}/environ")).ok()?;
        let carried = environment.split(|byte| *byte == 0).find_map(|variable| {
            std::str::from_utf8(variable).ok()?.strip_prefix(CARRIED)?.strip_prefix('=')
        })?;
        let (identity, token) = carried.split_once(':')?;
        let token = Token(token.parse().ok()?);
        (identity == self.identity).then_some((token, Process { id, began }))
    }
}

/// Hears of the end of a process that a former agent has started; how it ended nobody can say.
///
/// # Errors
/// It has ended already, or cannot be watched.
pub fn watch(process: Process, tell: impl FnOnce(End) + Send + 'static) -> io::Result<()> {
    let descriptor = open(process)?;
    let wait = move || {
        let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
        while matches!(poll(&mut polled, None), Err(Errno::INTR)) {}
        tell(End::Unseen);
    };
    thread::Builder::new().name("slice-end".into()).spawn(wait).map(drop)
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
    use std::time::Duration;

    struct Folder(PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const SLICE: SliceName = SliceName { vm: Vm(5), number: 1 };

    /// Processes of a shell.
    fn processes(name: &str) -> (Folder, Processes) {
        let logs = std::env::temp_dir().join(format!("tessera-{name}-{}", std::process::id()));
        let identity = format!("{name}-{}", std::process::id());
        (Folder(logs.clone()), Processes { program: "/bin/sh".into(), logs, identity })
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
        let (process, ends) = start(&of, 3, "echo here; exec sleep 600");
        assert_eq!(of.find().unwrap(), BTreeMap::from([(Token(3), process)]));
        let others = Processes { identity: "another".into(), ..of.clone() };
        assert_eq!(others.find().unwrap(), BTreeMap::new());

        let (send, unseen) = mpsc::channel();
        watch(process, move |end| send.send(end).unwrap()).unwrap();
        let later = Process { began: process.began + 1, ..process };
        end(later, Manner::AtOnce);
        assert!(watch(later, |_| ()).is_err(), "another process with its number");
        assert_eq!(of.find().unwrap().len(), 1);
        end(process, Manner::AtOnce);
        assert_eq!(ends.recv_timeout(LIMIT), Ok(End::Signal(9)));
        assert_eq!(unseen.recv_timeout(LIMIT), Ok(End::Unseen));
        assert_eq!(of.find().unwrap(), BTreeMap::new());
        end(process, Manner::Orderly);
        assert_eq!(fs::read_to_string(of.log(SLICE)).unwrap(), "here\n");
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
