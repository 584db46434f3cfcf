//! The thread that has the file.
//!
//! ```text
//!   jobs ──as many as wait──> group ──each──> machine (not visible yet)
//!                                └── one transaction of redb, durable ──ok──> visible, forget, answer all
//!                                          │ failed
//!                                          └─ open the file again: it has the group │ it has not: roll back │
//!                                             not possible: unknown, and tried again before the next group
//!   a sync failed ──> nothing more, until the process starts anew
//! ```

use std::io::ErrorKind;
use std::iter;
use std::sync::Arc;

use redb::{Builder, Database};
use tokio::sync::{mpsc, oneshot};

use super::file::LockedFile;
use super::format::{self, Failure, Meta, News};
use crate::error::{CommitError, StoreError};
use crate::ids::{Revision, Term};
use crate::lease::{BootTime, Candidate};
use crate::local::{Local, State};
use crate::machine::{Held, Mark};
use crate::txn::Txn;

/// Jobs that may wait. More wait for a place, one by one.
pub(super) const QUEUE_MAX: usize = 256;
/// Jobs that one transaction of the file takes.
const GROUP_MAX: usize = 64;
/// Pages of the file in memory. All is read from the machine.
const CACHE_BYTES: usize = 16 << 20;

/// What a campaign comes to: the term and when it was asked for.
pub(super) type Won = Result<(Term, BootTime), Held>;

/// Where the answer to a job goes. Nobody may wait for it any more.
type Reply<T, E> = oneshot::Sender<Result<T, E>>;

/// What the thread is asked.
#[derive(Debug)]
pub(super) enum Job {
    Commit(Txn, Reply<Revision, CommitError>),
    Campaign(Candidate, Reply<Won, CommitError>),
    Compact(Revision, Reply<(), StoreError>),
    Close(oneshot::Sender<()>),
}

/// What is answered when it is durable.
enum Pending {
    Commit(Reply<Revision, CommitError>, Result<Revision, CommitError>),
    Campaign(Reply<Won, CommitError>, Won),
    Compact(Reply<(), StoreError>, Result<(), StoreError>),
}

/// What became of a group.
enum Fate {
    Durable,
    /// Nothing of it is there.
    Failed(CommitError),
    /// Nobody knows.
    Unknown(String),
}

/// A group that the file has or has not.
struct Unresolved {
    mark: Mark,
    news: News,
}

pub(super) struct Worker {
    local: Arc<Local>,
    file: LockedFile,
    /// None while it cannot be opened again after an error.
    database: Option<Database>,
    unresolved: Option<Unresolved>,
    /// Why nothing can be written any more.
    broken: Option<String>,
}

/// Opens the file as what redb takes it for.
pub(super) fn open_database(file: &LockedFile) -> Result<Database, redb::DatabaseError> {
    Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(file.clone())
}

impl Worker {
    pub(super) fn new(local: Arc<Local>, file: LockedFile, database: Database) -> Self {
        Self { local, file, database: Some(database), unresolved: None, broken: None }
    }

    pub(super) fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut closed = None;
        while closed.is_none()
            && let Some(first) = jobs.blocking_recv()
        {
            let more = iter::from_fn(|| jobs.try_recv().ok()).take(GROUP_MAX - 1);
            let mut group = Vec::new();
            for job in iter::once(first).chain(more) {
                match job {
                    Job::Close(reply) => closed = Some(reply),
                    // Who asks after the end is not answered, and knows.
                    job if closed.is_none() => group.push(job),
                    _ => {}
                }
            }
            self.group(group);
        }
        self.local.fail("it is closed");
        // The lock of the file goes with it.
        drop(self);
        if let Some(reply) = closed {
            let _ = reply.send(());
        }
    }

    fn group(&mut self, group: Vec<Job>) {
        if let Err(why) = self.recover() {
            group.into_iter().for_each(|job| refuse(job, &why));
            return;
        }
        let local = Arc::clone(&self.local);
        let mut state = local.lock();
        let mark = state.machine.mark();
        let mut forget = None;
        let apply = |job| apply(&mut state, job, &mut forget);
        let pending: Vec<_> = group.into_iter().filter_map(apply).collect();
        let news = news(&state, mark, forget);
        // Writing takes time, in which others read what is visible.
        drop(state);
        let fate = match news {
            Some(news) => self.write(mark, news),
            None => Fate::Durable,
        };
        pending.into_iter().for_each(|pending| answer(pending, &fate));
    }

    fn write(&mut self, mark: Mark, news: News) -> Fate {
        let Some(database) = &self.database else {
            return Fate::Failed(CommitError::Unavailable("the file is not open".to_owned()));
        };
        let Err(error) = format::write(database, &news) else {
            self.publish(&news);
            return Fate::Durable;
        };
        tracing::error!(%error, "a group of commits was not written");
        // Redb gives up after the first error.
        self.database = None;
        self.unresolved = Some(Unresolved { mark, news });
        match self.recover() {
            Err(why) => Fate::Unknown(format!("{error}; then: {why}")),
            Ok(true) => Fate::Durable,
            Ok(false) => Fate::Failed(not_written(&error)),
        }
    }

    fn publish(&self, news: &News) {
        let mut state = self.local.lock();
        if let Some((upto, _)) = &news.forget {
            // It is not newer than what was just written.
            let _ = state.machine.compact(*upto);
        }
        self.local.publish(&mut state);
    }

    /// Opens the file again if there was an error, and finds out what it has: whether the group that failed is there.
    fn recover(&mut self) -> Result<bool, String> {
        if let Some(why) = &self.broken {
            return Err(why.clone());
        }
        if self.file.sync_failed() {
            return Err(
                self.give_up("the file could not be synced: what is on the disk is not known")
            );
        }
        let Some(Unresolved { mark, news }) = &self.unresolved else { return Ok(true) };
        let database = open_database(&self.file).map_err(|error| error.to_string())?;
        let Meta { revision, term, .. } = format::meta(&database)?;
        let there = (revision, term) == (news.revision, news.term);
        if !there && (revision, term) != (mark.revision(), mark.term()) {
            let why = format!("the file is at revision {revision}, term {term} after an error");
            return Err(self.give_up(&why));
        }
        if there {
            self.publish(news);
        } else {
            self.local.lock().machine.roll_back(mark);
        }
        tracing::info!(%revision, written = there, "the file is open again after an error");
        self.database = Some(database);
        self.unresolved = None;
        Ok(there)
    }

    fn give_up(&mut self, why: &str) -> String {
        tracing::error!(why, "the store ends");
        self.local.fail(why);
        self.broken = Some(why.to_owned());
        why.to_owned()
    }
}

fn apply(state: &mut State, job: Job, forget: &mut Option<Revision>) -> Option<Pending> {
    let now = BootTime::now();
    Some(match job {
        Job::Commit(txn, reply) => Pending::Commit(reply, state.machine.commit(now, &txn)),
        Job::Campaign(who, reply) => {
            let won = state.machine.campaign(now, &who);
            Pending::Campaign(reply, won.map(|term| (term, now)))
        }
        Job::Compact(upto, reply) => {
            let newest = state.machine.revision();
            let known = if upto <= newest {
                *forget = (*forget).max(Some(upto));
                Ok(())
            } else {
                Err(StoreError::Future { asked: upto, newest })
            };
            Pending::Compact(reply, known)
        }
        Job::Close(_) => return None,
    })
}

/// None if the file has it all.
fn news(state: &State, mark: Mark, forget: Option<Revision>) -> Option<News> {
    let machine = &state.machine;
    let forget = forget.max(machine.excess()).filter(|upto| *upto > machine.compacted());
    let forget = forget.map(|upto| {
        let old = machine.commits_after(machine.compacted());
        (upto, old.take_while(|batch| batch.revision <= upto).cloned().collect())
    });
    let news = News {
        commits: machine.commits_after(mark.revision()).cloned().collect(),
        revision: machine.revision(),
        term: machine.term(),
        forget,
    };
    let same = news.commits.is_empty() && news.term == mark.term() && news.forget.is_none();
    (!same).then_some(news)
}

fn not_written(error: &Failure) -> CommitError {
    let full = |kind| {
        use ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        matches!(kind, StorageFull | QuotaExceeded | FileTooLarge)
    };
    match error {
        Failure::Io(error) if full(error.kind()) => CommitError::Full(error.to_string()),
        error => CommitError::Unavailable(error.to_string()),
    }
}

fn refuse(job: Job, why: &str) {
    let unavailable = || CommitError::Unavailable(why.to_owned());
    // Nobody may wait for it any more.
    match job {
        Job::Commit(_, reply) => drop(reply.send(Err(unavailable()))),
        Job::Campaign(_, reply) => drop(reply.send(Err(unavailable()))),
        Job::Compact(_, reply) => drop(reply.send(Err(StoreError::Unavailable(why.to_owned())))),
        Job::Close(_) => {}
    }
}

/// What a job came to, by what became of its group. Even a refusal may be about a commit before it that is not there.
fn answer(pending: Pending, fate: &Fate) {
    let instead = |wrote: bool| match fate {
        Fate::Durable => None,
        Fate::Failed(error) => Some(error.clone()),
        Fate::Unknown(why) if wrote => Some(CommitError::Unknown(why.clone())),
        Fate::Unknown(why) => Some(CommitError::Unavailable(why.clone())),
    };
    match pending {
        Pending::Commit(reply, result) => {
            let instead = instead(result.is_ok());
            drop(reply.send(instead.map_or(result, Err)));
        }
        Pending::Campaign(reply, won) => {
            let instead = instead(won.is_ok());
            drop(reply.send(instead.map_or(Ok(won), Err)));
        }
        Pending::Compact(reply, result) => {
            let failed = instead(false).map(|error| StoreError::Unavailable(error.to_string()));
            drop(reply.send(failed.map_or(result, Err)));
        }
    }
}
