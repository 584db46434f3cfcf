//! Real parts of devices that go to other hosts, while all slices are at rest. [`migrate::cut`] asks for the steps.
//!
//! ```text
//!   former place: open --CloseDevice--> closed --DeviceMoved--> front end of another slice's device
//!                                          \--goes on--> open again
//!   next place:   closed --OpenDevice--> opened aside --DeviceMoved--> open, and served to all slices
//!                                          \--goes on--> closed
//! ```
//! Front ends and their workers stay. What changes is the way behind them ([`Switch`]).

use super::open_error::OpenError;
use super::remote::Remote;
use super::{SliceDevices, lock};
use crate::slice::channels::Channels;
use crate::slice::events::SliceEvent;
use crate::slice::one_line;
use devices::back_end::image::Writer;
use devices::back_end::image::snapshot::{DiskState, SnapshotError};
use devices::back_end::sample::{PLACES_MAX, Place, SampleError};
use devices::back_end::{Disk, DiskShape, Nic, NicShape, SwitchDisk, SwitchNic};
use devices::delegate::ServeError;
use migrate::cut::{DeviceMove, Step};
use migrate::saved::{SavedError, decode, encode};
use migrate::{AdvanceError, Change, Invalid, PlacementError, SavedState};
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::io;
use std::sync::{Arc, MutexGuard};
use std::thread::sleep;
use std::time::{Duration, Instant};
use thiserror::Error;
use wire::control::CLOSED_DEVICE_BYTES_MAX;
use wire::{Control, DeviceId, SliceId};

/// For a device that has not moved to be open again at its former place.
pub(super) const REOPEN_LIMIT: Duration = Duration::from_secs(10);
/// Between two tries.
pub(super) const REOPEN_AGAIN: Duration = Duration::from_millis(50);

/// Why a device has not moved.
#[derive(Debug, Error)]
pub(crate) enum PartError {
    /// There is no such device.
    #[error("there is no device {0}")]
    Device(u16),
    /// Nobody has named it here.
    #[error("it has no way to device {0}")]
    NoWay(u16),
    /// The slices do not agree on where it is.
    #[error("device {device} is at {at}")]
    Elsewhere {
        /// The device.
        device: u16,
        /// Its place.
        at: SliceId,
    },
    /// A step before was not taken.
    #[error("that is not the next step")]
    Turn,
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It does not answer.
    #[error("it has not answered within {0:?}")]
    Busy(Duration),
    /// Its last flush has failed.
    #[error("what was written to it is not durable")]
    NotDurable,
    /// It cannot be read.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// What was opened is not what was closed.
    #[error("it is not the same: {0}")]
    Differs(String),
    /// Its state cannot be kept.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// It was closed.
    #[error("it cannot be opened again: {0}")]
    Shut(String),
    /// Nobody can tell whether it is open.
    #[error(
        "nobody can tell whether it is open: closing it, keeping its state and opening it have taken more than {0:?}"
    )]
    Hangs(Duration),
    /// The former place has sent nothing.
    #[error("{0} has not said what it has closed")]
    Silent(SliceId),
    /// What it has sent cannot be.
    #[error(transparent)]
    Saved(#[from] SavedError),
    /// No thread for it.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// No thread to freeze it.
    #[error("start a thread: {0}")]
    Thread(#[source] io::Error),
    /// It cannot be there.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// There is no such placement.
    #[error(transparent)]
    Advance(#[from] AdvanceError),
}

impl PartError {
    /// Whether the slice has no such device any more.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Shut(_) | Self::Hangs(_))
    }
}

/// What the former place says of a real part that it has closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) enum ClosedPart {
    /// An image.
    Disk {
        /// As the guest knows it.
        shape: DiskShape,
        /// Where to look: all over it, and where was written last.
        places: Vec<Place>,
        /// What is there ([`devices::back_end::sample`]).
        sample: [u8; 32],
    },
    /// A tap, as the guest knows it.
    Nic(NicShape),
}

impl SavedState for ClosedPart {
    const NAME: &'static str = "closed device";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = CLOSED_DEVICE_BYTES_MAX - 128;

    fn check(&self) -> Result<(), Invalid> {
        match self {
            Self::Disk { shape, places, .. } => {
                let sized = shape.sectors > 0 && shape.sectors.checked_mul(512).is_some();
                Invalid::unless(sized, "shape", "a size that no disk has")?;
                Invalid::unless(places.len() <= PLACES_MAX, "places", "too many")
            }
            Self::Nic(shape) => Invalid::unless(shape.pairs > 0, "pairs", "none"),
        }
    }
}

/// A real part that can be on this host, open or not.
pub(super) trait RealPart: Debug + Send + Sync {
    /// What it contains, as far as one looks: equal on all hosts that have the same one. Nothing is changed or locked.
    ///
    /// # Errors
    /// It cannot be read.
    fn sample(&self) -> Result<String, PartError>;

    /// Whether it could be opened here. Nothing is changed or locked.
    ///
    /// # Errors
    /// Why not.
    fn check(&self) -> Result<(), PartError>;

    /// Closes it: all that was done is durable, and it can be opened elsewhere.
    ///
    /// # Errors
    /// It is open still.
    fn close(&self, switch: &Switch, within: Duration) -> Result<ClosedPart, PartError>;

    /// Opens what was closed elsewhere. Nobody uses it yet.
    ///
    /// # Errors
    /// It is not open.
    fn open(&self, closed: &ClosedPart, within: Duration) -> Result<(), PartError>;

    /// What was opened and is not used is closed.
    fn let_go(&self);

    /// It has not moved: it is open here again.
    ///
    /// # Errors
    /// It is not, perhaps not yet.
    fn reopen(&self, switch: &Switch) -> Result<(), PartError>;

    /// What was opened is the device of the VM from now on, for all slices.
    ///
    /// # Errors
    /// Nobody can use it.
    fn take_over(&self, switch: &Switch, at: &Remote<'_>) -> Result<(), PartError>;

    /// Keeps its state under this name, and it is open again. All slices are at rest. None: it has no state. With `leaves` the VM is to
    /// end, and what is of a kind of which no state can be kept is its own.
    ///
    /// # Errors
    /// It is open and as it was; if the error [is final](PartError::is_final) it is not.
    fn freeze(
        &self,
        switch: &Switch,
        (name, leaves): (&str, bool),
        within: Duration,
    ) -> Result<Option<DiskState>, PartError> {
        let _ = (switch, name, leaves, within);
        Ok(None)
    }

    /// These states of it are not needed any more; what can be merged or removed is, beside the VM that runs.
    fn tidy(&self, released: &[String]) {
        let _ = released;
    }

    /// These states of it are not needed any more. Nothing is merged.
    fn release(&self, released: &[String]) {
        let _ = released;
    }

    /// A state of it is to be kept: whoever has it open from now on is known by this.
    fn is_written_by(&self, writer: Writer) {
        let _ = writer;
    }

    /// The VM that goes on is known by this, and not by what it was opened with.
    fn goes_on_as(&self, writer: Writer) {
        let _ = writer;
    }

    /// What was closed here is the device of the VM elsewhere.
    fn hand_over(&self) {}

    /// All slices use it here from now on.
    fn announce(&self) {}
}

/// The way from the front end of a device to its real part.
#[derive(Clone, Debug)]
pub(super) enum Switch {
    /// Each slice has its own.
    Nothing,
    /// A disk.
    Disk(Arc<SwitchDisk>),
    /// A network.
    Nic(Arc<SwitchNic>),
}

impl Switch {
    /// It goes to another slice from now on.
    fn follow(&self, at: &Remote<'_>) {
        match self {
            Self::Nothing => {}
            Self::Disk(switch) => {
                let shape = switch.shape();
                let disk = at.exchange.remote_disk(at.device, at.owner, shape, at.queues);
                drop(switch.close());
                switch.open(disk);
            }
            Self::Nic(switch) => {
                switch.put(at.exchange.remote_nic(at.device, at.owner, switch.shape()));
            }
        }
    }

    /// All slices know where it goes.
    fn settle(&self) {
        if let Self::Nic(switch) = self {
            switch.connect_anew();
        }
    }
}

/// How far a device has come at this slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Here, to be opened elsewhere.
    Closed,
    /// Here, and nobody uses it.
    Opened,
    /// All slices know, or will when this one goes on.
    Moved,
}

/// A part that is about to be closed or opened.
struct Beginning<'a> {
    switch: Switch,
    part: &'a Arc<dyn RealPart>,
    moving: MutexGuard<'a, Option<(DeviceMove, Stage)>>,
}

impl SliceDevices {
    /// Takes a step of a device that moves, in the cut of this number. All slices are at rest.
    ///
    /// # Errors
    /// It cannot be. After [`Step::DeviceMoved`] the slices do not agree; before, this one has changed nothing that
    /// [`Self::settle`] does not undo.
    pub(crate) fn move_part(
        &self,
        channels: &Channels,
        (step, cut): (Step, u64),
        within: Duration,
    ) -> Result<(), PartError> {
        match step {
            Step::MayMove(moved) => {
                self.may_move(channels, moved)?;
                channels.placement.load().next(&[change(moved)])?;
                Ok(())
            }
            Step::CloseDevice(moved) if moved.from == self.local => {
                self.close(channels, (moved, cut), within)
            }
            Step::OpenDevice(moved) if moved.to == self.local => {
                self.open(channels, (moved, cut), within)
            }
            Step::DeviceMoved(moved) => self.moved(channels, moved),
            _ => Err(PartError::Turn),
        }
    }

    /// The way to a device that is where it moves from.
    fn switch(&self, channels: &Channels, moved: DeviceMove) -> Result<Switch, PartError> {
        let device = moved.device;
        let slot = self.slots.get(usize::from(device)).ok_or(PartError::Device(device))?;
        let placement = channels.placement.load();
        let place = placement.devices().get(usize::from(device));
        let at = place.ok_or(PartError::Device(device))?.owner;
        if at != moved.from {
            return Err(PartError::Elsewhere { device, at });
        }
        slot.front_end.switch().ok_or(PartError::NoWay(device))
    }

    fn part(&self, device: u16) -> Result<&Arc<dyn RealPart>, PartError> {
        self.parts.get(&device).ok_or(PartError::NoWay(device))
    }

    fn may_move(&self, channels: &Channels, moved: DeviceMove) -> Result<(), PartError> {
        let switch = self.switch(channels, moved)?;
        if matches!(switch, Switch::Nothing) || ![moved.from, moved.to].contains(&self.local) {
            return Ok(());
        }
        let part = self.part(moved.device)?;
        if moved.to == self.local { part.check() } else { Ok(()) }
    }

    /// The part that is to be closed or opened, and the turn for it; none of a device that each slice has its own of.
    fn begin(
        &self,
        channels: &Channels,
        moved: DeviceMove,
    ) -> Result<Option<Beginning<'_>>, PartError> {
        let switch = self.switch(channels, moved)?;
        if matches!(switch, Switch::Nothing) {
            return Ok(None);
        }
        let (part, moving) = (self.part(moved.device)?, lock(&self.moving));
        let free = moving.is_none();
        free.then_some(Some(Beginning { switch, part, moving })).ok_or(PartError::Turn)
    }

    fn close(
        &self,
        channels: &Channels,
        (moved, cut): (DeviceMove, u64),
        within: Duration,
    ) -> Result<(), PartError> {
        let Some(Beginning { switch, part, mut moving }) = self.begin(channels, moved)? else {
            return Ok(());
        };
        let closed = part.close(&switch, within)?;
        // From here on it is opened again if it has not moved.
        *moving = Some((moved, Stage::Closed));
        let (device, state) = (moved.device, encode(&closed)?);
        channels.send(moved.to, &Control::ClosedDevice { device, cut, state });
        Ok(())
    }

    fn open(
        &self,
        channels: &Channels,
        (moved, cut): (DeviceMove, u64),
        within: Duration,
    ) -> Result<(), PartError> {
        let Some(Beginning { part, mut moving, .. }) = self.begin(channels, moved)? else {
            return Ok(());
        };
        let deadline = Instant::now() + within;
        let bytes = channels.closed_devices.take((moved.from, moved.device, cut), deadline);
        let closed = decode(&bytes.ok_or(PartError::Silent(moved.from))?)?;
        part.open(&closed, deadline.saturating_duration_since(Instant::now()))?;
        *moving = Some((moved, Stage::Opened));
        Ok(())
    }

    fn moved(&self, channels: &Channels, moved: DeviceMove) -> Result<(), PartError> {
        let switch = self.switch(channels, moved)?;
        let next = channels.placement.load().next(&[change(moved)])?;
        let mut moving = lock(&self.moving);
        let stage = match self.local {
            _ if matches!(switch, Switch::Nothing) => None,
            local if local == moved.from => Some((moved, Stage::Closed)),
            local if local == moved.to => Some((moved, Stage::Opened)),
            _ => None,
        };
        if *moving != stage {
            return Err(PartError::Turn);
        }
        let queues = next.devices().get(usize::from(moved.device)).map_or(0, |it| it.queues.len());
        let queues = u16::try_from(queues).unwrap_or(u16::MAX);
        let device = DeviceId(moved.device);
        let at = Remote { exchange: &self.exchange, device, owner: moved.to, queues };
        if matches!(stage, Some((_, Stage::Opened))) {
            self.part(moved.device)?.take_over(&switch, &at)?;
        } else {
            switch.follow(&at);
            if moved.from == self.local
                && let Ok(part) = self.part(moved.device)
            {
                part.hand_over();
            }
        }
        *moving = Some((moved, Stage::Moved));
        channels.owner.advance(&[change(moved)], next.epoch())?;
        Ok(())
    }

    /// This slice goes on: what it has closed or opened of a device that has not moved is as it was, and one that has is used
    /// where it is.
    pub(crate) fn settle(&self, channels: &Channels) {
        let Some((moved, stage)) = lock(&self.moving).take() else { return };
        let Some(switch) = self.slots[usize::from(moved.device)].front_end.switch() else { return };
        let part = self.part(moved.device);
        if stage == Stage::Moved {
            switch.settle();
            if let (true, Ok(part)) = (moved.to == self.local, part) {
                part.announce();
            }
            return;
        }
        let Ok(part) = part else { return };
        if stage == Stage::Opened {
            return part.let_go();
        }
        let deadline = Instant::now() + REOPEN_LIMIT;
        while let Err(error) = part.reopen(&switch) {
            if Instant::now() >= deadline {
                let (device, why) = (moved.device, one_line(&error));
                let text =
                    format!("device {device} has not moved, and cannot be opened again: {why}");
                return channels.event(SliceEvent::Fatal(text));
            }
            sleep(REOPEN_AGAIN);
        }
    }
}

fn change(moved: DeviceMove) -> Change {
    Change::Device { device: moved.device, to: moved.to }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn closed() -> ClosedPart {
        let (sectors, block_bytes, id) = (2048, 512, [0; 20]);
        let shape = DiskShape { sectors, block_bytes, read_only: false, discard: true, id };
        let places = (0..48).map(|sector| Place::new(sector, 64)).collect();
        ClosedPart::Disk { shape, places, sample: [7; 32] }
    }

    #[test]
    fn what_is_said_of_a_closed_disk_fits_into_its_frame() {
        let state = encode(&closed()).unwrap();
        assert!(state.len() < CLOSED_DEVICE_BYTES_MAX);
        assert_eq!(decode::<ClosedPart>(&state).unwrap(), closed());
    }

    #[test]
    fn network_without_queues_is_refused() {
        let nic = NicShape { mac: [2, 0, 0, 0, 0, 1], mtu: 1500, pairs: 0, offloads: 0 };
        assert!(encode(&ClosedPart::Nic(nic.clone())).is_err());
        assert!(encode(&ClosedPart::Nic(NicShape { pairs: 1, ..nic })).is_ok());
    }

    #[test]
    fn disk_that_cannot_be_is_refused() {
        let ClosedPart::Disk { shape, places, sample } = closed() else { panic!("a disk") };
        for sectors in [0, u64::MAX] {
            let shape = DiskShape { sectors, ..shape.clone() };
            let disk = ClosedPart::Disk { shape, places: places.clone(), sample };
            assert!(encode(&disk).is_err());
        }
        let places = vec![places[0]; PLACES_MAX + 1];
        assert!(encode(&ClosedPart::Disk { shape, places, sample }).is_err());
    }

    proptest! {
        #[test]
        fn bytes_of_a_bad_peer_are_refused_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..256),
        ) {
            prop_assert!(decode::<ClosedPart>(&bytes).is_err());
        }

        #[test]
        fn damaged_words_are_refused_or_fit_together(at in any::<prop::sample::Index>(), to: u8) {
            let mut bytes = encode(&closed()).unwrap();
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(closed) = decode::<ClosedPart>(&bytes) {
                closed.check().unwrap();
            }
        }
    }
}
