//! The disks of a slice in its part of a checkpoint.

use crate::slice::spec::DEVICES_MAX;
use devices::back_end::image::snapshot::DiskState;
use migrate::{Invalid, SavedState};
use serde::{Deserialize, Serialize};

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
