//! What ties a slice's threads together: vCPUs, memory engine, devices and the main thread.
//!
//! vCPU threads call in to forward interrupts and device accesses; the engine's thread calls in with
//! frames of other slices. Nothing here blocks except a device call of a vCPU, which waits for its
//! answer.

use super::bus::PendingCalls;
use super::one_line;
use crate::interrupts::{RemoteInterrupts, VcpuEvent};
use crate::machine::{Machine, MachineHooks, VcpuError};
use crate::trace;
use crossbeam_channel::Sender;
use devices::{ShutdownCause, ShutdownSink};
use dsm::{EngineError, GuestRam, Handle, Touch, Uplink};
use kvm_bindings::{kvm_regs, kvm_sregs};
use migrate::LocationTable;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use transport::Class;
use wire::control::{DeviceCall, EndCause, InterruptEvent};
use wire::{Control, Epoch, Gfn, SliceId, VcpuId};

/// How long a vCPU that was refused memory waits for the memory engine; one that is busy takes
/// milliseconds.
const REFUSED_LIMIT: Duration = Duration::from_secs(10);

/// The slice with the devices.
pub(crate) const BOOTSTRAP: SliceId = SliceId(0);

/// Something that the main thread must know.
#[derive(Debug)]
pub(crate) enum SliceEvent {
    /// The guest, or a slice, wants the VM to end.
    WantEnd(SliceId, EndCause),
    /// The bootstrap says that the VM is over.
    End(EndCause),
    /// A slice is gone.
    Lost(SliceId, String),
    /// This slice cannot go on.
    Fatal(String),
    /// The bootstrap wants the report.
    AskReport,
    /// A companion's report.
    Report(SliceId, Vec<u8>),
}

/// Work for the device thread of the bootstrap slice.
#[derive(Debug)]
pub(crate) enum DeviceJob {
    Call(SliceId, DeviceCall),
    EndOfInterrupt(u8),
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
    pub(crate) local: SliceId,
    pub(crate) epoch: Epoch,
    pub(crate) ram: Arc<GuestRam>,
    pub(crate) locations: LocationTable,
    pub(crate) events: Sender<SliceEvent>,
    /// Set where the devices are.
    pub(crate) jobs: Option<Sender<DeviceJob>>,
    /// Set once the engine runs; never in a VM of one slice.
    pub(crate) handle: OnceLock<Handle>,
    pub(crate) machine: OnceLock<Machine>,
    pub(crate) calls: PendingCalls,
    pub(crate) traffic: Traffic,
}

impl Fabric {
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
        // The main thread may be gone already; then nobody needs to know.
        let _ = self.events.try_send(event);
    }

    fn job(&self, from: SliceId, job: DeviceJob) {
        match &self.jobs {
            Some(jobs) if jobs.try_send(job).is_ok() => {}
            Some(_) => self.event(SliceEvent::Fatal(format!("{from} floods the devices"))),
            None => {
                self.event(SliceEvent::Fatal(format!("{from} calls devices that are not here")));
            }
        }
    }

    fn interrupt(&self, vcpu: VcpuId, event: InterruptEvent) {
        match (self.locations.locate(vcpu), self.machine.get()) {
            (Some(at), Some(machine)) if at.slice == self.local => {
                self.traffic.interrupts_in.fetch_add(1, Ordering::Relaxed);
                machine.deliver_local(vcpu, from_wire(event));
            }
            // Sent before the sender knew of a move: bring it on.
            (Some(at), _) if at.slice != self.local => {
                self.send(at.slice, &Control::Interrupt { vcpu, event });
            }
            _ => tracing::warn!(%vcpu, "interrupt for an unknown vCPU, or before the start"),
        }
    }

    fn control(&self, from: SliceId, frame: Control) {
        match frame {
            Control::Interrupt { vcpu, event } => self.interrupt(vcpu, event),
            Control::Call(call) => self.job(from, DeviceJob::Call(from, call)),
            Control::Answer { id, data } => self.calls.answer(id, data),
            Control::EndOfInterrupt { vector } => {
                self.job(from, DeviceJob::EndOfInterrupt(vector));
            }
            Control::WantEnd(cause) => self.event(SliceEvent::WantEnd(from, cause)),
            Control::AskReport => self.event(SliceEvent::AskReport),
            Control::Report(bytes) => self.event(SliceEvent::Report(from, bytes)),
            Control::End(cause) => self.event(SliceEvent::End(cause)),
        }
    }
}

impl RemoteInterrupts for Fabric {
    fn forward(&self, target: VcpuId, event: VcpuEvent) {
        let Some(at) = self.locations.locate(target) else { return };
        self.traffic.interrupts_out.fetch_add(1, Ordering::Relaxed);
        self.send(at.slice, &Control::Interrupt { vcpu: target, event: to_wire(event) });
    }
}

impl MachineHooks for Fabric {
    fn cr3_changed(&self, vcpu: VcpuId, cr3: u64) {
        if let Some(handle) = self.handle.get() {
            handle.set_root(vcpu, Gfn(cr3 >> 12));
        }
    }

    fn end_of_interrupt(&self, vector: u8) {
        if self.local == BOOTSTRAP {
            self.job(self.local, DeviceJob::EndOfInterrupt(vector));
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
        if self.local == BOOTSTRAP {
            self.event(SliceEvent::WantEnd(BOOTSTRAP, cause));
        } else {
            self.send(BOOTSTRAP, &Control::WantEnd(cause));
        }
    }
}

/// The engine's way up.
#[derive(Debug)]
pub(crate) struct Link(pub(crate) Arc<Fabric>);

impl Uplink for Link {
    fn frame(&mut self, from: SliceId, _: Class, bytes: &[u8]) {
        match Control::decode(self.0.epoch, bytes) {
            Ok(frame) => self.0.control(from, frame),
            Err(error) => self.0.event(SliceEvent::Fatal(format!("{from} sent garbage: {error}"))),
        }
    }

    fn lost(&mut self, peer: SliceId, cause: String) {
        self.0.event(SliceEvent::Lost(peer, cause));
    }

    fn fatal(&mut self, error: EngineError) {
        self.0.event(SliceEvent::Fatal(one_line(&error)));
    }

    fn sample_roots(&mut self) {
        let Some(machine) = self.0.machine.get() else { return };
        for vcpu in self.0.locations.on_slice(self.0.local) {
            machine.sample_cr3(vcpu);
        }
    }

    fn sample_fault(&mut self, gfn: Gfn, thread: u32) {
        if let Some(machine) = self.0.machine.get() {
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
