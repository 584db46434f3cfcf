//! Takes what comes to a slice to its place: frames of other slices, which the memory engine's thread brings, and what
//! happens on vCPU threads.
//!
//! ```text
//!   engine --Uplink--> [Dispatcher] --> machine, devices, clock, device thread, main thread
//!   vCPUs --MachineHooks, RemoteInterrupts--> [Dispatcher] --> engine, or a frame (`channels`)
//! ```
//! Nothing here blocks except an access of a vCPU that KVM refused, which waits for the memory engine.

mod attached;

use super::channels::{Channels, DeviceJob, GONE};
use super::clock_sync::ClockSync;
use super::cut_link::TooMany;
use super::events::SliceEvent;
use super::handover::Handovers;
use super::joining;
use super::one_line;
use super::peripherals::SliceDevices;
use super::pulling;
use super::pulls::Request;
use super::queue_states::StateOf;
use super::silence::Silence;
use crate::crash;
use crate::interrupts::{RemoteInterrupts, VcpuEvent};
use crate::machine::{InMemory, Machine, MachineHooks, MemoryAccess};
use crate::trace;
use crate::vcpu::VcpuError;
use attached::{Attached, TakesFrames};
use devices::{Fence, ShutdownCause, ShutdownSink};
use dsm::{EngineError, GuestRam, Touch, Uplink};
use kvm_bindings::{kvm_regs, kvm_sregs};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use transport::Class;
use wire::control::{CheckpointMessage, CutMessage, EndCause, VcpuMessage};
use wire::{Control, Gfn, SliceId, VcpuId};

/// How long a vCPU that was refused memory waits for the memory engine; one that is busy takes
/// milliseconds.
const REFUSED_LIMIT: Duration = Duration::from_secs(10);

const PAGE: u64 = 4096;

/// Knows the parts of a slice that things are taken to.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    channels: Arc<Channels>,
    ram: Arc<GuestRam>,
    pub(crate) machine: Arc<OnceLock<Machine>>,
    /// Where vCPUs are, and how they move.
    pub(super) handovers: Arc<Handovers>,
    /// Set before the guest starts, if it has PCI.
    pub(crate) devices: Attached<SliceDevices>,
    /// Set once the engine runs; never in a VM of one slice that nobody can join.
    pub(crate) clock_sync: OnceLock<Arc<ClockSync>>,
}

impl TakesFrames for SliceDevices {
    fn take(&self, from: SliceId, bytes: &[u8]) -> Result<(), String> {
        self.frame(from, bytes)
    }
}

impl Dispatcher {
    /// Of the slice with these channels.
    pub(crate) fn new(channels: Arc<Channels>, ram: Arc<GuestRam>) -> Self {
        let machine = Arc::default();
        let handovers = Arc::new(Handovers::new(&channels, &machine));
        Self {
            channels,
            ram,
            machine,
            handovers,
            devices: Attached::default(),
            clock_sync: OnceLock::new(),
        }
    }

    fn applied(&self, from: SliceId, sequence: u64) {
        let possible = self.channels.coordinates() && sequence != GONE;
        if !possible || self.channels.applied.try_send((from, sequence)).is_err() {
            let text = format!("{from} acknowledges what it was not asked");
            self.channels.event(SliceEvent::Fatal(text));
        }
    }

    fn doorbell(&self, from: SliceId, device: u16, queue: u16) {
        let ring = |devices: &Arc<SliceDevices>| {
            devices.ring_at_its_place(&self.channels, from, (device, queue))
        };
        if !self.devices.get().is_some_and(ring) {
            let text =
                format!("{from} rings queue {queue} of device {device}, which does not exist");
            self.channels.event(SliceEvent::Fatal(text));
        }
    }

    fn queue_state(&self, which: StateOf, state: Vec<u8>) {
        if !self.channels.queue_states.put(which, state) {
            let StateOf { from, device, queue, .. } = which;
            let text = format!(
                "{from} sends the state of queue {queue} of device {device} twice, or more than move"
            );
            self.channels.event(SliceEvent::Fatal(text));
        }
    }

    /// A frame of a delegated device.
    fn delegated(&self, from: SliceId, bytes: &[u8]) {
        if let Err(cause) = self.devices.take(from, bytes) {
            self.channels.event(SliceEvent::Fatal(format!(
                "{from} breaks the protocol of devices: {cause}"
            )));
        }
    }

    fn cut(&self, from: SliceId, message: CutMessage) {
        if matches!(message, CutMessage::Dismiss(_)) && from == self.channels.coordinator() {
            self.channels.cut.set_dismissed();
        }
        match self.channels.cut.take(from, message) {
            Ok(None) => {}
            Ok(Some(answer)) => self.channels.send(from, &Control::Cut(answer)),
            Err(TooMany) => {
                let text = format!("{from} says more about a cut than it was asked");
                self.channels.event(SliceEvent::Fatal(text));
            }
        }
    }

    fn checkpoint(&self, from: SliceId, message: CheckpointMessage) {
        match self.channels.checkpoints.take(from, message) {
            Ok(None) => {}
            Ok(Some(answer)) => self.channels.send(from, &Control::Checkpoint(answer)),
            Err(TooMany) => {
                let text = format!("{from} says more about a checkpoint than it was asked");
                self.channels.event(SliceEvent::Fatal(text));
            }
        }
    }

    /// This slice is to call a newcomer.
    fn summoned(&self, from: SliceId, summons: (u64, &[u8])) {
        if !joining::summoned(&self.channels, summons) {
            let text = format!("{from} has this slice call nobody that can be called");
            self.channels.event(SliceEvent::Fatal(text));
        }
    }

    /// A frame about clocks. Before the memory engine runs there is nothing to say.
    fn clock(&self, from: SliceId, frame: &Control) {
        let Some(clock) = self.clock_sync.get() else { return };
        match frame {
            Control::ClockPing { id } => self.channels.send(from, &clock.answer(*id)),
            Control::ClockPong { id, ticks, stepped } => {
                clock.answered(from, *id, *ticks, *stepped);
            }
            Control::ClockStep { sum } => clock.tell(*sum),
            _ => {}
        }
    }

    fn control(&self, from: SliceId, frame: Control) {
        let (way, name) = frame.way();
        let placement = self.channels.placement.load();
        let local = self.channels.local();
        // Others may know earlier that this slice coordinates.
        let chosen = || self.channels.succession.is_chosen();
        let may = |slice| placement.coordinates_or_did(slice) || slice == local && chosen();
        if !way.permits(from, local, may) {
            let text = format!("{from} sends {name} to {local}, which it must not");
            return self.channels.event(SliceEvent::Fatal(text));
        }
        match frame {
            Control::Vcpu { vcpu, message } => self.handovers.message(from, vcpu, message),
            Control::Call(call) => self.channels.job(from, DeviceJob::Call(from, call)),
            Control::Answer { id, data } => self.channels.calls.answer(id, data),
            Control::EndOfInterrupt { vector } => {
                self.channels.job(from, DeviceJob::EndOfInterrupt(vector));
            }
            // Sent before the sender knew who coordinates now.
            Control::WantEnd(_) | Control::WantStop
                if !self.channels.coordinates() && !chosen() =>
            {
                self.channels.send(placement.coordinator(), &frame);
            }
            Control::WantEnd(cause) => self.channels.event(SliceEvent::WantEnd(from, cause)),
            Control::ClockPing { .. } | Control::ClockPong { .. } | Control::ClockStep { .. } => {
                self.clock(from, &frame);
            }
            Control::WantStop => self.channels.event(SliceEvent::WantStop(from)),
            Control::EndSeen => self.channels.event(SliceEvent::EndSeen(from)),
            Control::AskReport => self.channels.event(SliceEvent::AskReport),
            Control::Report(bytes) => {
                if let Some(bytes) = self.channels.reports.take(from, bytes) {
                    self.channels.event(SliceEvent::Report(from, bytes));
                }
            }
            Control::AskLoad => self.channels.event(SliceEvent::AskLoad),
            Control::Load(load) => drop(self.channels.loads.take(from, load)),
            Control::End(cause) => self.channels.event(SliceEvent::End(from, cause)),
            Control::Apply { sequence, change } => {
                self.channels.job(from, DeviceJob::Apply(sequence, change));
            }
            Control::Applied { sequence } => self.applied(from, sequence),
            Control::Broken { device } => self.channels.job(from, DeviceJob::Broken(device)),
            Control::Doorbell { device, queue } => self.doorbell(from, device, queue),
            Control::QueueState { device, queue, placement, state } => {
                self.queue_state(StateOf { from, placement, device, queue }, state);
            }
            Control::ClosedDevice { device, cut, state } => {
                self.channels.closed_devices.put((from, device, cut), state);
            }
            Control::Cut(message) => self.cut(from, message),
            Control::Checkpoint(message) => self.checkpoint(from, message),
            Control::Pull { id, from: other, first, frames } => {
                // One that has no end has no pages either.
                let frames = first..first.saturating_add(frames);
                if !pulling::asked(&self.channels, Request { id, frames, from: other }) {
                    let text = format!("{from} asks for more pages than it was to");
                    self.channels.event(SliceEvent::Fatal(text));
                }
            }
            Control::Pulled { id, failure } => self.channels.pulls.answered(from, id, failure),
            Control::CoordinatorState(state) => self.channels.succession.put(state),
            Control::WantLeave => {
                if let Err(why) = self.channels.succession.want_leave(from) {
                    self.channels.send(from, &Control::LeaveRefused(why.into()));
                }
            }
            Control::Summons { id, bytes } => self.summoned(from, (id, &bytes)),
            Control::Met { id, failure, .. } => self.channels.joining.met(from, id, &failure),
            // It may go to a terminal, and who wrote it is not known.
            Control::LeaveRefused(why) => {
                self.channels.succession.told(Err(why.replace(char::is_control, " ")));
            }
        }
    }
}

impl RemoteInterrupts for Dispatcher {
    fn forward(&self, target: VcpuId, event: VcpuEvent) {
        if self.channels.send_to_vcpu(target, event.into()) {
            return;
        }
        match self.machine.get() {
            Some(machine) => machine.deliver_local(target, event),
            None => tracing::warn!(%target, "interrupt before the start"),
        }
    }

    /// The engine's thread asks the vCPU's [`Handovers`], whether it is here or not.
    fn keeps_order(&self) -> bool {
        true
    }

    fn end_of_interrupt(&self, vector: u8) {
        self.channels.end_of_interrupt(vector);
    }
}

impl MachineHooks for Dispatcher {
    fn cr3_changed(&self, vcpu: VcpuId, cr3: u64) {
        crash::point();
        if let Some(handle) = self.channels.handle.get() {
            handle.set_root(vcpu, Gfn(cr3 >> 12));
        }
    }

    fn fault_seen(
        &self,
        vcpu: VcpuId,
        gfn: Gfn,
        certain: bool,
        regs: &kvm_regs,
        sregs: &kvm_sregs,
    ) {
        let Some(handle) = self.channels.handle.get() else { return };
        let site = trace::site(self.ram.as_ref(), vcpu, gfn, regs, sregs);
        if certain || site.touch != Touch::Unknown {
            handle.sampled(gfn, site);
        }
    }

    fn access_memory(&self, address: u64, data: MemoryAccess<'_>) -> InMemory {
        let gfn = Gfn(address / PAGE);
        if !self.ram.has(gfn) {
            return InMemory::No;
        }
        let Some(handle) = self.channels.handle.get() else {
            let at = usize::try_from(address % PAGE).unwrap_or(0);
            match data {
                MemoryAccess::Read(data) => self.ram.read(gfn, at, data),
                MemoryAccess::Write(data) => self.ram.write(gfn, at, data),
            }
            let here = self.ram.load_failure().is_none();
            return if here { InMemory::Done } else { InMemory::Failed };
        };
        let done = match data {
            MemoryAccess::Write(data) => {
                handle.write(address, data.to_vec(), REFUSED_LIMIT).is_ok()
            }
            MemoryAccess::Read(data) => {
                handle.read(address, data.len(), REFUSED_LIMIT).is_ok_and(|bytes| {
                    data.copy_from_slice(&bytes);
                    true
                })
            }
        };
        if done { InMemory::Done } else { InMemory::Failed }
    }

    fn access_refused(&self, _: VcpuId) -> bool {
        self.channels.handle.get().is_some_and(|handle| handle.refused(REFUSED_LIMIT))
    }

    fn fatal(&self, error: &VcpuError) {
        self.channels.event(SliceEvent::Fatal(one_line(error)));
    }
}

impl ShutdownSink for Dispatcher {
    fn shutdown(&self, cause: ShutdownCause) {
        let cause = match cause {
            ShutdownCause::PowerOff => EndCause::PowerOff,
            ShutdownCause::Reset => EndCause::Reset,
            ShutdownCause::GuestPanic => EndCause::GuestPanic,
        };
        let coordinator = self.channels.coordinator();
        if self.channels.local() == coordinator {
            self.channels.event(SliceEvent::WantEnd(coordinator, cause));
        } else {
            self.channels.send(coordinator, &Control::WantEnd(cause));
        }
    }
}

/// Why a slice ends that has not looked at its peers in time.
pub(super) const STOOD_STILL: &str = "it stood still for its lease: the others have given it up";

/// The engine's way up.
#[derive(Debug)]
pub(crate) struct Link {
    dispatcher: Arc<Dispatcher>,
    /// When the engine began to look at its peers, if it has not said yet that it is through.
    began: Option<u64>,
    silence: Silence,
}

impl Link {
    pub(crate) fn new(dispatcher: Arc<Dispatcher>) -> Self {
        Self { dispatcher, began: None, silence: Silence::default() }
    }
}

impl Uplink for Link {
    fn frame(&mut self, from: SliceId, class: Class, bytes: &[u8]) {
        if class == Class::Bulk {
            self.dispatcher.delegated(from, bytes);
            return;
        }
        let channels = &self.dispatcher.channels;
        match Control::decode(channels.epoch, bytes) {
            Ok(frame) => {
                let counts = frame.has_guest_state();
                self.dispatcher.control(from, frame);
                if counts {
                    channels.frames.received(from);
                }
            }
            Err(error) => {
                channels.event(SliceEvent::Fatal(format!("{from} sent garbage: {error}")));
            }
        }
    }

    /// The frame is one of [`Channels::send_to_vcpu`].
    fn route(&mut self, vcpu: VcpuId, frame: Vec<u8>) -> Option<(SliceId, Vec<u8>)> {
        let Dispatcher { channels, handovers, .. } = &*self.dispatcher;
        let decoded = Control::decode(channels.epoch, &frame);
        let Ok(Control::Vcpu { message: VcpuMessage::Event(event), .. }) = decoded else {
            return None;
        };
        let to = handovers.local(vcpu, event)?;
        channels.frames.sent(to);
        Some((to, frame))
    }

    fn looks(&mut self) {
        let now = Fence::now();
        self.began = Some(now);
        self.silence.looks(now);
    }

    fn heard(&mut self, peer: SliceId, at: u64) {
        self.silence.heard(peer, at);
    }

    fn looked(&mut self) -> bool {
        crash::point();
        crash::hang();
        let began = self.began.take();
        // A slice that cannot go on has shut its fence, and still has to tell its peers.
        let stands = self.dispatcher.channels.fence.get().is_none_or(|fence| {
            // Peers have heard of this slice as it was then: it may have stood still since.
            began.into_iter().for_each(|began| {
                let since = self.silence.since(&self.dispatcher.channels);
                since.into_iter().for_each(|since| fence.hear(since));
                fence.renew(began);
            });
            fence.look(Fence::now());
            !fence.has_expired()
        });
        if !stands {
            let channels = &self.dispatcher.channels;
            let has_left = channels.cut.is_dismissed();
            let stood_still = || SliceEvent::Fatal(STOOD_STILL.into());
            channels.event(if has_left { SliceEvent::Dismissed } else { stood_still() });
        }
        stands
    }

    fn lost(&mut self, peer: SliceId, cause: String) {
        let Dispatcher { channels, devices, handovers, .. } = &*self.dispatcher;
        if !channels.placement.load().is_member(peer) {
            channels.cut.missed(peer);
            // It may have joined meanwhile: either this is seen here, or the loss there.
            if !channels.placement.load().is_member(peer) {
                return tracing::warn!("{peer}, which was to join, is gone: {cause}");
            }
        }
        let is_bystander = channels.bystanders.contains(&peer);
        if !is_bystander && let Some(fence) = channels.fence.get() {
            // Before all else: others find their requests failed.
            fence.shut();
        }
        if let Some(devices) = devices.get() {
            devices.lost(peer);
        }
        if is_bystander {
            tracing::error!("{peer} is lost, and its devices with it: {cause}");
            channels.cut.lost(peer);
            channels.settle_lease();
            channels.checkpoints.lost(peer);
            // A full channel means that the device thread hangs, which it tells by itself.
            let _ = channels.applied.try_send((peer, GONE));
            handovers.lost(peer);
            channels.event(SliceEvent::LostDevices(peer, cause));
            return;
        }
        // The others may have ended meanwhile, on a slice that is slow to hear that it has left.
        if channels.cut.is_dismissed() {
            return channels.event(SliceEvent::Dismissed);
        }
        channels.event(SliceEvent::Lost(peer, cause));
    }

    fn fatal(&mut self, error: EngineError) {
        self.dispatcher.channels.event(SliceEvent::Fatal(one_line(&error)));
    }

    fn sample_roots(&mut self) {
        let Dispatcher { channels, machine, .. } = &*self.dispatcher;
        let Some(machine) = machine.get() else { return };
        for vcpu in channels.placement.load().vcpus_on(channels.local()) {
            machine.sample_cr3(vcpu);
        }
    }

    fn sample_fault(&mut self, gfn: Gfn, thread: u32) {
        if let Some(machine) = self.dispatcher.machine.get() {
            machine.sample_fault(gfn, thread);
        }
    }
}

#[cfg(test)]
mod tests;
