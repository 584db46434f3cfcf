//! An image as it was at a checkpoint.

use super::super::own::may_name;
use super::super::record::{GenerationRecord, sync_folder};
use super::super::{ImageDisk, ImageOptions};
use super::state::{DiskState, How, abandoned, modified_ns};
use super::{
    Before, SnapshotError, Step, chain, clone_as, exclusively, marks, next_beside, overlay,
    remove_left_over,
};
use crate::back_end::Disk;
use crate::back_end::sample::sample;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What has become of an image.
#[derive(Debug, Default)]
pub struct Reverted {
    /// Where the image is that was there before.
    pub abandoned: Option<PathBuf>,
    /// What has the name of the image from now on, if it is another file.
    pub file: Option<File>,
}

/// Whether the state of an image is there and is, as far as one looks, what it was at the checkpoint. Nothing is changed.
///
/// # Errors
/// In what it differs.
pub fn verify(
    options: &ImageOptions,
    state: &DiskState,
    within: Duration,
) -> Result<(), SnapshotError> {
    let kept = matches!(state.how, How::Overlay | How::Clone);
    let file = state.file_beside(&options.path);
    if kept && marks::is_released(&file) {
        // Where nothing is, that is what matters.
        return Err(match file.try_exists() {
            Ok(false) => SnapshotError::Missing(file),
            _ => SnapshotError::Released(file),
        });
    }
    compare(options, state, within)
}

/// The same, also of what nobody is to go on from any more.
pub(super) fn compare(
    options: &ImageOptions,
    state: &DiskState,
    within: Duration,
) -> Result<(), SnapshotError> {
    let path = &options.path;
    let unlike = |why| Err(SnapshotError::Unlike { path: path.clone(), why });
    if options.format != state.format {
        return unlike("it has another format");
    }
    if state.how == How::Nothing {
        return Ok(());
    }
    let file = state.file_beside(path);
    let kept = matches!(state.how, How::Overlay | How::Clone);
    if kept && !options.other_files && !may_name(path, &file) {
        return unlike("the name of its state begins with another name");
    }
    let left = state.how == How::Left;
    let changed = |why| {
        let path = file.clone();
        Err(if left {
            SnapshotError::Written { path, why }
        } else {
            SnapshotError::Changed { path, why }
        })
    };
    let about = match fs::metadata(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(SnapshotError::Missing(file));
        }
        about => about.map_err(SnapshotError::of("look at", &file))?,
    };
    // Another file under this name is a copy, or what a merge has made of it: it is told by what it contains.
    let is_same = about.is_file() && (left || about.ino() == state.inode);
    if is_same && about.len() != state.file_bytes {
        return changed("its file has another length");
    }
    // Whoever has it open for writing may write what is there, to find out alignments.
    if !left && about.ino() == state.inode && modified_ns(&about) != state.modified_ns {
        return changed("it was written since");
    }
    // Other names than that of the image are told by what it contains.
    let at = if state.file.is_some() { Some(file.clone()) } else { options.at.clone() };
    let options = ImageOptions { at, read_only: true, record: None, ..options.clone() };
    let image = ImageDisk::open(&options)?;
    if image.shape().bytes() != state.bytes {
        return changed("the disk in it has another size");
    }
    if sample(&image, &state.places, within)? != state.sample {
        return changed("it contains something else");
    }
    Ok(())
}

/// Makes an image what it was at a checkpoint, for this generation of the VM. What it was until now is kept under another name,
/// and who has it open has that. The state is never written: this can be done again and again.
///
/// # Errors
/// The image is as it was, but for a failure to make names durable.
pub fn revert(
    options: &ImageOptions,
    state: &DiskState,
    generation: u64,
    within: Duration,
) -> Result<Reverted, SnapshotError> {
    revert_before(options, state, (generation, within), &|_| {})
}

pub(super) fn revert_before(
    options: &ImageOptions,
    state: &DiskState,
    (generation, within): (u64, Duration),
    before: Before<'_>,
) -> Result<Reverted, SnapshotError> {
    if !options.fence.pass() {
        return Err(SnapshotError::Over);
    }
    verify(options, state, within)?;
    if matches!(state.how, How::Unchanged | How::Nothing | How::Left) {
        return Ok(Reverted::default());
    }
    let (path, kept) = (&options.path, state.file_beside(&options.path));
    if is_there(path)? && fs::symlink_metadata(path).is_ok_and(|about| about.is_symlink()) {
        return Err(SnapshotError::SymbolicLink(path.clone()));
    }
    let next = next_beside(path);
    // It may have been released just now.
    let state_is_kept = || match marks::is_released(&kept) {
        true => Err(SnapshotError::Released(kept.clone())),
        false => Ok(()),
    };
    // What a record is for must be there. Where nothing is, there is nobody to fence.
    let record = options.record.filter(|_| path.exists());
    let record = record.map(|writer| GenerationRecord::claim(path, writer)).transpose()?;
    // A clone lies over a state of another image, whose VM may be about to merge that.
    let other = state.path.file_name().map(|name| path.with_file_name(name));
    let other = other.filter(|other| other != path && other.exists());
    let other = other.map(|other| GenerationRecord::watch(&other, None)).transpose()?.flatten();
    let _names = other.as_ref().map(GenerationRecord::exclusively).transpose()?;
    exclusively(record.as_ref(), || {
        state_is_kept()?;
        if record.is_some() {
            // They take room, and are in nobody's way.
            let _ = remove_left_over(path);
        }
        replace(path, (state, &kept, &next), generation, before).inspect_err(|_| {
            // It was never used. Where it is not, there is nothing to remove.
            let _ = fs::remove_file(&next);
        })
    })
}

fn replace(
    path: &Path,
    (state, kept, next): (&DiskState, &Path, &Path),
    generation: u64,
    before: Before<'_>,
) -> Result<Reverted, SnapshotError> {
    before(Step::Make);
    let file = if state.how == How::Clone {
        let from = File::open(kept).map_err(SnapshotError::of("open", kept))?;
        clone_as(next, &from, state.mode, path)?
    } else {
        over(next, (path, kept), state)?
    };
    before(Step::Link);
    let abandoned = abandon(path, generation)?;
    before(Step::Rename);
    // As with freezing: no image may lose its last name.
    let synced = sync_folder(path).and_then(|()| fs::rename(next, path));
    synced.map_err(SnapshotError::of("replace", path)).inspect_err(|_| {
        if let Some(abandoned) = &abandoned {
            // It is at PATH still.
            let _ = fs::remove_file(abandoned);
        }
    })?;
    before(Step::SyncFolder);
    sync_folder(path).map_err(SnapshotError::of("flush the folder of", path))?;
    Ok(Reverted { abandoned, file: Some(file) })
}

/// An overlay over a state, with the rights that its image had.
fn over(
    next: &Path,
    (path, kept): (&Path, &Path),
    state: &DiskState,
) -> Result<File, SnapshotError> {
    let below = chain::has_room(path, kept)?;
    let about = below.metadata().map_err(SnapshotError::of("look at", kept))?;
    let cluster = overlay::cluster_of(&below).map_err(SnapshotError::of("read", kept))?;
    overlay::make(next, kept, (state.bytes, cluster), (&about, state.mode))
}

/// Gives what is at PATH another name.
fn abandon(path: &Path, generation: u64) -> Result<Option<PathBuf>, SnapshotError> {
    if !is_there(path)? {
        return Ok(None);
    }
    for name in abandoned(path, generation) {
        match fs::hard_link(path, &name) {
            Ok(()) => return Ok(Some(name)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(SnapshotError::of("make another name for", path)(error)),
        }
    }
    Ok(None)
}

pub(super) fn is_there(path: &Path) -> Result<bool, SnapshotError> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(SnapshotError::of("look at", path)(error)),
    }
}
