//! The devices of the VM, as one slice has them: a replica of what drivers see, the queues that are at
//! home here, the back ends of this host, and the way to those of other hosts.
//!
//! ```text
//!   vCPU --write--> [order] --apply--> PciRoot (replica) --effects--> workers here start and stop
//!   vCPU --read---> PciRoot                                           routes of interrupts change
//!   vCPU --ring---> doorbell of a queue here, or the slice of its home
//!
//!   worker (queue here) --submit--> back end here, or Exchange --frames--> back end elsewhere
//! ```
//! Only the device thread changes anything; a worker's thread blocks in guest memory as a vCPU does, so
//! neither the engine's thread nor the device thread holds a lock that a worker wants.

mod back_ends;
mod bus;
mod console;
mod disk;
mod freezing;
mod lend;
mod model;
mod move_error;
mod moves;
mod nic;
mod open_error;
mod order;
mod parts;
mod queues;
mod quiesce;
mod registry;
mod remote;
mod rest;
mod rng;
mod saved;
mod serve;
#[cfg(test)]
pub(super) mod testing;
mod vsock;

pub(crate) use back_ends::BackEnds;
pub(crate) use bus::PciBus;
pub(crate) use console::Relay;
pub use console::{ConsoleEnd, ConsoleSpec};
pub use disk::{DiskFormat, DiskSpec};
pub(crate) use freezing::{FreezeError, FromCheckpoint};
pub use lend::Lend;
pub(crate) use lend::Lent;
pub use nic::NicSpec;
pub use open_error::OpenError;
pub(crate) use order::OrderState;
pub(crate) use parts::PartError;
pub(crate) use quiesce::QueuesError;
pub use registry::{BackEndShape, DeviceKind, DeviceSpec, Rings, Standby};
pub(crate) use rest::{RestError, Resting, rest};
pub use rng::RngSpec;
pub(crate) use saved::{DeviceStart, DeviceState, DevicesState, FrontEndState};
pub(crate) use serve::DeviceThread;
pub use vsock::{VsockShape, VsockSpec};

use super::channels::Channels;
use super::{SliceError, one_line};
use crate::guest_memory::{Guard, GuestMemory};
use crate::machine::Machine;
use devices::delegate::{Counts, Courier, Exchange};
use devices::msix::{MsixVector, MsixView};
use devices::pci::{DeviceId, PciEffect, PciRoot};
use devices::saved::PciRootState;
use devices::virtio::{DeviceChange, DeviceFaults, Doorbell, QueueIndex, RingError, StopTimeout};
use dsm::GuestRam;
use migrate::cut::DeviceMove;
use migrate::{DevicePlace, PlacementView, Saved};
use parts::{RealPart, Stage};
use queues::{Queues, Slot};
use remote::Remote;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use transport::Class;
use wire::{SLICES_MAX, SliceId};

/// A doorbell that KVM rings by itself.
#[derive(Debug)]
struct Wired {
    device: DeviceId,
    address: u64,
    bell: Doorbell,
}

/// The devices of one slice.
pub(crate) struct SliceDevices {
    local: SliceId,
    placement: PlacementView,
    pci: RwLock<PciRoot>,
    slots: Vec<Slot>,
    exchange: Exchange,
    machine: Machine,
    /// The device thread takes it, and whoever brings the queues to rest, while no driver changes anything.
    queues: Mutex<Queues>,
    /// Only the device thread takes it.
    wired: Mutex<Vec<Wired>>,
    /// What can move to this host or from it.
    parts: BTreeMap<u16, Arc<dyn RealPart>>,
    /// What has a state that a checkpoint must keep.
    kept: BTreeMap<u16, Arc<dyn RealPart>>,
    /// A device that is on its way. Only the thread for cuts takes it.
    moving: Mutex<Option<(DeviceMove, Stage)>>,
    _guard: Option<Guard>,
}

impl fmt::Debug for SliceDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SliceDevices").field("local", &self.local).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SliceDevices {
    /// The devices of a VM that has some; `shapes` are what their back ends say.
    pub(crate) fn new(
        shapes: &[BackEndShape],
        back_ends: &BackEnds,
        channels: &Arc<Channels>,
        ram: &Arc<GuestRam>,
        machine: &Machine,
    ) -> Result<Self, SliceError> {
        let local = channels.local();
        let placement = channels.placement.load();
        let broken = |error: &dyn std::error::Error| SliceError::Devices(one_line(error));
        // Others may join later.
        let others = (0..SLICES_MAX).map(SliceId).filter(|slice| *slice != local);
        let others: Vec<SliceId> = others.collect();
        let courier = Arc::new(Bulk(Arc::clone(channels)));
        let exchange = Exchange::new(local, &others, channels.epoch, courier);
        let places = placement.devices();
        let count = |place: &DevicePlace| u16::try_from(place.queues.len()).unwrap_or(u16::MAX);
        let seen = shapes.iter().zip(places).map(|(shape, place)| shape.seen(count(place)));
        let pci = PciRoot::new(seen.collect()).map_err(|error| broken(&error))?;
        let mut slots = Vec::new();
        for (id, place) in (0u16..).map(DeviceId).zip(places) {
            let msix = Arc::new(MsixView::new(pci.vectors(id), Arc::new(machine.clone())));
            let (owner, queues) = (place.owner, count(place));
            let at = Remote { exchange: &exchange, device: id, owner, queues };
            let front_end = back_ends.front_end(&shapes[usize::from(id.0)], &at);
            let front_end = front_end.map_err(|error| broken(&error))?;
            let slot = Slot::new(local, &place.queues, front_end, msix);
            slots.push(slot.map_err(|error| broken(&error))?);
        }
        let memory = GuestMemory::new(ram).map_err(|error| broken(&error))?;
        let faults: Arc<dyn DeviceFaults> = Arc::new(Faults(Arc::clone(channels)));
        let guard = channels.handle.get().map(|handle| Guard::new(ram, handle));
        let (queues, machine) = (Mutex::new(Queues::new(memory, faults)), machine.clone());
        let (pci, wired) = (RwLock::new(pci), Mutex::default());
        let placement = channels.placement.clone();
        let (parts, kept) = (back_ends.parts(), back_ends.kept());
        let moving = Mutex::default();
        Ok(Self {
            local,
            placement,
            pci,
            slots,
            exchange,
            machine,
            queues,
            wired,
            parts,
            kept,
            moving,
            _guard: guard,
        })
    }

    /// Puts the bus where it stands in a VM that this slice joins, before any vCPU is here.
    ///
    /// # Errors
    /// It is that of another VM.
    pub(crate) fn take_up(&self, state: PciRootState) -> Result<(), SliceError> {
        let broken = |error: &dyn std::error::Error| SliceError::Devices(one_line(error));
        let mut pci = self.pci.write().unwrap_or_else(PoisonError::into_inner);
        pci.restore(state).map_err(|error| broken(&error))?;
        let in_force = pci.in_force();
        drop(pci);
        let acted = in_force.into_iter().try_for_each(|effect| self.act(effect));
        acted.map_err(|error| broken(&error))
    }

    /// Puts the devices where they stand in a VM that is restored, before any vCPU runs. The vCPUs here have their state: they
    /// may be interrupted.
    ///
    /// # Errors
    /// They are those of another VM.
    pub(crate) fn go_on(
        &self,
        state: PciRootState,
        devices: Vec<DeviceStart>,
    ) -> Result<(), SliceError> {
        let broken = |error: &dyn std::error::Error| SliceError::Devices(one_line(error));
        let mut pci = self.pci.write().unwrap_or_else(PoisonError::into_inner);
        pci.restore(state).map_err(|error| broken(&error))?;
        let in_force = pci.in_force();
        drop(pci);
        let mut devices: Vec<_> = devices.into_iter().map(Some).collect();
        for effect in in_force {
            let PciEffect::Activated { device, activation } = effect else {
                self.act(effect).map_err(|error| broken(&error))?;
                continue;
            };
            let at = usize::from(device.0);
            let start = devices.get_mut(at).and_then(Option::take);
            let (Some(slot), Some(start)) = (self.slots.get(at), start) else { continue };
            start.raised.iter().for_each(|vector| slot.msix.raise(Some(MsixVector(*vector))));
            let gone_on = lock(&self.queues).go_on((device, slot), &activation, start);
            gone_on.map_err(|error| broken(&error))?;
        }
        Ok(())
    }

    /// The bus as it stands.
    pub(crate) fn bus_state(&self) -> PciRootState {
        self.pci.read().unwrap_or_else(PoisonError::into_inner).save()
    }

    /// True for addresses of PCI.
    pub(crate) fn claims(&self, address: u64) -> bool {
        self.pci.read().unwrap_or_else(PoisonError::into_inner).claims(address)
    }

    /// Reads registers of PCI; false for an address that is none.
    pub(crate) fn read(&self, address: u64, data: &mut [u8]) -> bool {
        let pci = self.pci.read().unwrap_or_else(PoisonError::into_inner);
        let claimed = pci.claims(address);
        if claimed {
            pci.read(address, data);
        }
        claimed
    }

    /// The queue that a write rings for, if that is all it does.
    pub(crate) fn doorbell(&self, address: u64, data: &[u8]) -> Option<(u16, u16)> {
        let pci = self.pci.read().unwrap_or_else(PoisonError::into_inner);
        pci.doorbell(address, data).map(|(device, queue)| (device.0, queue.0))
    }

    /// Rings for a queue; false when it is not here.
    fn ring(&self, device: u16, queue: u16) -> bool {
        let slot = self.slots.get(usize::from(device));
        slot.is_some_and(|slot| slot.ring(QueueIndex(queue)))
    }

    /// Carries out the guest's write, on the device thread.
    ///
    /// # Errors
    /// It is not in effect: a worker that it was to stop still runs.
    pub(crate) fn write(&self, address: u64, data: &[u8]) -> Result<(), StopTimeout> {
        self.change(|pci, effects| pci.write(address, data, effects))
    }

    /// Makes a device need a reset, on the device thread.
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub(crate) fn set_broken(&self, device: u16) -> Result<(), StopTimeout> {
        let change = DeviceChange::NeedsReset;
        self.change(|pci, effects| pci.change(DeviceId(device), &change, effects))
    }

    fn change(
        &self,
        change: impl FnOnce(&mut PciRoot, &mut Vec<PciEffect>),
    ) -> Result<(), StopTimeout> {
        let mut effects = Vec::new();
        change(&mut self.pci.write().unwrap_or_else(PoisonError::into_inner), &mut effects);
        effects.into_iter().try_for_each(|effect| self.act(effect))
    }

    fn act(&self, effect: PciEffect) -> Result<(), StopTimeout> {
        let slot = |device: DeviceId| self.slots.get(usize::from(device.0));
        match effect {
            PciEffect::Activated { device, activation } => {
                if let Some(slot) = slot(device) {
                    lock(&self.queues).start(device, slot, &activation);
                }
            }
            PciEffect::Reset { device } => {
                if let Some(slot) = slot(device) {
                    lock(&self.queues).stop(device, slot)?;
                    slot.msix.forget();
                }
            }
            PciEffect::MsixChanged { device, vector, route } => {
                if let Some(slot) = slot(device) {
                    slot.msix.route(vector, route);
                }
            }
            PciEffect::ConfigChanged { device, vector } => {
                if let (Some(slot), true) =
                    (slot(device), self.placement.load().coordinator() == self.local)
                {
                    slot.msix.raise(Some(vector));
                }
            }
            PciEffect::DoorbellsMoved { device } => {
                self.wire(device);
            }
            PciEffect::Doorbell { device, queue } => {
                self.ring(device.0, queue.0);
            }
        }
        Ok(())
    }

    /// Has KVM ring the doorbells of a device where they are now. False if it still rings some where they were.
    fn wire(&self, device: DeviceId) -> bool {
        let mut wired = lock(&self.wired);
        let old = wired.extract_if(.., |old| old.device == device);
        let all_off =
            old.map(|old| self.set_doorbell(&old, false)).fold(true, |all, off| all & off);
        let doorbells = self.pci.read().unwrap_or_else(PoisonError::into_inner).doorbells();
        let slot = &self.slots[usize::from(device.0)];
        for at in doorbells.into_iter().filter(|at| at.device == device) {
            let Some(bell) = slot.bell(at.queue) else { continue };
            let new = Wired { device, address: at.address, bell };
            if self.set_doorbell(&new, true) {
                wired.push(new);
            }
        }
        all_off
    }

    /// Without KVM's help the vCPU exits and rings itself.
    fn set_doorbell(&self, wired: &Wired, on: bool) -> bool {
        let result = self.machine.set_doorbell(wired.address, wired.bell.event(), on);
        if let Err(error) = &result {
            tracing::debug!("doorbell at {:#x}: {}", wired.address, one_line(error));
        }
        result.is_ok()
    }

    /// Takes a frame of a delegated device, on the engine's thread.
    pub(crate) fn frame(&self, from: SliceId, bytes: &[u8]) -> Result<(), String> {
        self.exchange.frame(from, bytes).map_err(|error| one_line(&error))
    }

    /// What went to and from devices of other slices.
    pub(crate) fn delegated(&self) -> Counts {
        self.exchange.counters().counts()
    }

    /// A slice is gone.
    pub(crate) fn lost(&self, slice: SliceId) {
        self.exchange.lost(slice);
    }

    /// A slice that was to join does not.
    pub(crate) fn forget(&self, slice: SliceId) {
        self.exchange.forget(slice);
    }
}

/// Takes frames of delegated devices to other slices.
#[derive(Debug)]
struct Bulk(Arc<Channels>);

impl Courier for Bulk {
    fn send(&self, to: SliceId, frame: Vec<u8>) -> bool {
        self.0.handle.get().is_some_and(|handle| handle.send(to, Class::Bulk, frame))
    }

    fn send_all(&self, to: SliceId, frames: Vec<Vec<u8>>) -> bool {
        self.0.handle.get().is_some_and(|handle| handle.send_all(to, Class::Bulk, frames))
    }
}

/// Tells the coordinator of broken rings.
struct Faults(Arc<Channels>);

impl DeviceFaults for Faults {
    fn broken(&self, device: DeviceId, cause: RingError) {
        if cause == RingError::Worker {
            tracing::error!(device = device.0, "a device cannot go on: {cause}");
        } else {
            tracing::warn!(device = device.0, "the guest's driver has broken a device: {cause}");
        }
        self.0.device_broken(device.0);
    }
}
