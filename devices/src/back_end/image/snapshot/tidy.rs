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
//! **Who deletes a checkpoint** tidies up below an image that nobody has open, and locks it only while names change. For the rest it is a thread like that of
//! the VM: what it copies disturbs nobody who opens the image meanwhile.
//!
//! **Names** are looked at and changed while nobody else changes any (`exclusively`). What was released is never gone on from, so nothing new
//! comes to lie over it in between.

use super::super::file::{self, Opened};
use super::super::guard::Guard;
use super::super::record::{GenerationRecord, sync_folder};
use super::super::{ImageError, ImageOptions, Writer};
use super::merge::{Merged, merge};
use super::users::{self, Next};
use super::{SnapshotError, exclusively, marks, remove_left_over};
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
    /// Files of others in the folder that may not be read, so that nobody knows over what they lie.
    pub unread: u32,
}

/// Who tidies up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// Who has the image open, as this generation.
    User(Option<Writer>),
    /// Somebody else, while nobody has it open.
    Other,
}

impl Who {
    fn writer(self) -> Option<Writer> {
        match self {
            Self::User(writer) => writer,
            Self::Other => None,
        }
    }
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
    tidy_before(options, Who::User(options.record), (goes_on, &|_| {}))
}

/// The same below an image that nobody uses. Nobody is kept from using it meanwhile but for the moment in which names change: a VM has closed it
/// at each cut for a moment, and must have it again; one may be restored. Then this ends.
///
/// # Errors
/// As above, or somebody uses it.
pub fn tidy_unused(
    options: &ImageOptions,
    goes_on: &dyn Fn() -> bool,
) -> Result<Tidied, SnapshotError> {
    tidy_before(options, Who::Other, (goes_on, &|_| {}))
}

/// Keeps others from opening an image that nobody has open.
fn alone(options: &ImageOptions) -> Result<Opened, SnapshotError> {
    let options = ImageOptions { record: None, direct: false, ..options.clone() };
    match file::open(&options) {
        Ok((opened, _)) => Ok(opened),
        Err(ImageError::Locked { .. }) => Err(SnapshotError::Untidy(options.path)),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn tidy_before(
    options: &ImageOptions,
    who: Who,
    (goes_on, before): (&dyn Fn() -> bool, BeforeTidy<'_>),
) -> Result<Tidied, SnapshotError> {
    let (path, writer) = (&options.path, who.writer());
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
    let guard = Arc::new(Guard::new(&options.fence, guard));
    let at = Tidying { options, who, record, guard, before };
    if at.is_used()? {
        return Err(SnapshotError::Untidy(path.clone()));
    }
    let goes_on = &|| goes_on() && !at.is_used().unwrap_or(true);
    while goes_on() {
        before(TidyStep::Scan);
        let (next, left, unread) = exclusively(Some(&at.record), || at.scan())?;
        (tidied.left, tidied.unread) = (left, unread);
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
    who: Who,
    record: GenerationRecord,
    guard: Arc<Guard>,
    before: BeforeTidy<'a>,
}

impl Tidying<'_> {
    /// Whether somebody has opened an image that nobody is to have open.
    fn is_used(&self) -> Result<bool, SnapshotError> {
        if self.who != Who::Other {
            return Ok(false);
        }
        // Of one without a record nothing is seen but by locking it, which would be in its way: `alone` finds it.
        Ok(self.record.is_written()?)
    }

    /// Keeps an image that nobody is to have open from being opened; not that of who tidies up.
    fn alone(&self) -> Result<Option<Opened>, SnapshotError> {
        (self.who == Who::Other).then(|| alone(self.options)).transpose()
    }

    /// What is to be done next, how many states are released, and how many files may not be read. Nobody changes names meanwhile.
    fn scan(&self) -> Result<(Option<Next>, u32, u32), SnapshotError> {
        let path = &self.options.path;
        let failed = SnapshotError::of("look beside", path);
        // Who was interrupted has left them, and nobody is in the middle of anything now.
        remove_left_over(path).map_err(SnapshotError::of("remove what was left beside", path))?;
        let images = users::images(path, self.options.format).map_err(&failed)?;
        let (mut there, mut released) = (Vec::new(), 0);
        for state in users::released(path).map_err(&failed)? {
            if fs::symlink_metadata(&state).is_err_and(|it| it.kind() == io::ErrorKind::NotFound) {
                marks::forget(&state)?;
            } else {
                there.push(state);
                released += 1;
            }
        }
        Ok((users::next(path, &images.of, &there), released, images.unread))
    }

    fn remove(&self, file: &Path) -> Result<(), SnapshotError> {
        // Names have not changed since: nobody makes anything lie over what is released, nor over what was abandoned.
        exclusively(Some(&self.record), || {
            let _alone = self.alone()?;
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
        let Self { options, record, guard, before, .. } = self;
        before(TidyStep::Copy);
        let goes_on = || {
            before(TidyStep::Copy);
            goes_on()
        };
        let merged = merge(options, (above, below), guard, &goes_on);
        match merged {
            Ok(Merged::Stopped) => return Ok(false),
            Ok(Merged::Whole) => before(TidyStep::Rename),
            // A later generation has it.
            Err(_) if self.who == Who::Other && record.still_ours().is_err() => return Ok(false),
            Err(error) => {
                return Err(SnapshotError::of("merge another state into", below)(error));
            }
        }
        let (path, next) =
            (&options.path, Next::Merge { above: above.into(), below: below.into() });
        exclusively(Some(record), || {
            let images = users::images(path, options.format);
            let images = images.map_err(SnapshotError::of("look beside", path))?.of;
            let is_still = users::next_for(path, &images, below).as_ref() == Some(&next);
            if !is_still || !guard.pass() {
                return Err(SnapshotError::Replaced(below.to_owned()));
            }
            // No longer than this: who opens it waits.
            let alone = self.alone()?;
            fs::rename(below, above).map_err(SnapshotError::of("rename", below))?;
            drop(alone);
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
