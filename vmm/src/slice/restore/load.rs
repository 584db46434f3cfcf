//! The contents of memory, which all slices read at the same time, each that of its home. It may take minutes.
//!
//! ```text
//!   bootstrap: all have agreed --Prepare--> reads its own --Agree of all--> sets the guest's clock, measures those of hosts
//!   companion:                 Prepare --> reads its own, looks whether it is still wanted --Agree--> Probe..., Commit
//! ```
//! With `--lazy`, memory is only made ready to be loaded: whatever is touched comes first, the rest while the guest runs
//! (`dsm::Loader`). Each slice then says so at once.
//!
//! Clocks of hosts drift apart, and the guest's goes on once it is set. So neither is touched before all memory is there.

use super::source::Pages;
use super::{LOAD_LIMIT, RestoreError, Restored};
use crate::slice::SliceError;
use crate::slice::one_line;
use dsm::{GuestRam, Loader, Pace, schedule};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transport::{BootstrapMesh, CompanionMesh};
use wire::Gfn;

/// To say something to the other side.
const TELL_LIMIT: Duration = Duration::from_secs(60);
/// Between two looks whether the bootstrap still waits.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Memory that is to be loaded.
#[derive(Clone, Copy)]
pub(in crate::slice) struct Place<'a> {
    pub(in crate::slice) ram: &'a Arc<GuestRam>,
    /// Of this slice's home.
    pub(in crate::slice) frames: &'a [Range<u64>],
    /// Peers give up a slice that is silent for so long.
    pub(in crate::slice) lease: Duration,
    /// See [`LocalOptions::load_pause`](crate::slice::LocalOptions::load_pause).
    pub(in crate::slice) pause: Duration,
}

impl Restored {
    /// Reads this slice's memory while companions read theirs.
    ///
    /// # Errors
    /// Some of it is damaged or cannot be read, or a companion is gone.
    pub(in crate::slice) fn load_all(
        &self,
        mut mesh: Option<&mut BootstrapMesh>,
        memory: Place<'_>,
    ) -> Result<Option<Loader>, SliceError> {
        if let Some(mesh) = &mut mesh {
            mesh.prepare(Instant::now() + TELL_LIMIT).map_err(SliceError::Lost)?;
        }
        let loader = self.load(&memory, &mut || Ok(()))?;
        let Some(mesh) = mesh else { return Ok(loader) };
        let answers = mesh.gather(Instant::now() + LOAD_LIMIT).map_err(SliceError::Lost)?;
        let refused = |(slice, answer): (_, Result<Vec<u8>, String>)| {
            answer.map(drop).map_err(|cause| SliceError::Refused { slice, cause })
        };
        answers.into_iter().try_for_each(refused)?;
        Ok(loader)
    }

    /// The same on a companion, which tells the bootstrap how it went.
    ///
    /// # Errors
    /// As above, or the bootstrap is gone.
    pub(in crate::slice) fn load_own(
        &self,
        mesh: &mut CompanionMesh,
        memory: Place<'_>,
    ) -> Result<Option<Loader>, SliceError> {
        let mut looked = Instant::now();
        let loaded = self.load(&memory, &mut || {
            if looked.elapsed() >= LOOK_EVERY {
                looked = Instant::now();
                mesh.check_waiting().map_err(RestoreError::Unwanted)?;
            }
            Ok(())
        });
        let deadline = Instant::now() + TELL_LIMIT;
        match loaded {
            Ok(loader) => {
                mesh.answer(Ok(&[]), deadline)?;
                Ok(loader)
            }
            Err(error @ RestoreError::Unwanted(_)) => Err(error.into()),
            Err(error) => {
                mesh.answer(Err(&one_line(&error)), deadline)?;
                Err(error.into())
            }
        }
    }

    /// Brings the contents of these frames into memory that nobody uses yet, or begins to.
    fn load(
        &self,
        Place { ram, frames, lease, pause }: &Place<'_>,
        goes_on: &mut dyn FnMut() -> Result<(), RestoreError>,
    ) -> Result<Option<Loader>, RestoreError> {
        if self.lazy {
            let (checkpoint, folder) = (Arc::clone(&self.checkpoint), self.folder.clone());
            let pages = Arc::new(Pages { checkpoint, folder });
            // The memory engine speaks to its peers every quarter of a lease, and may have been silent for that long.
            let prefer = schedule::prefer_this_thread_only;
            let pace = Pace { limit: *lease / 2, pause: *pause, prefer };
            let loader = Loader::start(ram, frames, pages, pace);
            return loader.map(Some).map_err(|error| RestoreError::Load(Arc::new(error)));
        }
        let mut pages = 0;
        for range in *frames {
            self.checkpoint.read(range.clone(), &mut |first, bytes: &[u8]| {
                pages += ram.write_run(Gfn(first), bytes);
                goes_on()
            })?;
        }
        tracing::info!("{pages} pages are read from the checkpoint");
        Ok(None)
    }
}
