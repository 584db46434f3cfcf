//! An image that becomes what it was at a checkpoint.
//!
//! ```text
//!   hold: its state is looked at, others are kept out --all slices have agreed and read their memory--> put_back: reverted, open
//!           \--the restore is refused: let go of, and no file was changed
//! ```

use super::super::model::{LentThing, Opening};
use super::super::open_error::OpenError;
use super::pending::{LOOK_LIMIT, Pending};
use super::{DiskPart, DiskSpec, OpenDisk, WHAT};
use devices::back_end::SwitchDisk;
use devices::back_end::image::snapshot::{self, DiskState, How, SnapshotError};
use devices::back_end::image::{ImageError, ImageOptions};
use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// For files of a process that has just ended to be closed.
const FREE_LIMIT: Duration = Duration::from_secs(2);
const FREE_AGAIN: Duration = Duration::from_millis(20);

impl DiskSpec {
    /// Looks at the image of a VM that is restored, and keeps others from using it. It is closed, and no file is changed.
    pub(super) fn hold(&self, opening: &Opening<'_>) -> Result<OpenDisk, OpenError> {
        if opening.restored.is_some() {
            self.is_lent(opening)?;
        }
        let (options, state) = (self.options(opening), opening.restored.cloned());
        let deadline = Instant::now() + FREE_LIMIT;
        let held = loop {
            match snapshot::hold(&options, state.as_ref(), LOOK_LIMIT) {
                // A process that was killed has its locks until the kernel has closed its files, of rings a moment later.
                Err(SnapshotError::InUse(_) | SnapshotError::Image(ImageError::Locked { .. }))
                    if Instant::now() < deadline =>
                {
                    sleep(FREE_AGAIN);
                }
                held => break held.map_err(OpenError::of(WHAT))?,
            }
        };
        let part = match state.as_ref().filter(|state| state.file.is_some()) {
            Some(state) => {
                let file = open(&options, state).map_err(OpenError::of(WHAT))?;
                DiskPart::of_state(self, opening, file)?
            }
            None => DiskPart::new(self, opening)?,
        };
        let switch = Arc::new(SwitchDisk::closed(part.look()?));
        let part = Arc::new(part.before(Pending { state, held }));
        Ok(OpenDisk { switch, part, moves: opening.moves })
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
        let Some(LentThing::Image { file: lent, root }) = opening.lent else { return Ok(()) };
        let origin = snapshot::cloned_from(&self.path).filter(|_| opening.cloned);
        let path = origin.as_ref().unwrap_or(&self.path);
        let number = |file: &File| file.metadata().map(|it| (it.dev(), it.ino()));
        let there = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let same = there.and_then(|there| Ok(number(&there)? == number(lent)?));
        if same.is_ok_and(|same| same) || snapshot::follow(path, root).is_ok_and(|it| it.is_some())
        {
            return Ok(());
        }
        let text = format!("{} is another file than the one that is lent", path.display());
        Err(OpenError::of(WHAT)(text))
    }
}

fn open(options: &ImageOptions, state: &DiskState) -> std::io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(state.file_beside(&options.path))
}
