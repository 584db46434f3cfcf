//! The saved form of the chipset: that of its devices.

use super::{Chipset, lock};
use crate::cmos::CmosState;
use crate::ioapic::IoApicState;
use crate::pit::PitState;
use crate::pm::Pm1State;
use crate::serial::SerialLineState;
use migrate::{Invalid, Saved, SavedState};
use serde::{Deserialize, Serialize};

/// All platform devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChipsetState {
    /// Masks of the two interrupt controllers (8259A), ports 0x21 and 0xa1.
    pub interrupt_masks: [u8; 2],
    /// The serial line.
    pub serial: SerialLineState,
    /// What is left of the 8254 timer.
    pub pit: PitState,
    /// The CMOS memory.
    pub cmos: CmosState,
    /// The PM1 registers of ACPI.
    pub pm1: Pm1State,
    /// The IOAPIC.
    pub ioapic: IoApicState,
}

impl SavedState for ChipsetState {
    const NAME: &'static str = "chipset";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = SerialLineState::MAX_BYTES
        + PitState::MAX_BYTES
        + CmosState::MAX_BYTES
        + Pm1State::MAX_BYTES
        + IoApicState::MAX_BYTES
        + 64;

    fn check(&self) -> Result<(), Invalid> {
        self.serial.check()?;
        self.pit.check()?;
        self.cmos.check()?;
        self.pm1.check()?;
        self.ioapic.check()
    }
}

impl Saved for Chipset {
    type State = ChipsetState;

    /// The vCPUs are at rest, and nobody feeds input.
    fn save(&self) -> ChipsetState {
        let serial = lock(&self.serial).save();
        let legacy = lock(&self.legacy);
        ChipsetState {
            interrupt_masks: legacy.interrupt_masks,
            serial,
            pit: legacy.pit.save(),
            cmos: legacy.cmos.save(),
            pm1: legacy.pm1.save(),
            ioapic: lock(&self.ioapic.ioapic).save(),
        }
    }

    /// Sends no interrupt and no output.
    fn restore(&mut self, state: ChipsetState) -> Result<(), Invalid> {
        // Nothing but this can be wrong with it: there is one configuration.
        state.check()?;
        lock(&self.serial).restore(state.serial)?;
        let mut legacy = lock(&self.legacy);
        legacy.interrupt_masks = state.interrupt_masks;
        legacy.pit.restore(state.pit)?;
        legacy.cmos.restore(state.cmos)?;
        legacy.pm1.restore(state.pm1)?;
        lock(&self.ioapic.ioapic).restore(state.ioapic)
    }
}
