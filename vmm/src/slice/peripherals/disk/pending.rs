//! What is to become of an image that is held until the guest goes on.

use super::super::open_error::OpenError;
use super::WHAT;
use devices::back_end::image::ImageOptions;
use devices::back_end::image::snapshot::{self, DiskState, Held};
use std::fs::File;
use std::time::Duration;

/// For a look at a state.
pub(super) const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// What becomes of an image when the guest goes on.
#[derive(Debug)]
pub(super) struct Pending {
    /// What it was at the checkpoint, if that is known.
    pub(super) state: Option<DiskState>,
    /// Nobody else uses it meanwhile.
    pub(super) held: Held,
}

impl Pending {
    /// Makes the image what it was at the checkpoint. What has its name from now on, if that is another file.
    pub(super) fn put_back(self, options: &ImageOptions) -> Result<Option<File>, OpenError> {
        let Self { state, held } = self;
        let generation = options.record.map_or(0, |writer| writer.generation);
        let Some(state) = state else { return Ok(None) };
        // Who replaces the file keeps it until that is done; who opens the very file must let go of it.
        let held = Some(held).filter(|_| state.file.is_some());
        let reverted = snapshot::revert(options, &state, generation, LOOK_LIMIT);
        drop(held);
        let reverted = reverted.map_err(OpenError::of(WHAT))?;
        if let Some(abandoned) = &reverted.abandoned {
            let (path, abandoned) = (options.path.display(), abandoned.display());
            tracing::warn!(
                "disk {path} is as it was at the checkpoint; what it was is {abandoned}"
            );
        }
        Ok(reverted.file)
    }
}
