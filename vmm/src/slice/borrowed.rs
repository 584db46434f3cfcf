//! Which vCPUs are borrowed, for whoever must know where a vCPU is going to be ([`migrate::borrowed`]).

use migrate::borrowed::Borrowed;
use std::sync::{Mutex, MutexGuard, PoisonError};
use wire::{SliceId, VcpuId};

/// The vCPUs that are borrowed, while that is seen to.
#[derive(Debug, Default)]
pub(super) struct Group(Mutex<Option<Borrowed>>);

impl Group {
    /// None where nobody sees to it.
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Borrowed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slice where a vCPU is going to be, or will be again, if it is borrowed.
    pub(super) fn own_slice(&self, vcpu: VcpuId) -> Option<SliceId> {
        self.lock().as_ref()?.own_slice(vcpu)
    }
}
