//! What ties a slice's threads together: vCPUs, memory engine, devices and the main thread.
//!
//! vCPU threads call in to forward interrupts and device accesses; the engine's thread calls in with
//! frames of other slices. Nothing here blocks except a device call of a vCPU, which waits for its
//! answer.

use super::bus::PendingCalls;
use super::clockwork::Clockwork;
use super::events::{EventSender, SliceEvent};
use super::one_line;
use super::peripherals::{GONE, SliceDevices};
use crate::crash;
use crate::interrupts::{RemoteInterrupts, VcpuEvent};
use crate::machine::{InMemory, Machine, MachineHooks, MemoryAccess, VcpuError};
use crate::trace;
use crossbeam_channel::Sender;
use devices::{Fence, ShutdownCause, ShutdownSink};
use dsm::{EngineError, GuestRam, Handle, Touch, Uplink};
use kvm_bindings::{kvm_regs, kvm_sregs};
use migrate::{PlacementView, Route};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use transport::Class;
use wire::control::{DeviceCall, DeviceChange, EndCause, InterruptEvent};
use wire::{Control, Epoch, Gfn, SliceId, VcpuId};

/// How long a vCPU that was refused memory waits for the memory engine; one that is busy takes
/// milliseconds.
const REFUSED_LIMIT: Duration = Duration::from_secs(10);

const PAGE: u64 = 4096;

/// The slice with the devices.
pub(crate) const BOOTSTRAP: SliceId = SliceId(0);

/// Work for the device thread of a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeviceJob {
    /// For the bootstrap slice.
    Call(SliceId, DeviceCall),
    /// For the bootstrap slice.
    EndOfInterrupt(u8),
    /// For the bootstrap slice: this device's driver has broken a ring.
    Broken(u16),
    /// For a companion.
    Apply(u64, DeviceChange),
}

/// Interrupts and calls that crossed slices.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) interrupts_in: AtomicU64,
    pub(crate) interrupts_out: AtomicU64,
    pub(crate) device_calls: AtomicU64,
}

/// The shared middle of a slice.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(crate) epoch: Epoch,
    pub(crate) ram: Arc<GuestRam>,
    /// Where everything of the VM is.
    pub(crate) placement: PlacementView,
    pub(crate) events: EventSender,
    /// Slices without which the VM goes on.
    pub(crate) bystanders: Vec<SliceId>,
    /// To the device thread.
    pub(crate) jobs: Sender<DeviceJob>,
    /// To the device thread of the bootstrap slice, while it waits for companions.
    pub(crate) applied: Sender<(SliceId, u64)>,
    /// Set before the guest starts, if it has PCI.
    pub(crate) devices: OnceLock<Arc<SliceDevices>>,
    /// Set once the engine runs; never in a VM of one slice.
    pub(crate) handle: OnceLock<Handle>,
    pub(crate) machine: OnceLock<Machine>,
    /// Set before the memory engine starts.
    pub(crate) fence: OnceLock<Arc<Fence>>,
    /// Set once the engine runs, as `handle`.
    pub(crate) clockwork: OnceLock<Arc<Clockwork>>,
    pub(crate) calls: PendingCalls,
    pub(crate) traffic: Traffic,
}

impl Fabric {
    /// This slice.
    pub(crate) fn local(&self) -> SliceId {
        self.placement.local()
    }

    /// Sends a control frame after this slice's page-table writes are visible at its receiver.
    pub(crate) fn send(&self, to: SliceId, frame: &Control) {
        let sent = self
            .handle
            .get()
            .is_some_and(|handle| handle.send(to, Class::Interrupt, frame.encode(self.epoch)));
        if !sent {
            tracing::debug!(%to, ?frame, "frame dropped: the memory engine has stopped");
        }
    }

    pub(crate) fn event(&self, event: SliceEvent) {
        if let (SliceEvent::Lost(..) | SliceEvent::Fatal(_), Some(fence)) =
            (&event, self.fence.get())
        {
            fence.shut();
        }
        self.events.send(event);
    }

    fn job(&self, from: SliceId, job: DeviceJob) {
        // Only the bootstrap asks companions for anything, and only it is asked by them.
        let here = match job {
            DeviceJob::Apply(..) => self.local() != BOOTSTRAP && from == BOOTSTRAP,
            _ => self.local() == BOOTSTRAP,
        };
        if !here {
            self.event(SliceEvent::Fatal(format!("{from} calls devices that are not here")));
        } else if self.jobs.try_send(job).is_err() {
            self.event(SliceEvent::Fatal(format!("{from} floods the devices")));
        }
    }

    /// Asks the bootstrap slice's device thread; the answer comes to `calls`.
    pub(crate) fn call_devices(&self, call: DeviceCall) {
        if self.local() == BOOTSTRAP {
            self.job(BOOTSTRAP, DeviceJob::Call(BOOTSTRAP, call));
        } else {
            self.traffic.device_calls.fetch_add(1, Ordering::Relaxed);
            self.send(BOOTSTRAP, &Control::Call(call));
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

    /// A driver has broken a device's ring.
    pub(crate) fn device_broken(&self, device: u16) {
        if self.local() == BOOTSTRAP {
            self.job(BOOTSTRAP, DeviceJob::Broken(device));
        } else {
            self.send(BOOTSTRAP, &Control::Broken { device });
        }
    }

    fn applied(&self, from: SliceId, sequence: u64) {
        let possible = self.local() == BOOTSTRAP && sequence != GONE;
        if !possible || self.applied.try_send((from, sequence)).is_err() {
            let text = format!("{from} acknowledges what it was not asked");
            self.event(SliceEvent::Fatal(text));
        }
    }

    fn doorbell(&self, from: SliceId, device: u16, queue: u16) {
        let rung = self.devices.get().is_some_and(|devices| devices.ring(device, queue));
        if !rung {
            let text = format!("{from} rings queue {queue} of device {device}, which is not here");
            self.event(SliceEvent::Fatal(text));
        }
    }

    /// A frame of a delegated device.
    fn delegated(&self, from: SliceId, bytes: &[u8]) {
        let result = match self.devices.get() {
            Some(devices) => devices.frame(from, bytes),
            None => Err("there are no devices".into()),
        };
        if let Err(cause) = result {
            self.event(SliceEvent::Fatal(format!(
                "{from} breaks the protocol of devices: {cause}"
            )));
        }
    }

    fn interrupt(&self, vcpu: VcpuId, event: InterruptEvent) {
        match (self.placement.route(vcpu), self.machine.get()) {
            (Route::Here, Some(machine)) => {
                self.traffic.interrupts_in.fetch_add(1, Ordering::Relaxed);
                machine.deliver_local(vcpu, from_wire(event));
            }
            // Sent before the sender knew of a move: bring it on.
            (Route::There(slice), _) => self.send(slice, &Control::Interrupt { vcpu, event }),
            (Route::Here, None) | (Route::Nowhere, _) => {
                tracing::warn!(%vcpu, "interrupt for an unknown vCPU, or before the start");
            }
        }
    }

    fn control(&self, from: SliceId, frame: Control) {
        let (way, name) = frame.way();
        if !way.permits(from, self.local()) {
            let text = format!("{from} sends {name} to {}, which it must not", self.local());
            return self.event(SliceEvent::Fatal(text));
        }
        match frame {
            Control::Interrupt { vcpu, event } => self.interrupt(vcpu, event),
            Control::Call(call) => self.job(from, DeviceJob::Call(from, call)),
            Control::Answer { id, data } => self.calls.answer(id, data),
            Control::EndOfInterrupt { vector } => {
                self.job(from, DeviceJob::EndOfInterrupt(vector));
            }
            Control::WantEnd(cause) => self.event(SliceEvent::WantEnd(from, cause)),
            Control::ClockPing { id } => {
                if let Some(clock) = self.clockwork.get() {
                    self.send(from, &clock.answer(id));
                }
            }
            Control::ClockPong { id, ticks, stepped } => {
                if let Some(clock) = self.clockwork.get() {
                    clock.answered(from, id, ticks, stepped);
                }
            }
            Control::ClockStep { sum } => {
                if let Some(clock) = self.clockwork.get() {
                    clock.tell(sum);
                }
            }
            Control::WantStop => self.event(SliceEvent::WantStop(from)),
            Control::AskReport => self.event(SliceEvent::AskReport),
            Control::Report(bytes) => self.event(SliceEvent::Report(from, bytes)),
            Control::End(cause) => self.event(SliceEvent::End(cause)),
            Control::Apply { sequence, change } => {
                self.job(from, DeviceJob::Apply(sequence, change));
            }
            Control::Applied { sequence } => self.applied(from, sequence),
            Control::Broken { device } => self.job(from, DeviceJob::Broken(device)),
            Control::Doorbell { device, queue } => self.doorbell(from, device, queue),
        }
    }
}

impl RemoteInterrupts for Fabric {
    fn forward(&self, target: VcpuId, event: VcpuEvent) {
        match (self.placement.route(target), self.machine.get()) {
            (Route::There(slice), _) => {
                self.traffic.interrupts_out.fetch_add(1, Ordering::Relaxed);
                self.send(slice, &Control::Interrupt { vcpu: target, event: to_wire(event) });
            }
            // It has come here since the sender looked.
            (Route::Here, Some(machine)) => machine.deliver_local(target, event),
            (Route::Here, None) | (Route::Nowhere, _) => {
                tracing::warn!(%target, "interrupt for an unknown vCPU, or before the start");
            }
        }
    }
}

impl MachineHooks for Fabric {
    fn cr3_changed(&self, vcpu: VcpuId, cr3: u64) {
        crash::point();
        if let Some(handle) = self.handle.get() {
            handle.set_root(vcpu, Gfn(cr3 >> 12));
        }
    }

    fn end_of_interrupt(&self, vector: u8) {
        if self.local() == BOOTSTRAP {
            self.job(self.local(), DeviceJob::EndOfInterrupt(vector));
        } else {
            self.send(BOOTSTRAP, &Control::EndOfInterrupt { vector });
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
        let Some(handle) = self.handle.get() else { return };
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
        let Some(handle) = self.handle.get() else {
            let at = usize::try_from(address % PAGE).unwrap_or(0);
            match data {
                MemoryAccess::Read(data) => self.ram.read(gfn, at, data),
                MemoryAccess::Write(data) => self.ram.write(gfn, at, data),
            }
            return InMemory::Done;
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
        self.handle.get().is_some_and(|handle| handle.refused(REFUSED_LIMIT))
    }

    fn fatal(&self, error: &VcpuError) {
        self.event(SliceEvent::Fatal(one_line(error)));
    }
}

impl ShutdownSink for Fabric {
    fn shutdown(&self, cause: ShutdownCause) {
        let cause = match cause {
            ShutdownCause::PowerOff => EndCause::PowerOff,
            ShutdownCause::Reset => EndCause::Reset,
            ShutdownCause::GuestPanic => EndCause::GuestPanic,
        };
        if self.local() == BOOTSTRAP {
            self.event(SliceEvent::WantEnd(BOOTSTRAP, cause));
        } else {
            self.send(BOOTSTRAP, &Control::WantEnd(cause));
        }
    }
}

/// The engine's way up.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) fabric: Arc<Fabric>,
    /// When the engine began to look at its peers, if it has not said yet that it is through.
    began: Option<u64>,
}

impl Link {
    pub(crate) fn new(fabric: Arc<Fabric>) -> Self {
        Self { fabric, began: None }
    }
}

impl Uplink for Link {
    fn frame(&mut self, from: SliceId, class: Class, bytes: &[u8]) {
        if class == Class::Bulk {
            self.fabric.delegated(from, bytes);
            return;
        }
        match Control::decode(self.fabric.epoch, bytes) {
            Ok(frame) => self.fabric.control(from, frame),
            Err(error) => {
                self.fabric.event(SliceEvent::Fatal(format!("{from} sent garbage: {error}")));
            }
        }
    }

    fn looks(&mut self) {
        self.began = Some(Fence::now());
    }

    fn looked(&mut self) -> bool {
        crash::point();
        let began = self.began.take();
        // A slice that cannot go on has shut its fence, and still has to tell its peers.
        let stands = self.fabric.fence.get().is_none_or(|fence| {
            // Peers have heard of this slice as it was then: it may have stood still since.
            began.into_iter().for_each(|began| {
                fence.renew(began);
            });
            fence.look(Fence::now());
            !fence.has_expired()
        });
        if !stands {
            let text = "it stood still for its lease: the others have given it up".into();
            self.fabric.event(SliceEvent::Fatal(text));
        }
        stands
    }

    fn lost(&mut self, peer: SliceId, cause: String) {
        if !self.fabric.bystanders.contains(&peer)
            && let Some(fence) = self.fabric.fence.get()
        {
            // Before all else: others find their requests failed.
            fence.shut();
        }
        if let Some(devices) = self.fabric.devices.get() {
            devices.lost(peer);
        }
        if self.fabric.bystanders.contains(&peer) {
            tracing::error!("{peer} is lost, and its devices with it: {cause}");
            // A full channel means that the device thread hangs, which it tells by itself.
            let _ = self.fabric.applied.try_send((peer, GONE));
            self.fabric.event(SliceEvent::LostDevices(peer, cause));
            return;
        }
        self.fabric.event(SliceEvent::Lost(peer, cause));
    }

    fn fatal(&mut self, error: EngineError) {
        self.fabric.event(SliceEvent::Fatal(one_line(&error)));
    }

    fn sample_roots(&mut self) {
        let Some(machine) = self.fabric.machine.get() else { return };
        for vcpu in self.fabric.placement.load().vcpus_on(self.fabric.local()) {
            machine.sample_cr3(vcpu);
        }
    }

    fn sample_fault(&mut self, gfn: Gfn, thread: u32) {
        if let Some(machine) = self.fabric.machine.get() {
            machine.sample_fault(gfn, thread);
        }
    }
}

fn to_wire(event: VcpuEvent) -> InterruptEvent {
    match event {
        VcpuEvent::Fixed(vector) => InterruptEvent::Fixed(vector),
        VcpuEvent::Nmi => InterruptEvent::Nmi,
        VcpuEvent::Init => InterruptEvent::Init,
        VcpuEvent::Startup(page) => InterruptEvent::Startup(page),
    }
}

fn from_wire(event: InterruptEvent) -> VcpuEvent {
    match event {
        InterruptEvent::Fixed(vector) => VcpuEvent::Fixed(vector),
        InterruptEvent::Nmi => VcpuEvent::Nmi,
        InterruptEvent::Init => VcpuEvent::Init,
        InterruptEvent::Startup(page) => VcpuEvent::Startup(page),
    }
}

#[cfg(test)]
pub(super) mod tests;
