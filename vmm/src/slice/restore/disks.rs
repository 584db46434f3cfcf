//! The states of disks that a checkpoint needs, when it is deleted: nobody goes on from them any more. How they are restored is in
//! `vmm/src/slice/peripherals/disk/restored.rs`.
//!
//! ```text
//!   checkpoint --read before it is deleted--> states --give_up--> removed, or merged with the next one
//!                                                        \--> left to the VM that has the disk open; elsewhere
//! ```

use super::{RestoreError, disks_of, open};
use crate::slice::one_line;
use devices::back_end::image::ImageOptions;
use devices::back_end::image::snapshot::{self, DiskState, SnapshotError, Tidied};
use std::path::{Path, PathBuf};

/// The states of disks that a checkpoint has.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointDisks {
    vm: [u8; 16],
    cut: u64,
    states: Vec<DiskState>,
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
    /// Of the checkpoint in this folder. No secret is needed to delete it.
    ///
    /// # Errors
    /// It cannot be opened, or what it says of disks cannot be read.
    pub fn of(folder: &Path) -> Result<Self, RestoreError> {
        let checkpoint = open(folder, None)?;
        let contents = checkpoint.contents();
        let (vm, cut) = (contents.vm, contents.cut);
        let states = disks_of(&checkpoint)?.into_iter().map(|(_, state)| state).collect();
        Ok(Self { vm, cut, states })
    }

    /// Whether these are the same states: of an export of the same checkpoint.
    #[must_use]
    pub fn are_those_of(&self, other: &Self) -> bool {
        (self.vm, self.cut) == (other.vm, other.cut)
    }

    /// No checkpoint needs them any more. Those of images that nobody uses are merged or removed at once.
    #[must_use]
    pub fn give_up(&self) -> Vec<GivenUp> {
        let named = self.states.iter().filter_map(|state| Some((state, state.name()?)));
        let one = |(state, name): (&DiskState, &str)| GivenUp {
            image: state.path.clone(),
            state: name.to_owned(),
            outcome: give_up(state, name).unwrap_or_else(|error| Outcome::Stays(one_line(&error))),
        };
        named.map(one).collect()
    }
}

fn give_up(state: &DiskState, name: &str) -> Result<Outcome, SnapshotError> {
    if !snapshot::release(&state.path, name)? {
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
