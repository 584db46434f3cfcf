//! An image that is opened as it was at a checkpoint, before anything else of the VM is there.

use super::super::model::{LentThing, Opening};
use super::super::open_error::OpenError;
use super::{DiskSpec, WHAT};
use devices::back_end::image::ImageOptions;
use devices::back_end::image::snapshot::{self, DiskState, How};
use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::time::Duration;

/// For a look at a state.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

impl DiskSpec {
    /// Makes the image what it was at the checkpoint that the VM is restored from, if it is. What has its name from now on, if
    /// that is another file.
    pub(super) fn revert(&self, opening: &Opening<'_>) -> Result<Option<File>, OpenError> {
        let Some(state) = opening.restored else { return Ok(None) };
        self.is_lent(opening)?;
        let options = self.options(opening);
        let generation = opening.writer.map_or(0, |writer| writer.generation);
        let reverted = snapshot::revert(&options, state, generation, LOOK_LIMIT);
        let reverted = reverted.map_err(OpenError::of(WHAT))?;
        if let Some(abandoned) = &reverted.abandoned {
            let (path, abandoned) = (self.path.display(), abandoned.display());
            tracing::warn!(
                "disk {path} is as it was at the checkpoint; what it was is {abandoned}"
            );
        }
        Ok(reverted.file)
    }

    /// The state of an image that another slice reverts, perhaps after this: what has its name is then an overlay over that.
    pub(super) fn anchor(&self, opening: &Opening<'_>) -> Result<Option<File>, OpenError> {
        let Some(state) = opening.restored.filter(|state| state.how == How::Overlay) else {
            return Ok(None);
        };
        self.is_lent(opening)?;
        let options = self.options(opening);
        snapshot::verify(&options, state, LOOK_LIMIT).map_err(OpenError::of(WHAT))?;
        open(&options, state).map(Some).map_err(OpenError::of(WHAT))
    }

    /// That what has the name is what is lent, or was made of it by freezing: names are about to be changed.
    fn is_lent(&self, opening: &Opening<'_>) -> Result<(), OpenError> {
        let Some(LentThing::File(lent)) = opening.lent else { return Ok(()) };
        let number = |file: &File| file.metadata().map(|it| (it.dev(), it.ino()));
        let there = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&self.path);
        let same = there.and_then(|there| Ok(number(&there)? == number(lent)?));
        if same.is_ok_and(|same| same)
            || snapshot::follow(&self.path, lent).is_ok_and(|it| it.is_some())
        {
            return Ok(());
        }
        let text = format!("{} is another file than the one that is lent", self.path.display());
        Err(OpenError::of(WHAT)(text))
    }
}

fn open(options: &ImageOptions, state: &DiskState) -> std::io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(state.file_beside(&options.path))
}
