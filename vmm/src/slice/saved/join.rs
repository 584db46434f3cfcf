//! How a VM stands, for a slice that joins it.

use crate::slice::peripherals::OrderState;
use devices::saved::PciRootState;
use dsm::saved::NodeState;
use migrate::{Invalid, SavedState};
use serde::{Deserialize, Serialize};
use transport::BLOB_BYTES_MAX;
use wire::{Epoch, SLICES_MAX, SliceId};

/// What all slices have, and a newcomer begins with. Where everything is it knows already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JoinState {
    /// The number of the cut at which it joins.
    pub(crate) cut: u64,
    /// Epoch of the placement of which it is a member.
    pub(crate) placement: Epoch,
    /// How far the devices have come.
    pub(crate) order: OrderState,
    /// The bus, if the VM has one.
    pub(crate) bus: Option<PciRootState>,
    /// What its memory engine begins with.
    pub(crate) memory: NodeState,
    /// Slices that are gone, and without which the VM went on: the placement names them still.
    pub(crate) lost: Vec<SliceId>,
}

impl JoinState {
    /// Whether it is of this slice, and of this placement.
    ///
    /// # Errors
    /// What does not fit.
    pub(crate) fn fits(&self, slice: SliceId, placement: Epoch) -> Result<(), Invalid> {
        Invalid::unless(self.memory.slice == slice, "memory", "of another slice")?;
        Invalid::unless(self.placement == placement, "placement", "not that which was agreed on")
    }
}

impl SavedState for JoinState {
    const NAME: &'static str = "VM to join";
    const VERSION: u16 = 1;
    /// It goes as one blob of the set-up, with name and version.
    const MAX_BYTES: usize = BLOB_BYTES_MAX - 128;

    fn check(&self) -> Result<(), Invalid> {
        Invalid::unless(self.cut > 0, "cut", "none has been begun")?;
        self.order.check()?;
        self.bus.as_ref().map_or(Ok(()), SavedState::check)?;
        let few = self.lost.len() <= usize::from(SLICES_MAX);
        Invalid::unless(few, "lost", "more slices than a VM can have")?;
        self.memory.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsm::saved::{Channel, FrameRuns, TableScope};
    use migrate::saved::{decode, encode};
    use proptest::prelude::*;

    fn state() -> JoinState {
        let memory = NodeState {
            epoch: Epoch(1),
            slice: SliceId(1),
            slices: vec![SliceId(0), SliceId(1)],
            homes: Vec::new(),
            vcpus: 1,
            tables: TableScope::Nothing,
            shared: FrameRuns::default(),
            exclusive: FrameRuns::default(),
            replicas: Vec::new(),
            directory: Vec::new(),
            never_replicas: FrameRuns::default(),
            roots: Vec::new(),
            newest_flush: 0,
            channels: vec![Channel { peer: SliceId(0), sent: 0, received: 0 }],
        };
        let order = OrderState { last: 3 };
        let lost = vec![SliceId(2)];
        JoinState { cut: 1, placement: Epoch(4), order, bus: None, memory, lost }
    }

    #[test]
    fn state_of_another_slice_or_placement_does_not_fit() {
        let state = state();
        assert_eq!(state.fits(SliceId(1), Epoch(4)), Ok(()));
        assert!(state.fits(SliceId(2), Epoch(4)).is_err());
        assert!(state.fits(SliceId(1), Epoch(5)).is_err());
    }

    proptest! {
        #[test]
        fn damaged_state_is_refused_or_fits_together(at in any::<prop::sample::Index>(), to: u8) {
            let mut bytes = encode(&state()).unwrap();
            prop_assert_eq!(decode::<JoinState>(&bytes).unwrap(), state());
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(state) = decode::<JoinState>(&bytes) {
                state.check().unwrap();
            }
        }

        #[test]
        fn bytes_of_others_are_refused_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..256),
        ) {
            prop_assert!(decode::<JoinState>(&bytes).is_err());
        }
    }
}
