//! Puts what is in one state into the state below it, which nothing else lies over.
//!
//! What is read through the state above does not change meanwhile: where that has nothing of its own, nothing is written below; where it
//! has, nobody looks below. So a VM may run over both, with what it has in its caches. Clusters of the one below are no larger, so no
//! cluster that is looked at is moved. After an interruption the same is done again.

use super::super::access::{self, Gate};
use super::super::engine::runtime;
use super::super::fenced::Fenced;
use super::super::file::Opened;
use super::super::guard::Guard;
use super::super::{ImageFormat, ImageOptions, file};
use super::overlay::storage;
use imago::file::File as PlainFile;
use imago::format::PreallocateMode;
use imago::qcow2::Qcow2;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatDriverBuilder, ShallowMapping};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

/// Copied at a time.
const CHUNK: u64 = 1 << 20;
/// Made durable at a time: a sync at the end is no long one then.
const SYNC_EVERY: u64 = 16 << 20;

/// How far it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Merged {
    /// Everything is there, and durable.
    Whole,
    /// Somebody wanted it to stop.
    Stopped,
}

/// Puts all of `above` into `below`. `goes_on` is asked before each piece.
///
/// # Errors
/// A file cannot be read or written. Nothing is lost: `above` lies over `below` still.
pub(super) fn merge(
    options: &ImageOptions,
    (above, below): (&Path, &Path),
    guard: &Arc<Guard>,
    goes_on: &dyn Fn() -> bool,
) -> io::Result<Merged> {
    let runtime = runtime()?;
    let from = File::open(above)?;
    let to = open_protected(below)?;
    let opened = Opened { file: to, path: below.to_owned(), writable: true, direct: false };
    let open = |other| file::open_other(&other, false)?.plain();
    let gate = Gate::new(options, guard, open);
    runtime.block_on(async {
        let builder = Qcow2::<PlainFile>::builder(storage(&from, above, false)?);
        let builder = builder.backing(None).data_file(None);
        let from = FormatAccess::new(builder.open(DenyImplicitOpenGate::default()).await?);
        let mut to = access::open(opened.plain()?, ImageFormat::Qcow2, true, gate).await?;
        // Its user may have made the disk larger while no VM ran.
        if from.size() > to.size() {
            to.resize_grow(from.size(), PreallocateMode::Zero).await?;
        }
        if from.size() < to.size() {
            return Err(io::Error::other("the disk has become smaller since"));
        }
        let merged = copy(&from, &mut to, goes_on).await?;
        to.flush().await?;
        to.sync().await?;
        Ok(merged)
    })
}

async fn copy(
    from: &FormatAccess<PlainFile>,
    to: &mut FormatAccess<Fenced<PlainFile>>,
    goes_on: &dyn Fn() -> bool,
) -> io::Result<Merged> {
    let (size, mut at, mut unsynced) = (from.size(), 0, 0);
    let mut chunk = Vec::new();
    while at < size {
        if !goes_on() {
            return Ok(Merged::Stopped);
        }
        let (mapping, length) = from.get_shallow_mapping(at, size - at).await?;
        let length = match mapping {
            ShallowMapping::Zero { explicit: false, .. } => length,
            ShallowMapping::Zero { .. } => {
                zero(to, at, length).await?;
                length
            }
            ShallowMapping::Raw { .. } | ShallowMapping::Special { .. } => {
                let length = length.min(CHUNK);
                chunk.resize(usize::try_from(length).unwrap_or(0), 0);
                from.read(&mut chunk[..], at).await?;
                to.write(&chunk[..], at).await?;
                unsynced += length;
                length
            }
            _ => return Err(io::Error::other("a part of it is in another file")),
        };
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        at += length;
        if unsynced >= SYNC_EVERY {
            to.flush().await?;
            to.sync().await?;
            unsynced = 0;
        }
    }
    Ok(Merged::Whole)
}

/// Zeros that hide what is below, and give room back where the format can say so.
async fn zero(to: &mut FormatAccess<Fenced<PlainFile>>, at: u64, length: u64) -> io::Result<()> {
    match to.discard_to_zero(at, length).await {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            to.write_zeroes(at, length).await
        }
        done => done,
    }
}

/// Opens a state for writing, which others find protected again at once.
fn open_protected(state: &Path) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let open = || OpenOptions::new().read(true).write(true).custom_flags(flags).open(state);
    let mode = fs::symlink_metadata(state)?.permissions().mode() & 0o7777;
    if mode & 0o200 != 0 {
        return open();
    }
    fs::set_permissions(state, Permissions::from_mode(mode | 0o200))?;
    let opened = open();
    fs::set_permissions(state, Permissions::from_mode(mode))?;
    opened
}
