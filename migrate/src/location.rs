//! The vCPU location table: vCPU to slice, with the epoch of the last move.

use arc_swap::ArcSwap;
use std::sync::Arc;
use thiserror::Error;
use wire::{Epoch, SliceId, VcpuId};

/// Where a vCPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The slice.
    pub slice: SliceId,
    /// Since which epoch.
    pub epoch: Epoch,
}

/// A move that is older than what the table knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("move {vcpu} in {offered}: it has been elsewhere since {known}")]
pub struct StaleLocation {
    /// The vCPU.
    pub vcpu: VcpuId,
    /// Epoch of the move.
    pub offered: Epoch,
    /// Epoch that the table has.
    pub known: Epoch,
}

/// The replicated map from vCPU to slice.
#[derive(Debug)]
pub struct LocationTable {
    table: ArcSwap<Vec<Location>>,
}

impl LocationTable {
    /// The table at VM creation: `slices[n]` is where vCPU `n` runs.
    #[must_use]
    pub fn new(slices: &[SliceId], epoch: Epoch) -> Self {
        let table = slices.iter().map(|slice| Location { slice: *slice, epoch }).collect();
        Self { table: ArcSwap::from_pointee(table) }
    }

    /// Where the vCPU runs, or `None` for a vCPU that the VM does not have. Lock-free.
    #[must_use]
    pub fn locate(&self, vcpu: VcpuId) -> Option<Location> {
        let index = usize::try_from(vcpu.0).ok()?;
        self.table.load().get(index).copied()
    }

    /// The vCPUs of a slice, ascending.
    #[must_use]
    pub fn on_slice(&self, slice: SliceId) -> Vec<VcpuId> {
        let table = self.table.load();
        let located = (0u32..).zip(table.iter());
        located.filter(|(_, at)| at.slice == slice).map(|(id, _)| VcpuId(id)).collect()
    }

    /// Notes a move. Moves of one vCPU come from one writer; the epoch guards against late ones.
    ///
    /// # Errors
    /// A move that is not newer than the known one, or of an unknown vCPU (known epoch 0).
    pub fn move_to(&self, vcpu: VcpuId, to: SliceId, epoch: Epoch) -> Result<(), StaleLocation> {
        let stale = |known| StaleLocation { vcpu, offered: epoch, known };
        let known = self.locate(vcpu).ok_or_else(|| stale(Epoch(0)))?;
        if epoch <= known.epoch {
            return Err(stale(known.epoch));
        }
        let index = usize::try_from(vcpu.0).map_err(|_| stale(Epoch(0)))?;
        self.table.rcu(|table| {
            let mut next = Vec::clone(table);
            next[index] = Location { slice: to, epoch };
            Arc::new(next)
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn move_to_with_an_old_epoch_is_refused() {
        let table = LocationTable::new(&[SliceId(0), SliceId(1)], Epoch(1));
        table.move_to(VcpuId(1), SliceId(0), Epoch(3)).unwrap();

        let result = table.move_to(VcpuId(1), SliceId(1), Epoch(2));

        assert_eq!(result.map_err(|error| error.known), Err(Epoch(3)));
        assert_eq!(table.on_slice(SliceId(0)), [VcpuId(0), VcpuId(1)]);
    }

    #[test]
    fn locate_of_unknown_vcpu_is_none() {
        let table = LocationTable::new(&[SliceId(0)], Epoch(1));

        assert_eq!(table.locate(VcpuId(1)), None);
    }
}
