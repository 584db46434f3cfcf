//! A slice comes to rest, step by step, and goes on.
//!
//! ```text
//!   running --Vcpus--> no vCPU runs --Queues--> no queue is served --Devices--> no device changes --Memory--> at rest
//!      ^                    |                        |                              |                           |
//!      +--------------------+------------------------+---- dropped, at any step ----+---------------------------+
//!                                                                     at rest --count--> PeerCounts, --save--> SliceState
//! ```
//! All slices take a step before any takes the next one, because each step needs what the next one ends:
//!
//! | step | what it needs of other slices |
//! |---|---|
//! | [`Step::Vcpus`] | device threads that answer the last accesses of vCPUs, queues and memory that are served |
//! | [`Step::Queues`] | back ends that answer the last requests, memory that is served |
//! | [`Step::Devices`] | slices that acknowledge the last change: the coordinator takes this step first |
//! | [`Step::Memory`] | memory engines that answer the last requests; they do so also after this step |
//!
//! A frame that was on its way may bring the device thread another job after it has come to rest. Then the form is refused,
//! and the slices take the steps from [`Step::Devices`] on once more.

mod capture;

use super::succeeds::{Failure, Succeeds};
use crate::machine::{self, Machine, MachineError, Rest};
use crate::slice::channels::{Channels, GONE};
use crate::slice::checkpoint::{PartError as CheckpointPartError, Writing};
use crate::slice::events::SliceEvent;
use crate::slice::frame_counts::PeerFrames;
use crate::slice::handover::Handovers;
use crate::slice::peripherals::{self, FreezeError, PartError, QueuesError, Resting, SliceDevices};
use crate::slice::saved::{JoinState, SliceState};
use dsm::GuestRam;
use dsm::saved::Channel;
use migrate::cut::{PeerCounts, Step};
use migrate::saved::{SavedError, encode};
use migrate::{AdvanceError, Change, PlacementError, PlacementState, Saved};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;
use thiserror::Error as ThisError;
use wire::SliceId;

/// For each step of a slice that begins: the queues that it serves may wait for pages of others that have not begun.
const BEGIN_LIMIT: Duration = Duration::from_secs(30);
/// For the engine to end the connections to a newcomer that does not join.
const REMOVED_WITHIN: Duration = Duration::from_secs(1);

/// Why a slice is not at rest, or has no form. It stays where it was before the step.
#[derive(Debug, ThisError)]
pub(crate) enum QuiesceError {
    /// The vCPUs.
    #[error(transparent)]
    Vcpus(#[from] machine::RestError),
    /// The queues.
    #[error("bring the queues to rest")]
    Queues(#[from] QueuesError),
    /// The device thread.
    #[error(transparent)]
    Devices(#[from] peripherals::RestError),
    /// The memory engine.
    #[error(transparent)]
    Memory(#[from] dsm::RestError),
    /// The state of a vCPU cannot be had.
    #[error("save the vCPUs")]
    Save(#[from] MachineError),
    /// The memory engine cannot do without a slice.
    #[error(transparent)]
    Leave(#[from] dsm::LeaveError),
    /// The slice that leaves has a part of the VM, or is none of it.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// There is no such placement.
    #[error(transparent)]
    Advance(#[from] AdvanceError),
    /// A slice cannot join, as far as the memory engine is concerned.
    #[error(transparent)]
    Join(#[from] dsm::JoinError),
    /// This slice has not called it.
    #[error("it has no link to {0}")]
    NoLink(SliceId),
    /// What it is to begin with cannot be said.
    #[error("tell it how the VM stands")]
    Form(#[from] SavedError),
    /// The coordination stays where it is.
    #[error("hand the coordination over")]
    Succession(#[source] Failure),
    /// A device stays where it is.
    #[error(transparent)]
    Part(#[from] PartError),
    /// The state of a disk is not kept.
    #[error(transparent)]
    Disk(#[from] FreezeError),
    /// Its part of a checkpoint cannot be begun.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointPartError),
    /// A step before this one was not taken.
    #[error("that is not the next step")]
    Turn,
    /// Something has come for the device thread since it rests.
    #[error("{0} jobs wait for the devices")]
    Jobs(usize),
}

impl QuiesceError {
    /// Whether it has rested and something has come since: it must rest once more.
    pub(crate) fn is_news(&self) -> bool {
        matches!(self, Self::Jobs(_) | Self::Memory(dsm::RestError::NotAtRest(_)))
    }
}

/// What of a slice comes to rest.
#[derive(Clone, Debug)]
pub(crate) struct Restable {
    pub(crate) machine: Machine,
    pub(crate) channels: Arc<Channels>,
    pub(crate) handovers: Arc<Handovers>,
    /// Its memory, for checkpoints.
    pub(crate) ram: Arc<GuestRam>,
    /// None in a VM without devices on PCI.
    pub(crate) devices: Option<Arc<SliceDevices>>,
    /// Its part in coordinating.
    pub(crate) succeeds: Arc<dyn Succeeds>,
}

/// A slice that is coming to rest, or has. It goes on when this is dropped, the last step first.
#[derive(Debug)]
pub(crate) struct Quiesce {
    slice: Restable,
    vcpus: Option<Rest>,
    queues: bool,
    devices: Option<Resting>,
    memory: bool,
    /// A slice that is in the transport and has not joined.
    linked: Option<SliceId>,
    /// Its part of a checkpoint, which is being written or is.
    writing: Option<Writing>,
    /// Dropped when this slice goes on: then a part is written beside the guest.
    goes_on: Option<Sender<Infallible>>,
}

impl Quiesce {
    /// A slice that runs.
    pub(crate) fn new(slice: Restable) -> Self {
        Self {
            slice,
            vcpus: None,
            queues: false,
            devices: None,
            memory: false,
            linked: None,
            writing: None,
            goes_on: None,
        }
    }

    /// A slice that is at rest before its vCPUs are started: they stop in front of the guest.
    ///
    /// # Errors
    /// It does not come to rest.
    pub(crate) fn at_the_start(slice: Restable) -> Result<Self, QuiesceError> {
        let mut quiesce = Self::new(slice);
        for step in [Step::Vcpus, Step::Queues, Step::Devices, Step::Memory] {
            quiesce.take(step, BEGIN_LIMIT)?;
        }
        Ok(quiesce)
    }

    /// Takes a step; [`Step::Devices`] and [`Step::Memory`] also once more.
    ///
    /// # Errors
    /// It has not come so far within this time, or the step is not the next one.
    pub(crate) fn take(&mut self, step: Step, within: Duration) -> Result<(), QuiesceError> {
        match step {
            Step::Vcpus if self.vcpus.is_none() => {
                self.vcpus = Some(self.slice.machine.rest(within)?);
            }
            Step::Queues if self.vcpus.is_some() && !self.queues => {
                self.slice.devices.as_ref().map_or(Ok(()), |it| it.rest_queues(within))?;
                self.queues = true;
            }
            Step::Devices if self.queues => {
                self.let_memory_go();
                self.devices = None;
                self.devices = Some(peripherals::rest(self.slice.channels.jobs(), within)?);
            }
            Step::Memory if self.devices.is_some() => {
                self.let_memory_go();
                let engine = self.slice.channels.handle.get();
                engine.map_or(Ok(()), |engine| engine.rest(within))?;
                self.memory = true;
            }
            _ => return Err(QuiesceError::Turn),
        }
        Ok(())
    }

    /// Takes a slice that is to join into the transport, and looks whether it can. The slice itself comes to rest. The
    /// coordinator leaves what the newcomer is to begin with.
    ///
    /// # Errors
    /// This slice is not at rest, or it cannot. It is taken out again when this is dropped.
    pub(crate) fn may_join(
        &mut self,
        (slice, cut): (SliceId, u64),
        within: Duration,
    ) -> Result<(), QuiesceError> {
        if slice == self.slice.channels.local() {
            let steps = [Step::Vcpus, Step::Queues, Step::Devices, Step::Memory];
            return steps.into_iter().try_for_each(|step| self.take(step, within));
        }
        let (Some(order), true) = (&self.devices, self.memory) else {
            return Err(QuiesceError::Turn);
        };
        let Restable { channels, devices, .. } = &self.slice;
        let placement = channels.placement.load().next(&[Change::Join(slice)])?.epoch();
        let Some(engine) = channels.handle.get() else { return Err(QuiesceError::Turn) };
        let link = channels.joining.take_link(slice).ok_or(QuiesceError::NoLink(slice))?;
        self.linked = Some(slice);
        channels.cut.expect(slice);
        channels.settle_lease();
        engine.add_peer(link, within)?;
        if channels.has_devices_only() {
            return Ok(());
        }
        let memory = engine.may_join_with(slice, within)?;
        if channels.coordinates() {
            let bus = devices.as_ref().map(|devices| devices.bus_state());
            let (order, lost) = (order.state(), channels.cut.lost_slices());
            let state = JoinState { cut, placement, order, bus, memory, lost };
            channels.joining.put_state(encode(&state)?);
        }
        Ok(())
    }

    /// A slice has joined, and is at rest as all are.
    ///
    /// # Errors
    /// This slice cannot: the VM must end.
    pub(crate) fn join(&mut self, slice: SliceId, within: Duration) -> Result<(), QuiesceError> {
        if self.linked.take() != Some(slice) {
            return Err(QuiesceError::Turn);
        }
        let Restable { channels, handovers, .. } = &self.slice;
        let Some(engine) = channels.handle.get() else { return Err(QuiesceError::Turn) };
        let join = [Change::Join(slice)];
        let next = channels.placement.load().next(&join)?;
        // Before the memory engine has it: a loss that ends the engine is the loss of a member.
        channels.owner.advance(&join, next.epoch())?;
        channels.cut.settled(slice);
        if channels.cut.is_missed(slice) {
            return Err(QuiesceError::NoLink(slice));
        }
        if !channels.has_devices_only() {
            engine.join_with(slice, within)?;
        }
        handovers.joined(slice);
        Ok(())
    }

    /// Does without a slice that leaves, or only says whether it can. This slice is at rest and stays so.
    ///
    /// # Errors
    /// It is not at rest, or the slice has something of the VM still. Nothing has changed, unless the memory engine has not
    /// answered within this time: it may do so later.
    pub(crate) fn part_with(
        &self,
        slice: SliceId,
        parts: bool,
        within: Duration,
    ) -> Result<(), QuiesceError> {
        if !self.memory {
            return Err(QuiesceError::Turn);
        }
        let channels = &self.slice.channels;
        let leave = [Change::Leave(slice)];
        let next = channels.placement.load().next(&leave)?;
        let Some(engine) = channels.handle.get() else { return Err(QuiesceError::Turn) };
        if !parts {
            return Ok(engine.may_part_with(slice, within)?);
        }
        channels.cut.set_leaver(Some(slice));
        channels.settle_lease();
        engine.part_with(slice, within)?;
        channels.owner.advance(&leave, next.epoch())?;
        channels.cut.set_leaver(None);
        channels.settle_lease();
        if let Some(devices) = &self.slice.devices {
            devices.lost(slice);
        }
        // A full channel means that the device thread hangs, which it tells by itself.
        let _ = channels.applied.try_send((slice, GONE));
        self.slice.handovers.left(slice);
        Ok(())
    }

    /// The coordinator sends the next one what it must know, or this is the next one, and it gets ready.
    ///
    /// # Errors
    /// Why that cannot coordinate. Nothing has changed.
    pub(crate) fn may_coordinate(&self, to: SliceId) -> Result<(), QuiesceError> {
        let (Some(order), true) = (&self.devices, self.memory) else {
            return Err(QuiesceError::Turn);
        };
        let Restable { channels, succeeds, .. } = &self.slice;
        let done = if channels.coordinates() {
            succeeds.hand_over(to, order.state())
        } else if channels.local() == to {
            succeeds.prepare(order.state())
        } else {
            return Err(QuiesceError::Turn);
        };
        done.map_err(QuiesceError::Succession)
    }

    /// Another slice coordinates, after this cut.
    ///
    /// # Errors
    /// It cannot: the VM must end.
    pub(crate) fn coordinate(&self, to: SliceId, cut: u64) -> Result<(), QuiesceError> {
        if !self.memory {
            return Err(QuiesceError::Turn);
        }
        let Restable { channels, handovers, succeeds, .. } = &self.slice;
        let (before, local) = (channels.coordinator(), channels.local());
        let change = [Change::Coordinator(to)];
        let next = channels.placement.load().next(&change)?;
        channels.owner.advance(&change, next.epoch())?;
        handovers.coordinates(to);
        if local == to {
            succeeds.take_over(before, cut).map_err(QuiesceError::Succession)?;
        } else if local == before {
            succeeds.step_down();
        }
        Ok(())
    }

    /// Takes a step of a device whose real part goes to another host. This slice is at rest and stays so.
    ///
    /// # Errors
    /// It cannot. From the last step on the VM must end then.
    pub(crate) fn move_device(
        &self,
        step: Step,
        cut: u64,
        within: Duration,
    ) -> Result<(), QuiesceError> {
        if !self.memory {
            return Err(QuiesceError::Turn);
        }
        let Restable { channels, devices, .. } = &self.slice;
        let devices = devices.as_ref().ok_or(QuiesceError::Turn)?;
        Ok(devices.move_part(channels, (step, cut), within)?)
    }

    /// What went between this slice and each other one, which is at rest and stays so.
    ///
    /// # Errors
    /// It is not at rest (any more), or the memory engine does not answer within this time.
    pub(crate) fn count(&self, within: Duration) -> Result<Vec<PeerCounts>, QuiesceError> {
        if !self.memory {
            return Err(QuiesceError::Turn);
        }
        let frames = self.frames()?;
        let engine = self.slice.channels.handle.get();
        let messages = engine.map(|engine| engine.count(within)).transpose()?;
        Ok(peer_counts(&frames, &messages.unwrap_or_default()))
    }

    /// The counts of frames, when nothing has come for the device thread.
    fn frames(&self) -> Result<Vec<PeerFrames>, QuiesceError> {
        let channels = &self.slice.channels;
        // First of all: a frame that comes from now on may be in the form, but is not counted, and is seen to be missing.
        let placement = channels.placement.load();
        let local = channels.local();
        let frames = channels.frames.save(|peer| peer != local && placement.is_member(peer));
        match channels.jobs().len() {
            0 => Ok(frames),
            waiting => Err(QuiesceError::Jobs(waiting)),
        }
    }

    /// The form of the slice, which is at rest and stays so.
    ///
    /// # Errors
    /// It is not at rest (any more), or some part does not answer within this time.
    pub(crate) fn save(&self, within: Duration) -> Result<SliceState, QuiesceError> {
        let (Some(vcpus), Some(order), true) = (&self.vcpus, &self.devices, self.memory) else {
            return Err(QuiesceError::Turn);
        };
        let Restable { channels, devices, .. } = &self.slice;
        let frames = self.frames()?;
        let devices = devices.as_ref().map(|devices| devices.save(within)).transpose()?;
        let engine = channels.handle.get();
        Ok(SliceState {
            slice: channels.local(),
            placement: PlacementState::from(&**channels.placement.load()),
            ticks: vcpus.ticks(),
            vcpus: vcpus.save()?,
            chipset: channels.chipset.load().as_ref().map(|chipset| chipset.save()),
            order: order.state(),
            devices,
            frames,
            memory: engine.map(|engine| engine.save(within)).transpose()?,
        })
    }

    fn let_newcomer_go(&mut self) {
        let channels = &self.slice.channels;
        let (Some(slice), Some(engine)) = (self.linked.take(), channels.handle.get()) else {
            return;
        };
        engine.remove_peer(slice, REMOVED_WITHIN);
        if let Some(devices) = &self.slice.devices {
            devices.forget(slice);
        }
        channels.cut.settled(slice);
        channels.settle_lease();
    }

    fn let_memory_go(&mut self) {
        if let (true, Some(engine)) =
            (std::mem::take(&mut self.memory), self.slice.channels.handle.get())
        {
            engine.go_on();
        }
    }
}

/// Frames and messages of each peer.
pub(super) fn peer_counts(frames: &[PeerFrames], messages: &[Channel]) -> Vec<PeerCounts> {
    let counts = frames.iter().map(|frames| {
        let channel = messages.iter().find(|channel| channel.peer == frames.peer);
        let (sent, received) = channel.map_or((0, 0), |channel| (channel.sent, channel.received));
        PeerCounts {
            peer: frames.peer,
            sent: [frames.sent, sent],
            received: [frames.received, received],
        }
    });
    counts.collect()
}

impl Drop for Quiesce {
    fn drop(&mut self) {
        self.writing = None;
        // A guest that went on until its machine stops would still write to disks, which the checkpoint with which the VM has
        // ended says nothing of.
        let stays = self.slice.channels.cut.is_over();
        self.let_newcomer_go();
        if let Some(devices) = &self.slice.devices {
            devices.settle(&self.slice.channels);
        }
        self.let_memory_go();
        self.devices = None;
        if stays {
            // The machine ends their rest when it stops.
            self.vcpus.take().into_iter().for_each(std::mem::forget);
        } else {
            if let (true, Some(devices)) = (self.queues, &self.slice.devices) {
                devices.resume_queues();
            }
            self.vcpus = None;
        }
        self.goes_on = None;
        let channels = &self.slice.channels;
        // It got ready, and the cut was given up.
        if channels.succession.is_chosen() && !channels.coordinates() {
            channels.succession.choose(false);
            channels.event(SliceEvent::Coordinates);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_has_its_frames_and_its_messages() {
        let frames = |peer| PeerFrames { peer: SliceId(peer), sent: 1, received: 2 };
        let channel = Channel { peer: SliceId(2), sent: 3, received: 4 };
        let counts = |peer, sent, received| PeerCounts { peer: SliceId(peer), sent, received };
        let expected = [counts(1, [1, 0], [2, 0]), counts(2, [1, 3], [2, 4])];
        assert_eq!(peer_counts(&[frames(1), frames(2)], &[channel]), expected);
    }
}
