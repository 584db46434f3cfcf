//! The saved form of the PCI root, and how a slice takes up a restored one.

use super::PciRoot;
use crate::msix::MsixVector;
use crate::pci::config_space::{COMMAND, COMMAND_WRITABLE};
use crate::pci::{DEVICES_MAX, DeviceId, FunctionState, PciEffect};
use migrate::{Invalid, Saved, SavedState};
use serde::{Deserialize, Serialize};

/// The bus. All replicas have the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PciRootState {
    /// Command register of the host bridge, which means nothing.
    pub bridge_command: u16,
    /// The functions in the order of their devices.
    pub functions: Vec<FunctionState>,
}

impl SavedState for PciRootState {
    const NAME: &'static str = "pci root";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = DEVICES_MAX * FunctionState::MAX_BYTES + 64;

    fn check(&self) -> Result<(), Invalid> {
        let command = self.bridge_command & !COMMAND_WRITABLE == 0;
        Invalid::unless(command, "bridge_command", "bits that cannot be written")?;
        let count = self.functions.len() <= DEVICES_MAX;
        Invalid::unless(count, "functions", "more than a bus has slots")?;
        self.functions.iter().try_for_each(FunctionState::check)
    }
}

impl Saved for PciRoot {
    type State = PciRootState;

    fn save(&self) -> PciRootState {
        PciRootState {
            bridge_command: self.bridge.word(COMMAND),
            functions: self.functions.iter().map(Saved::save).collect(),
        }
    }

    fn restore(&mut self, state: PciRootState) -> Result<(), Invalid> {
        state.check()?;
        let same = state.functions.len() == self.functions.len();
        Invalid::unless(same, "functions", "not as many as this machine has")?;
        let mut functions = self.functions.clone();
        for (function, saved) in functions.iter_mut().zip(state.functions) {
            function.restore(saved)?;
        }
        self.functions = functions;
        self.bridge.write(COMMAND, &state.bridge_command.to_le_bytes());
        Ok(())
    }
}

impl PciRoot {
    /// What is in force, as effects: a slice that is given a restored root does with them what it would have done on the
    /// writes that have led here. Routes come before the devices that use them.
    #[must_use]
    pub fn in_force(&self) -> Vec<PciEffect> {
        let mut effects = Vec::new();
        for (function, id) in self.functions.iter().zip(0..) {
            let device = DeviceId(id);
            if function.base().is_some() {
                effects.push(PciEffect::DoorbellsMoved { device });
            }
            for vector in (0..function.vectors()).map(MsixVector) {
                let route = function.route(vector);
                effects.extend(route.map(|message| PciEffect::MsixChanged {
                    device,
                    vector,
                    route: Some(message),
                }));
            }
            let activation = function.activation();
            effects.extend(activation.map(|it| PciEffect::Activated { device, activation: it }));
        }
        effects
    }
}
