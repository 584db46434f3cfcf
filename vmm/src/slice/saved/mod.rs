//! The saved form of a slice: everything but the contents of its memory.
//!
//! ```text
//!   Quiesce::save --> SliceState of each slice --check_together--> a cut of the VM
//! ```
//! Each part has its form beside it; this one only puts them together and checks what no part can see: that each vCPU and
//! queue is where the placement says, once, and that nothing is on its way between two slices.

mod join;
mod together;

#[cfg(test)]
mod tests;

pub(super) use join::JoinState;
pub use together::Disagreement;

pub(super) use together::check_together;

use super::frame_counts::{self, PeerFrames};
use super::peripherals::{DevicesState, OrderState};
use super::spec::{SLICES_MAX, VCPUS_MAX};
use crate::machine::saved::VcpuState;
use devices::saved::ChipsetState;
use dsm::saved::{HomeState, NodeState};
use migrate::saved::decode;
use migrate::{Invalid, Placement, PlacementState, SavedError, SavedState};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use wire::SliceId;

/// Why saved forms are not a cut of a VM.
#[derive(Debug, Error)]
pub enum FormError {
    /// One of them is no saved form of a slice.
    #[error("form {0}")]
    Form(usize, #[source] SavedError),
    /// They do not fit together.
    #[error("the forms are not a cut of a VM")]
    Together(#[from] Disagreement),
}

/// Checks that the bytes of saved forms, one of each slice in any order, are a cut of a VM.
///
/// # Errors
/// The first thing that cannot be.
pub fn check_forms(forms: &[Vec<u8>]) -> Result<(), FormError> {
    let read = |(number, bytes): (usize, &Vec<u8>)| {
        decode(bytes).map_err(|error| FormError::Form(number, error))
    };
    let states: Vec<SliceState> = (1..).zip(forms).map(read).collect::<Result<_, _>>()?;
    Ok(check_together(&states)?)
}

/// One slice at a cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SliceState {
    /// Which.
    pub(crate) slice: SliceId,
    /// Where everything of the VM is; the same on all slices.
    pub(crate) placement: PlacementState,
    /// The guest's time stamp counter when the vCPUs here had come to rest.
    pub(crate) ticks: u64,
    /// The vCPUs here, ascending.
    pub(crate) vcpus: Vec<VcpuState>,
    /// The platform devices, of the slice that coordinates.
    pub(crate) chipset: Option<ChipsetState>,
    /// How far the devices have come; the same on all slices.
    pub(crate) order: OrderState,
    /// The devices, if the VM has any.
    pub(crate) devices: Option<DevicesState>,
    /// Frames between this slice and each other one, ascending.
    pub(crate) frames: Vec<PeerFrames>,
    /// The node of the memory engine. None in a VM of one slice, which has no engine.
    pub(crate) memory: Option<NodeState>,
}

impl SavedState for SliceState {
    const NAME: &'static str = "slice";
    const VERSION: u16 = 3;
    const MAX_BYTES: usize = PlacementState::MAX_BYTES
        + VCPUS_MAX as usize * VcpuState::MAX_BYTES
        + ChipsetState::MAX_BYTES
        + OrderState::MAX_BYTES
        + DevicesState::MAX_BYTES
        + SLICES_MAX * 64
        + NodeState::MAX_BYTES
        + 256;

    fn check(&self) -> Result<(), Invalid> {
        let placement = Placement::try_from(self.placement.clone())?;
        let member = placement.is_member(self.slice);
        Invalid::unless(member, "slice", "not a member of the VM")?;
        self.check_vcpus(&placement)?;
        let owner = self.chipset.is_some() == (self.slice == placement.coordinator());
        Invalid::unless(owner, "chipset", "it is with the coordinator and nobody else")?;
        self.chipset.as_ref().map_or(Ok(()), ChipsetState::check)?;
        self.order.check()?;
        self.check_devices(&placement)?;
        frame_counts::check(&self.frames, self.slice, placement.members())?;
        self.check_memory(&placement)
    }
}

impl SliceState {
    fn check_vcpus(&self, placement: &Placement) -> Result<(), Invalid> {
        self.vcpus.iter().try_for_each(VcpuState::check)?;
        let here = placement.vcpus_on(self.slice).into_iter().map(|vcpu| vcpu.0);
        let same = self.vcpus.iter().map(|state| state.vcpu).eq(here);
        Invalid::unless(same, "vcpus", "not those that the placement has here")
    }

    fn check_devices(&self, placement: &Placement) -> Result<(), Invalid> {
        let Some(state) = &self.devices else {
            return Invalid::unless(placement.devices().is_empty(), "devices", "none are there");
        };
        state.check()?;
        let each = state.devices.len() == placement.devices().len();
        Invalid::unless(each, "devices", "not those of the placement")?;
        let served = (0..).zip(&state.devices).flat_map(|(device, state)| {
            state.queues.iter().map(move |served| placement.queue_at(device, served.queue))
        });
        let mut at = served.map(|at| at == Some(self.slice));
        Invalid::unless(at.all(|here| here), "devices", "a queue that the placement has elsewhere")
    }

    fn check_memory(&self, placement: &Placement) -> Result<(), Invalid> {
        let alone = placement.members().len() == 1;
        let Some(memory) = &self.memory else {
            return Invalid::unless(alone, "memory", "missing, and there are other slices");
        };
        memory.check()?;
        // The memory engine has the epoch of its start: what has moved since may have no homes. One that all others have left
        // is still there.
        let of_here = memory.slice == self.slice && memory.epoch <= placement.epoch();
        Invalid::unless(of_here, "memory", "of another slice or another placement")?;
        let homes = placement.memory().iter().map(|place| HomeState {
            first: place.frames.start,
            pages: place.frames.end - place.frames.start,
            home: place.home,
        });
        // A slice with devices only is not told where homes move.
        let told = placement.frame_count(self.slice) > 0 || !self.vcpus.is_empty();
        Invalid::unless(
            !told || homes.eq(memory.homes.iter().cloned()),
            "memory",
            "homes of another placement",
        )
    }
}
