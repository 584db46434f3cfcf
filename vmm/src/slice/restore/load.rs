//! The contents of memory, which all slices read at the same time, each that of its home. It may take minutes.
//!
//! ```text
//!   bootstrap: all have agreed --Prepare--> reads its own --Agree of all--> sets the guest's clock, measures those of hosts
//!   companion:                 Prepare --> reads its own, looks whether it is still wanted --Agree--> Probe..., Commit
//! ```
//! Clocks of hosts drift apart, and the guest's goes on once it is set. So neither is touched before all memory is there.

use super::{LOAD_LIMIT, RestoreError, Restored};
use crate::slice::SliceError;
use crate::slice::one_line;
use dsm::GuestRam;
use std::ops::Range;
use std::time::{Duration, Instant};
use transport::{BootstrapMesh, CompanionMesh};
use wire::Gfn;

/// To say something to the other side.
const TELL_LIMIT: Duration = Duration::from_secs(60);
/// Between two looks whether the bootstrap still waits.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Restored {
    /// Reads this slice's memory while companions read theirs.
    ///
    /// # Errors
    /// Some of it is damaged or cannot be read, or a companion is gone.
    pub(in crate::slice) fn load_all(
        &self,
        mut mesh: Option<&mut BootstrapMesh>,
        (ram, frames): (&GuestRam, &[Range<u64>]),
    ) -> Result<(), SliceError> {
        if let Some(mesh) = &mut mesh {
            mesh.prepare(Instant::now() + TELL_LIMIT).map_err(SliceError::Lost)?;
        }
        self.load(ram, frames, &mut || Ok(()))?;
        let Some(mesh) = mesh else { return Ok(()) };
        let answers = mesh.gather(Instant::now() + LOAD_LIMIT).map_err(SliceError::Lost)?;
        let refused = |(slice, answer): (_, Result<Vec<u8>, String>)| {
            answer.map(drop).map_err(|cause| SliceError::Refused { slice, cause })
        };
        answers.into_iter().try_for_each(refused)
    }

    /// The same on a companion, which tells the bootstrap how it went.
    ///
    /// # Errors
    /// As above, or the bootstrap is gone.
    pub(in crate::slice) fn load_own(
        &self,
        mesh: &mut CompanionMesh,
        (ram, frames): (&GuestRam, &[Range<u64>]),
    ) -> Result<(), SliceError> {
        let mut looked = Instant::now();
        let loaded = self.load(ram, frames, &mut || {
            if looked.elapsed() >= LOOK_EVERY {
                looked = Instant::now();
                mesh.check_waiting().map_err(RestoreError::Unwanted)?;
            }
            Ok(())
        });
        let deadline = Instant::now() + TELL_LIMIT;
        match loaded {
            Ok(()) => Ok(mesh.answer(Ok(&[]), deadline)?),
            Err(error @ RestoreError::Unwanted(_)) => Err(error.into()),
            Err(error) => {
                mesh.answer(Err(&one_line(&error)), deadline)?;
                Err(error.into())
            }
        }
    }

    /// Brings the contents of these frames into memory that nobody uses yet.
    fn load(
        &self,
        ram: &GuestRam,
        frames: &[Range<u64>],
        goes_on: &mut dyn FnMut() -> Result<(), RestoreError>,
    ) -> Result<(), RestoreError> {
        let mut pages = 0;
        for range in frames {
            self.checkpoint.read(range.clone(), &mut |first, bytes: &[u8]| {
                pages += ram.write_run(Gfn(first), bytes);
                goes_on()
            })?;
        }
        tracing::info!("{pages} pages are read from the checkpoint");
        Ok(())
    }
}
