//! Random clients, what they were answered, and the log of what really happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use store::{CommitError, Key, Prefix, Read, Revision, Store, Txn, Value};
use tokio::task::JoinSet;

use crate::checker::{Answer, Asked, Operation, check};
use crate::suite::{below, commit, heard, key};

const OBJECTS: usize = 4;

/// All that some clients did.
pub(crate) struct History {
    prefix: Prefix,
    /// The newest revision before them.
    first: Revision,
    operations: Vec<Operation>,
}

/// What all clients share.
struct Shared {
    name: String,
    ticks: AtomicU64,
    /// No value is written twice.
    values: AtomicU64,
}

impl Shared {
    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst)
    }

    fn object(&self) -> Key {
        key(&format!("{}/{}", self.name, fastrand::usize(..OBJECTS)))
    }

    fn value(&self) -> Value {
        self.values.fetch_add(1, Ordering::Relaxed).to_string().into_bytes().into()
    }

    /// A transaction of one or two writes, with comparisons that mostly hold.
    fn txn(&self, seen: &[(Key, Option<Revision>)]) -> Txn {
        let mut txn = Txn::unfenced();
        for (key, revision) in seen {
            txn = match revision {
                Some(revision) => txn.if_unchanged(key.clone(), *revision),
                None => txn.if_absent(key.clone()),
            };
        }
        // By the value it is known whose commit it is.
        let first = self.object();
        txn = txn.put(first.clone(), self.value());
        let second = self.object();
        if second == first || fastrand::bool() {
            return txn;
        }
        if fastrand::bool() { txn.delete(second) } else { txn.put(second, self.value()) }
    }
}

/// Each client does so many things, one after the other, below a prefix of their own.
pub(crate) async fn run<S: Store>(clients: Vec<S>, each: usize, name: &str) -> History {
    let first = clients[0].get(&key("nothing")).await.unwrap().revision;
    let shared = Arc::new(Shared {
        name: name.to_owned(),
        ticks: AtomicU64::new(0),
        values: AtomicU64::new(0),
    });
    let mut tasks = JoinSet::new();
    for client in clients {
        let shared = Arc::clone(&shared);
        tasks.spawn(async move {
            let mut done = Vec::new();
            for _ in 0..each {
                act(&client, &shared, &mut done).await;
            }
            done
        });
    }
    let operations = tasks.join_all().await.into_iter().flatten().collect();
    History { prefix: below(name), first, operations }
}

async fn act<S: Store>(store: &S, shared: &Shared, done: &mut Vec<Operation>) {
    match fastrand::u8(..8) {
        0 => drop(get(store, shared, done).await),
        1 => list(store, shared, done).await,
        2 | 3 => write(store, shared, done, &[]).await,
        _ => {
            let mut seen = Vec::new();
            for _ in 0..fastrand::usize(1..3) {
                if let Some((key, read)) = get(store, shared, done).await {
                    let there = seen.iter().any(|(known, _)| *known == key);
                    if !there {
                        seen.push((key, read.entry.map(|entry| entry.modified)));
                    }
                }
            }
            write(store, shared, done, &seen).await;
        }
    }
}

async fn get<S: Store>(
    store: &S,
    shared: &Shared,
    done: &mut Vec<Operation>,
) -> Option<(Key, Read)> {
    let key = shared.object();
    let begun = shared.tick();
    // A read that fails says nothing.
    let read = store.get(&key).await.ok()?;
    let entry = read.entry.as_ref().map(|entry| (entry.value.clone(), entry.modified));
    let (asked, answer) = (Asked::Get(key.clone()), Answer::Got(read.revision, entry));
    done.push(Operation { begun, ended: Some(shared.tick()), asked, answer });
    Some((key, read))
}

async fn list<S: Store>(store: &S, shared: &Shared, done: &mut Vec<Operation>) {
    let begun = shared.tick();
    let Ok(page) = store.list(&below(&shared.name), 256, None).await else { return };
    let entries = page.entries.into_iter().map(|entry| (entry.key, entry.value, entry.modified));
    let answer = Answer::Listed(page.revision, entries.collect());
    done.push(Operation { begun, ended: Some(shared.tick()), asked: Asked::List, answer });
}

async fn write<S: Store>(
    store: &S,
    shared: &Shared,
    done: &mut Vec<Operation>,
    seen: &[(Key, Option<Revision>)],
) {
    let txn = shared.txn(seen);
    let asked = Asked::Commit(txn.clone());
    let begun = shared.tick();
    let result = store.commit(txn).await;
    let ended = Some(shared.tick());
    let (answer, ended) = match result {
        Ok(revision) => (Answer::Committed(revision), ended),
        Err(CommitError::Conflict(conflict)) => {
            (Answer::Conflict(conflict.key, conflict.found, conflict.revision), ended)
        }
        Err(CommitError::Unknown(_)) => (Answer::Unknown, None),
        Err(CommitError::Unavailable(_) | CommitError::Full(_)) => (Answer::NotDone, ended),
        Err(error) => panic!("{error}"),
    };
    done.push(Operation { begun, ended, asked, answer });
}

impl History {
    /// How many commits were acknowledged, and of how many nobody knows.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let count =
            |is: fn(&Answer) -> bool| self.operations.iter().filter(|one| is(&one.answer)).count();
        (
            count(|answer| matches!(answer, Answer::Committed(_))),
            count(|answer| matches!(answer, Answer::Unknown)),
        )
    }

    /// Reads what really happened, and whether it explains all.
    pub(crate) async fn check<S: Store>(&self, store: &S) {
        let mark = key(&format!("{}/end", self.prefix.as_str().trim_end_matches('/')));
        let end = commit(store, Txn::unfenced().put(mark, *b"")).await;
        let mut watcher = store.watch(&self.prefix, self.first).await.unwrap();
        let mut log = Vec::new();
        loop {
            let batch = heard(&mut watcher).await.unwrap();
            if batch.revision == end {
                break;
            }
            log.push(batch);
        }
        check(self.first, &log, &self.operations).unwrap_or_else(|error| panic!("{error}"));
        let (commits, _) = self.counts();
        assert!(commits > 0, "a history of nothing");
    }
}
