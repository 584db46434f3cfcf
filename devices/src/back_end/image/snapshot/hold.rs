//! An image that a VM is to have as it was at a checkpoint, once all of its slices have agreed. Until then nothing is changed.

use super::super::file::{self, ImageError, Opened};
use super::super::record::GenerationRecord;
use super::super::{ImageOptions, Writer};
use super::revert::{is_there, verify};
use super::state::{DiskState, How};
use super::{SnapshotError, chain};
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// For who changes names below an image that nobody uses.
const LOCK_LIMIT: Duration = Duration::from_millis(500);
const LOCK_AGAIN: Duration = Duration::from_millis(20);

/// Keeps others from using an image until it is dropped.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "it has the lock")] Option<Opened>);

/// Looks whether an image can become what it was at a checkpoint ([`revert`](super::revert())) or, without a state, be used as it
/// is, and holds it. No file is written or made.
///
/// A VM of a former generation may have the image open if a record beside the image fences it, and another file is to
/// have its name: that VM may hang for ever.
///
/// # Errors
/// Its state is not what it was, somebody else uses the image, or another generation of the VM writes it.
pub fn hold(
    options: &ImageOptions,
    state: Option<&DiskState>,
    within: Duration,
) -> Result<Held, SnapshotError> {
    if !options.fence.pass() {
        return Err(SnapshotError::Over);
    }
    let path = &options.path;
    state.map_or(Ok(()), |state| verify(options, state, within))?;
    let replaced = state.filter(|state| matches!(state.how, How::Overlay | How::Clone));
    if let Some(state) = replaced {
        let own = state.path.file_name() == path.file_name();
        if !own && is_there(path)? {
            // That of another clone.
            return Err(SnapshotError::Taken(path.clone()));
        }
        if !is_there(path)? {
            return Ok(Held(None));
        }
        if fs::symlink_metadata(path).is_ok_and(|about| about.is_symlink()) {
            return Err(SnapshotError::SymbolicLink(path.clone()));
        }
        if state.how == How::Overlay {
            chain::has_room(path, &state.file_beside(path))?;
        }
    }
    let at = options.at.clone().filter(|_| replaced.is_none());
    let locking = ImageOptions { at, direct: false, record: None, ..options.clone() };
    let deadline = Instant::now() + LOCK_LIMIT;
    let opened = loop {
        match file::open(&locking) {
            Err(ImageError::Locked { .. }) => {}
            opened => break opened?.0,
        }
        if replaced.is_some() && is_fenced(path, options.record)? {
            return Ok(Held(None));
        }
        if Instant::now() >= deadline {
            return Err(used(path));
        }
        thread::sleep(LOCK_AGAIN);
    };
    let is_file = fs::metadata(path).is_ok_and(|about| about.is_file());
    if let Some(writer) = options.record.filter(|_| opened.writable && is_file) {
        GenerationRecord::look(path, writer)?;
    }
    Ok(Held(Some(opened)))
}

/// Whether who has the image open is a former generation of the VM, which a record tells that it is one.
fn is_fenced(path: &Path, writer: Option<Writer>) -> Result<bool, SnapshotError> {
    let Some(writer) = writer else { return Ok(false) };
    Ok(GenerationRecord::look(path, writer)?)
}

fn used(path: &Path) -> SnapshotError {
    SnapshotError::InUse(path.to_owned())
}
