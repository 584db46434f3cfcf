//! The saved form of the devices of a slice. `quiesce` takes it. And that of one queue on its way (`moves`).
//!
//! The bus is the same on all slices. What each has of its own are the queues that it serves, what it has raised and could
//! not send, and what its front ends know.

use devices::saved::{
    ConsoleInputState, MsixViewState, NetDeviceState, PciRootState, VsockState, WorkerState,
};
use migrate::{Invalid, SavedState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use wire::control::QUEUE_STATE_BYTES_MAX;

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

/// What a slice of a VM that is restored begins with of a device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceStart {
    /// What its front end knew, where that was not nothing.
    pub(crate) front_end: FrontEndState,
    /// Vectors that were raised and masked; of one slice, for each has the same routes.
    pub(crate) raised: Vec<u16>,
    /// How far each queue that is here was served, by its number.
    pub(crate) queues: BTreeMap<u16, WorkerState>,
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

/// A queue, or a pair of them, on its way to the slice that is to serve it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MovingQueue {
    /// How far it was served.
    pub(crate) worker: WorkerState,
    /// What goes with it of what the front end knows: of a network's control queue what the driver has said by it.
    pub(crate) front_end: FrontEndState,
}

impl MovingQueue {
    /// Bytes for the worker: the frame's, less those of names and of the front end.
    pub(crate) const WORKER_BYTES: usize = QUEUE_STATE_BYTES_MAX - 512;
}

impl SavedState for MovingQueue {
    const NAME: &'static str = "moving queue";
    const VERSION: u16 = 1;
    /// Less than what a frame takes, by name and version.
    const MAX_BYTES: usize = QUEUE_STATE_BYTES_MAX - 128;

    fn check(&self) -> Result<(), Invalid> {
        self.worker.check()?;
        match self.front_end {
            FrontEndState::Nothing | FrontEndState::Net(_) => self.front_end.check(),
            FrontEndState::Console(_) | FrontEndState::Vsock(_) => {
                Err(Invalid::new("front_end", "of a device whose queues stay with it"))
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use devices::virtio::{NetPairState, PacketState, QueueState};
    use migrate::saved::{decode, encode};
    use proptest::prelude::*;
    use wire::{Control, Epoch};

    const QUEUE: QueueState = QueueState { size: 8, next_avail: 3, next_used: 3, broken: false };

    fn pair(packets: usize, bytes: usize) -> MovingQueue {
        let packets = vec![PacketState(vec![7; bytes]); packets];
        let pair = NetPairState { receive: QUEUE, transmit: QUEUE, packets };
        let worker = WorkerState::Pair(pair).within(MovingQueue::WORKER_BYTES);
        MovingQueue { worker, front_end: FrontEndState::Nothing }
    }

    #[test]
    fn moving_queue_fits_into_its_frame_whatever_waits() {
        for moving in [pair(128, 65_562), pair(128, 1514), pair(128, 12), pair(0, 0)] {
            let state = encode(&moving).unwrap();
            assert_eq!(decode::<MovingQueue>(&state).unwrap(), moving);
            let placement = Epoch(1);
            let frame = Control::QueueState { device: 0, queue: 0, placement, state };
            let bytes = frame.encode(Epoch(1));
            assert_eq!(Control::decode(Epoch(1), &bytes), Ok(frame));
        }
        let WorkerState::Pair(kept) = pair(128, 1514).worker else { panic!("a pair") };
        assert!(kept.packets.len() > 30, "{}", kept.packets.len());
    }

    #[test]
    fn state_of_a_device_that_stays_is_refused() {
        let console = ConsoleInputState { waiting: Vec::new() };
        let moving = MovingQueue { front_end: FrontEndState::Console(console), ..pair(0, 0) };
        assert!(encode(&moving).is_err());
    }

    proptest! {
        #[test]
        fn bytes_of_a_bad_peer_are_refused_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..256),
        ) {
            prop_assert!(decode::<MovingQueue>(&bytes).is_err());
        }

        #[test]
        fn damaged_state_is_refused_or_fits_together(at in any::<prop::sample::Index>(), to: u8) {
            let mut bytes = encode(&pair(2, 20)).unwrap();
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(moving) = decode::<MovingQueue>(&bytes) {
                moving.check().unwrap();
            }
        }
    }
}
