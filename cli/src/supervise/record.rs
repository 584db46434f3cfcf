//! What a supervisor leaves for the one that comes after it: a file beside its checkpoints, for as long as its VM has not ended.
//!
//! ```text
//!   none --create--> header --note: a line for each change--> ... --remove: the VM has ended--> none
//!                      │ └── the VM was restored elsewhere: set_aside ──> nobody goes on here
//!                      └── its supervisor, or the host, dies ──> found by the next one with the same socket, which goes on
//! ```
//! Whoever supervises the VM has a lock of the file. Its name says of which host and which control socket, so that one that starts again
//! finds its own among those of all. Lines are only added: one that was half written when the power went is no line.

use anyhow::{Context, Result, bail, ensure};
use checkpoint::Digest;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

const FORMAT: &str = "tessera supervised vm 1";
const PREFIX: &str = "vm-";
const SUFFIX: &str = ".supervised";
const ELSEWHERE: &str = "elsewhere";
/// Hexadecimal, at random: what supervisors that write into one folder have in common is no name.
pub(super) const ID_DIGITS: usize = 16;
/// A header, and a line for each start; one that is refused each half minute may be so for two months.
const BYTES_MAX: u64 = 16 << 20;
/// Whoever lists records is done with each within so much time, and is looked after so often.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
const LOCK_AGAIN: Duration = Duration::from_millis(10);

/// Which VM it is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    format: String,
    /// In the names of its checkpoints, and of no others.
    pub(super) id: String,
    /// Where its supervisor ran.
    pub(super) host: String,
    pub(super) control: PathBuf,
    /// What the VM consists of, and how it began.
    pub(super) beginning: Value,
}

impl Header {
    pub(super) fn new((host, control): (&str, &Path), id: String, beginning: Value) -> Self {
        let (host, control) = (host.to_owned(), control.to_owned());
        Self { format: FORMAT.to_owned(), id, host, control, beginning }
    }
}

/// How it stands from one checkpoint on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Note {
    /// The number of that checkpoint, which is not there yet.
    pub(super) next: u64,
    /// Which slices of the plan the VM has, in its order.
    pub(super) slices: Vec<u16>,
    /// It has had a checkpoint.
    pub(super) has_saved: bool,
    /// The last life that was begun, if its number is known.
    #[serde(default)]
    pub(super) life: Option<u64>,
}

/// The file, locked.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) path: PathBuf,
    file: File,
    pub(super) header: Header,
    pub(super) notes: Vec<Note>,
    /// Of all lines that are there as a whole.
    bytes: u64,
}

/// Where that of a supervisor with this control socket is.
pub(super) fn path_of(folder: &Path, (host, control): (&str, &Path)) -> PathBuf {
    let whose = format!("{host}\n{}", control.display());
    let digest = Digest::of(whose.as_bytes()).to_string();
    folder.join(format!("{PREFIX}{}{SUFFIX}", &digest[..16]))
}

/// What it is called when its VM goes on elsewhere.
fn elsewhere(path: &Path) -> PathBuf {
    path.with_extension(ELSEWHERE)
}

/// That of a VM which goes on elsewhere, and of which it is.
///
/// # Errors
/// It cannot be read, or is something else.
pub(super) fn gone_elsewhere(path: &Path) -> Result<Option<(PathBuf, Header)>> {
    let path = elsewhere(path);
    let shown = path.display();
    let file = match File::open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.with_context(|| format!("open {shown}"))?,
    };
    let lines = read(&file).with_context(|| format!("read {shown}"))?;
    let header = lines.with_context(|| format!("{shown} has no header"))?.header;
    Ok(Some((path, header)))
}

impl Record {
    /// That of a supervisor that has ended before its VM had.
    ///
    /// # Errors
    /// It has not ended; the file cannot be read, or is something else.
    pub(super) fn find(path: &Path) -> Result<Option<Self>> {
        let shown = path.display();
        let file = match OpenOptions::new().read(true).append(true).open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.with_context(|| format!("open {shown}"))?,
        };
        lock(&file, path)?;
        if file.metadata().with_context(|| format!("look at {shown}"))?.nlink() == 0 {
            return Ok(None);
        }
        let (header, notes, bytes) = match read(&file).with_context(|| format!("read {shown}"))? {
            Some(Lines { header, notes, bytes }) => {
                // The next line is not to follow on half a line.
                file.set_len(bytes).with_context(|| format!("write {shown}"))?;
                (header, notes, bytes)
            }
            // Nothing begins before its header is on the disk.
            None => {
                fs::remove_file(path).with_context(|| format!("remove {shown}"))?;
                return Ok(None);
            }
        };
        Ok(Some(Self { path: path.to_owned(), file, header, notes, bytes }))
    }

    /// A new one, on the disk.
    ///
    /// # Errors
    /// There is one, or it cannot be written; another supervisor has taken it for one without a header, and away.
    pub(super) fn create(path: &Path, header: Header) -> Result<Self> {
        let file = OpenOptions::new().read(true).append(true).create_new(true).open(path);
        let file = file.with_context(|| format!("make {}", path.display()))?;
        Self::begin(path, file, header)
    }

    fn begin(path: &Path, file: File, header: Header) -> Result<Self> {
        let shown = path.display();
        lock(&file, path)?;
        let links = file.metadata().with_context(|| format!("look at {shown}"))?.nlink();
        ensure!(links > 0, "{shown}: another supervisor with this control socket starts");
        let (path_there, notes) = (path.to_owned(), Vec::new());
        let mut record = Self { path: path_there, file, header, notes, bytes: 0 };
        let written = record.add(&serde_json::to_string(&record.header)?);
        let written = written.and_then(|()| sync_folder(path));
        if let Err(error) = written {
            // Nothing has begun with it.
            let _ = fs::remove_file(path);
            return Err(error).with_context(|| format!("write {shown}"));
        }
        Ok(record)
    }

    /// How it stands from now on. Says nothing twice.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn note(&mut self, note: Note) -> Result<()> {
        if self.notes.last().is_some_and(|last| Note { next: note.next, ..last.clone() } == note) {
            return Ok(());
        }
        let written = self.add(&serde_json::to_string(&note)?);
        written.with_context(|| format!("write {}", self.path.display()))?;
        self.notes.push(note);
        Ok(())
    }

    /// The VM has had a checkpoint.
    pub(super) fn has_saved(&self) -> bool {
        self.notes.last().is_some_and(|note| note.has_saved)
    }

    /// The last life that was begun, if its number is known.
    pub(super) fn life(&self) -> Option<u64> {
        self.notes.last().and_then(|note| note.life)
    }

    /// Which slices of the plan the VM had when this checkpoint was written.
    pub(super) fn slices_of(&self, number: u64) -> Option<&[u16]> {
        let note = self.notes.iter().rfind(|note| note.next <= number)?;
        Some(&note.slices)
    }

    /// The VM has ended: nobody goes on with it.
    ///
    /// # Errors
    /// It is still there.
    pub(super) fn remove(&self) -> Result<()> {
        let removed = fs::remove_file(&self.path).and_then(|()| sync_folder(&self.path));
        removed.with_context(|| format!("remove {}", self.path.display()))
    }

    /// The VM goes on elsewhere: nobody goes on with it here until a user takes this file away.
    ///
    /// # Errors
    /// It has its name still.
    pub(super) fn set_aside(&self) -> Result<()> {
        let renamed = fs::rename(&self.path, elsewhere(&self.path));
        let renamed = renamed.and_then(|()| sync_folder(&self.path));
        renamed.with_context(|| format!("rename {}", self.path.display()))
    }

    fn add(&mut self, line: &str) -> io::Result<()> {
        // A line before it that was not written as a whole, since the disk was full, is no line, and nothing is to follow on it.
        self.file.set_len(self.bytes)?;
        // One write, so that it is there as a whole, or its end is not.
        let line = format!("{line}\n");
        if self.bytes + line.len() as u64 > BYTES_MAX {
            return Err(io::Error::new(
                ErrorKind::FileTooLarge,
                "it has as many lines as it may have",
            ));
        }
        self.file.write_all(line.as_bytes())?;
        self.file.sync_all()?;
        self.bytes += line.len() as u64;
        Ok(())
    }
}

/// All in this folder that can be read, and whether somebody supervises their VMs.
pub(super) fn all(folder: &Path) -> io::Result<Vec<(PathBuf, Header, bool)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !(name.starts_with(PREFIX) && name.ends_with(SUFFIX)) {
            continue;
        }
        let path = entry.path();
        // One that goes away meanwhile is none.
        let Ok(file) = File::open(&path) else { continue };
        let is_alive = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
        if let Ok(Some(lines)) = read(&file) {
            found.push((path, lines.header, is_alive));
        }
    }
    Ok(found)
}

/// Whoever lists records ([`all`]) has a lock for a moment.
fn lock(file: &File, path: &Path) -> Result<()> {
    let until = Instant::now() + LOCK_LIMIT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < until => sleep(LOCK_AGAIN),
            Err(TryLockError::WouldBlock) => {
                bail!("{}: another supervisor with this control socket is there", path.display())
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("lock {}", path.display()));
            }
        }
    }
}

/// What is in such a file.
struct Lines {
    header: Header,
    notes: Vec<Note>,
    /// Of all lines that are there as a whole.
    bytes: u64,
}

/// What is in there; nothing if not even the header is there as a whole.
fn read(file: &File) -> Result<Option<Lines>> {
    let mut text = String::new();
    let mut limited = file.take(BYTES_MAX + 1);
    limited.read_to_string(&mut text)?;
    ensure!(text.len() as u64 <= BYTES_MAX, "it is too long");
    let Some((whole, _)) = text.rsplit_once('\n') else { return Ok(None) };
    let mut lines = whole.split('\n');
    let first = lines.next().unwrap_or_default();
    let unknown = "this is no record of a supervised VM; if it has none, take the file away";
    let header: Header = serde_json::from_str(first).context(unknown)?;
    ensure!(header.format == FORMAT, "{unknown}");
    let is_id = header.id.len() == ID_DIGITS && header.id.bytes().all(|it| it.is_ascii_hexdigit());
    ensure!(is_id, "{unknown}");
    let notes = lines.map(|line| serde_json::from_str(line).context(unknown));
    let notes = notes.collect::<Result<_>>()?;
    Ok(Some(Lines { header, notes, bytes: whole.len() as u64 + 1 }))
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(path))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::thread::spawn;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const WHO: (&str, &str) = ("host", "/run/vm.sock");

    fn header() -> Header {
        let id = "0123456789abcdef".to_owned();
        Header::new((WHO.0, Path::new(WHO.1)), id, json!({ "kernel": "k" }))
    }

    fn note(next: u64, slices: &[u16], has_saved: bool) -> Note {
        Note { next, slices: slices.to_vec(), has_saved, life: None }
    }

    /// As a supervisor of another VM does that looks for all of them.
    #[test]
    fn whoever_looks_at_a_record_keeps_nobody_from_supervising() {
        let folder = Folder::new("record-looked-at");
        let path = path_of(&folder.0, (WHO.0, Path::new(WHO.1)));
        drop(Record::create(&path, header()).unwrap());
        let looks = File::open(&path).unwrap();
        looks.try_lock_shared().unwrap();
        let ends = spawn(move || {
            sleep(5 * LOCK_AGAIN);
            drop(looks);
        });
        assert!(Record::find(&path).unwrap().is_some());
        ends.join().unwrap();
    }

    #[test]
    fn next_supervisor_finds_what_was_noted_and_only_if_the_former_has_ended() {
        let folder = Folder::new("record-notes");
        let path = path_of(&folder.0, (WHO.0, Path::new(WHO.1)));
        assert_ne!(path, path_of(&folder.0, ("other", Path::new(WHO.1))));
        assert!(Record::find(&path).unwrap().is_none());
        let mut record = Record::create(&path, header()).unwrap();
        record.note(note(1, &[0, 1], false)).unwrap();
        record.note(note(2, &[0, 1], false)).unwrap();
        record.note(note(2, &[0, 1], true)).unwrap();
        record.note(note(7, &[0], true)).unwrap();
        let refused = Record::find(&path).unwrap_err().to_string();
        assert!(refused.contains("another supervisor"), "{refused}");
        assert!(Record::create(&path, header()).is_err());
        assert!(all(&folder.0).unwrap()[0].2);
        let last = Note { life: Some(7), ..note(7, &[0], true) };
        record.note(last.clone()).unwrap();
        record.note(Note { next: 8, ..last }).unwrap();
        drop(record);
        // The power went in the middle of a line.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"next\":9").unwrap();
        assert_eq!(all(&folder.0).unwrap(), [(path.clone(), header(), false)]);
        let mut found = Record::find(&path).unwrap().unwrap();
        assert_eq!(found.life(), Some(7));
        found.note(note(50, &[0, 1], true)).unwrap();
        drop(found);
        let found = Record::find(&path).unwrap().unwrap();
        assert_eq!(found.header, header());
        assert_eq!(found.notes.len(), 5);
        assert!(found.has_saved());
        let slices = [0, 1, 6, 7, 100].map(|number| found.slices_of(number));
        assert_eq!(slices, [None, Some(&[0, 1][..]), Some(&[0, 1]), Some(&[0]), Some(&[0, 1])]);
        // A supervisor of before lives had numbers has left none.
        let line = serde_json::to_string(&note(1, &[0], true)).unwrap();
        let former = line.replace(",\"life\":null", "");
        assert_ne!(former, line);
        assert_eq!(serde_json::from_str::<Note>(&former).unwrap().life, None);
        found.remove().unwrap();
        drop(found);
        assert!(Record::find(&path).unwrap().is_none());
    }

    /// What there was room for on a full disk, in a supervisor that goes on.
    #[test]
    fn line_that_was_written_in_part_does_not_keep_the_next_supervisor_from_going_on() {
        let folder = Folder::new("record-full");
        let path = path_of(&folder.0, (WHO.0, Path::new(WHO.1)));
        let mut record = Record::create(&path, header()).unwrap();
        record.note(note(1, &[0, 1], false)).unwrap();
        let mut part = OpenOptions::new().append(true).open(&path).unwrap();
        part.write_all(b"{\"next\":2,\"sli").unwrap();
        record.note(note(2, &[0, 1], true)).unwrap();
        drop(record);
        let mut found = Record::find(&path).unwrap().unwrap();
        assert!(found.has_saved());
        // So does one that has found it.
        part.write_all(b"{").unwrap();
        found.note(note(3, &[0], true)).unwrap();
        drop(found);
        assert_eq!(Record::find(&path).unwrap().unwrap().notes.len(), 3);
    }

    #[test]
    fn record_that_another_supervisor_takes_away_before_it_is_locked_is_none() {
        let folder = Folder::new("record-raced");
        let path = path_of(&folder.0, (WHO.0, Path::new(WHO.1)));
        let file = OpenOptions::new().append(true).create_new(true).open(&path).unwrap();
        assert!(Record::find(&path).unwrap().is_none());
        let refused = Record::begin(&path, file, header()).unwrap_err().to_string();
        assert!(refused.contains("another supervisor"), "{refused}");
    }

    #[test]
    fn record_that_was_never_there_as_a_whole_is_none_and_another_file_is_refused() {
        let folder = Folder::new("record-torn");
        let path = path_of(&folder.0, (WHO.0, Path::new(WHO.1)));
        fs::write(&path, "{\"format\":").unwrap();
        assert!(Record::find(&path).unwrap().is_none());
        assert!(!path.exists());
        let whole = format!("{}\n", serde_json::to_string(&header()).unwrap());
        let other = whole.replace("vm 1", "vm 2");
        let traversing = whole.replace("0123456789abcdef", "../../../../../x");
        for text in ["\n", "{}\n", &other, &traversing, &format!("{whole}{{}}\n")] {
            fs::write(&path, text).unwrap();
            let refused = format!("{:#}", Record::find(&path).unwrap_err());
            assert!(refused.contains("take the file away"), "{refused}");
            assert_eq!(all(&folder.0).unwrap(), []);
        }
    }
}
