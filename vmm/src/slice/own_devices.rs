//! The devices of a host, opened while slices agree on a VM: before anything else, or last (`restore::fence`).
//!
//! ```text
//!   first: open --> facts of this host --Agree--> ...
//!   last:  facts --Agree--> Prepare, memory is read, Agree --> Prepare --> open --> facts with devices --Agree-->
//! ```

use super::host::HostFacts;
use super::negotiation::{START_LIMIT, gather};
use super::peripherals::{BackEnds, Lent};
use super::restore::{FENCE_LIMIT, LOAD_LIMIT, Restored};
use super::spec::{Shape, VmSpec};
use super::{SliceError, one_line};
use devices::back_end::image::OnFull;
use std::slice;
use std::time::Instant;
use transport::{BootstrapMesh, CompanionMesh};
use wire::SliceId;

/// Whose devices they are, and how they are opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnDevices<'a> {
    pub(super) local: SliceId,
    pub(super) on_full: OnFull,
    /// Only what is in there, if it is said.
    pub(super) lent: Option<&'a Lent>,
}

impl OwnDevices<'_> {
    /// Opens them for a VM, or for the next life of one.
    pub(super) fn open(
        &self,
        shape: &Shape,
        restored: Option<&Restored>,
    ) -> Result<BackEnds, SliceError> {
        let disks = restored.map(Restored::disks).unwrap_or_default();
        let (for_whom, how) = ((self.local, shape.vcpus()), (self.lent, self.on_full));
        Ok(BackEnds::open(&shape.devices, for_whom, how, &disks)?)
    }

    /// Who has written the disks may be another one since the first look.
    fn look_again(
        &self,
        (shape, restored): (&Shape, Option<&Restored>),
        facts: HostFacts,
    ) -> HostFacts {
        let look = |it: &Restored| it.newest_life((&shape.devices, self.local, self.lent));
        HostFacts { newest_life: restored.and_then(look), ..facts }
    }

    /// The bootstrap opens its own, and has companions open theirs. What `hosts` have is then known.
    pub(super) fn open_with_others(
        &self,
        (shape, restored): (&Shape, Option<&Restored>),
        mut mesh: Option<&mut BootstrapMesh>,
        hosts: &mut Vec<HostFacts>,
    ) -> Result<BackEnds, SliceError> {
        if let Some(mesh) = &mut mesh {
            mesh.prepare(Instant::now() + START_LIMIT).map_err(SliceError::Lost)?;
        }
        let own = self.look_again((shape, restored), hosts.swap_remove(0));
        go_on_nowhere_else(restored, slice::from_ref(&own))?;
        let open = self.open(shape, restored)?;
        let own = own.with_devices(&open)?;
        let others = mesh.map_or(Ok(Vec::new()), gather).map_err(lost)?;
        *hosts = [vec![own], others].concat();
        Ok(open)
    }

    /// A companion does so when the bootstrap says that it is time, and tells it what they are.
    pub(super) fn open_last(
        &self,
        (spec, restored): (&VmSpec, Option<&Restored>),
        facts: HostFacts,
        mesh: &mut CompanionMesh,
    ) -> Result<BackEnds, SliceError> {
        // All others are to have read their memory, and slices of before to have stopped.
        mesh.prepare(Instant::now() + LOAD_LIMIT + FENCE_LIMIT)?;
        let open = || {
            let shape = spec.shape()?;
            let facts = self.look_again((&shape, restored), facts);
            let open = match restored.and_then(|it| it.overtaken_by(facts.newest_life)) {
                // As `consider` of a companion does.
                Some(_) => BackEnds::default(),
                None => self.open(&shape, restored)?,
            };
            let facts = facts.with_devices(&open)?;
            let blob = serde_json::to_vec(&facts).map_err(|e| SliceError::Blob(self.local, e))?;
            Ok((open, blob))
        };
        let (opened, deadline) = (open(), Instant::now() + START_LIMIT);
        match opened {
            Ok((open, blob)) => {
                mesh.answer(Ok(&blob), deadline)?;
                Ok(open)
            }
            Err(error) => {
                mesh.answer(Err(&one_line(&error)), deadline)?;
                Err(error)
            }
        }
    }
}

/// Refuses to go on with a VM that goes on elsewhere.
pub(super) fn go_on_nowhere_else(
    restored: Option<&Restored>,
    hosts: &[HostFacts],
) -> Result<(), SliceError> {
    let Some(restored) = restored else { return Ok(()) };
    let overtaken = (0..).zip(hosts).find_map(|(slice, host)| {
        let life = restored.overtaken_by(host.newest_life)?;
        Some(SliceError::GoesOnElsewhere { slice: SliceId(slice), life })
    });
    overtaken.map_or(Ok(()), Err)
}

/// A companion that answered the call and went away is lost, not refused.
pub(super) fn lost(error: SliceError) -> SliceError {
    match error {
        SliceError::Mesh(source) => SliceError::Lost(source),
        other => other,
    }
}
