//! The device thread of a slice. That of the coordinator orders changes and serves the platform devices, those of all other
//! slices follow the order.
//!
//! ```text
//!   follows --it rests, and this slice coordinates when it goes on--> orders
//!      ^--------it rests, and another slice coordinates when it goes on--|
//! ```

use super::SliceDevices;
use super::moves::Move;
use super::order::{self, OrderError, OrderState, Sequencer, Turn};
use crate::slice::bus::{access, written};
use crate::slice::channels::{Channels, DeviceJob};
use crossbeam_channel::Receiver;
use migrate::{Change, Saved};
use std::sync::Arc;
use wire::control::{DeviceCall, OrderedChange, RelocatedPart, Space};
use wire::{Control, SliceId};

/// What the device thread of a slice has.
pub(crate) struct DeviceThread {
    channels: Arc<Channels>,
    /// Those on PCI, if the VM has any.
    devices: Option<Arc<SliceDevices>>,
    role: Role,
    /// What other slices acknowledge.
    applied: Receiver<(SliceId, u64)>,
}

/// Whether it gives the order or follows it.
enum Role {
    Orders(Sequencer),
    Follows(Turn),
}

impl DeviceThread {
    /// Of a slice whose devices have come so far.
    pub(crate) fn new(
        channels: Arc<Channels>,
        devices: Option<Arc<SliceDevices>>,
        applied: Receiver<(SliceId, u64)>,
        order: OrderState,
    ) -> Self {
        let role = Role::Follows(Turn::after(order.last));
        let mut thread = Self { channels, devices, role, applied };
        thread.choose_role();
        thread
    }

    /// Works until the channel closes or the order of changes breaks.
    pub(crate) fn serve(mut self, jobs: &Receiver<DeviceJob>) {
        for job in jobs {
            if let Err(error) = self.take(job) {
                order::broken(&self.channels, &error);
                return;
            }
        }
    }

    /// The slice that coordinates orders, all others follow. That, and who the others are, changes only while this thread
    /// rests.
    fn choose_role(&mut self) {
        let OrderState { last } = self.order();
        match (&mut self.role, self.channels.coordinates()) {
            (Role::Orders(sequencer), true) => sequencer.take_in(self.channels.others()),
            (Role::Follows(_), true) => {
                let others = self.channels.others();
                self.role = Role::Orders(Sequencer::new(last, others, self.applied.clone()));
            }
            (Role::Orders(_), false) => self.role = Role::Follows(Turn::after(last)),
            (Role::Follows(_), false) => {}
        }
    }

    fn order(&self) -> OrderState {
        match &self.role {
            Role::Orders(sequencer) => sequencer.save(),
            Role::Follows(turn) => turn.save(),
        }
    }

    fn take(&mut self, job: DeviceJob) -> Result<(), OrderError> {
        match job {
            DeviceJob::EndOfInterrupt(vector) => {
                if let Some(chipset) = &*self.channels.chipset.load() {
                    chipset.end_of_interrupt(vector);
                }
            }
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
            DeviceJob::Rest(pause) => {
                pause.hold(self.order().last);
                self.choose_role();
            }
            DeviceJob::Apply(sequence, change) => self.follow(sequence, change)?,
        }
        Ok(())
    }

    fn call(&mut self, call: &DeviceCall) -> Result<u64, OrderError> {
        let devices = self.devices.as_ref();
        let shared = call.space == Space::Memory
            && call.write
            && devices.is_some_and(|devices| devices.claims(call.address));
        if !shared {
            // The dispatch lets no call through where nobody coordinates.
            let chipset = self.channels.chipset.load();
            return Ok(chipset.as_ref().map_or(u64::MAX, |chipset| access(&**chipset, call)));
        }
        let (address, length, data) = (call.address, call.length, call.data);
        self.change(OrderedChange::Write { address, length, data })?;
        Ok(0)
    }

    /// Has all slices make a change. The dispatch lets nobody ask for one where nobody coordinates.
    fn change(&mut self, change: OrderedChange) -> Result<(), OrderError> {
        let (channels, devices) = (&self.channels, self.devices.as_deref());
        let Role::Orders(sequencer) = &mut self.role else { return Ok(()) };
        let send = |to: SliceId, frame: &Control| channels.send(to, frame);
        sequencer.order(change, send, || apply(channels, devices, change))
    }

    /// Makes a change that the coordinator has ordered.
    fn follow(&mut self, sequence: u64, change: OrderedChange) -> Result<(), OrderError> {
        let Role::Follows(turn) = &mut self.role else { return Ok(()) };
        turn.check(sequence)?;
        apply(&self.channels, self.devices.as_deref(), change)?;
        self.channels.send(self.channels.coordinator(), &Control::Applied { sequence });
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::channels::GONE;
    use crate::slice::channels::tests::channels;
    use crate::slice::device_rest::Pause;
    use crossbeam_channel::bounded;
    use std::thread::{scope, yield_now};
    use wire::Epoch;

    fn coordinate(thread: &mut DeviceThread, slice: u16, epoch: u32) {
        let change = [Change::Coordinator(SliceId(slice))];
        thread.channels.owner.advance(&change, Epoch(epoch)).unwrap();
        let (pause, _told, until) = Pause::new();
        drop(until);
        thread.take(DeviceJob::Rest(pause)).unwrap();
    }

    /// A slice with devices only that is gone is a member still.
    #[test]
    fn coordinator_that_comes_back_waits_for_no_slice_that_it_knows_to_be_lost() {
        let (channels, _events) = channels(SliceId(0));
        let (acknowledge, applied) = bounded(8);
        acknowledge.send((SliceId(2), GONE)).unwrap();
        channels.cut.lost(SliceId(2));
        let mut thread =
            DeviceThread::new(Arc::clone(&channels), None, applied, OrderState::default());
        scope(|threads| {
            // Slice 1 acknowledges each change once it was sent to it.
            threads.spawn(|| {
                for sequence in 1..=2 {
                    let sent = || channels.frames.save(|peer| peer == SliceId(1))[0].sent;
                    while sent() < sequence {
                        yield_now();
                    }
                    acknowledge.send((SliceId(1), sequence)).unwrap();
                }
            });
            thread.take(DeviceJob::Broken(0)).unwrap();
            coordinate(&mut thread, 1, 2);
            coordinate(&mut thread, 0, 3);
            assert_eq!(thread.take(DeviceJob::Broken(0)), Ok(()));
        });
    }
}
