//! A state is given up by somebody who knows no more of it than what a checkpoint says, which anybody may have written, or copied from
//! another host: it must be that state, and of that VM.
//!
//! ```text
//!   what a checkpoint says --no such file--> not here
//!                          --record of another VM, other contents--> refused, as it was
//!                          --the same--> released
//! ```

use super::super::ImageOptions;
use super::super::record::GenerationRecord;
use super::revert::compare;
use super::state::{DiskState, modified_ns};
use super::{SnapshotError, marks};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Who says that a state is not needed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A checkpoint of this VM.
    Vm([u8; 16]),
    /// A person, whichever VM has the image now.
    Person,
}

/// Releases the state that a checkpoint names, if it is here and is that one. False: it is not here.
///
/// # Errors
/// It is another one, or cannot be looked at. Nothing has changed.
pub fn give_up(state: &DiskState, by: Claim, within: Duration) -> Result<bool, SnapshotError> {
    let path = &state.path;
    let Some(name) = state.name() else { return Ok(false) };
    let file = state.file_beside(path);
    let about = match fs::symlink_metadata(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        about => about.map_err(SnapshotError::of("look at", &file))?,
    };
    if !about.is_file() {
        return Err(SnapshotError::Changed { path: file, why: "it is no ordinary file" });
    }
    if let Claim::Vm(ours) = by {
        check_owner(path, ours)?;
    }
    // One that is released has been merged, perhaps in part.
    if !marks::is_released(&file) && !is_untouched(&about, state) {
        compare(&ImageOptions::new(path, state.format), state, within)?;
    }
    marks::release(path, name)
}

/// Whether the record beside an image names this VM.
///
/// # Errors
/// It names another one, or there is none.
pub fn check_owner(image: &Path, ours: [u8; 16]) -> Result<(), SnapshotError> {
    let record = GenerationRecord::watch(image, None)?;
    let theirs = record.ok_or_else(|| SnapshotError::Unknown(image.to_owned()))?.writer();
    if theirs.vm == ours {
        return Ok(());
    }
    Err(SnapshotError::Foreign { path: image.to_owned(), theirs })
}

/// Whether it is the very file, as it was.
fn is_untouched(about: &Metadata, state: &DiskState) -> bool {
    let there = (about.ino(), about.len(), modified_ns(about));
    there == (state.inode, state.file_bytes, state.modified_ns)
}
