//! The device thread of a slice: the one that orders changes, on the bootstrap slice, and the one that
//! follows the order, on a companion.

use super::SliceDevices;
use super::order::{self, OrderError, Sequencer, Turn};
use crate::slice::BOOTSTRAP;
use crate::slice::bus::{access, written};
use crate::slice::channels::{Channels, DeviceJob};
use crossbeam_channel::Receiver;
use devices::Chipset;
use migrate::Saved;
use std::sync::Arc;
use wire::control::{DeviceCall, DeviceChange, Space};
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
            DeviceJob::Broken(device) => self.change(DeviceChange::Broken { device })?,
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
        self.change(DeviceChange::Write { address, length, data })?;
        Ok(0)
    }

    fn change(&mut self, change: DeviceChange) -> Result<(), OrderError> {
        let Some(devices) = &self.devices else { return Ok(()) };
        let send = |to: SliceId, frame: &Control| self.channels.send(to, frame);
        self.sequencer.order(change, send, || apply(devices, change))
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
        let applied = devices.map_or(Ok(()), |devices| apply(devices, change));
        if let Err(error) = applied {
            order::broken(channels, &error);
            return;
        }
        channels.send(BOOTSTRAP, &Control::Applied { sequence });
    }
}

fn apply(devices: &SliceDevices, change: DeviceChange) -> Result<(), OrderError> {
    match change {
        DeviceChange::Write { address, length, data } => {
            devices.write(address, written(&data.to_le_bytes(), length))?;
        }
        DeviceChange::Broken { device } => devices.set_broken(device)?,
    }
    Ok(())
}
