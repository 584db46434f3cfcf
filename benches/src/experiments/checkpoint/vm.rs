//! VMs of which checkpoints are written, and when what was done.

use super::float;
use crate::experiments::cycles_per_ns;
use crate::real_vm::Companion;
use crate::telling_vm::{Shape, Told, Vm};
use anyhow::{Context, Result, bail};
use checkpoint::Checkpoint;
use microguest::job::now;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use transport::CarrierKind;
use vmm::control::{Answer, CheckpointRequest, PauseRequest, Request, ResumeRequest};
use vmm::slice::{Interrupts, SliceSpec};

/// What was noted in hours is told in so much time.
const TELLING: Duration = Duration::from_secs(1200);
/// Chunks come to lie on huge pages meanwhile.
const SETTLES: Duration = Duration::from_secs(3);

/// A VM, and where its checkpoints go.
#[derive(Debug)]
pub(super) struct Saved {
    vm: Vm,
    folder: PathBuf,
}

/// A checkpoint that was written. Times are this host's counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    /// From the request to its answer.
    pub(super) times: (u64, u64),
    /// The moment that the manifest names lies in here, a millisecond: all were at rest.
    pub(super) moment: (u64, u64),
    /// What the answer says.
    pub(super) paused_ms: f64,
    pub(super) took_ms: f64,
    pub(super) bytes: u64,
}

impl Written {
    /// Megabytes in a second.
    pub(super) fn rate(&self) -> f64 {
        float(self.bytes) / self.took_ms / 1e3
    }
}

/// So much of the counter.
pub(super) fn ticks(time: Duration) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some seconds")]
    let ticks = (time.as_secs_f64() * 1e9 * cycles_per_ns()) as u64;
    ticks
}

impl Saved {
    /// Starts it: on two slices if there is a companion, which must have been told the same folder.
    ///
    /// # Errors
    /// The VM does not start.
    pub(super) fn start(
        guest: &Path,
        (bytes, companion): (u64, Option<Companion>),
        folder: &Path,
    ) -> Result<Self> {
        let slices: u32 = if companion.is_some() { 2 } else { 1 };
        let memory = bytes / u64::from(slices);
        let spec = SliceSpec { vcpus: 2 / slices, spare_vcpus: 0, memory };
        let shape = Shape {
            slices: vec![spec; usize::try_from(slices)?],
            interrupts: Interrupts::Auto,
            carrier: CarrierKind::Shm,
            telling: TELLING,
        };
        let vm = Vm::start(guest, shape, companion)?;
        sleep(SETTLES);
        Ok(Self { vm, folder: folder.to_owned() })
    }

    /// Writes a checkpoint.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn write(&self, stop: bool) -> Result<Written> {
        let folder = self.checkpoint();
        let path = folder.to_str().context("a folder with a name")?.to_owned();
        let request = CheckpointRequest { path, stop, ..CheckpointRequest::default() };
        let (answer, times) = self.vm.ask(&Request::Checkpoint(request))?;
        let Answer::Checkpoint(answer) = answer else {
            bail!("a checkpoint is answered by {answer:?}");
        };
        // In milliseconds since 1970, rounded down.
        let cut_ms = Checkpoint::open(&folder, None)?.contents().created_unix_ms;
        let (unix, host) = (SystemTime::now().duration_since(UNIX_EPOCH)?, now());
        let before = |time: Duration| host.saturating_sub(ticks(time));
        let since = unix.saturating_sub(Duration::from_millis(cut_ms));
        let moment = (before(since), before(since.saturating_sub(Duration::from_millis(1))));
        Ok(Written {
            times,
            moment,
            paused_ms: answer.paused_milliseconds,
            took_ms: answer.milliseconds,
            bytes: answer.bytes,
        })
    }

    /// Where it is.
    pub(super) fn checkpoint(&self) -> PathBuf {
        self.folder.join("one")
    }

    /// Ends it, whatever its guest has noted, and keeps the checkpoint that was written last.
    pub(super) fn leave(self) -> PathBuf {
        self.checkpoint()
    }

    /// Removes the checkpoint that was written last.
    ///
    /// # Errors
    /// The file system refuses.
    pub(super) fn forget(&self) -> Result<()> {
        fs::remove_dir_all(self.checkpoint()).context("remove a checkpoint")
    }

    /// Its vCPUs stop.
    ///
    /// # Errors
    /// They do not.
    pub(super) fn pause(&self) -> Result<()> {
        self.vm.ask(&Request::Pause(PauseRequest {})).context("pause a VM").map(drop)
    }

    /// They go on.
    ///
    /// # Errors
    /// They do not.
    pub(super) fn resume(&self) -> Result<()> {
        self.vm.ask(&Request::Resume(ResumeRequest {})).context("resume a VM").map(drop)
    }

    /// Ends it; what its guest tells.
    ///
    /// # Errors
    /// It has not ended as it should.
    pub(super) fn end(self) -> Result<Told> {
        self.vm.end()
    }
}
