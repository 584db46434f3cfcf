//! The saved form of the chipset: that of its devices.

use super::{Chipset, lock};
use crate::cmos::CmosState;
use crate::gpe::{Event, EventBlockState};
use crate::hotplug::HotplugState;
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
    /// General-purpose events of ACPI.
    pub events: EventBlockState,
    /// The IOAPIC.
    pub ioapic: IoApicState,
    /// CPU hot-plug, in a machine in which vCPUs can come later.
    pub hotplug: Option<HotplugState>,
}

impl SavedState for ChipsetState {
    const NAME: &'static str = "chipset";
    const VERSION: u16 = 3;
    const MAX_BYTES: usize = SerialLineState::MAX_BYTES
        + PitState::MAX_BYTES
        + CmosState::MAX_BYTES
        + Pm1State::MAX_BYTES
        + EventBlockState::MAX_BYTES
        + IoApicState::MAX_BYTES
        + HotplugState::MAX_BYTES
        + 88;

    fn check(&self) -> Result<(), Invalid> {
        self.serial.check()?;
        self.pit.check()?;
        self.cmos.check()?;
        self.pm1.check()?;
        self.events.check()?;
        let asked = self.events.has(Event::Vcpus) && self.hotplug.is_none();
        Invalid::unless(!asked, "events", "about vCPUs, where none can come")?;
        self.hotplug.as_ref().map_or(Ok(()), HotplugState::check)?;
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
            events: legacy.events.save(),
            ioapic: lock(&self.ioapic.ioapic).save(),
            hotplug: legacy.hotplug.as_ref().map(Saved::save),
        }
    }

    /// Sends no interrupt and no output.
    fn restore(&mut self, state: ChipsetState) -> Result<(), Invalid> {
        state.check()?;
        let mut legacy = lock(&self.legacy);
        // Only this depends on the configuration. It goes first: what is refused changes nothing.
        match (&mut legacy.hotplug, state.hotplug) {
            (None, None) => {}
            (Some(hotplug), Some(state)) => hotplug.restore(state)?,
            _ => return Err(Invalid::new("hotplug", "only one of the two machines has it")),
        }
        lock(&self.serial).restore(state.serial)?;
        legacy.interrupt_masks = state.interrupt_masks;
        legacy.pit.restore(state.pit)?;
        legacy.cmos.restore(state.cmos)?;
        legacy.pm1.restore(state.pm1)?;
        legacy.events.restore(state.events)?;
        lock(&self.ioapic.ioapic).restore(state.ioapic)
    }
}
