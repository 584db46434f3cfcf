//! A store in one file, for one orchestrator: nothing else is to be installed.
//!
//! The machine is in memory and answers all reads. The file has what it needs to come back: [`format`] says how, [`worker`] when. Only one process
//! has the file. Each that opens it begins a new term, so that whatever an earlier one still does is refused.
//!
//! ```text
//!   open: lock ── whole? ── load ── term + 1, durable ──> thread
//!   commit ──queue (bounded)──> thread ── durable ──> answer
//! ```

mod error;
mod file;
mod format;
mod worker;

use std::fmt::Display;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use redb::Database;
use tokio::sync::{mpsc, oneshot};

pub use self::error::OpenError;

use self::file::{LockedFile, Origin};
use self::format::FORMAT;
use self::worker::{Job, QUEUE_MAX, Worker, open_database};
use crate::entry::{Page, PageToken, Read};
use crate::error::{CommitError, RenewError, StoreError, WatchError};
use crate::ids::{Revision, Term};
use crate::key::{Key, Prefix};
use crate::lease::{Candidate, Leader, Leadership};
use crate::local::{Local, LocalWatcher, checked};
use crate::machine::{Limits, Machine};
use crate::store::Store;
use crate::txn::Txn;

/// A file has at most so many times the bytes that its objects and their history may have.
const FILE_FACTOR: u64 = 8;

/// A store in a file. It is closed when its last copy is dropped, some time after; [`RedbStore::close`] waits for that.
#[derive(Clone, Debug)]
pub struct RedbStore {
    local: Arc<Local>,
    jobs: mpsc::Sender<Job>,
}

impl RedbStore {
    /// Opens the file, or makes it. This blocks, and takes the longer the more is in it.
    ///
    /// # Errors
    /// Where the file is somebody else's, damaged, of another format, or cannot be read. It is left as it is.
    pub fn open(path: &Path, limits: Limits) -> Result<Self, OpenError> {
        let (file, origin) = LockedFile::open(path)?;
        // A damaged file must not end the orchestrator, whatever redb makes of it.
        let opened = catch_unwind(AssertUnwindSafe(|| open(&file, origin, path, limits)));
        let opened = opened.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(corrupt(path, &text.unwrap_or("it cannot be read at all")))
        });
        if opened.is_err() {
            // A panic may leave something of redb behind that has the file.
            file.unlock();
        }
        let (database, machine) = opened?;
        let local = Arc::new(Local::new(machine, limits));
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        let worker = Worker::new(Arc::clone(&local), file, database);
        thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || worker.run(queue))
            .map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
        Ok(Self { local, jobs })
    }

    /// Writes what was asked for before, and gives the file back. Everything after it is refused.
    pub async fn close(&self) {
        let (reply, closed) = oneshot::channel();
        if self.jobs.send(Job::Close(reply)).await.is_ok() {
            // Somebody else may have closed it at the same time.
            let _ = closed.await;
        }
    }

    async fn ask<T, E>(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<T, E>>) -> Job,
        gone: impl Fn(String) -> E,
    ) -> Result<T, E> {
        let (reply, answer) = oneshot::channel();
        let closed = || gone("it is closed".to_owned());
        self.jobs.send(job(reply)).await.map_err(|_| closed())?;
        // A thread that ends without an answer has not begun with it, unless it panicked, which it does not.
        answer.await.map_err(|_| closed())?
    }
}

fn corrupt(path: &Path, why: &dyn Display) -> OpenError {
    OpenError::Corrupt { path: path.to_owned(), why: why.to_string() }
}

fn database_error(path: &Path, error: redb::Error) -> OpenError {
    match error {
        redb::Error::Io(source) if source.kind() != ErrorKind::InvalidData => {
            OpenError::Io { path: path.to_owned(), source }
        }
        error => corrupt(path, &error),
    }
}

fn open(
    file: &LockedFile,
    origin: Origin,
    path: &Path,
    limits: Limits,
) -> Result<(Database, Machine), OpenError> {
    if origin == Origin::Existing {
        check_size(path, limits)?;
    }
    let opened = open_database(file);
    let mut database = opened.map_err(|error| database_error(path, error.into()))?;
    if origin == Origin::New {
        format::create(&database).map_err(|error| database_error(path, error))?;
        file.complete(path)?;
    }
    let meta = format::meta(&database).map_err(|why| corrupt(path, &why))?;
    if meta.format != FORMAT {
        let (found, known) = (meta.format, FORMAT);
        return Err(OpenError::Format { path: path.to_owned(), found, known });
    }
    let sound = database.check_integrity();
    if !sound.map_err(|error| database_error(path, error.into()))? {
        return Err(corrupt(path, &"the sums of its pages are wrong"));
    }
    // It is not changed before all of it has been read.
    let term = Term(meta.term.0 + 1);
    let machine = format::load(&database, format::Meta { term, ..meta }, limits);
    let machine = machine.map_err(|why| corrupt(path, &why))?;
    format::write_term(&database, term).map_err(|error| database_error(path, error))?;
    Ok((database, machine))
}

/// An empty file, or one of another size than any store has, is not made to one.
fn check_size(path: &Path, limits: Limits) -> Result<(), OpenError> {
    let io = |source| OpenError::Io { path: path.to_owned(), source };
    let bytes = path.metadata().map_err(io)?.len();
    if bytes == 0 {
        return Err(corrupt(path, &"it is empty"));
    }
    let room = limits.bytes_max.saturating_add(limits.history_bytes_max);
    let max = room.max(64 << 20).saturating_mul(FILE_FACTOR);
    if bytes > max {
        return Err(OpenError::TooLarge { path: path.to_owned(), bytes, max });
    }
    Ok(())
}

impl Store for RedbStore {
    type Watcher = LocalWatcher;

    async fn get(&self, key: &Key) -> Result<Read, StoreError> {
        self.local.get(key)
    }

    async fn list(
        &self,
        prefix: &Prefix,
        limit: usize,
        token: Option<&PageToken>,
    ) -> Result<Page, StoreError> {
        self.local.list(prefix, limit, token)
    }

    async fn commit(&self, txn: Txn) -> Result<Revision, CommitError> {
        txn.check()?;
        self.ask(|reply| Job::Commit(txn, reply), CommitError::Unavailable).await
    }

    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<LocalWatcher, WatchError> {
        self.local.watch(prefix, after)
    }

    async fn compact(&self, upto: Revision) -> Result<(), StoreError> {
        self.ask(|reply| Job::Compact(upto, reply), StoreError::Unavailable).await
    }

    async fn campaign(&self, candidate: &Candidate) -> Result<Leadership, StoreError> {
        let Candidate { lease, clock_error, .. } = *checked(candidate)?;
        loop {
            let job = |reply| Job::Campaign(candidate.clone(), reply);
            let won = self.ask(job, CommitError::Unavailable).await;
            let failed = |error: CommitError| {
                let unavailable = || StoreError::Unavailable(error.to_string());
                self.local.end().unwrap_or_else(unavailable)
            };
            match won.map_err(failed)? {
                Ok((term, asked)) => {
                    return Ok(Leadership::new(term, 0, lease, clock_error, asked));
                }
                Err(held) => self.local.until_free(held).await,
            }
        }
    }

    async fn renew(&self, leadership: &Leadership) -> Result<(), RenewError> {
        self.local.renew(leadership)
    }

    async fn resign(&self, leadership: Leadership) -> Result<(), StoreError> {
        self.local.resign(&leadership)
    }

    async fn leader(&self) -> Result<Option<Leader>, StoreError> {
        self.local.leader()
    }
}
