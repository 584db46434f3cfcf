//! The states of disks that a checkpoint needs, when it is deleted: nobody goes on from them any more. How they are restored is in
//! `vmm/src/slice/peripherals/disk/restored.rs`.
//!
//! ```text
//!   checkpoint --read before it is deleted--> states --give_up--> removed, or merged with the next one
//!                                                        \--> left to the VM that has the disk open; elsewhere
//! ```

use super::{RestoreError, decode_disks};
use crate::slice::checkpoint::{DISKS, home_in};
use crate::slice::one_line;
use checkpoint::{Checkpoint, Key};
use devices::back_end::image::ImageOptions;
use devices::back_end::image::snapshot::{self, Claim, DiskState, SnapshotError, Tidied};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// For a look at each state.
const LOOK_LIMIT: Duration = Duration::from_secs(60);

/// The states of disks that a checkpoint has.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointDisks {
    vm: [u8; 16],
    cut: u64,
    /// Where its folder was made.
    home: Option<PathBuf>,
    states: Vec<DiskState>,
}

/// Who gives them up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Who deletes the checkpoint: they must be those of its VM.
    Checkpoint,
    /// A person who says so: they must be those that the checkpoint names.
    Person,
}

/// What has become of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// The image, as its host named it.
    pub image: PathBuf,
    /// Name of its state.
    pub state: String,
    /// What has become of that.
    pub outcome: Outcome,
}

/// What has become of a state that no checkpoint needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is not there any more: it was removed, or merged with the next one.
    Gone,
    /// It goes when its VM has the next checkpoint, or with another file that lies over it.
    Later,
    /// It is not on this host.
    Elsewhere,
    /// It stays, for this reason.
    Stays(String),
}

impl CheckpointDisks {
    /// Of the checkpoint in this folder; its bases need not be there. No secret is needed to delete it, but with a key it must be authentic.
    ///
    /// # Errors
    /// It cannot be opened, or what it says of disks cannot be read.
    pub fn of(folder: &Path, key: Option<&Key>) -> Result<Self, RestoreError> {
        let (contents, sections) = Checkpoint::own_sections(folder, key, DISKS)?;
        let mut states = Vec::new();
        for (slice, section) in sections {
            let disks = decode_disks(slice, &section)?;
            let named = disks.into_iter().map(|(_, state)| state).filter(|it| it.name().is_some());
            states.extend(named);
        }
        Ok(Self { vm: contents.vm, cut: contents.cut, home: home_in(&contents.extra), states })
    }

    /// Why they may be another VM's by now, if one of those that are here may.
    #[must_use]
    pub fn doubt(&self) -> Option<String> {
        let here = self.states.iter().filter(|state| state.file_beside(&state.path).exists());
        let checked = here.map(|state| snapshot::check_owner(&state.path, self.vm));
        checked.filter_map(Result::err).find_map(|error| match error {
            SnapshotError::Foreign { .. } | SnapshotError::Unknown(_) => Some(one_line(&error)),
            _ => None,
        })
    }

    /// What keeps a VM from going on from them for ever, of those that are here: somebody has changed one, or given it up.
    #[must_use]
    pub fn spoiled(&self) -> Option<String> {
        let verify = |state: &DiskState| {
            let options = ImageOptions::new(&state.path, state.format);
            snapshot::verify(&options, state, LOOK_LIMIT)
        };
        self.states.iter().find_map(|state| match verify(state) {
            Err(error @ (SnapshotError::Changed { .. } | SnapshotError::Released(_))) => {
                Some(one_line(&error))
            }
            _ => None,
        })
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// The cut that they are of.
    #[must_use]
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// The folder in which the checkpoint's was made, if it says so. In another one it is a copy or an export.
    #[must_use]
    pub fn home(&self) -> Option<&Path> {
        self.home.as_deref()
    }

    /// Whether these are the same states: of an export of the same checkpoint.
    #[must_use]
    pub fn are_those_of(&self, other: &Self) -> bool {
        (self.vm, self.cut) == (other.vm, other.cut)
    }

    /// No checkpoint needs them any more. Those of images that nobody uses are merged or removed at once.
    #[must_use]
    pub fn give_up(&self, by: By) -> Vec<GivenUp> {
        let claim = match by {
            By::Checkpoint => Claim::Vm(self.vm),
            By::Person => Claim::Person,
        };
        let named = self.states.iter().filter_map(|state| Some((state, state.name()?)));
        let one = |(state, name): (&DiskState, &str)| GivenUp {
            image: state.path.clone(),
            state: name.to_owned(),
            outcome: give_up(state, claim).unwrap_or_else(|error| Outcome::Stays(one_line(&error))),
        };
        named.map(one).collect()
    }
}

fn give_up(state: &DiskState, claim: Claim) -> Result<Outcome, SnapshotError> {
    if !snapshot::give_up(state, claim, LOOK_LIMIT)? {
        return Ok(Outcome::Elsewhere);
    }
    let options = ImageOptions::new(&state.path, state.format);
    match snapshot::tidy_unused(&options, &|| true) {
        Ok(Tidied { .. }) | Err(SnapshotError::Untidy(_)) => {}
        Err(error) => return Err(error),
    }
    let there = state.file_beside(&state.path).try_exists();
    let is_marked = snapshot::is_released(&state.file_beside(&state.path));
    Ok(if matches!(there, Ok(false)) || !is_marked { Outcome::Gone } else { Outcome::Later })
}
