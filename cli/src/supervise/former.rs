//! With what a supervisor begins: nothing, or the VM of a former one that has ended before its VM had.
//!
//! ```text
//!   was it restored elsewhere? ── yes: refused unless another checkpoint is given, with what to do
//!   record of this socket? ── none ──> do disks belong to a VM that has not ended? ── no ──> new VM, new record
//!        │                                         └── yes: refused, with what to do
//!        ├── of the same VM ──> its checkpoints: goes on from the newest, or as after a power cut if it has had none
//!        ├── of another VM, and there is `--restore`: that is what its user wants ──> new record
//!        └── of another VM: refused, with what to do
//! ```
//! Nothing begins anew over disks that a VM has left which may go on: its guest would find later disks, and nothing else.

use super::record::{self, Header, ID_DIGITS, Record};
use crate::bootstrap::Arguments as Bootstrap;
use crate::log;
use anyhow::{Context, Error, Result, bail, ensure};
use checkpoint::{Checkpoint, CheckpointError, Key};
use migrate::supervise::Shelf;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use transport::{Secret, VmId};
use vmm::slice::{RestoreError, disk_writers, fits_checkpoint};

/// A checkpoint that was there.
struct Found {
    number: u64,
    base: Option<u64>,
    is_whole: bool,
}

/// One that was never written to its end: its number, and its folder.
type Unfinished = (u64, PathBuf);

/// With what it begins.
#[derive(Debug)]
pub(super) struct Begins {
    pub(super) record: Record,
    pub(super) shelf: Shelf,
    /// The number of the next checkpoint.
    pub(super) next: u64,
    /// The VM has begun before.
    pub(super) again: bool,
    /// What there is of checkpoints that were never written to their end.
    pub(super) unfinished: Vec<PathBuf>,
}

/// What the names of its checkpoints begin with.
pub(super) fn prefix(id: &str) -> String {
    format!("supervised-{id}-")
}

/// Finds out, and makes a record if there is none.
///
/// # Errors
/// Another supervisor is there; a VM is that may go on, and is another one than that of the command line; the checkpoint that is
/// given cannot be gone on from; something cannot be read.
pub(super) fn begin(
    folder: &Path,
    control: &Path,
    bootstrap: &Bootstrap,
    (secret, key): (Option<&Secret>, Option<&Key>),
) -> Result<Begins> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let path = record::path_of(folder, (&host, control));
    let beginning = bootstrap.beginning()?;
    let given = bootstrap.restore.restore.is_some();
    let lazily = given.then_some(bootstrap.restore.lazy);
    if let Some((elsewhere, header)) = record::gone_elsewhere(&path)? {
        let shown = elsewhere.display();
        ensure!(
            given && begins_from_another(&header, &beginning),
            "the VM that was supervised here was restored elsewhere, and goes on there; to have it here again, end it there, write it into a checkpoint with --end, and give that with --restore; to begin anew, take {shown} away"
        );
        look_at_given(bootstrap, (secret, key), true)?;
        fs::remove_file(&elsewhere).with_context(|| format!("remove {shown}"))?;
    }
    if let Some(record) = Record::find(&path)? {
        if record.header.beginning == beginning {
            return again(folder, record, lazily, key);
        }
        if !given {
            bail!(another(folder, &record, &beginning));
        }
        look_at_given(bootstrap, (secret, key), true)?;
        let (id, shown) = (&record.header.id, folder.display());
        log::say(&format!(
            "supervisor: another VM than that which was supervised here begins; checkpoints of that one stay in {shown}: {}*",
            prefix(id)
        ));
        record.remove()?;
    } else if given {
        look_at_given(bootstrap, (secret, key), false)?;
    } else {
        look_at_disks(folder, bootstrap)?;
    }
    let mut id = VmId::random().context("choose a name for checkpoints")?.to_string();
    id.truncate(ID_DIGITS);
    let record = Record::create(&path, Header::new((&host, control), id, beginning))?;
    Ok(Begins { record, shelf: new_shelf(lazily), next: 1, again: false, unfinished: Vec::new() })
}

/// Whether a VM begins from another checkpoint than that which has gone away from here. A service manager starts the supervisor again
/// with the same words, `--restore` among them; a user who has it back gives a later checkpoint.
fn begins_from_another(gone: &Header, beginning: &Value) -> bool {
    gone.beginning.get("restore") != beginning.get("restore")
}

/// With nothing behind it, or with the checkpoint that is given, and whether its user wants it lazily.
fn new_shelf(given: Option<bool>) -> Shelf {
    given.map_or_else(Shelf::default, |lazy| Shelf::given(0, lazy))
}

/// The VM of a former supervisor.
fn again(folder: &Path, record: Record, given: Option<bool>, key: Option<&Key>) -> Result<Begins> {
    let (found, unfinished) = checkpoints(folder, &prefix(&record.header.id), key)?;
    let (shown, path) = (folder.display(), record.path.display());
    let anew = format!("if it is to begin anew, take {path} away");
    ensure!(
        !found.is_empty() || !record.has_saved(),
        "the VM that was supervised here has not ended, and has had checkpoints, of which none is in {shown} any more; {anew}"
    );
    let how = match found.iter().filter(|one| one.is_whole).count() {
        0 if found.is_empty() => "without a checkpoint, as after a power cut".to_owned(),
        count => format!("with {count} checkpoints in {shown}"),
    };
    log::say(&format!(
        "supervisor: the VM that was supervised here has not ended, and goes on, {how}; {anew}"
    ));
    let mut shelf = new_shelf(given);
    let last = found.last().map_or(0, |one| one.number);
    let noted = record.notes.last().map_or(1, |note| note.next);
    found.iter().for_each(|one| shelf.found(one.number, one.base, one.is_whole));
    let left = unfinished.iter().map(|(number, _)| *number).max().unwrap_or(0);
    let next = noted.max(last.max(left) + 1);
    let unfinished = unfinished.into_iter().map(|(_, path)| path).collect();
    Ok(Begins { record, shelf, next, again: true, unfinished })
}

/// What there is of checkpoints with such names, from the oldest on, and of those that are none.
fn checkpoints(
    folder: &Path,
    prefix: &str,
    key: Option<&Key>,
) -> Result<(Vec<Found>, Vec<Unfinished>)> {
    let number = |name: &str| name.strip_prefix(prefix)?.parse::<u64>().ok();
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let entry = entry.with_context(|| format!("read {}", folder.display()))?;
        if let Some(number) = entry.file_name().to_str().and_then(number) {
            names.push((number, entry.path()));
        }
    }
    names.sort();
    let (mut found, mut unfinished) = (Vec::new(), Vec::new());
    for (number_of, path) in names {
        let (base, is_whole) = match Checkpoint::open(&path, key) {
            Ok(checkpoint) => {
                let base = checkpoint.contents().base.as_ref();
                (base.and_then(|base| number(&base.folder)), true)
            }
            Err(CheckpointError::Unfinished { .. }) => {
                unfinished.push((number_of, path));
                continue;
            }
            // The start from it is tried again and again then.
            Err(error) => (None, error.is_refused()),
        };
        found.push(Found { number: number_of, base, is_whole });
    }
    Ok((found, unfinished))
}

/// Why a VM is not begun where another one has not ended.
fn another(folder: &Path, record: &Record, beginning: &Value) -> String {
    let former = record.header.beginning.as_object().into_iter().flatten();
    let differs = former.filter(|(name, value)| beginning.get(name) != Some(value));
    let differs: Vec<_> = differs.map(|(name, _)| name.as_str()).collect();
    format!(
        "the VM that was supervised here has not ended, and was started with another {}: start it as before, and it goes on; or \
         begin from a checkpoint by --restore (its own are {}*); or take {} away, and the next VM begins anew",
        differs.join(", "),
        folder.join(prefix(&record.header.id)).display(),
        record.path.display()
    )
}

/// Refuses a checkpoint from which this VM can never go on: nothing would ever begin. `is_sure`: something of another VM is about to be
/// taken away for it, so that it must be readable now. Else storage that does not answer now may do so later.
fn look_at_given(
    bootstrap: &Bootstrap,
    (secret, key): (Option<&Secret>, Option<&Key>),
    is_sure: bool,
) -> Result<()> {
    let Some(restore) = bootstrap.restore.options() else { return Ok(()) };
    let fits = || {
        // The same is asked first without a VM, for an error that says what is wrong with the folder.
        Checkpoint::open(&restore.path, key)?;
        let spec = bootstrap.vm(secret)?;
        Ok(fits_checkpoint(&restore, secret, &spec)?)
    };
    match fits() {
        Err(error) if is_sure || !is_away(&error) => {
            Err(error).with_context(|| format!("go on from --restore {}", restore.path.display()))
        }
        _ => Ok(()),
    }
}

/// Whether storage does not answer now, and may do so later.
fn is_away(error: &Error) -> bool {
    error.chain().any(|cause| match cause.downcast_ref::<RestoreError>() {
        Some(RestoreError::Checkpoint(error)) => error.is_refused(),
        Some(_) => false,
        None => cause.downcast_ref().is_some_and(CheckpointError::is_refused),
    })
}

/// Refuses disks that a VM has written which another supervisor was to see to its end. Of those on other hosts nothing is known.
fn look_at_disks(folder: &Path, bootstrap: &Bootstrap) -> Result<()> {
    let writers = disk_writers(&bootstrap.devices.specs())?;
    if writers.is_empty() {
        return Ok(());
    }
    let shown = folder.display();
    for (path, header, is_alive) in record::all(folder).with_context(|| format!("read {shown}"))? {
        let prefix = prefix(&header.id);
        let Some((vm, newest)) = vm_of(folder, &prefix)? else { continue };
        let Some((disk, _)) = writers.iter().find(|(_, writer)| *writer == vm) else { continue };
        let (disk, at) = (disk.display(), header.control.display());
        ensure!(
            !is_alive,
            "disk {disk} is that of a VM which is supervised on {} with {at}",
            header.host
        );
        bail!(
            "disk {disk} is that of a VM which was supervised on {} with {at}, and has not ended: supervise it there; or go on by \
             --restore {}; or take {} away to begin anew",
            header.host,
            newest.display(),
            path.display()
        );
    }
    for (disk, writer) in writers {
        let (disk, vm) = (disk.display(), VmId(writer));
        log::say(&format!("supervisor: a new VM begins with disk {disk}, which VM {vm} has left"));
    }
    Ok(())
}

/// The VM of checkpoints with such names, by the newest that can be opened. No secret is needed to refuse.
fn vm_of(folder: &Path, prefix: &str) -> Result<Option<([u8; 16], PathBuf)>> {
    let (found, _) = checkpoints(folder, prefix, None)?;
    Ok(found.iter().rev().find_map(|one| {
        let path = folder.join(format!("{prefix}{}", one.number));
        let checkpoint = Checkpoint::open(&path, None).ok()?;
        Some((checkpoint.contents().vm, path))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::io::ErrorKind;

    #[test]
    fn only_storage_that_does_not_answer_may_do_so_later() {
        let io = |kind: ErrorKind| CheckpointError::Io {
            what: "read",
            path: PathBuf::from("a"),
            source: kind.into(),
        };
        let away = ErrorKind::StaleNetworkFileHandle;
        assert!(is_away(&Error::new(io(away))));
        assert!(is_away(&Error::new(RestoreError::from(io(away))).context("read the checkpoint")));
        assert!(!is_away(&Error::new(RestoreError::from(io(ErrorKind::NotFound)))));
        assert!(!is_away(&Error::new(RestoreError::NoFolder)));
    }

    #[test]
    fn same_checkpoint_does_not_bring_a_vm_back_that_has_gone() {
        let header = |restore: Value| {
            let beginning = json!({ "restore": restore, "vcpus": 2 });
            Header::new(("host", Path::new("/run/vm.sock")), "0".repeat(16), beginning)
        };
        let begins =
            |gone: Value, now: Value| begins_from_another(&header(gone), &header(now).beginning);
        assert!(!begins(json!("/checkpoints/a"), json!("/checkpoints/a")));
        assert!(begins(json!("/checkpoints/a"), json!("/checkpoints/b")));
        assert!(begins(Value::Null, json!("/checkpoints/b")));
    }
}
