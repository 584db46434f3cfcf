//! A VM goes on from a checkpoint, on any number of slices.
//!
//! ```text
//!   open: manifest, forms of all former slices, checked together --> is it the VM that is wanted, can these hosts run it?
//!     --load, or begin to (`--lazy`)--> memory of each new slice's own home --> clocks --SliceStart--> vCPUs, platform devices, bus, queues
//!     --> engines start with nothing shared --> all at rest --Begin--> the guest goes on
//! ```
//! The memory engines begin as those of a new VM: each page is at its home, and nobody shares any. So the former slices and
//! their memory engines need not be there again, and the new ones may be of any number. vCPUs, queues and the platform
//! devices go where the new placement has them.

mod clone;
mod disk_writers;
mod error;
mod fence;
mod fit;
mod give_up;
mod load;
mod slice_start;
mod source;

pub use clone::clone_spec;
pub use disk_writers::disk_writers;
pub use error::RestoreError;
pub(super) use fence::{LONGEST as FENCE_LIMIT, wait_for_fence};
pub(super) use fit::with_interrupts;
pub use give_up::{By, CheckpointDisks, GivenUp, Outcome};
pub(super) use load::Place;
pub(super) use slice_start::SliceStart;

use super::checkpoint::{DISKS, Description, DiskStates, FORM, Identity};
use super::one_line;
use super::peripherals::{BackEnds, DeviceSpec, FromCheckpoint, Lent};
use super::saved::{SliceState, check_together};
use super::spec::VmSpec;
use checkpoint::{Authenticity, Checkpoint, Key};
use clone::CloneId;
use devices::back_end::image::Writer;
use devices::back_end::image::snapshot::{DiskState, How};
use migrate::saved::decode;
use migrate::supervise::Lives;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use transport::Secret;
use wire::SliceId;

/// For all slices to read the memory of their homes.
pub(super) const LOAD_LIMIT: Duration = Duration::from_secs(1800);

/// What the guest's clock shows first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestoredClock {
    /// What it showed last: the guest does not see the time that it was away.
    #[default]
    Keep,
    /// As if it had run on.
    CatchUp,
}

/// From where a VM goes on, as the bootstrap is told.
#[derive(Clone, Debug)]
pub struct RestoreOptions {
    /// Folder of the checkpoint.
    pub path: PathBuf,
    /// What the guest's clock shows first.
    pub clock: RestoredClock,
    /// It may have been written by somebody who does not know the VM's secret.
    pub unauthenticated: bool,
    /// Disks of which it has no state may be others than the VM has left.
    pub no_disk_guarantee: bool,
    /// The guest runs before its memory is read.
    pub lazy: bool,
    /// The VM that goes on is another one, and this is what its disks are called: the original may run beside it.
    pub clone: Option<String>,
    /// Slices of former lives of the VM may be there until then, in milliseconds of CLOCK_BOOTTIME. Devices are opened after that.
    pub fenced_at: Option<u64>,
    /// Which life it is, and the last one that is known; if that is not said, it is a later one than all that records beside images name.
    pub lives: Option<Lives>,
}

impl RestoreOptions {
    /// The secret by which its writer is known, if that matters.
    #[must_use]
    pub fn secret<'a>(&self, secret: Option<&'a Secret>) -> Option<&'a Secret> {
        secret.filter(|_| !self.unauthenticated)
    }
}

/// Which checkpoint all slices of a VM go on from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckpointName {
    /// Name of its folder.
    pub(super) folder: String,
    /// What names its contents.
    pub(super) digest: String,
    /// The life of the VM that goes on from it.
    pub(super) generation: u64,
    /// See [`RestoreOptions::no_disk_guarantee`].
    pub(super) no_disk_guarantee: bool,
    /// See [`RestoreOptions::lazy`].
    pub(super) lazy: bool,
    /// See [`RestoreOptions::clone`].
    pub(super) clone: Option<CloneId>,
    /// Devices are opened when all memory is there: see [`RestoreOptions::fenced_at`].
    pub(super) devices_last: bool,
    /// See [`Lives::last`].
    #[serde(default)]
    pub(super) last_life: Option<u64>,
}

/// A checkpoint that a VM goes on from, open.
#[derive(Debug)]
pub(super) struct Restored {
    checkpoint: Arc<Checkpoint>,
    folder: PathBuf,
    /// Forms of the former slices, ascending.
    states: Vec<SliceState>,
    disks: BTreeMap<u16, DiskState>,
    no_disk_guarantee: bool,
    /// See [`RestoreOptions::lazy`].
    pub(super) lazy: bool,
    /// Another VM goes on than that of the checkpoint.
    clone: Option<CloneId>,
    /// See [`CheckpointName::devices_last`].
    pub(super) devices_last: bool,
    /// See [`Lives::last`].
    last_life: Option<u64>,
    pub(super) vm: Description,
    /// The VM that goes on from it.
    pub(super) identity: Identity,
}

impl Restored {
    /// Opens it, and checks all but the contents of memory. With a secret it must have been written by who knows that.
    ///
    /// # Errors
    /// It is not there, damaged, or no cut of a VM.
    pub(super) fn open(folder: &Path, secret: Option<&Secret>) -> Result<Self, RestoreError> {
        let checkpoint = Arc::new(open(folder, secret)?);
        let vm = describe(&checkpoint)?;
        let read = |slice: SliceId| {
            let bytes = checkpoint.section(slice, FORM)?;
            decode(&bytes).map_err(|source| RestoreError::Form { slice, source })
        };
        let slices = checkpoint.contents().parts.iter().map(|part| part.slice);
        let states: Vec<SliceState> = slices.map(read).collect::<Result<_, _>>()?;
        check_together(&states)?;
        let disks = disks_of(&checkpoint)?.into_iter().collect();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (identity, folder) = (vm.identity.restored(now.as_secs()), folder.to_owned());
        let (no_disk_guarantee, lazy, clone, devices_last) = (false, false, None, false);
        let last_life = None;
        let restored = Self {
            checkpoint,
            folder,
            states,
            disks,
            no_disk_guarantee,
            lazy,
            clone,
            devices_last,
            last_life,
            vm,
            identity,
        };
        restored.agrees()?;
        Ok(restored)
    }

    /// The same as the bootstrap is told.
    ///
    /// # Errors
    /// As for [`Self::open`], or it is authenticated and nobody can check that.
    pub(super) fn open_as(
        options: &RestoreOptions,
        secret: Option<&Secret>,
    ) -> Result<Self, RestoreError> {
        let mut restored = Self::open(&options.path, options.secret(secret))?;
        let unchecked = restored.checkpoint.authenticity() == Authenticity::NotChecked;
        if unchecked && !options.unauthenticated {
            return Err(RestoreError::NoSecret(restored.folder));
        }
        restored.set_no_disk_guarantee(options.no_disk_guarantee);
        restored.lazy = options.lazy;
        restored.devices_last = options.fenced_at.is_some();
        if let Some(Lives { last, next }) = options.lives {
            restored.last_life = Some(last);
            restored.identity = restored.vm.identity.begun_as(next);
        }
        if options.clone.is_some() {
            restored.become_clone()?;
        }
        Ok(restored)
    }

    /// The newest life of the VM that records beside its images on a host name; see [`BackEnds::newest_life`].
    pub(super) fn newest_life(
        &self,
        (devices, local, lent): (&[DeviceSpec], SliceId, Option<&Lent>),
    ) -> Option<u64> {
        BackEnds::newest_life(devices, local, lent, self.identity.vm)
    }

    /// The life by which this one is overtaken, if records name one that is: who begins this one does not know of it.
    pub(super) fn overtaken_by(&self, newest: Option<u64>) -> Option<u64> {
        newest.filter(|life| self.last_life.is_some_and(|last| *life > last))
    }

    /// The VM that goes on is a later life than this one.
    pub(super) fn outlive(&mut self, former: Option<u64>) {
        if let Some(former) = former {
            self.identity = self.identity.after(former);
        }
    }

    /// The same on a host that another one tells which it is.
    ///
    /// # Errors
    /// As for [`Self::open`], or it is another one.
    pub(super) fn open_named(
        parent: Option<&Path>,
        name: &CheckpointName,
    ) -> Result<Self, RestoreError> {
        let parent = parent.ok_or(RestoreError::NoFolder)?;
        super::checkpoint::check_name(&name.folder).map_err(RestoreError::Name)?;
        let mut restored = Self::open(&parent.join(&name.folder), None)?;
        if restored.name()?.digest != name.digest {
            return Err(RestoreError::Other(restored.folder));
        }
        restored.identity.generation = name.generation;
        if let Some(id) = name.clone {
            restored.become_clone_of(id);
        }
        restored.set_no_disk_guarantee(name.no_disk_guarantee);
        restored.lazy = name.lazy;
        restored.devices_last = name.devices_last;
        restored.last_life = name.last_life;
        Ok(restored)
    }

    /// See [`RestoreOptions::no_disk_guarantee`].
    pub(super) fn set_no_disk_guarantee(&mut self, on: bool) {
        self.no_disk_guarantee = on;
        self.disks.retain(|_, state| !on || state.how != How::Left);
    }

    /// Which it is.
    ///
    /// # Errors
    /// Its folder has no name.
    pub(super) fn name(&self) -> Result<CheckpointName, RestoreError> {
        let folder = self.folder.canonicalize().ok();
        let folder = folder.as_deref().and_then(Path::file_name);
        let folder = folder.ok_or_else(|| RestoreError::Other(self.folder.clone()))?;
        let folder = folder.to_string_lossy().into_owned();
        let (digest, generation) = (self.checkpoint.digest().to_string(), self.identity.generation);
        let Self { no_disk_guarantee, lazy, clone, devices_last, last_life, .. } = *self;
        Ok(CheckpointName {
            folder,
            digest,
            generation,
            no_disk_guarantee,
            lazy,
            clone,
            devices_last,
            last_life,
        })
    }

    /// What the disks were. Who writes them from now on is a later generation.
    pub(super) fn disks(&self) -> FromCheckpoint {
        let Identity { vm, generation } = self.identity;
        let (writer, cloned) = (Some(Writer { vm, generation }), self.clone.is_some());
        FromCheckpoint { writer, disks: self.disks.clone(), cloned }
    }

    /// What the guest's counter is to show now.
    pub(super) fn ticks(&self, clock: RestoredClock) -> u64 {
        let ticks = self.states.iter().map(|state| state.ticks).max().unwrap_or(0);
        let away = match clock {
            RestoredClock::Keep => 0,
            RestoredClock::CatchUp => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let then = Duration::from_millis(self.checkpoint.contents().created_unix_ms);
                now.saturating_sub(then).as_millis()
            }
        };
        let away = away.saturating_mul(self.vm.tsc_khz.into());
        ticks.saturating_add(u64::try_from(away).unwrap_or(0))
    }
}

/// Whether a VM could go on from the checkpoint in this folder, as far as can be told without reading memory. The error is a
/// line for a person.
pub(super) fn opens(folder: &Path) -> Result<(), String> {
    Restored::open(folder, None).map(drop).map_err(|error| one_line(&error))
}

fn open(folder: &Path, secret: Option<&Secret>) -> Result<Checkpoint, RestoreError> {
    let key = secret.map(|secret| secret.derive(Key::of_secret));
    Ok(Checkpoint::open(folder, key.as_ref())?)
}

/// The states of disks in a checkpoint, with the devices' numbers.
fn disks_of(checkpoint: &Checkpoint) -> Result<Vec<(u16, DiskState)>, RestoreError> {
    let mut disks = Vec::new();
    for part in &checkpoint.contents().parts {
        let slice = part.slice;
        disks.extend(decode_disks(slice, &checkpoint.section(slice, DISKS)?)?);
    }
    Ok(disks)
}

fn decode_disks(slice: SliceId, section: &[u8]) -> Result<Vec<(u16, DiskState)>, RestoreError> {
    let of_slice: DiskStates =
        decode(section).map_err(|source| RestoreError::Form { slice, source })?;
    Ok(of_slice.disks)
}

fn describe(checkpoint: &Checkpoint) -> Result<Description, RestoreError> {
    serde_json::from_str(&checkpoint.contents().spec).map_err(RestoreError::Describe)
}

/// The description of a VM in a checkpoint, as it was started, and with the interrupts that it has. It may go on with others.
///
/// # Errors
/// There is no checkpoint, or it is damaged.
pub fn saved_spec(folder: &Path, secret: Option<&Secret>) -> Result<VmSpec, RestoreError> {
    let Description { spec, interrupts, .. } = describe(&open(folder, secret)?)?;
    Ok(VmSpec { interrupts, ..spec })
}

/// Whether a VM of this description could go on from a checkpoint. Hosts and disks are not asked.
///
/// # Errors
/// The checkpoint cannot be read, no VM is like that, or the one of the checkpoint is another one.
pub fn fits_checkpoint(
    restore: &RestoreOptions,
    secret: Option<&Secret>,
    spec: &VmSpec,
) -> Result<(), RestoreError> {
    let restored = Restored::open_as(restore, secret)?;
    restored.fits(spec, &spec.shape().map_err(RestoreError::Asked)?)
}
