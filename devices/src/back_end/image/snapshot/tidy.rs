//! Merges and removes states that are released ([`release`](super::release)), while the VM runs or not. So a chain is as long as what
//! checkpoints need, and not as long as the VM has lived.
//!
//! ```text
//!   PATH -> c3 -> c2 -> c1*      c1 is released: what is in c2 goes into c1 (`merge`), all of it durable
//!        -> c3 -> c2*            c1 is renamed to c2: the file that was c2 has no name any more, and who has it open keeps it
//! ```
//! **What each file contains as a disk stays the same** by each step but for the state that is released, so nothing that lies over it and
//! no checkpoint needs to be told. The name changes in one step; before it and after it the chain opens.
//!
//! **One at a time.** Who writes to a state has a lock in the image's record for as long as its file is open. So a process of a former
//! generation that stands still in the middle of it keeps later ones from writing there, and does no harm when it goes on: as long as
//! nobody else has merged, what it writes is what has to be there.
//!
//! **Names** are looked at and changed while nobody else changes any (`exclusively`). What was released is never gone on from, so nothing new
//! comes to lie over it in between.

use super::super::guard::Guard;
use super::super::record::{GenerationRecord, sync_folder};
use super::super::{ImageError, ImageOptions, Writer, file};
use super::merge::{Merged, merge};
use super::users::{self, Next};
use super::{SnapshotError, exclusively, marks};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tidied {
    /// States that were merged with the one above.
    pub merged: u32,
    /// Files that were removed.
    pub removed: u32,
    /// States that are released and still there, for now.
    pub left: u32,
}

/// A step that comes next. Tests stop there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TidyStep {
    Scan,
    Copy,
    Rename,
    SyncFolder,
    Forget,
}

/// What is done before each step.
pub(super) type BeforeTidy<'a> = &'a dyn Fn(TidyStep);

/// Merges and removes what is released below an image that this generation ([`ImageOptions::record`]) has open. `goes_on` is asked again
/// and again: it ends soon after that says no.
///
/// # Errors
/// Another process tidies up or has taken over, or a step fails. Each disk is as it was.
pub fn tidy(options: &ImageOptions, goes_on: &dyn Fn() -> bool) -> Result<Tidied, SnapshotError> {
    tidy_before(options, options.record, (goes_on, &|_| {}))
}

/// The same below an image that nobody uses, and keeps others from using it meanwhile.
///
/// # Errors
/// As above, or somebody uses it.
pub fn tidy_unused(
    options: &ImageOptions,
    goes_on: &dyn Fn() -> bool,
) -> Result<Tidied, SnapshotError> {
    let path = &options.path;
    let options = &ImageOptions { record: None, direct: false, ..options.clone() };
    let held = file::open(options).map_err(|error| match error {
        ImageError::Locked { .. } => SnapshotError::Untidy(path.clone()),
        error => error.into(),
    })?;
    let record = GenerationRecord::watch(path, None)?;
    if record.is_some_and(|record| record.is_written().unwrap_or(true)) {
        return Err(SnapshotError::Untidy(path.clone()));
    }
    let done = tidy_before(options, None, (goes_on, &|_| {}));
    drop(held);
    done
}

pub(super) fn tidy_before(
    options: &ImageOptions,
    writer: Option<Writer>,
    (goes_on, before): (&dyn Fn() -> bool, BeforeTidy<'_>),
) -> Result<Tidied, SnapshotError> {
    let path = &options.path;
    let mut tidied = Tidied::default();
    if users::released(path).map_err(SnapshotError::of("look beside", path))?.is_empty() {
        return Ok(tidied);
    }
    // Without a record nobody would know of us.
    let Some(record) = GenerationRecord::watch(path, writer)? else {
        tidied.left = u32::MAX;
        return Ok(tidied);
    };
    if !record.tidies()? {
        return Err(SnapshotError::Untidy(path.clone()));
    }
    record.still_ours()?;
    let guard = GenerationRecord::watch(path, writer)?;
    let at =
        Tidying { options, record, guard: Arc::new(Guard::new(&options.fence, guard)), before };
    while goes_on() {
        before(TidyStep::Scan);
        let (next, left) = exclusively(Some(&at.record), || at.scan())?;
        tidied.left = left;
        match next {
            None => break,
            Some(Next::Remove(file)) => {
                at.remove(&file)?;
                tidied.removed += 1;
            }
            Some(Next::Merge { above, below }) => {
                if !at.merge((&above, &below), goes_on)? {
                    break;
                }
                tidied.merged += 1;
            }
        }
    }
    Ok(tidied)
}

struct Tidying<'a> {
    options: &'a ImageOptions,
    record: GenerationRecord,
    guard: Arc<Guard>,
    before: BeforeTidy<'a>,
}

impl Tidying<'_> {
    /// What is to be done next, and how many states are released. Nobody changes names meanwhile.
    fn scan(&self) -> Result<(Option<Next>, u32), SnapshotError> {
        let path = &self.options.path;
        let failed = SnapshotError::of("look beside", path);
        let mut images = users::images(path).map_err(&failed)?;
        // Who was interrupted has left them, and nobody is in the middle of anything now.
        let left_over: Vec<_> =
            images.keys().filter(|file| users::is_left_over(path, file)).cloned().collect();
        for file in left_over {
            fs::remove_file(&file).map_err(SnapshotError::of("remove", &file))?;
            images.remove(&file);
        }
        let (mut there, mut released) = (Vec::new(), 0);
        for state in users::released(path).map_err(&failed)? {
            if fs::symlink_metadata(&state).is_err_and(|it| it.kind() == io::ErrorKind::NotFound) {
                marks::forget(&state)?;
            } else {
                there.push(state);
                released += 1;
            }
        }
        Ok((users::next(path, &images, &there), released))
    }

    fn remove(&self, file: &Path) -> Result<(), SnapshotError> {
        // Names have not changed since: nobody makes anything lie over what is released, nor over what was abandoned.
        exclusively(Some(&self.record), || {
            fs::remove_file(file).map_err(SnapshotError::of("remove", file))
        })?;
        (self.before)(TidyStep::Forget);
        marks::forget(file)
    }

    /// False: it was to stop.
    fn merge(
        &self,
        (above, below): (&Path, &Path),
        goes_on: &dyn Fn() -> bool,
    ) -> Result<bool, SnapshotError> {
        let Self { options, record, guard, before } = self;
        before(TidyStep::Copy);
        let goes_on = || {
            before(TidyStep::Copy);
            goes_on()
        };
        let merged = merge(options, (above, below), guard, &goes_on);
        match merged.map_err(SnapshotError::of("merge another state into", below))? {
            Merged::Stopped => return Ok(false),
            Merged::Whole => before(TidyStep::Rename),
        }
        let (path, next) =
            (&options.path, Next::Merge { above: above.into(), below: below.into() });
        exclusively(Some(record), || {
            let images = users::images(path).map_err(SnapshotError::of("look beside", path))?;
            let is_still = users::next_for(path, &images, below).as_ref() == Some(&next);
            if !is_still || !guard.pass() {
                return Err(SnapshotError::Replaced(below.to_owned()));
            }
            fs::rename(below, above).map_err(SnapshotError::of("rename", below))?;
            before(TidyStep::SyncFolder);
            sync_folder(above).map_err(SnapshotError::of("flush the folder of", above))
        })?;
        before(TidyStep::Forget);
        marks::forget(below)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
