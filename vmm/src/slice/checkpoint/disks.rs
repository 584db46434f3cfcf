//! The disks of a slice in its part of a checkpoint, and for which folder of checkpoints their states are kept.

use crate::slice::spec::DEVICES_MAX;
use devices::back_end::image::snapshot::DiskState;
use migrate::{Invalid, SavedState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The blob of a checkpoint with the folder in which its folder was made. The states of its disks are that one's: who deletes a copy or an export
/// elsewhere does not give them up.
const HOME: &str = "home";

/// What a checkpoint says of the folder in which its folder is made.
pub(super) fn say_home(parent: &Path) -> BTreeMap<String, Vec<u8>> {
    let home =
        parent.canonicalize().map(|home| (HOME.to_owned(), home.as_os_str().as_bytes().to_vec()));
    home.into_iter().collect()
}

/// In which folder a checkpoint says that it was made.
pub(crate) fn home_in(extra: &BTreeMap<String, Vec<u8>>) -> Option<PathBuf> {
    extra.get(HOME).map(|home| OsStr::from_bytes(home).into())
}

/// The states of the disks that a slice has, by the devices' numbers, ascending. A disk that is not here is opened as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiskStates {
    pub(crate) disks: Vec<(u16, DiskState)>,
}

impl SavedState for DiskStates {
    const NAME: &'static str = "disks of a slice";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = DEVICES_MAX * (DiskState::MAX_BYTES + 16) + 64;

    fn check(&self) -> Result<(), Invalid> {
        Invalid::unless(self.disks.len() <= DEVICES_MAX, "disks", "more than a VM has")?;
        let ascending = self.disks.is_sorted_by(|one, next| one.0 < next.0);
        Invalid::unless(ascending, "disks", "not in ascending order")?;
        self.disks.iter().try_for_each(|(_, state)| state.check())
    }
}
