//! The journal on the disk: one file, one writer.
//!
//! ```text
//!   none --open--> of this journal's identity, this boot of the host --record--> ... --open after a kill--> what was recorded last
//! ```
//! A process that an agent was starting when it was killed has the file open until it becomes the slice's own program: as long as that
//! lasts the file cannot be opened again, so whoever opens it finds all processes of the agent before.
//!
//! A page that Linux could not write stays in memory, as if it had been written, and the next sync says that all is well. So whoever opens a
//! journal, also after it could not be written, reads it from the disk.

use crate::decide::{Entry, Journal, Operation, SliceName, Term, Token, Vm};
use redb::{Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, TableDefinition};
use rustix::fs::{Advice, fadvise};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Of what the file is, and how it is written.
const FORMAT: &str = "tessera agent journal 1";
/// A process that is being started lets go of the file within this time.
const LOCK_LIMIT: Duration = Duration::from_secs(5);

const ABOUT: TableDefinition<'_, &str, &str> = TableDefinition::new("about");
const LOWEST: TableDefinition<'_, u128, &[u8]> = TableDefinition::new("lowest");
const SLICES: TableDefinition<'_, (u128, u16), &[u8]> = TableDefinition::new("slices");
const RESERVED: TableDefinition<'_, u128, &[u8]> = TableDefinition::new("reserved");

/// Why there is no journal, or nothing was recorded.
#[derive(Debug, Error)]
pub enum JournalError {
    /// Another agent has it.
    #[error("{}: another agent of this host has it open", .0.display())]
    Busy(PathBuf),
    /// The file cannot be opened.
    #[error("open {}", .path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<redb::Error>,
    },
    /// It is of something else, or of a later version.
    #[error("{}: this is {found:?}, and not {FORMAT:?}", .path.display())]
    Format {
        /// Which.
        path: PathBuf,
        /// What it says it is.
        found: String,
    },
    /// A line of it is none.
    #[error("the journal is damaged: {0}")]
    Damaged(String),
    /// It could not be opened again.
    #[error("{} is not open", .0.display())]
    Closed(PathBuf),
    /// The disk is full, or fails. Nothing was recorded.
    #[error("write the journal")]
    Write(#[source] Box<redb::Error>),
}

impl JournalError {
    /// Whether another attempt finds the same: somebody has to see to the file first.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Format { .. } | Self::Damaged(_) => true,
            // Of a file that is no journal redb says so.
            Self::Open { source, .. } => {
                !matches!(&**source, redb::Error::Io(error) if error.kind() != ErrorKind::InvalidData)
            }
            Self::Busy(_) | Self::Closed(_) | Self::Write(_) => false,
        }
    }
}

fn write_failed(error: impl Into<redb::Error>) -> JournalError {
    JournalError::Write(Box::new(error.into()))
}

/// An open journal.
#[derive(Debug)]
pub struct JournalFile {
    path: PathBuf,
    boot: String,
    identity: String,
    /// None after it could not be opened again.
    database: Option<Database>,
}

/// What was in a journal.
#[derive(Debug)]
pub struct Opened {
    /// The file.
    pub file: JournalFile,
    /// All that was recorded.
    pub journal: Journal,
    /// It was written before the host has restarted.
    pub host_restarted: bool,
}

impl JournalFile {
    /// Opens or makes one. `boot` names this boot of the host, `identity` a new journal.
    ///
    /// # Errors
    /// Another agent has it, it is something else or damaged, or the disk fails.
    pub fn open(path: &Path, boot: &str, identity: u128) -> Result<Opened, JournalError> {
        let database = lock(path)?;
        let made = format!("{identity:032x}");
        let (identity, host_restarted) = begin(&database, path, boot, &made)?;
        let journal = read(&database)?;
        let (path, boot) = (path.to_owned(), boot.to_owned());
        let file = Self { path, boot, identity, database: Some(database) };
        Ok(Opened { file, journal, host_restarted })
    }

    /// Opens it again after it could not be written: until then nothing more is taken. What was recorded.
    ///
    /// # Errors
    /// It cannot be opened, read or written.
    pub fn reopen(&mut self) -> Result<Journal, JournalError> {
        self.database = None;
        let database = lock(&self.path)?;
        let journal = read(&database)?;
        // Whether there is room again only a write tells.
        let write = database.begin_write().map_err(write_failed)?;
        {
            let mut about = write.open_table(ABOUT).map_err(write_failed)?;
            about.insert("identity", self.identity.as_str()).map_err(write_failed)?;
        }
        write.commit().map_err(write_failed)?;
        self.database = Some(database);
        Ok(journal)
    }

    /// What a restart of the host means is recorded: the next agent need not be told of it.
    ///
    /// # Errors
    /// It is told again.
    pub fn confirm_boot(&self) -> Result<(), JournalError> {
        let write = self.database()?.begin_write().map_err(write_failed)?;
        {
            let mut about = write.open_table(ABOUT).map_err(write_failed)?;
            about.insert("boot", self.boot.as_str()).map_err(write_failed)?;
        }
        write.commit().map_err(write_failed)
    }

    fn database(&self) -> Result<&Database, JournalError> {
        self.database.as_ref().ok_or_else(|| JournalError::Closed(self.path.clone()))
    }

    /// Names this journal among all: 32 hexadecimal digits.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Writes all of these lines, or none. They are on the disk when this returns.
    ///
    /// # Errors
    /// None is.
    pub fn record(&self, entries: &[Entry]) -> Result<(), JournalError> {
        let mut write = self.database()?.begin_write().map_err(write_failed)?;
        write.set_durability(Durability::Immediate).map_err(write_failed)?;
        for entry in entries {
            put(&write, entry)?;
        }
        write.commit().map_err(write_failed)
    }

    /// All that was recorded.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&self) -> Result<Journal, JournalError> {
        read(self.database()?)
    }
}

/// What is read after this is what the disk has. Only pages that another process has mapped or reads at this moment may stay.
fn forget_cached(file: &File) -> io::Result<()> {
    // Pages that nobody has tried to write yet would stay. An error that nobody has heard of is told here.
    file.sync_all()?;
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

fn lock(path: &Path) -> Result<Database, JournalError> {
    let end = Instant::now() + LOCK_LIMIT;
    loop {
        let private = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        if let Err(error) = private.and_then(|file| forget_cached(&file)) {
            let (path, source) = (path.to_owned(), Box::new(redb::Error::Io(error)));
            return Err(JournalError::Open { path, source });
        }
        match Database::create(path) {
            Ok(database) => return Ok(database),
            Err(DatabaseError::DatabaseAlreadyOpen) if Instant::now() < end => {
                thread::sleep(Duration::from_millis(20));
            }
            Err(DatabaseError::DatabaseAlreadyOpen) => {
                return Err(JournalError::Busy(path.to_owned()));
            }
            Err(error) => {
                let (path, source) = (path.to_owned(), Box::new(error.into()));
                return Err(JournalError::Open { path, source });
            }
        }
    }
}

/// The identity, and whether the host has restarted since.
fn begin(
    database: &Database,
    path: &Path,
    boot: &str,
    made: &str,
) -> Result<(String, bool), JournalError> {
    let write = database.begin_write().map_err(write_failed)?;
    let result = {
        let mut about = write.open_table(ABOUT).map_err(write_failed)?;
        write.open_table(LOWEST).map_err(write_failed)?;
        write.open_table(SLICES).map_err(write_failed)?;
        write.open_table(RESERVED).map_err(write_failed)?;
        let format = text(&about, "format")?;
        if let Some(found) = format.filter(|found| found != FORMAT) {
            return Err(JournalError::Format { path: path.to_owned(), found });
        }
        let identity = text(&about, "identity")?.unwrap_or_else(|| made.to_owned());
        let before = text(&about, "boot")?;
        for (name, value) in [("format", FORMAT), ("identity", &identity)] {
            about.insert(name, value).map_err(write_failed)?;
        }
        if before.is_none() {
            about.insert("boot", boot).map_err(write_failed)?;
        }
        let restarted = before.is_some_and(|before| before != boot);
        (identity, restarted)
    };
    write.commit().map_err(write_failed)?;
    Ok(result)
}

fn text(
    about: &impl ReadableTable<&'static str, &'static str>,
    name: &str,
) -> Result<Option<String>, JournalError> {
    let found = about.get(name).map_err(write_failed)?;
    Ok(found.map(|value| value.value().to_owned()))
}

fn put(write: &redb::WriteTransaction, entry: &Entry) -> Result<(), JournalError> {
    let about = |name: &str, value: u64| -> Result<(), JournalError> {
        let mut about = write.open_table(ABOUT).map_err(write_failed)?;
        about.insert(name, value.to_string().as_str()).map_err(write_failed)?;
        Ok(())
    };
    match entry {
        Entry::Term(Term(term)) => about("term", *term),
        Entry::NextToken(Token(token)) => about("next token", *token),
        Entry::Lowest(Vm(vm), lowest) => set(write, LOWEST, *vm, Some(lowest)),
        Entry::Forgotten(Vm(vm)) => set(write, LOWEST, *vm, None::<&()>),
        Entry::Slice(SliceName { vm: Vm(vm), number }, slice) => {
            set(write, SLICES, (*vm, *number), slice.as_ref())
        }
        Entry::Reserved(Operation(id), reserved) => set(write, RESERVED, *id, reserved.as_ref()),
    }
}

fn set<K: redb::Key + 'static>(
    write: &redb::WriteTransaction,
    table: TableDefinition<'_, K, &'static [u8]>,
    key: K::SelfType<'_>,
    value: Option<&impl Serialize>,
) -> Result<(), JournalError>
where
    for<'a> K::SelfType<'a>: Copy,
{
    let mut table = write.open_table(table).map_err(write_failed)?;
    match value {
        Some(value) => {
            let bytes = serde_json::to_vec(value);
            let bytes = bytes.map_err(|error| JournalError::Damaged(error.to_string()))?;
            table.insert(key, bytes.as_slice()).map_err(write_failed)?;
        }
        None => {
            table.remove(key).map_err(write_failed)?;
        }
    }
    Ok(())
}

fn read(database: &Database) -> Result<Journal, JournalError> {
    let read = database.begin_read().map_err(write_failed)?;
    let about = read.open_table(ABOUT).map_err(write_failed)?;
    let number = |name: &str| -> Result<u64, JournalError> {
        let Some(text) = text(&about, name)? else { return Ok(0) };
        text.parse().map_err(|_| JournalError::Damaged(format!("{name} is {text:?}")))
    };
    let mut journal = Journal {
        term: Term(number("term")?),
        next_token: Token(number("next token")?),
        ..Journal::default()
    };
    for line in read.open_table(LOWEST).map_err(write_failed)?.iter().map_err(write_failed)? {
        let (vm, bytes) = line.map_err(write_failed)?;
        journal.lowest.insert(Vm(vm.value()), parsed(bytes.value())?);
    }
    for line in read.open_table(SLICES).map_err(write_failed)?.iter().map_err(write_failed)? {
        let (name, bytes) = line.map_err(write_failed)?;
        let (vm, number) = name.value();
        journal.slices.insert(SliceName { vm: Vm(vm), number }, parsed(bytes.value())?);
    }
    for line in read.open_table(RESERVED).map_err(write_failed)?.iter().map_err(write_failed)? {
        let (operation, bytes) = line.map_err(write_failed)?;
        journal.reserved.insert(Operation(operation.value()), parsed(bytes.value())?);
    }
    Ok(journal)
}

fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, JournalError> {
    serde_json::from_slice(bytes).map_err(|error| JournalError::Damaged(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::{Generation, Lowest, Order, Phase, Process, Reserved, Slice};
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    use scheduler::Resources;
    use std::env::temp_dir;
    use std::fs;

    /// A file that is gone afterwards.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            Self(temp_dir().join(format!("tessera-{name}-{}.redb", std::process::id())))
        }

        fn open(&self, boot: &str) -> Opened {
            JournalFile::open(&self.0, boot, 7).unwrap()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn entries() -> Vec<Entry> {
        let slice = SliceName { vm: Vm(u128::MAX), number: 3 };
        let resources = Resources::new(2, 512);
        let generation = Generation(5);
        let order = Order { resources, words: vec!["companion".into()] };
        let phase = Phase::Running(Process { id: 17, began: 99 });
        let state = Slice { generation, order, token: Token(4), phase, stop: None };
        let reserved = Reserved { slice, generation, resources, until: 1000 };
        vec![
            Entry::Term(Term(9)),
            Entry::NextToken(Token(5)),
            Entry::Lowest(slice.vm, Lowest { generation, since: 1 }),
            Entry::Lowest(Vm(1), Lowest { generation, since: 1 }),
            Entry::Slice(slice, Some(state)),
            Entry::Reserved(Operation(3), Some(reserved)),
            Entry::Reserved(Operation(4), Some(reserved)),
            Entry::Forgotten(Vm(1)),
            Entry::Reserved(Operation(4), None),
        ]
    }

    #[test]
    fn what_was_recorded_is_there_again() {
        let file = Place::new("journal");
        let mut expected = Journal::default();
        entries().iter().for_each(|entry| expected.take(entry));
        {
            let opened = file.open("boot 1");
            assert_eq!((opened.journal, opened.host_restarted), (Journal::default(), false));
            opened.file.record(&entries()).unwrap();
            assert_eq!(opened.file.read().unwrap(), expected);
        }
        let again = file.open("boot 1");
        assert_eq!((&again.journal, again.host_restarted), (&expected, false));
        assert_eq!(again.file.identity(), format!("{:032x}", 7));
        drop(again);
        for _ in 0..2 {
            let restarted = file.open("boot 2");
            assert_eq!((&restarted.journal, restarted.host_restarted), (&expected, true));
        }
        file.open("boot 2").file.confirm_boot().unwrap();
        let mut known = file.open("boot 2");
        assert!(!known.host_restarted);
        assert_eq!(known.file.reopen().unwrap(), expected);
    }

    /// Whether all of its pages are in memory. None where the file system cannot tell.
    fn is_cached(file: &File) -> Option<bool> {
        for at in (0..file.metadata().unwrap().len()).step_by(4096) {
            let mut byte = [0];
            let mut to = [io::IoSliceMut::new(&mut byte)];
            match preadv2(file, &mut to, at, ReadWriteFlags::NOWAIT) {
                Ok(_) => {}
                Err(Errno::AGAIN) => return Some(false),
                Err(_) => return None,
            }
        }
        Some(true)
    }

    /// A journal is too small: the kernel reads all of it ahead with its first page.
    #[test]
    fn file_is_read_from_the_disk_again() {
        let place = Place::new("cached");
        fs::write(&place.0, vec![1; 1 << 20]).unwrap();
        let file = File::open(&place.0).unwrap();
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        if is_cached(&file) != Some(false) {
            // It is of a file system in memory.
            return;
        }
        // Written, and on no disk yet.
        fs::write(&place.0, vec![2; 1 << 20]).unwrap();
        assert_eq!(is_cached(&file), Some(true));
        forget_cached(&file).unwrap();
        assert_eq!(is_cached(&file), Some(false));
    }

    #[test]
    fn something_else_is_refused() {
        let file = Place::new("no-journal");
        fs::write(&file.0, b"this is no journal").unwrap();
        let refused = JournalFile::open(&file.0, "boot", 1);
        assert!(matches!(refused, Err(JournalError::Open { .. })), "{refused:?}");

        fs::remove_file(&file.0).unwrap();
        let opened = file.open("boot");
        let write = opened.file.database().unwrap().begin_write().unwrap();
        write.open_table(ABOUT).unwrap().insert("format", "tessera agent journal 2").unwrap();
        write.open_table(SLICES).unwrap().insert((1, 1), &b"{}"[..]).unwrap();
        write.commit().unwrap();
        assert!(matches!(opened.file.read(), Err(JournalError::Damaged(_))));
        drop(opened);
        let refused = JournalFile::open(&file.0, "boot", 1);
        assert!(matches!(refused, Err(JournalError::Format { .. })), "{refused:?}");
    }

    #[test]
    fn second_agent_is_refused() {
        let file = Place::new("busy-journal");
        let _first = file.open("boot");
        let refused = JournalFile::open(&file.0, "boot", 1);
        assert!(matches!(refused, Err(JournalError::Busy(_))), "{refused:?}");
    }
}
