//! The agent at work: one thread that owns decisions and journal.
//!
//! ```text
//!   requests ──┐                    ┌── journal, on the disk
//!   ends ──────┼──> decide ──> do ──┼── processes
//!   ticks ─────┘       ^            └── answers
//!                      └── nothing can be recorded: as after a kill, from the journal and the processes that are there
//! ```

mod worker;

use crate::decide::{Journal, Refusal, Reply, Request, Settings, Term};
use crate::journal::{JournalError, JournalFile};
use crate::processes::Processes;
use arc_swap::ArcSwap;
use crossbeam_channel::{RecvTimeoutError, Sender, TrySendError, bounded};
use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use thiserror::Error;
use worker::Worker;
pub use worker::now;

/// Requests that wait to be taken.
const QUEUE: usize = 256;
/// Between two looks whether the agent is there.
const LOOK: Duration = Duration::from_millis(200);

/// Why there is no answer of the agent's.
#[derive(Debug, Error)]
pub enum AskError {
    /// It refuses.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Its journal cannot be written: the disk is full, or fails. What was not recorded before is not begun.
    #[error("the agent cannot write its journal, and begins nothing more: {0}")]
    Journal(String),
    /// It has too much to do.
    #[error("{QUEUE} requests wait already")]
    Busy,
    /// It has ended.
    #[error("the agent has ended")]
    Gone,
}

/// Why it does not begin.
#[derive(Debug, Error)]
pub enum BeginError {
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// What is read of the host.
    #[error("{what}")]
    Host {
        /// What.
        what: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl BeginError {
    /// Whether another attempt finds the same.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Journal(error) => error.is_final(),
            Self::Host { .. } => false,
        }
    }
}

/// What comes of a request.
pub type Answer = Result<Reply, AskError>;

/// Whom an answer is for.
struct Asker(Box<dyn FnOnce(Answer) + Send>);

impl Asker {
    fn tell(self, answer: Answer) {
        (self.0)(answer);
    }
}

impl fmt::Debug for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Asker")
    }
}

/// A request; or that the agent is to end.
#[derive(Debug)]
struct Message(Option<(Term, Request, Asker)>);

/// How an agent works.
#[derive(Clone, Debug)]
pub struct Options {
    /// What it may give.
    pub settings: Settings,
    /// The program of slices.
    pub program: PathBuf,
    /// Its folder: journal and logs.
    pub folder: PathBuf,
    /// What slices have in their environment beside what an agent always gives them.
    pub environment: Vec<(String, String)>,
}

/// A way to the agent. Clones ask the same one.
#[derive(Clone, Debug)]
pub struct AgentHandle {
    requests: Sender<Message>,
    seen: Arc<ArcSwap<Journal>>,
    has_ended: Arc<AtomicBool>,
    identity: Arc<str>,
}

impl AgentHandle {
    /// Asks, and waits for the answer, which may take as long as a slice takes to end.
    ///
    /// # Errors
    /// It refuses, cannot record, or is not there.
    pub fn ask(&self, term: Term, request: Request) -> Answer {
        let (reply, answer) = bounded(1);
        self.ask_then(term, request, move |answer| {
            // Whoever asked waits.
            let _ = reply.send(answer);
        })?;
        loop {
            match answer.recv_timeout(LOOK) {
                Ok(answer) => return answer,
                // It may have ended before it took the request.
                Err(RecvTimeoutError::Timeout) if !self.has_ended() => {}
                Err(_) => return Err(AskError::Gone),
            }
        }
    }

    /// Asks, and does not wait: the agent's thread calls `tell`, which must not wait either. It is dropped if the agent ends first.
    ///
    /// # Errors
    /// The request is not taken.
    pub fn ask_then(
        &self,
        term: Term,
        request: Request,
        tell: impl FnOnce(Answer) + Send + 'static,
    ) -> Result<(), AskError> {
        let asker = Asker(Box::new(tell));
        match self.requests.try_send(Message(Some((term, request, asker)))) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => Err(AskError::Busy),
            Err(TrySendError::Disconnected(_)) => Err(AskError::Gone),
        }
    }

    /// Whether the agent has ended: no answer comes any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Of its journal: the same one after each start, and another one of each agent.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// What is recorded.
    #[must_use]
    pub fn journal(&self) -> Arc<Journal> {
        self.seen.load_full()
    }
}

/// A working agent. It ends when this is dropped; slices go on.
#[derive(Debug)]
pub struct Running {
    handle: AgentHandle,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Begins, from the journal in its folder if there is one.
    ///
    /// # Errors
    /// Another agent has the journal, it is none, or the host cannot be looked at.
    pub fn begin(options: Options) -> Result<Self, BeginError> {
        let host = |what| move |source| BeginError::Host { what, source };
        let folder = DirBuilder::new().recursive(true).mode(0o700).create(&options.folder);
        folder.map_err(host("make the agent's folder"))?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let boot = boot.map_err(host("read the host's boot id"))?;
        let chosen = random().map_err(host("choose a name for the journal"))?;
        let path = options.folder.join("journal.redb");
        let opened = JournalFile::open(&path, boot.trim(), chosen)?;
        let identity: Arc<str> = opened.file.identity().into();
        let processes = Processes {
            program: options.program,
            logs: options.folder.join("slices"),
            identity: identity.to_string(),
            environment: options.environment,
        };
        let (requests, asked) = bounded(QUEUE);
        let seen = Arc::new(ArcSwap::from_pointee(opened.journal.clone()));
        let worker = Worker::new(options.settings, opened, processes, Arc::clone(&seen));
        let worker = worker.map_err(host("look for processes of slices"))?;
        let has_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&has_ended);
        let work = move || {
            worker.work(&asked);
            ended.store(true, Ordering::SeqCst);
        };
        let thread = thread::Builder::new().name("agent".into()).spawn(work);
        let thread = thread.map_err(host("start the agent's thread"))?;
        let handle = AgentHandle { requests, seen, has_ended, identity };
        Ok(Self { handle, thread: Some(thread) })
    }

    /// A way to it.
    #[must_use]
    pub fn handle(&self) -> AgentHandle {
        self.handle.clone()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.handle.requests.send(Message(None));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// 128 bits that nobody else has.
fn random() -> io::Result<u128> {
    let mut bytes = [0; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if got == bytes.len() {
        Ok(u128::from_ne_bytes(bytes))
    } else {
        Err(io::ErrorKind::Other.into())
    }
}
