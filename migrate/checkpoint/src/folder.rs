//! The folder that checkpoints are in: what is there, and how one is deleted.

use crate::chain::read_manifest;
use crate::checkpoint::{Authenticity, Checkpoint};
use crate::contents::Contents;
use crate::error::CheckpointError;
use crate::files::{self, MANIFEST, MANIFEST_TEMPORARY};
use crate::layout::{HEAD_BYTES, PartHead};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A folder with something of a checkpoint in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// What is in it.
    pub state: State,
}

/// How much of a checkpoint there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// All that can be seen without a secret and without reading every byte.
    Complete(Box<Complete>),
    /// It has no manifest: it is being written or deleted, or that was interrupted.
    Unfinished,
    /// What is there is not what was written, or a part of it is missing: why.
    Damaged(String),
    /// The operating system does not let it be read: why. It may be whole.
    Unreadable(String),
}

/// A checkpoint that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complete {
    /// What its manifest says.
    pub contents: Contents,
    /// Whether its manifest says that it is authenticated. Nobody has checked it.
    pub authenticated: bool,
    /// Bytes of its files, without those of its bases.
    pub bytes: u64,
}

/// All checkpoints in a folder, by name; folders with nothing of a checkpoint are left out.
///
/// # Errors
/// The folder cannot be read.
pub fn list(parent: &Path) -> Result<Vec<Listed>, CheckpointError> {
    let mut listed = Vec::new();
    for name in folders(parent)? {
        let folder = parent.join(&name);
        let state = match Checkpoint::open(&folder, None) {
            Ok(checkpoint) => State::Complete(Box::new(Complete {
                contents: checkpoint.contents().clone(),
                authenticated: checkpoint.authenticity() != Authenticity::Nobody,
                bytes: checkpoint.layers[0].bytes(),
            })),
            Err(CheckpointError::Unfinished { .. }) if !has_parts(&folder) => continue,
            Err(CheckpointError::Unfinished { .. }) => State::Unfinished,
            Err(error) if error.is_refused() => State::Unreadable(error.with_causes()),
            Err(error) => State::Damaged(error.with_causes()),
        };
        listed.push(Listed { name, state });
    }
    Ok(listed)
}

/// The cut of a checkpoint, or of what there is of one, by any of its parts or by what [`retire`] has left. Nothing: no part of it
/// can be read.
#[must_use]
pub fn cut_in(folder: &Path) -> Option<u64> {
    let retired = entries(folder).ok()?.iter().find_map(|(name, _)| files::retired_cut(name));
    retired.or_else(|| heads_in(folder).ok()?.flatten().next().map(|head| head.cut))
}

/// The head of each part, read as they are asked for; nothing of one that has none which can be read.
fn heads_in(
    folder: &Path,
) -> Result<impl Iterator<Item = Option<PartHead>> + use<>, CheckpointError> {
    let parts = entries(folder)?.into_iter().filter(|(name, _)| files::is_part_name(name));
    Ok(parts.map(|(_, path)| {
        let mut head = [0; HEAD_BYTES];
        files::open(&path).ok()?.read_exact_at(&mut head, 0).ok()?;
        PartHead::decode(&head).ok()
    }))
}

/// Deletes a checkpoint, or what there is of one: the manifest first, so that what an interruption leaves is none.
///
/// # Errors
/// Another checkpoint in the same folder is an increment of it, or may be: its manifest cannot be read, and not all of its parts
/// show that it is of another VM or not later. The folder has other files, or nothing of a checkpoint; something cannot be deleted.
pub fn delete(folder: &Path) -> Result<(), CheckpointError> {
    delete_with(folder, || ())
}

/// The same. Does something as soon as it is none any more, and before its parts go, which may take long.
///
/// # Errors
/// As for [`delete`]. What was to be done is done, unless nothing has changed.
pub fn delete_with<T>(folder: &Path, gone: impl FnOnce() -> T) -> Result<T, CheckpointError> {
    let (given, folder) = (folder, &files::real(folder)?);
    let names = own_files(folder)?;
    refuse_base(folder, given, &names)?;
    take_manifest(folder, &names, || refuse_base(folder, given, &names))?;
    let done = gone();
    remove_parts(folder, &names)?;
    remove_folder(folder).map(|()| done)
}

/// Removes what whoever has made this folder has put there. It is no base of anything yet.
pub(crate) fn undo(folder: &Path) -> Result<(), CheckpointError> {
    // Perhaps nothing was put there.
    let names = own_files(folder).unwrap_or_default();
    take_manifest(folder, &names, || Ok(()))?;
    remove_parts(folder, &names)?;
    remove_folder(folder)
}

/// Deletes a checkpoint, or what there is of one, but for its folder, which tells its cut ([`cut_in`]) until [`delete`] is asked to
/// take that too. So whoever is interrupted before its slices know that it is gone finds out again what they are to be told. Where there
/// is no room for that, nothing is left. None: no part of it tells its cut, or another one beside it has the same, such as an export of it,
/// which needs what slices keep for it; and nothing of it is left.
///
/// # Errors
/// As for [`delete`].
pub fn retire(folder: &Path) -> Result<Option<u64>, CheckpointError> {
    let (given, folder) = (folder, &files::real(folder)?);
    let mut names = own_files(folder)?;
    refuse_base(folder, given, &names)?;
    let cut = cut_in(folder);
    // From here on it is none, and its parts tell its cut. Whoever begins to export it now sees that.
    take_manifest(folder, &names, || refuse_base(folder, given, &names))?;
    let Some(cut) = cut.filter(|_| !has_twin(folder)) else {
        remove_parts(folder, &names)?;
        return remove_folder(folder).map(|()| None);
    };
    let mark = files::retired_name(cut);
    // A full disk is to have room again first of all: what cannot be kept is not.
    let make = || files::create(&folder.join(&mark)).and_then(|_| files::sync_folder(folder));
    let is_marked = names.contains(&mark) || make().is_ok();
    names.retain(|name| *name != mark);
    remove_parts(folder, &names)?;
    if is_marked {
        files::sync_folder(folder)?;
    } else {
        remove_folder(folder)?;
    }
    Ok(Some(cut))
}

fn remove(folder: &Path, name: &str) -> Result<(), CheckpointError> {
    let path = folder.join(name);
    fs::remove_file(&path).map_err(CheckpointError::io("delete", &path))
}

/// Removes the manifest, or leaves it where it was if something speaks against that now that nobody finds it. An increment that is
/// committed at this moment looks for its base after that: one of the two sees the other.
pub(crate) fn take_manifest(
    folder: &Path,
    names: &[String],
    may_go: impl FnOnce() -> Result<(), CheckpointError>,
) -> Result<(), CheckpointError> {
    let (path, aside) = (folder.join(MANIFEST), folder.join(MANIFEST_TEMPORARY));
    if names.iter().any(|name| name == MANIFEST) {
        fs::rename(&path, &aside).map_err(CheckpointError::io("rename", &path))?;
        let taken = files::sync_folder(folder).and_then(|()| may_go());
        if taken.is_err() {
            fs::rename(&aside, &path).map_err(CheckpointError::io("rename", &aside))?;
            files::sync_folder(folder)?;
            return taken;
        }
    } else if !names.iter().any(|name| name == MANIFEST_TEMPORARY) {
        return Ok(());
    }
    remove(folder, MANIFEST_TEMPORARY)?;
    files::sync_folder(folder)
}

/// All but the manifest, which is gone under either name.
fn remove_parts(folder: &Path, names: &[String]) -> Result<(), CheckpointError> {
    let mut parts = names.iter().filter(|name| *name != MANIFEST && *name != MANIFEST_TEMPORARY);
    parts.try_for_each(|name| remove(folder, name))
}

fn remove_folder(folder: &Path) -> Result<(), CheckpointError> {
    fs::remove_dir(folder).map_err(CheckpointError::io("delete the folder", folder))?;
    files::sync_folder(&files::parent(folder))
}

/// Takes the manifest away again: the folder is no checkpoint, and parts in it are waste.
///
/// # Errors
/// It is there still, or may come back after a crash.
pub fn withdraw(folder: &Path) -> Result<(), CheckpointError> {
    let folder = &files::real(folder)?;
    let path = folder.join(MANIFEST);
    fs::remove_file(&path).map_err(CheckpointError::io("delete", &path))?;
    files::sync_folder(folder)
}

/// Names of all files in the folder, which are those of a checkpoint.
fn own_files(folder: &Path) -> Result<Vec<String>, CheckpointError> {
    let refuse =
        |why: String| Err(CheckpointError::NoCheckpoint { folder: folder.to_path_buf(), why });
    let mut names = Vec::new();
    for (name, _) in entries(folder)? {
        if !is_own(&name) {
            return refuse(format!("it has a file {name:?}"));
        }
        names.push(name);
    }
    if names.is_empty() {
        return refuse("it is empty".into());
    }
    Ok(names)
}

fn is_own(name: &str) -> bool {
    let is_retired = files::retired_cut(name).is_some();
    name == MANIFEST || name == MANIFEST_TEMPORARY || files::is_part_name(name) || is_retired
}

/// Refuses if the checkpoint is, or may be, the base of another. One of which only its cut is left is none. Others are beside it, and
/// beside the name that it was `given` by, which may be a link.
fn refuse_base(folder: &Path, given: &Path, names: &[String]) -> Result<(), CheckpointError> {
    if !names.iter().any(|name| name == MANIFEST || files::is_part_name(name)) {
        return Ok(());
    }
    let beside = files::real(&files::parent(given))?;
    let own = files::parent(folder);
    refuse_base_in(&own, folder)?;
    if beside == own { Ok(()) } else { refuse_base_in(&beside, folder) }
}

fn refuse_base_in(parent: &Path, folder: &Path) -> Result<(), CheckpointError> {
    let is_it = |other: &Path| files::real(other).is_ok_and(|real| real == folder);
    for increment in folders(parent)?.into_iter().filter(|name| !is_it(&parent.join(name))) {
        let other = parent.join(&increment);
        let why = match read_manifest(&other, None) {
            Ok((manifest, _)) => match manifest.contents.base {
                Some(base) if is_it(&parent.join(&base.folder)) => {
                    "is an increment of it: delete that first, or export it and delete it then"
                        .to_owned()
                }
                _ => continue,
            },
            Err(CheckpointError::Unfinished { .. }) => continue,
            Err(error) if !error.is_refused() && cannot_be_increment(&other, folder) => continue,
            Err(error) => {
                let error = error.with_causes();
                format!("may be an increment of it ({error}): delete or move that first")
            }
        };
        return Err(CheckpointError::HasIncrement { folder: folder.to_path_buf(), increment, why });
    }
    Ok(())
}

/// Whether the parts of both show that the one is no increment of the other: an increment is of the same VM, and later.
fn cannot_be_increment(increment: &Path, base: &Path) -> bool {
    let (Some(above), Some(below)) = (only_head(increment), only_head(base)) else { return false };
    above.vm != below.vm || (above.generation, above.cut) <= (below.generation, below.cut)
}

/// What all parts in a folder are of. Nothing: one cannot be read, or is of something else, as one that an interruption has left.
fn only_head(folder: &Path) -> Option<PartHead> {
    let mut heads = heads_in(folder).ok()?;
    let first = heads.next()??;
    let is_of_it = |head: PartHead| PartHead { slice: first.slice, ..head } == first;
    heads.all(|head| head.is_some_and(is_of_it)).then_some(first)
}

/// Whether there is something of the same cut beside it.
fn has_twin(folder: &Path) -> bool {
    let parent = files::parent(folder);
    let Some(own) = heads_in(folder).ok().and_then(|mut heads| heads.find_map(|head| head)) else {
        return false;
    };
    let is_of_it = |head: Option<PartHead>| {
        head.is_some_and(|head| PartHead { slice: own.slice, ..head } == own)
    };
    let others = folders(&parent).unwrap_or_default().into_iter();
    let others = others.map(|name| parent.join(name)).filter(|other| other != folder);
    let mut heads = others.filter_map(|other| heads_in(&other).ok()).flatten();
    heads.any(is_of_it)
}

fn has_parts(folder: &Path) -> bool {
    entries(folder).is_ok_and(|entries| entries.iter().any(|(name, _)| is_own(name)))
}

/// Names of the folders in a folder, but for hidden ones.
fn folders(parent: &Path) -> Result<Vec<String>, CheckpointError> {
    let mut names = entries(parent)?;
    names.retain(|(name, path)| files::is_plain_name(name) && path.is_dir());
    Ok(names.into_iter().map(|(name, _)| name).collect())
}

/// What is in a folder, by name.
fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>, CheckpointError> {
    let io = || CheckpointError::io("read the folder", folder);
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(io())? {
        let entry = entry.map_err(io())?;
        entries.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
    }
    entries.sort();
    Ok(entries)
}
