//! What is in the file.
//!
//! | table | key | value |
//! |---|---|---|
//! | `meta` | `format`, `revision`, `compacted`, `term` | a number |
//! | `base` | key of an object | the object, as it was at `compacted` |
//! | `log` | revision, from `compacted + 1` to `revision` | all changes of that commit |
//!
//! What is forgotten moves from `log` to `base`, in a transaction of a later commit. So the file has what the machine has, and a machine is
//! restored by `base` and then `log`. Values are postcard; redb checks sums of all pages when the file is opened.

use std::fmt::Display;
use std::sync::Arc;

use redb::{Database, ReadableDatabase, ReadableTable, Table, TableDefinition, WriteTransaction};
use serde::{Deserialize, Serialize};

use crate::entry::{Batch, Change, Entry};
use crate::ids::{Revision, Term};
use crate::key::Key;
use crate::machine::{Limits, Machine};

pub(super) const FORMAT: u64 = 1;

const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const BASE: TableDefinition<&str, &[u8]> = TableDefinition::new("base");
const LOG: TableDefinition<u64, &[u8]> = TableDefinition::new("log");

#[derive(Serialize, Deserialize)]
struct StoredEntry<'a> {
    created: Revision,
    modified: Revision,
    #[serde(borrow)]
    value: &'a [u8],
}

#[derive(Serialize, Deserialize)]
enum StoredChange<'a> {
    Put {
        key: &'a str,
        created: Revision,
        #[serde(borrow)]
        value: &'a [u8],
    },
    Delete {
        key: &'a str,
    },
}

/// The numbers of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) format: u64,
    pub(super) revision: Revision,
    pub(super) compacted: Revision,
    pub(super) term: Term,
}

/// What the file is to have that it has not.
#[derive(Clone, Debug)]
pub(super) struct News {
    /// Commits, oldest first.
    pub(super) commits: Vec<Arc<Batch>>,
    /// The newest one, of these or before.
    pub(super) revision: Revision,
    pub(super) term: Term,
    /// Up to where history is to be forgotten, and its commits.
    pub(super) forget: Option<(Revision, Vec<Arc<Batch>>)>,
}

/// Why a table cannot be read; in words, for those who look at the file.
pub(super) type Damage = String;

fn damage(what: &str) -> impl Fn(&dyn Display) -> Damage {
    move |error| format!("{what}: {error}")
}

fn stored(change: &Change) -> StoredChange<'_> {
    match change {
        Change::Put(entry) => StoredChange::Put {
            key: entry.key.as_str(),
            created: entry.created,
            value: &entry.value,
        },
        Change::Delete(key) => StoredChange::Delete { key: key.as_str() },
    }
}

/// All of it, and nothing behind it.
fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &str) -> Result<T, Damage> {
    let (value, rest) = postcard::take_from_bytes(bytes).map_err(|e| damage(what)(&e))?;
    if rest.is_empty() { Ok(value) } else { Err(format!("{what}: {} bytes too many", rest.len())) }
}

fn decode_batch(revision: u64, bytes: &[u8]) -> Result<Batch, Damage> {
    let revision = Revision(revision);
    let what = format!("commit {revision}");
    let changes: Vec<StoredChange<'_>> = decode(bytes, &what)?;
    let change = |stored: StoredChange<'_>| {
        let key = |text| Key::new(text).map_err(|error| damage(&what)(&error));
        Ok(match stored {
            StoredChange::Put { key: name, created, value } => Change::Put(Entry {
                key: key(name)?,
                value: value.into(),
                created,
                modified: revision,
            }),
            StoredChange::Delete { key: name } => Change::Delete(key(name)?),
        })
    };
    let changes = changes.into_iter().map(change).collect::<Result<_, Damage>>()?;
    Ok(Batch { revision, changes })
}

fn decode_entry(name: &str, bytes: &[u8]) -> Result<Entry, Damage> {
    let StoredEntry { created, modified, value } = decode(bytes, name)?;
    let key = Key::new(name).map_err(|error| damage(name)(&error))?;
    Ok(Entry { key, value: value.into(), created, modified })
}

/// The numbers alone. None in a file without any: it is empty.
pub(super) fn meta(database: &Database) -> Result<Meta, Damage> {
    let read = database.begin_read().map_err(|e| damage("begin to read")(&e))?;
    let table = read.open_table(META).map_err(|e| damage("table meta")(&e))?;
    let number = |name: &str| {
        let found = table.get(name).map_err(|e| damage(name)(&e))?;
        found.map(|value| value.value()).ok_or_else(|| format!("{name} is missing"))
    };
    Ok(Meta {
        format: number("format")?,
        revision: Revision(number("revision")?),
        compacted: Revision(number("compacted")?),
        term: Term(number("term")?),
    })
}

/// The machine that the file has.
pub(super) fn load(database: &Database, meta: Meta, limits: Limits) -> Result<Machine, Damage> {
    let read = database.begin_read().map_err(|e| damage("begin to read")(&e))?;
    let table = read.open_table(BASE).map_err(|e| damage("table base")(&e))?;
    let mut base = Vec::new();
    for row in table.iter().map_err(|e| damage("table base")(&e))? {
        let (name, value) = row.map_err(|e| damage("table base")(&e))?;
        base.push(decode_entry(name.value(), value.value())?);
    }
    let table = read.open_table(LOG).map_err(|e| damage("table log")(&e))?;
    let mut log = Vec::new();
    for row in table.iter().map_err(|e| damage("table log")(&e))? {
        let (revision, value) = row.map_err(|e| damage("table log")(&e))?;
        log.push(decode_batch(revision.value(), value.value())?);
    }
    let machine = Machine::restore(limits, meta.term, meta.compacted, base, log);
    let machine = machine.map_err(|error| error.to_string())?;
    if machine.revision() != meta.revision {
        return Err(format!("the newest commit is {}, not {}", machine.revision(), meta.revision));
    }
    Ok(machine)
}

/// An error of redb, whichever.
pub(super) type Failure = redb::Error;

/// Makes the tables of an empty file.
pub(super) fn create(database: &Database) -> Result<(), Failure> {
    let write = begin(database)?;
    {
        let mut meta = write.open_table(META)?;
        meta.insert("format", FORMAT)?;
        for name in ["revision", "compacted", "term"] {
            meta.insert(name, 0)?;
        }
        write.open_table(BASE)?;
        write.open_table(LOG)?;
    }
    write.commit()?;
    Ok(())
}

/// Two steps, each on the disk before the next: of what is damaged later it can be told that it was once complete.
fn begin(database: &Database) -> Result<WriteTransaction, Failure> {
    let mut write = database.begin_write()?;
    write.set_two_phase_commit(true);
    Ok(write)
}

/// Writes the term alone.
pub(super) fn write_term(database: &Database, term: Term) -> Result<(), Failure> {
    let write = begin(database)?;
    write.open_table(META)?.insert("term", term.0)?;
    write.commit()?;
    Ok(())
}

/// Writes all of it, durably, or nothing.
pub(super) fn write(database: &Database, news: &News) -> Result<(), Failure> {
    let write = begin(database)?;
    {
        let mut log = write.open_table(LOG)?;
        for batch in &news.commits {
            let changes: Vec<_> = batch.changes.iter().map(stored).collect();
            log.insert(batch.revision.0, &*encode(&changes)?)?;
        }
        let mut meta = write.open_table(META)?;
        meta.insert("revision", news.revision.0)?;
        meta.insert("term", news.term.0)?;
        if let Some((upto, old)) = &news.forget {
            let mut base = write.open_table(BASE)?;
            for batch in old {
                batch.changes.iter().try_for_each(|change| settle(&mut base, change))?;
                log.remove(batch.revision.0)?;
            }
            meta.insert("compacted", upto.0)?;
        }
    }
    write.commit()?;
    Ok(())
}

/// A change that nobody asks for any more becomes part of what is there.
fn settle(base: &mut Table<'_, &str, &[u8]>, change: &Change) -> Result<(), Failure> {
    match change {
        Change::Delete(key) => drop(base.remove(key.as_str())?),
        Change::Put(Entry { key, value, created, modified }) => {
            let entry = StoredEntry { created: *created, modified: *modified, value };
            base.insert(key.as_str(), &*encode(&entry)?)?;
        }
    }
    Ok(())
}

fn encode(value: &impl Serialize) -> Result<Vec<u8>, Failure> {
    // Nothing that is written has a form that postcard does not.
    postcard::to_allocvec(value).map_err(|error| Failure::Corrupted(error.to_string()))
}
