//! Which generation of which VM writes an image, in a file beside it.
//!
//! ```text
//!   none, older, or of a VM that is gone --claim: lock, write, fsync--> ours --a newer one claims--> not ours, for ever
//!   newer, or ours and somebody has it ----claim--> refused
//! ```
//! A VM that is restored from a checkpoint is of a later generation. Who writes looks at the record shortly before ([`Guard`]
//! (super::guard)), so that a process of a former generation which was stopped, cut off or taken for dead finds out before
//! it writes. No lock can say that alone: who is stopped keeps its locks, and must not keep the VM from going on.
//!
//! **File.** Two places of 256 bytes with a sequence number and a sum, written in turns: a record that was half written when
//! the power went leaves the one before. **Locks** of ranges ([`ofd`]): who claims has the byte [`CLAIMING`] meanwhile; who
//! writes has, until it closes the record, the byte of its generation, so that one can tell who is alive from who was.

use super::ofd::{self, Range};
use rustix::fs::{Advice, Mode, fadvise, fchmod, fstatfs};
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use thiserror::Error;

/// What the record's name has more than that of its image.
pub const RECORD_SUFFIX: &str = ".tessera";
/// Bytes of one of its two places.
const PLACE_BYTES: usize = 256;
/// Who claims has this one.
const CLAIMING: Range = Range { from: 1 << 20, bytes: Some(1) };
/// Who merges states below the image has this one, for as long as it may write to one of them.
const TIDYING: Range = Range { from: (1 << 20) + 1, bytes: Some(1) };
/// That of generation 0.
const WRITING: i64 = 1 << 30;
/// Higher ones have no byte: seconds until the year 36812.
pub const GENERATION_MAX: u64 = 1 << 40;
/// For others that claim.
const CLAIM_LIMIT: Duration = Duration::from_secs(5);
const CLAIM_AGAIN: Duration = Duration::from_millis(10);
/// File systems whose other hosts write behind the cache of this one (statfs(2)): NFS, SMB, CIFS, Ceph, FUSE, 9P.
const NETWORKS: [i64; 6] =
    [0x6969, 0xfe53_4d42, 0xff53_4d42, 0x00c3_6400, 0x6573_5546, 0x0102_1997];

/// Who writes an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    /// Identity of the VM, the same in all its generations.
    pub vm: [u8; 16],
    /// Higher each time it is restored: seconds since 1970 where a user restored it, the next number where its supervisor did.
    pub generation: u64,
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "generation {} of VM {}", self.generation, hex(&self.vm))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Why an image may not be written by this generation of this VM.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The VM was restored from a checkpoint.
    #[error(
        "{path}: generation {theirs} of this VM writes here; this one is {ours}: it was restored elsewhere"
    )]
    Overtaken {
        /// The record.
        path: PathBuf,
        /// What it names.
        theirs: u64,
        /// Ours.
        ours: u64,
    },
    /// Another process of the same generation, or of a later one, is there.
    #[error("{path}: a process of {ours} or a later one writes here")]
    InUse {
        /// The record.
        path: PathBuf,
        /// Ours.
        ours: Writer,
    },
    /// It is another VM's.
    #[error("{path}: {theirs} writes here, which is another VM")]
    OtherVm {
        /// The record.
        path: PathBuf,
        /// What it names.
        theirs: Writer,
    },
    /// Somebody else is claiming it and does not come to an end.
    #[error("{path}: another process has been claiming it for {CLAIM_LIMIT:?}")]
    Busy {
        /// The record.
        path: PathBuf,
    },
    /// It contains something else.
    #[error(
        "{path}: this is no record of a generation; if no VM uses its image, take the file away"
    )]
    Damaged {
        /// The record.
        path: PathBuf,
    },
    /// Somebody has put another file there, or none.
    #[error("{path}: the record was taken away or replaced")]
    Replaced {
        /// The record.
        path: PathBuf,
    },
    /// There is no file beside a device that others would find.
    #[error("{path}: only an image in a file can have a record of its generation")]
    Kind {
        /// The image.
        path: PathBuf,
    },
    /// There cannot be so many.
    #[error("there is no generation {0}")]
    Generation(u64),
    /// It cannot be opened, read, locked or written.
    #[error("{path}: {what}")]
    File {
        /// The record.
        path: PathBuf,
        /// What cannot be done.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// What is in one of the two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    sequence: u64,
    writer: Writer,
}

impl Entry {
    fn bytes(&self) -> [u8; PLACE_BYTES] {
        let Writer { vm, generation } = self.writer;
        let text = format!(
            "tessera generation record 1\nvm {}\ngeneration {generation}\nsequence {}\n",
            hex(&vm),
            self.sequence
        );
        let text = format!("{text}sum {}\n", sum(&text));
        let mut bytes = [b'\n'; PLACE_BYTES];
        bytes.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (text, rest) = text.split_at(text.find("sum ")?);
        let mut lines = text.lines();
        let version = lines.next()? == "tessera generation record 1";
        let vm = lines.next()?.strip_prefix("vm ")?;
        let generation = lines.next()?.strip_prefix("generation ")?.parse().ok()?;
        let sequence = lines.next()?.strip_prefix("sequence ")?.parse().ok()?;
        let vm = u128::from_str_radix(vm, 16).ok()?.to_be_bytes();
        let holds = version && rest.strip_prefix("sum ")?.trim_end() == sum(text);
        holds.then_some(Self { sequence, writer: Writer { vm, generation } })
    }

    /// The last one that was written completely, in these bytes.
    fn last(bytes: &[u8]) -> Option<Self> {
        let entries = bytes.chunks(PLACE_BYTES).filter_map(Self::read);
        entries.max_by_key(|entry| entry.sequence)
    }
}

fn sum(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes())[..8])
}

/// The record of an image that this process writes, or means to. Dropping it gives up the lock; what it says stays.
#[derive(Debug)]
pub struct GenerationRecord {
    path: PathBuf,
    file: File,
    ours: Writer,
    /// What the cache has may be old.
    network: bool,
}

impl GenerationRecord {
    /// Says that from now on this generation of this VM writes the image. What is written to it by a former one after that,
    /// and looked at ([`Self::still_ours`]) before, is refused.
    ///
    /// # Errors
    /// A higher generation has been here, somebody else is, or the record cannot be written.
    pub fn claim(image: &Path, ours: Writer) -> Result<Self, RecordError> {
        if ours.generation > GENERATION_MAX {
            return Err(RecordError::Generation(ours.generation));
        }
        let (path, file) = open(image)?;
        let failed = |what| {
            let path = path.clone();
            move |source| RecordError::File { path, what, source }
        };
        let network = fstatfs(&file).is_ok_and(|about| NETWORKS.contains(&about.f_type));
        let record = Self { path: path.clone(), file, ours, network };
        let claiming = record.exclusively()?;
        let last = record.read()?;
        record.refuse(last)?;
        let byte = Range { from: byte_of(ours.generation), bytes: Some(1) };
        if !ofd::try_lock(&record.file, byte).map_err(failed("lock the record"))? {
            return Err(RecordError::InUse { path, ours });
        }
        if last.is_none_or(|last| last.writer != ours) {
            let sequence = last.map_or(1, |last| last.sequence.saturating_add(1));
            let at = sequence % 2 * PLACE_BYTES as u64;
            let bytes = Entry { sequence, writer: ours }.bytes();
            record.file.write_all_at(&bytes, at).map_err(failed("write the record"))?;
            record.file.sync_all().map_err(failed("write the record"))?;
            sync_folder(&path).map_err(failed("write the record's folder"))?;
        }
        drop(claiming);
        Ok(record)
    }

    /// Whether this generation could claim the image now. Nothing is written. True: a process of a former generation of the
    /// same VM is alive, and finds out by the record that it is one.
    ///
    /// # Errors
    /// As for [`Self::claim`].
    pub(super) fn look(image: &Path, ours: Writer) -> Result<bool, RecordError> {
        if ours.generation > GENERATION_MAX {
            return Err(RecordError::Generation(ours.generation));
        }
        let Some(record) = Self::to_read(image, ours)? else { return Ok(false) };
        let failed = |what| {
            let path = record.path.clone();
            move |source| RecordError::File { path, what, source }
        };
        let last = record.read()?;
        record.refuse(last)?;
        let Some(Entry { writer, .. }) = last.filter(|last| last.writer.vm == ours.vm) else {
            return Ok(false);
        };
        let byte = Range { from: byte_of(writer.generation), bytes: Some(1) };
        let alive = ofd::is_held(&record.file, byte).map_err(failed("look for locks"))?;
        Ok(alive && writer.generation < ours.generation)
    }

    /// The record, if there is one. It cannot be written.
    fn to_read(image: &Path, ours: Writer) -> Result<Option<Self>, RecordError> {
        let path = path_of(image);
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(RecordError::File { path, what: "open the record", source });
            }
            Ok(file) => file,
        };
        let network = fstatfs(&file).is_ok_and(|about| NETWORKS.contains(&about.f_type));
        Ok(Some(Self { path, file, ours, network }))
    }

    /// Who has written the image last, as far as a record says. That may be over, or be going on.
    ///
    /// # Errors
    /// The record cannot be read, or is none.
    pub fn last_writer(image: &Path) -> Result<Option<Writer>, RecordError> {
        let nobody = Writer { vm: [0; 16], generation: 0 };
        let record = Self::to_read(image, nobody)?;
        let last = record.map(|record| record.read()).transpose()?.flatten();
        Ok(last.map(|last| last.writer))
    }

    /// The record without the lock of one that writes the image: for who tidies up below it, as this generation or, without one, as
    /// the one that the record names. None: there is no record, or it says nothing.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn watch(image: &Path, ours: Option<Writer>) -> Result<Option<Self>, RecordError> {
        let path = path_of(image);
        if fs::symlink_metadata(&path).is_err_and(|it| it.kind() == io::ErrorKind::NotFound) {
            return Ok(None);
        }
        let (path, file) = open(image)?;
        let network = fstatfs(&file).is_ok_and(|about| NETWORKS.contains(&about.f_type));
        let none = Writer { vm: [0; 16], generation: 0 };
        let record = Self { path, file, ours: ours.unwrap_or(none), network };
        let last = record.read()?;
        Ok(last.map(|last| Self { ours: ours.unwrap_or(last.writer), ..record }))
    }

    /// Keeps others from tidying up for as long as this record is open. False: another one does.
    ///
    /// # Errors
    /// It cannot be locked.
    pub(super) fn tidies(&self) -> Result<bool, RecordError> {
        let path = self.path.clone();
        let failed = |source| RecordError::File { path, what: "lock the record", source };
        ofd::try_lock(&self.file, TIDYING).map_err(failed)
    }

    /// Whom it named when it was opened, or who has claimed it.
    pub(super) fn writer(&self) -> Writer {
        self.ours
    }

    /// Whether a process that may write the image is alive.
    ///
    /// # Errors
    /// It cannot be looked for.
    pub(super) fn is_written(&self) -> Result<bool, RecordError> {
        let path = self.path.clone();
        let failed = |source| RecordError::File { path, what: "look for locks", source };
        ofd::is_held(&self.file, Range { from: WRITING, bytes: None }).map_err(failed)
    }

    /// Whether it still names this generation, and is where others look for it.
    ///
    /// # Errors
    /// It does not, or cannot be read: nothing may be written.
    pub fn still_ours(&self) -> Result<(), RecordError> {
        let path = || self.path.clone();
        let ours = self.file.metadata().ok().map(|it| (it.dev(), it.ino()));
        let there = fs::symlink_metadata(&self.path).ok().map(|it| (it.dev(), it.ino()));
        if ours.is_none() || ours != there {
            return Err(RecordError::Replaced { path: path() });
        }
        if self.network {
            // What is not in the cache is asked for.
            let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
        }
        match self.read()? {
            Some(Entry { writer, .. }) if writer == self.ours => Ok(()),
            Some(Entry { writer, .. }) if writer.vm == self.ours.vm => {
                let (theirs, ours) = (writer.generation, self.ours.generation);
                Err(RecordError::Overtaken { path: path(), theirs, ours })
            }
            Some(Entry { writer, .. }) => {
                Err(RecordError::OtherVm { path: path(), theirs: writer })
            }
            None => Err(RecordError::Replaced { path: path() }),
        }
    }

    /// Keeps others from claiming the image until the result is dropped, for who changes what its name means. Who has claimed
    /// it meanwhile is found by [`Self::still_ours`] after this.
    ///
    /// # Errors
    /// Another one is claiming it and does not come to an end.
    pub(super) fn exclusively(&self) -> Result<Claiming<'_>, RecordError> {
        self.begin()?;
        Ok(Claiming(&self.file))
    }

    /// One at a time.
    fn begin(&self) -> Result<(), RecordError> {
        let deadline = Instant::now() + CLAIM_LIMIT;
        loop {
            let locked = ofd::try_lock(&self.file, CLAIMING);
            let path = self.path.clone();
            match locked {
                Ok(true) => return Ok(()),
                Ok(false) if Instant::now() < deadline => sleep(CLAIM_AGAIN),
                Ok(false) => return Err(RecordError::Busy { path }),
                Err(source) => {
                    return Err(RecordError::File { path, what: "lock the record", source });
                }
            }
        }
    }

    /// Why what it says keeps us away.
    fn refuse(&self, last: Option<Entry>) -> Result<(), RecordError> {
        let (path, ours) = (self.path.clone(), self.ours);
        let Some(Entry { writer: theirs, .. }) = last else { return Ok(()) };
        let same = theirs.vm == ours.vm;
        if same && theirs.generation > ours.generation {
            let (theirs, ours) = (theirs.generation, ours.generation);
            return Err(RecordError::Overtaken { path, theirs, ours });
        }
        // Of this VM, who has a lower generation may hang for ever. Of another one nothing is known.
        let from = if same { byte_of(ours.generation) } else { WRITING };
        match ofd::is_held(&self.file, Range { from, bytes: None }) {
            Ok(false) => Ok(()),
            Ok(true) if same => Err(RecordError::InUse { path, ours }),
            Ok(true) => Err(RecordError::OtherVm { path, theirs }),
            Err(source) => Err(RecordError::File { path, what: "look for locks", source }),
        }
    }

    /// What it says; nothing while it is new.
    fn read(&self) -> Result<Option<Entry>, RecordError> {
        let mut bytes = [0; 2 * PLACE_BYTES];
        let mut length = 0;
        while length < bytes.len() {
            match self.file.read_at(&mut bytes[length..], length as u64) {
                Ok(0) => break,
                Ok(count) => length += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    let path = self.path.clone();
                    return Err(RecordError::File { path, what: "read the record", source });
                }
            }
        }
        let bytes = &bytes[..length];
        match Entry::last(bytes) {
            Some(entry) => Ok(Some(entry)),
            None if bytes.iter().all(|byte| *byte == 0) => Ok(None),
            None => Err(RecordError::Damaged { path: self.path.clone() }),
        }
    }
}

/// Nobody else claims the image meanwhile.
#[derive(Debug)]
pub(super) struct Claiming<'a>(&'a File);

impl Drop for Claiming<'_> {
    fn drop(&mut self) {
        // Unlocking a range that is locked does not fail; if it did, the lock would end with the record.
        let _ = ofd::unlock(self.0, CLAIMING);
    }
}

fn byte_of(generation: u64) -> i64 {
    WRITING.saturating_add_unsigned(generation)
}

/// The name of the record of an image.
pub(super) fn path_of(image: &Path) -> PathBuf {
    let mut name = OsString::from(image);
    name.push(RECORD_SUFFIX);
    name.into()
}

/// Opens the record of an image, a new one with the rights of its image.
fn open(image: &Path) -> Result<(PathBuf, File), RecordError> {
    let path = path_of(image);
    let failed = |source| RecordError::File { path: path.clone(), what: "open the record", source };
    let about = fs::metadata(image).map_err(failed)?;
    if !about.is_file() {
        return Err(RecordError::Kind { path: image.to_owned() });
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    match options.open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return Ok((path.clone(), opened.map_err(failed)?)),
    }
    // Two may make it at a time, and both have the same one then.
    let file = options.create(true).truncate(false).open(&path).map_err(failed)?;
    fchmod(&file, Mode::from_raw_mode(about.mode() & 0o666)).map_err(|e| failed(e.into()))?;
    Ok((path.clone(), file))
}

/// Makes durable which names there are beside a file.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests;
