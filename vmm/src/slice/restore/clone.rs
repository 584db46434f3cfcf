//! Another VM goes on from a checkpoint: a clone. The original may run on beside it.
//!
//! | | original | clone |
//! |---|---|---|
//! | identity | that of the checkpoint, a later generation | another VM, so records and locks of the original say nothing of it |
//! | disk that is written | IMAGE, over the state | IMAGE.clone-NAME, over the same state |
//! | disk that nobody writes | IMAGE | the same |
//! | address of a network | as it was | another one, unless it is given |
//! | generation id | another one | another one |

use super::{RestoreError, RestoreOptions, Restored, open};
use crate::slice::peripherals::{BackEndShape, DeviceKind};
use crate::slice::spec::VmSpec;
use devices::back_end::image::snapshot::{How, image_of_clone};
use std::collections::BTreeMap;
use std::path::Path;
use transport::{Secret, VmId};

/// What companions have to know of a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::slice) struct CloneId(pub(super) [u8; 16]);

/// The description of a clone of the VM in a checkpoint: this one, but for what it cannot share with the original. Its devices are
/// those of the checkpoint, or `given`: only then an address in it is one that somebody wants.
///
/// # Errors
/// The checkpoint cannot be read, or has no state of a disk that is written.
pub fn clone_spec(
    restore: &RestoreOptions,
    secret: Option<&Secret>,
    (mut spec, given): (VmSpec, bool),
) -> Result<VmSpec, RestoreError> {
    let Some(name) = &restore.clone else { return Ok(spec) };
    let checkpoint = open(&restore.path, restore.secret(secret))?;
    let states: BTreeMap<_, _> = super::disks_of(&checkpoint)?.into_iter().collect();
    for (device, (number, asked)) in (0_u16..).zip(&mut spec.devices).enumerate() {
        match &mut asked.kind {
            DeviceKind::Disk(disk) => {
                let refuse = |why| Err(RestoreError::Clone { device, why });
                match states.get(&number).map(|state| state.how) {
                    Some(How::Overlay | How::Clone) => {
                        let no_name = || RestoreError::CloneName(name.clone());
                        disk.path = image_of_clone(&disk.path, name).ok_or_else(no_name)?;
                        for standby in asked.standby.iter_mut().filter_map(|it| it.name.as_mut()) {
                            let path = image_of_clone(Path::new(standby.as_str()), name);
                            let path = path.ok_or_else(no_name)?;
                            *standby = path.to_string_lossy().into_owned();
                        }
                    }
                    Some(How::Unchanged) => {}
                    Some(How::Left) => {
                        return refuse("its VM has left the disk itself, and no state beside it");
                    }
                    Some(How::Nothing) | None => {
                        return refuse("the checkpoint has no state of its disk");
                    }
                }
            }
            DeviceKind::Nic(nic) => nic.mac = Some(address(nic.mac.filter(|_| given))?),
            _ => {}
        }
    }
    Ok(spec)
}

/// The address that is wanted, or one at random: locally administered, with the first bytes of virtual machines.
fn address(wanted: Option<[u8; 6]>) -> Result<[u8; 6], RestoreError> {
    if let Some(wanted) = wanted {
        return Ok(wanted);
    }
    let drawn = VmId::random().map_err(RestoreError::Identity)?.0;
    Ok([0x52, 0x54, drawn[0], drawn[1], drawn[2], drawn[3]])
}

impl Restored {
    /// The VM that goes on is another one.
    ///
    /// # Errors
    /// There is no randomness.
    pub(in crate::slice) fn become_clone(&mut self) -> Result<(), RestoreError> {
        let vm = VmId::random().map_err(RestoreError::Identity)?.0;
        self.become_clone_of(CloneId(vm));
        Ok(())
    }

    pub(super) fn become_clone_of(&mut self, id: CloneId) {
        self.identity.vm = id.0;
        self.clone = Some(id);
    }

    /// The device that the guest knows, as one of a clone can be.
    pub(super) fn known(&self, known: &BackEndShape, shape: &BackEndShape) -> BackEndShape {
        let mut known = known.clone();
        if let (true, BackEndShape::Nic(known), BackEndShape::Nic(shape)) =
            (self.clone.is_some(), &mut known, shape)
        {
            known.mac = shape.mac;
        }
        known
    }
}
