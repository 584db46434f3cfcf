//! Who changes the placement, and who reads it.
//!
//! ```text
//!   PlacementOwner --advance(changes, next epoch)--> [ Placement ] <--load, without locks-- PlacementView, any number
//! ```

use crate::{Change, Placement, PlacementError};
use arc_swap::{ArcSwap, Guard};
use std::sync::{Arc, Mutex, PoisonError};
use thiserror::Error;
use wire::{Epoch, SliceId, VcpuId};

/// Why a placement was not replaced.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AdvanceError {
    /// The changes make no placement.
    #[error(transparent)]
    Impossible(#[from] PlacementError),
    /// They are of another epoch than the next.
    #[error("changes of epoch {} cannot follow the placement of epoch {}", .offered.0, .known.0)]
    WrongEpoch {
        /// Epoch that the changes were to begin.
        offered: Epoch,
        /// Epoch in force.
        known: Epoch,
    },
}

/// Where an interrupt, or whatever else is for a vCPU, goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The vCPU is of this slice.
    Here,
    /// It is of another one, by the placement of this epoch.
    There(SliceId),
    /// The VM has no such vCPU.
    Nowhere,
}

/// The placement as one slice reads it. Clones read the same.
#[derive(Clone, Debug)]
pub struct PlacementView {
    local: SliceId,
    current: Arc<ArcSwap<Placement>>,
}

impl PlacementView {
    /// The view of a machine without memory or devices to place, whose vCPUs never move: `vcpus[n]` is where vCPU `n`
    /// runs.
    ///
    /// # Errors
    /// No vCPU.
    pub fn fixed(local: SliceId, vcpus: &[SliceId]) -> Result<Self, PlacementError> {
        let mut members = vcpus.to_vec();
        members.push(local);
        members.sort_unstable();
        members.dedup();
        let placement = Placement::new(Epoch(1), members, vcpus.to_vec(), Vec::new(), Vec::new())?;
        Ok(PlacementOwner::new(local, placement).view)
    }

    /// The slice that reads.
    #[must_use]
    pub fn local(&self) -> SliceId {
        self.local
    }

    /// The placement in force. What belongs together must be read from one of them: the next call may give another.
    #[must_use]
    pub fn load(&self) -> Guard<Arc<Placement>> {
        self.current.load()
    }

    /// Where to go with what is for a vCPU.
    #[must_use]
    pub fn route(&self, vcpu: VcpuId) -> Route {
        match self.load().slice_of(vcpu) {
            Some(slice) if slice == self.local => Route::Here,
            Some(slice) => Route::There(slice),
            None => Route::Nowhere,
        }
    }

    /// Whether a vCPU is of this slice.
    #[must_use]
    pub fn is_here(&self, vcpu: VcpuId) -> bool {
        self.route(vcpu) == Route::Here
    }
}

/// What replaces a slice's placement. All slices of a VM make the same changes in the same order.
#[derive(Debug)]
pub struct PlacementOwner {
    view: PlacementView,
    /// Held by whoever replaces it.
    turn: Mutex<()>,
}

impl PlacementOwner {
    /// The owner of a slice's placement.
    #[must_use]
    pub fn new(local: SliceId, placement: Placement) -> Self {
        let current = Arc::new(ArcSwap::from_pointee(placement));
        Self { view: PlacementView { local, current }, turn: Mutex::new(()) }
    }

    /// For whoever asks where something is.
    #[must_use]
    pub fn view(&self) -> PlacementView {
        self.view.clone()
    }

    /// Puts the placement after these changes in force, which is of this epoch. Readers see the one or the other, whole.
    ///
    /// # Errors
    /// There is no such placement, or `epoch` is not the next one; nothing has changed then.
    pub fn advance(&self, changes: &[Change], epoch: Epoch) -> Result<(), AdvanceError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let current = self.view.load();
        let next = current.next(changes)?;
        if next.epoch() != epoch {
            return Err(AdvanceError::WrongEpoch { offered: epoch, known: current.epoch() });
        }
        self.view.current.store(Arc::new(next));
        Ok(())
    }
}
