//! The saved form of the devices of a slice. `quiesce` takes it.
//!
//! The bus is the same on all slices. What each has of its own are the queues that it serves, what it has raised and could
//! not send, and what its front ends know.

use devices::saved::{
    ConsoleInputState, MsixViewState, NetDeviceState, PciRootState, VsockState, WorkerState,
};
use migrate::{Invalid, SavedState};
use serde::{Deserialize, Serialize};

/// What a front end knows that neither the driver's registers nor its queues show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) enum FrontEndState {
    /// Nothing: a disk, a source of randomness, or a device whose queues are elsewhere.
    Nothing,
    /// A network device.
    Net(NetDeviceState),
    /// Input of a console.
    Console(ConsoleInputState),
    /// A socket device.
    Vsock(VsockState),
}

/// A queue, or a pair of them, that a slice serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServedQueue {
    /// Its number; of a pair that of the first.
    pub(crate) queue: u16,
    /// How far it was served.
    pub(crate) worker: WorkerState,
}

/// What a slice has of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeviceState {
    /// What its front end here knows.
    pub(crate) front_end: FrontEndState,
    /// Interrupts that were raised here and not sent.
    pub(crate) raised: MsixViewState,
    /// Queues that are served here, ascending. None while no driver runs the device.
    pub(crate) queues: Vec<ServedQueue>,
}

/// The devices of a slice at rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DevicesState {
    /// The bus.
    pub(crate) bus: PciRootState,
    /// Each device, by its number.
    pub(crate) devices: Vec<DeviceState>,
}

impl FrontEndState {
    fn check(&self) -> Result<(), Invalid> {
        match self {
            Self::Nothing => Ok(()),
            Self::Net(state) => state.check(),
            Self::Console(state) => state.check(),
            Self::Vsock(state) => state.check(),
        }
    }
}

impl DeviceState {
    fn check(&self) -> Result<(), Invalid> {
        self.front_end.check()?;
        self.raised.check()?;
        self.queues.iter().try_for_each(|served| served.worker.check())?;
        let ascending = self.queues.is_sorted_by(|one, next| one.queue < next.queue);
        Invalid::unless(ascending, "queues", "not in ascending order")
    }
}

impl SavedState for DevicesState {
    const NAME: &'static str = "devices";
    const VERSION: u16 = 1;
    /// Nearly all of it are packets that wait for buffers of the driver, of which each pair of queues may have 8 MiB.
    const MAX_BYTES: usize = 256 << 20;

    fn check(&self) -> Result<(), Invalid> {
        self.bus.check()?;
        let each = self.devices.len() == self.bus.functions.len();
        Invalid::unless(each, "devices", "not as many as are on the bus")?;
        self.devices.iter().try_for_each(DeviceState::check)
    }
}
