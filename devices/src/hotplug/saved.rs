//! The saved form of CPU hot-plug.

use super::{Hotplug, Plug, PlugState, VCPUS_MAX};
use migrate::{Invalid, Saved, SavedState};
use serde::{Deserialize, Serialize};

/// Which vCPUs the guest knows, and what is asked about them. A byte for each vCPU in each string.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HotplugState {
    /// States: the numbers of [`PlugState`].
    #[serde(with = "crate::byte_string")]
    pub vcpus: Vec<u8>,
    /// Refusals of the guest, as [`Plug::refusal`].
    #[serde(with = "crate::byte_string")]
    pub refusals: Vec<u8>,
    /// Nodes that the guest is told.
    #[serde(with = "crate::byte_string")]
    pub nodes: Vec<u8>,
    /// The vCPU that the registers are about.
    pub selected: u32,
}

fn state_of(number: u8) -> Option<PlugState> {
    PlugState::ALL.get(usize::from(number)).copied()
}

impl SavedState for HotplugState {
    const NAME: &'static str = "hotplug";
    const VERSION: u16 = 2;
    const MAX_BYTES: usize = 3 * VCPUS_MAX as usize + 96;

    fn check(&self) -> Result<(), Invalid> {
        let unless = Invalid::unless;
        let count = u32::try_from(self.vcpus.len()).unwrap_or(u32::MAX);
        unless((1..=VCPUS_MAX).contains(&count), "vcpus", "no vCPU, or more than can be")?;
        let known = self.vcpus.iter().all(|number| state_of(*number).is_some());
        unless(known, "vcpus", "a state that does not exist")?;
        let first = self.vcpus.first().is_some_and(|state| *state == PlugState::Present as u8);
        unless(first, "vcpus", "vCPU 0 is not there")?;
        unless(self.refusals.len() == self.vcpus.len(), "refusals", "not one for each vCPU")?;
        unless(self.nodes.len() == self.vcpus.len(), "nodes", "not one for each vCPU")
    }
}

impl Saved for Hotplug {
    type State = HotplugState;

    fn save(&self) -> HotplugState {
        HotplugState {
            vcpus: self.vcpus.iter().map(|plug| plug.state as u8).collect(),
            refusals: self.vcpus.iter().map(|plug| plug.refusal).collect(),
            nodes: self.vcpus.iter().map(|plug| plug.node).collect(),
            selected: self.selected,
        }
    }

    fn restore(&mut self, state: HotplugState) -> Result<(), Invalid> {
        state.check()?;
        let same = state.vcpus.len() == self.vcpus.len();
        Invalid::unless(same, "vcpus", "another number of vCPUs than this machine has")?;
        let known = state.nodes.iter().all(|node| *node < self.nodes);
        Invalid::unless(known, "nodes", "a node that the guest does not know")?;
        let plug = |((number, refusal), node): ((&u8, &u8), &u8)| Plug {
            state: state_of(*number).unwrap_or_default(),
            refusal: *refusal,
            node: *node,
        };
        let fields = state.vcpus.iter().zip(&state.refusals).zip(&state.nodes);
        self.vcpus = fields.map(plug).collect();
        self.selected = state.selected;
        Ok(())
    }
}
