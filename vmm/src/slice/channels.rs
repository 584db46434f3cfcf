//! Where the threads of a slice send things: frames to other slices, jobs to the device thread, events to the main
//! thread, answers to vCPUs that wait for them.
//!
//! Nothing here blocks. What arrives by frames is taken to its place by `dispatch`.

use super::borrowed::Group;
use super::calls::PendingCalls;
use super::checkpoint_link::CheckpointLinks;
use super::clock_rounds::ClockRounds;
use super::closed_devices::ClosedDevices;
use super::cut_link::CutLinks;
use super::device_rest::Pause;
use super::events::{EventSender, SliceEvent};
use super::frame_counts::FrameCounts;
use super::join_link::Joining;
use super::operations::Operations;
use super::pulls::Pulls;
use super::queue_states::QueueStates;
use super::reports::Reports;
use super::stop::StopHandle;
use super::succession::Succession;
use arc_swap::ArcSwapOption;
use crossbeam_channel::Sender;
use devices::{Chipset, Fence};
use dsm::Handle;
use migrate::{PlacementOwner, PlacementView};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use transport::Class;
use wire::control::{DeviceCall, InterruptEvent, OrderedChange, SliceLoad, VcpuMessage};
use wire::{Control, Epoch, SliceId, VcpuId};

/// Stands for the number of a change that was applied: the slice is gone, and the VM goes on without it.
pub(crate) const GONE: u64 = u64::MAX;

/// Work for the device thread of a slice.
#[derive(Debug)]
pub(crate) enum DeviceJob {
    /// For the coordinator.
    Call(SliceId, DeviceCall),
    /// For the coordinator.
    EndOfInterrupt(u8),
    /// For the coordinator: this device's driver has broken a ring.
    Broken(u16),
    /// For every other slice.
    Apply(u64, OrderedChange),
    /// For the coordinator, of itself: a part has another place. Told when all slices know.
    Place(OrderedChange, Sender<()>),
    /// Of this slice itself: no change until it is to go on.
    Rest(Pause),
}

/// Interrupts and calls that crossed slices.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) interrupts_in: AtomicU64,
    pub(crate) interrupts_out: AtomicU64,
    pub(crate) device_calls: AtomicU64,
}

/// The channels of one slice.
#[derive(Debug)]
pub(crate) struct Channels {
    pub(crate) epoch: Epoch,
    /// Where everything of the VM is.
    pub(crate) placement: PlacementView,
    /// What changes that.
    pub(super) owner: PlacementOwner,
    pub(crate) events: EventSender,
    /// Slices without which the VM goes on.
    pub(crate) bystanders: Vec<SliceId>,
    /// To the device thread.
    jobs: Sender<DeviceJob>,
    /// To the device thread, while it waits for other slices on the coordinator.
    pub(super) applied: Sender<(SliceId, u64)>,
    /// Set once the memory engine runs, which sends the frames; never in a VM of one slice that nobody can join.
    pub(crate) handle: OnceLock<Handle>,
    /// Set before the memory engine starts.
    pub(crate) fence: OnceLock<Arc<Fence>>,
    /// One at a time decides whether it has a lease.
    lease_turn: Mutex<()>,
    pub(crate) calls: PendingCalls,
    pub(crate) traffic: Traffic,
    /// Frames with state of the guest.
    pub(crate) frames: FrameCounts,
    /// To the threads that bring this slice to rest.
    pub(super) cut: CutLinks,
    /// To the threads that write checkpoints.
    pub(super) checkpoints: CheckpointLinks,
    /// Pages that are to come home.
    pub(super) pulls: Pulls,
    /// Of queues that come here.
    pub(super) queue_states: QueueStates,
    /// Of devices that come to this host.
    pub(super) closed_devices: ClosedDevices,
    /// What is done to the whole VM. Of the coordinator.
    pub(super) operations: Operations,
    /// The platform devices, while this slice coordinates.
    pub(super) chipset: ArcSwapOption<Chipset>,
    /// Of other slices, while the VM runs.
    pub(super) reports: Reports<Vec<u8>>,
    /// What their vCPUs have done.
    pub(super) loads: Reports<SliceLoad>,
    /// vCPUs that are at home for a while, and those that were.
    pub(super) borrowed: Group,
    /// This slice coordinates, and all others know.
    pub(super) leads: AtomicBool,
    /// From one coordinator to the next.
    pub(super) succession: Succession,
    /// By which this process is asked to stop, once the VM has appeared.
    pub(super) stop: OnceLock<StopHandle>,
    /// Slices that join.
    pub(super) joining: Joining,
    /// Of other slices, while this one coordinates.
    pub(super) clock_rounds: ClockRounds,
}

impl Channels {
    pub(crate) fn new(
        epoch: Epoch,
        owner: PlacementOwner,
        bystanders: Vec<SliceId>,
        events: EventSender,
        (jobs, applied): (Sender<DeviceJob>, Sender<(SliceId, u64)>),
    ) -> Self {
        let placement = owner.view();
        Self {
            epoch,
            placement,
            owner,
            events,
            bystanders,
            jobs,
            applied,
            handle: OnceLock::new(),
            fence: OnceLock::new(),
            lease_turn: Mutex::new(()),
            calls: PendingCalls::default(),
            traffic: Traffic::default(),
            frames: FrameCounts::default(),
            cut: CutLinks::default(),
            checkpoints: CheckpointLinks::default(),
            pulls: Pulls::default(),
            queue_states: QueueStates::default(),
            closed_devices: ClosedDevices::default(),
            operations: Operations::default(),
            chipset: ArcSwapOption::empty(),
            reports: Reports::default(),
            loads: Reports::default(),
            borrowed: Group::default(),
            leads: AtomicBool::new(false),
            succession: Succession::default(),
            stop: OnceLock::new(),
            joining: Joining::default(),
            clock_rounds: ClockRounds::default(),
        }
    }

    /// This slice.
    pub(crate) fn local(&self) -> SliceId {
        self.placement.local()
    }

    /// The slices that are there now, but for this one. One that is lost is no more.
    pub(crate) fn others(&self) -> Vec<SliceId> {
        let mut there = self.there();
        there.retain(|slice| *slice != self.local());
        there
    }

    /// The fence has a lease while anybody is there, or is to join, who could take this slice for lost; one that leaves could
    /// not. Whoever comes or goes is noted before, and called after that, on whatever thread: the last call sees all.
    pub(super) fn settle_lease(&self) {
        let Some(fence) = self.fence.get() else { return };
        let _turn = self.lease_turn.lock().unwrap_or_else(PoisonError::into_inner);
        let is_watched = self.cut.expects_one()
            || self.others().into_iter().any(|slice| !self.cut.leaves(slice));
        match (is_watched, fence.has_lease()) {
            (true, false) => fence.take_lease(Fence::now(), self.joining.lease()),
            (false, true) => fence.end_lease(),
            _ => {}
        }
    }

    /// The slices that are there now, ascending.
    pub(crate) fn there(&self) -> Vec<SliceId> {
        let placement = self.placement.load();
        placement.members().iter().copied().filter(|slice| !self.cut.is_lost(*slice)).collect()
    }

    /// Whether no memory of the guest is ever here.
    pub(super) fn has_devices_only(&self) -> bool {
        self.bystanders.contains(&self.local())
    }

    /// Whether this slice coordinates and all others know, so that it may begin things.
    pub(super) fn leads(&self) -> bool {
        self.leads.load(Ordering::SeqCst)
    }

    /// The slice that coordinates now.
    pub(crate) fn coordinator(&self) -> SliceId {
        self.placement.load().coordinator()
    }

    /// Whether this slice coordinates now.
    pub(crate) fn coordinates(&self) -> bool {
        self.coordinator() == self.local()
    }

    /// Whether it may ask others for something: they answer nobody else.
    pub(super) fn may_ask(&self) -> bool {
        self.coordinates() && self.leads()
    }

    /// Sends a control frame after this slice's page-table writes are visible at its receiver.
    pub(crate) fn send(&self, to: SliceId, frame: &Control) {
        if frame.has_guest_state() {
            self.frames.sent(to);
        }
        let sent = self
            .handle
            .get()
            .is_some_and(|handle| handle.send(to, Class::Interrupt, frame.encode(self.epoch)));
        if !sent {
            tracing::debug!(%to, ?frame, "frame dropped: the memory engine has stopped");
        }
    }

    /// Sends what arrives at a vCPU, in the same way, to the slice that has it when the frame leaves. False if there is
    /// no other slice.
    pub(super) fn send_to_vcpu(&self, vcpu: VcpuId, event: InterruptEvent) -> bool {
        let Some(handle) = self.handle.get() else { return false };
        let frame = Control::Vcpu { vcpu, message: VcpuMessage::Event(event) };
        if !handle.send_to_vcpu(vcpu, Class::Interrupt, frame.encode(self.epoch)) {
            tracing::debug!(%vcpu, ?event, "interrupt dropped: the memory engine has stopped");
        }
        true
    }

    /// Another process of the VM was asked to stop, or whoever asks by the API.
    pub(super) fn note_stop(&self) {
        self.stop.get().into_iter().for_each(StopHandle::note);
    }

    /// Tells the main thread.
    pub(crate) fn event(&self, event: SliceEvent) {
        // It may end, and begin anew, before it comes to this.
        if matches!(event, SliceEvent::Stop | SliceEvent::WantStop(_)) {
            self.note_stop();
        }
        let is_over =
            matches!(event, SliceEvent::Lost(..) | SliceEvent::Fatal(_) | SliceEvent::Overtaken(_));
        if let Some(fence) = self.fence.get().filter(|_| is_over) {
            fence.shut();
        }
        self.events.send(event);
    }

    /// Gives the device thread work that `from` asks for.
    pub(super) fn job(&self, from: SliceId, job: DeviceJob) {
        // Only the coordinator asks others for anything, and only it is asked by them.
        let coordinator = self.coordinator();
        let here = match job {
            DeviceJob::Apply(..) => self.local() != coordinator && from == coordinator,
            _ => self.local() == coordinator,
        };
        if !here {
            self.event(SliceEvent::Fatal(format!("{from} calls devices that are not here")));
        } else if self.jobs.try_send(job).is_err() {
            self.event(SliceEvent::Fatal(format!("{from} floods the devices")));
        }
    }

    /// The way to the device thread, which shows how many jobs wait.
    pub(super) fn jobs(&self) -> &Sender<DeviceJob> {
        &self.jobs
    }

    /// Asks the coordinator's device thread; the answer comes to `calls`.
    pub(crate) fn call_devices(&self, call: DeviceCall) {
        let coordinator = self.coordinator();
        if self.local() == coordinator {
            self.job(coordinator, DeviceJob::Call(coordinator, call));
        } else {
            self.traffic.device_calls.fetch_add(1, Ordering::Relaxed);
            self.send(coordinator, &Control::Call(call));
        }
    }

    /// Answers a device call, wherever it came from.
    pub(crate) fn answer(&self, to: SliceId, id: u64, data: u64) {
        if to == self.local() {
            self.calls.answer(id, data);
        } else {
            self.send(to, &Control::Answer { id, data });
        }
    }

    /// Tells the IOAPIC that a level-triggered interrupt was ended here.
    pub(super) fn end_of_interrupt(&self, vector: u8) {
        self.tell_devices(DeviceJob::EndOfInterrupt(vector), &Control::EndOfInterrupt { vector });
    }

    /// A driver has broken a device's ring.
    pub(crate) fn device_broken(&self, device: u16) {
        self.tell_devices(DeviceJob::Broken(device), &Control::Broken { device });
    }

    /// Gives the coordinator's device thread a job, which is a frame on the way to another slice.
    fn tell_devices(&self, job: DeviceJob, frame: &Control) {
        let coordinator = self.coordinator();
        if self.local() == coordinator {
            self.job(coordinator, job);
        } else {
            self.send(coordinator, frame);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::slice::events::{self, Events};
    use crossbeam_channel::bounded;
    use migrate::{Placement, PlacementOwner};

    /// Channels of a slice of three without an engine, and what its main thread hears.
    pub(in crate::slice) fn channels(local: SliceId) -> (Arc<Channels>, Events) {
        channels_among(local, &[])
    }

    /// The same, where these are bystanders.
    pub(in crate::slice) fn channels_among(
        local: SliceId,
        bystanders: &[SliceId],
    ) -> (Arc<Channels>, Events) {
        let ((events, told), (jobs, _), (applied, _)) = (events::channel(), bounded(8), bounded(8));
        let members = (0..3).map(SliceId).collect();
        let placement =
            Placement::new(Epoch(1), members, vec![SliceId(0)], Vec::new(), Vec::new()).unwrap();
        let owner = PlacementOwner::new(local, placement);
        let channels = Channels::new(Epoch(1), owner, bystanders.to_vec(), events, (jobs, applied));
        (Arc::new(channels), told)
    }

    /// The main thread may end, and the VM begin anew, before it comes to the event.
    #[test]
    fn stop_that_comes_by_another_slice_is_noted_at_once() {
        for event in [SliceEvent::Stop, SliceEvent::WantStop(SliceId(1))] {
            let (channels, _told) = channels(SliceId(0));
            let stop = StopHandle::new();
            channels.stop.set(stop.clone()).unwrap();
            channels.event(event);
            assert!(stop.end());
        }
    }
}
