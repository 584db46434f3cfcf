//! The saved form of a function.

use super::{BAR_BYTES, CFG_BAR, CFG_LENGTH, CFG_OFFSET, Function, MsixTable, Transport};
use crate::pci::config_space::{BAR_0, COMMAND, COMMAND_WRITABLE};
use crate::pci::msix::MsixTableState;
use crate::virtio::{DeviceConfigState, TransportState};
use migrate::{Invalid, Saved, SavedState};
use serde::{Deserialize, Serialize};

/// What the guest has written into a function, and what the host has said of its device. All else of it follows from
/// the shape of the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionState {
    /// Command register (PCI 6.2.2).
    pub command: u16,
    /// Base address register 0 (PCI 6.2.5.1).
    pub bar: u32,
    /// The window of the configuration access capability.
    pub window: WindowState,
    /// MSI-X.
    pub msix: MsixTableState,
    /// The common configuration of virtio.
    pub transport: TransportState,
    /// What the device's own configuration says that may change.
    pub config: DeviceConfigState,
}

/// Where the configuration access capability points (virtio 1.3, 4.1.4.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowState {
    /// Number of the BAR.
    pub bar: u8,
    /// Offset in the BAR.
    pub offset: u32,
    /// Bytes of an access.
    pub length: u32,
}

impl SavedState for FunctionState {
    const NAME: &'static str = "pci function";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize =
        MsixTableState::MAX_BYTES + TransportState::MAX_BYTES + DeviceConfigState::MAX_BYTES + 160;

    fn check(&self) -> Result<(), Invalid> {
        let command = self.command & !COMMAND_WRITABLE == 0;
        Invalid::unless(command, "command", "bits that cannot be written")?;
        Invalid::unless(self.bar.is_multiple_of(BAR_BYTES), "bar", "not on a boundary")?;
        self.msix.check()?;
        self.config.check()?;
        self.transport.check()
    }
}

impl Saved for Function {
    type State = FunctionState;

    fn save(&self) -> FunctionState {
        let mut bar = [0];
        self.config.read(self.window + CFG_BAR, &mut bar);
        let window = WindowState {
            bar: bar[0],
            offset: self.config.dword(self.window + CFG_OFFSET),
            length: self.config.dword(self.window + CFG_LENGTH),
        };
        FunctionState {
            command: self.config.word(COMMAND),
            bar: self.config.dword(BAR_0),
            window,
            msix: self.msix.save(),
            transport: self.transport.save(),
            config: self.shape.config_state(&self.device_config),
        }
    }

    fn restore(&mut self, state: FunctionState) -> Result<(), Invalid> {
        state.check()?;
        let mut msix: MsixTable = self.msix.clone();
        let mut transport: Transport = self.transport.clone();
        let device_config = self.shape.config_of(state.config)?;
        let control = state.msix.control();
        msix.restore(state.msix)?;
        transport.restore(state.transport)?;
        (self.msix, self.transport, self.device_config) = (msix, transport, device_config);
        self.config.write(COMMAND, &state.command.to_le_bytes());
        self.config.write(BAR_0, &state.bar.to_le_bytes());
        self.config.write(self.msix_control, &control.to_le_bytes());
        let WindowState { bar, offset, length } = state.window;
        self.config.write(self.window + CFG_BAR, &[bar]);
        self.config.write(self.window + CFG_OFFSET, &offset.to_le_bytes());
        self.config.write(self.window + CFG_LENGTH, &length.to_le_bytes());
        Ok(())
    }
}
