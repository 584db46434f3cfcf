//! The device thread of a slice: the one that orders changes, on the bootstrap slice, and the one that
//! follows the order, on a companion.

use super::SliceDevices;
use super::moves::Move;
use super::order::{self, OrderError, Sequencer, Turn};
use crate::slice::BOOTSTRAP;
use crate::slice::bus::{access, written};
use crate::slice::channels::{Channels, DeviceJob};
use crossbeam_channel::Receiver;
use devices::Chipset;
use migrate::{Change, Saved};
use std::sync::Arc;
use wire::control::{DeviceCall, OrderedChange, RelocatedPart, Space};
use wire::{Control, SliceId};

/// The device thread of the bootstrap slice.
pub(crate) struct Owner {
    pub(crate) chipset: Arc<Chipset>,
    pub(crate) channels: Arc<Channels>,
    /// Those on PCI, if the VM has any.
    pub(crate) devices: Option<Arc<SliceDevices>>,
    pub(crate) sequencer: Sequencer,
}

impl Owner {
    /// Serves all slices until the channel closes or the order of changes breaks.
    pub(crate) fn serve(mut self, jobs: &Receiver<DeviceJob>) {
        for job in jobs {
            if let Err(error) = self.take(job) {
                order::broken(&self.channels, &error);
                return;
            }
        }
    }

    fn take(&mut self, job: DeviceJob) -> Result<(), OrderError> {
        match job {
            DeviceJob::EndOfInterrupt(vector) => self.chipset.end_of_interrupt(vector),
            DeviceJob::Call(from, call) => {
                let data = self.call(&call)?;
                self.channels.answer(from, call.id, data);
            }
            DeviceJob::Broken(device) => self.change(OrderedChange::Broken { device })?,
            DeviceJob::Place(change, done) => {
                self.change(change)?;
                // Whoever asked may have gone.
                let _ = done.try_send(());
            }
            DeviceJob::Rest(pause) => pause.hold(self.sequencer.save().last),
            // The dispatch lets none through on this slice.
            DeviceJob::Apply(..) => {}
        }
        Ok(())
    }

    fn call(&mut self, call: &DeviceCall) -> Result<u64, OrderError> {
        let devices = self.devices.as_ref();
        let shared = call.space == Space::Memory
            && call.write
            && devices.is_some_and(|devices| devices.claims(call.address));
        if !shared {
            return Ok(access(self.chipset.as_ref(), call));
        }
        let (address, length, data) = (call.address, call.length, call.data);
        self.change(OrderedChange::Write { address, length, data })?;
        Ok(0)
    }

    fn change(&mut self, change: OrderedChange) -> Result<(), OrderError> {
        let (channels, devices) = (&self.channels, self.devices.as_deref());
        let send = |to: SliceId, frame: &Control| channels.send(to, frame);
        self.sequencer.order(change, send, || apply(channels, devices, change))
    }
}

/// The device thread of a companion.
pub(crate) fn follow(
    channels: &Channels,
    devices: Option<&SliceDevices>,
    jobs: &Receiver<DeviceJob>,
) {
    let mut turn = Turn::default();
    for job in jobs {
        let (sequence, change) = match job {
            DeviceJob::Apply(sequence, change) => (sequence, change),
            DeviceJob::Rest(pause) => {
                pause.hold(turn.save().last);
                continue;
            }
            // The dispatch lets nothing else through on a companion.
            _ => continue,
        };
        if let Err(error) = turn.check(sequence) {
            order::broken(channels, &error);
            return;
        }
        if let Err(error) = apply(channels, devices, change) {
            order::broken(channels, &error);
            return;
        }
        channels.send(BOOTSTRAP, &Control::Applied { sequence });
    }
}

fn apply(
    channels: &Channels,
    devices: Option<&SliceDevices>,
    change: OrderedChange,
) -> Result<(), OrderError> {
    match (change, devices) {
        (OrderedChange::Write { address, length, data }, Some(devices)) => {
            devices.write(address, written(&data.to_le_bytes(), length))?;
        }
        (OrderedChange::Broken { device }, Some(devices)) => devices.set_broken(device)?,
        // A VM without devices on PCI.
        (OrderedChange::Write { .. } | OrderedChange::Broken { .. }, None) => {}
        (OrderedChange::Relocated { part, to, placement }, _) => match part {
            RelocatedPart::Memory { first, frames } => {
                let change = Change::Memory { frames: first..first + u64::from(frames), to };
                channels.owner.advance(&[change], placement)?;
            }
            RelocatedPart::Queues { device, first, queues } => {
                let moved = Move { device, queues: first..first + queues, to, placement };
                match devices {
                    Some(devices) => devices.place(channels, &moved)?,
                    None => channels.owner.advance(&moved.changes(), placement)?,
                }
            }
        },
    }
    Ok(())
}
