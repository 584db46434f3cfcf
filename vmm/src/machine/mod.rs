//! The machine on one host: a KVM virtual machine with the vCPUs that run here, one thread each,
//! and the paths of interrupts between them, the devices and the other slices.
//!
//! ```text
//!   new(config) --> set_tsc_offset, set_registers -----> start(bus) --> ... --> stop(limit)
//!               \-> set_clock, restore_vcpu of each ---^       \-> rest(limit) --> save
//! ```
//! Meanwhile single vCPUs come and go: see `handover`.
//!
//! The bus is given at the start because devices need the machine (to interrupt it) before the
//! machine needs them. After a guest shutdown or a fatal error the vCPU threads stay, asleep, until
//! `stop`; who owns the machine decides what happens next.

mod config;
mod create;
mod error;
pub(crate) mod gate;
mod ghost_test;
mod handover;
mod handover_times;
mod new_vm;
mod orders;
mod rest;
mod sample;
pub mod saved;
mod slot;
mod spare;
#[cfg(test)]
pub(crate) mod testing;
mod vcpu_loop;

pub use create::host_tsc_khz;
pub(crate) use create::{open_kvm, vm_step};

pub use config::{InMemory, MachineConfig, MachineHooks, MemoryAccess, MemorySlot};
pub use error::{HandoverRefusal, MachineError, StopError};
pub use ghost_test::{GhostTestError, ghost_self_test};
pub(crate) use handover_times::Timers;
pub use handover_times::{HandoverTimes, Spent};
pub use rest::{Rest, RestError};

use crate::interrupts::ghost::Before;
use crate::interrupts::routing::resolve;
use crate::interrupts::{Interrupts, RemoteInterrupts, VcpuEvent};
use crate::tsc::GuestTsc;
use crate::vcpu::kvm::{set_tsc_offset, tsc_offset};
use crate::vcpu::stats::Counters;
use crate::vcpu::{RunTimes, StateError, VcpuCore, VcpuError, VcpuStats};
use devices::{InterruptMessage, InterruptSink, SharedBus, ShutdownSink};
use gate::Gate;
use kvm_bindings::{kvm_cpuid_entry2, kvm_regs, kvm_sregs};
use kvm_ioctls::{IoEventAddress, NoDatamatch, VcpuFd, VmFd};
use migrate::PlacementView;
use saved::{HostKvm, VcpuState};
use slot::Slot;
use spare::Spare;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use vmm_sys_util::eventfd::EventFd;
use wire::VcpuId;

/// Counts the threads that still run.
#[derive(Debug, Default)]
pub(crate) struct Running {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Running {
    pub(crate) fn enter(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    pub(crate) fn leave(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.changed.notify_all();
    }

    /// Waits until no thread runs; false when `limit` passes first.
    fn wait_idle(&self, limit: Duration) -> bool {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let (_count, result) = self
            .changed
            .wait_timeout_while(count, limit, |count| *count > 0)
            .unwrap_or_else(PoisonError::into_inner);
        !result.timed_out()
    }
}

/// What the handle and the threads share.
pub(crate) struct Shared {
    pub(crate) cores: Vec<Arc<VcpuCore>>,
    /// What the last save found of each vCPU, until it is collected.
    pub(crate) saved: Vec<Mutex<Option<Result<VcpuState, StateError>>>>,
    /// Where each vCPU is in a hand-over.
    pub(crate) slots: Vec<Slot>,
    /// CPUID of each, for those that come here later.
    pub(crate) cpuid: Vec<Vec<kvm_cpuid_entry2>>,
    /// From the start to the end, for threads that start later.
    pub(crate) bus: Mutex<Option<SharedBus>>,
    pub(crate) placement: PlacementView,
    pub(crate) interrupts: Arc<dyn Interrupts>,
    pub(crate) remote: Arc<dyn RemoteInterrupts>,
    pub(crate) hooks: Arc<dyn MachineHooks>,
    pub(crate) shutdown: Arc<dyn ShutdownSink>,
    pub(crate) clock: Arc<GuestTsc>,
    pub(crate) gate: Gate,
    pub(crate) host: HostKvm,
    pub(crate) handovers: Timers,
    spare: Spare,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) running: Arc<Running>,
    // Last, so that all vCPUs are gone before it.
    pub(crate) vm: Arc<VmFd>,
}

impl Shared {
    /// The vCPUs that run here.
    pub(crate) fn here(&self) -> impl Iterator<Item = &Arc<VcpuCore>> {
        self.cores.iter().filter(|core| self.placement.is_here(core.id))
    }

    /// Kicks all vCPUs that have threads here, but no ghosts.
    pub(crate) fn ring_vcpus(&self) {
        let running = self.cores.iter().filter(|core| self.slots[core.place].orders.is_vcpu());
        running.for_each(|core| core.doorbell.ring());
    }
}

/// A machine on this host. Clones are handles to the same machine.
#[derive(Clone)]
pub struct Machine {
    pub(crate) shared: Arc<Shared>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").field("vcpus", &self.shared.cores).finish_non_exhaustive()
    }
}

/// Dropped once a thread can be kicked; that of a ghost, once what is sent to the ghost is told.
type Ready = SyncSender<()>;

impl Machine {
    /// Creates the virtual machine, its memory slots and its vCPUs, with their APICs in x2APIC
    /// mode.
    ///
    /// # Errors
    /// When the configuration contradicts itself or KVM refuses a step.
    pub fn new(config: MachineConfig) -> Result<Self, MachineError> {
        create::create(config)
    }

    /// The guest's time stamp counter.
    #[must_use]
    pub fn clock(&self) -> Arc<GuestTsc> {
        Arc::clone(&self.shared.clock)
    }

    /// Frequency of the time stamp counter in kHz of real time.
    #[must_use]
    pub fn true_tsc_khz(&self) -> u32 {
        self.shared.clock.true_khz()
    }

    fn core(&self, id: VcpuId) -> Result<&VcpuCore, MachineError> {
        let core = usize::try_from(id.0).ok().and_then(|place| self.shared.cores.get(place));
        core.map(Arc::as_ref).ok_or(MachineError::UnknownVcpu { vcpu: id })
    }

    fn is_here(&self, core: &VcpuCore) -> bool {
        self.shared.placement.is_here(core.id)
    }

    /// Runs `action` on the KVM object of a vCPU whose thread does not run.
    fn with_vcpu<T>(
        &self,
        id: VcpuId,
        action: &'static str,
        work: impl FnOnce(&VcpuFd) -> Result<T, kvm_ioctls::Error>,
    ) -> Result<T, MachineError> {
        let core = self.core(id)?;
        let fd = core.fd.lock().unwrap_or_else(PoisonError::into_inner);
        let fd = fd.as_ref().ok_or(MachineError::NotStopped { vcpu: id, action })?;
        work(fd).map_err(|source| MachineError::Vcpu { vcpu: id, action, source: source.into() })
    }

    /// What KVM adds to the host's counter (wrapping) for the first vCPU that is here.
    ///
    /// # Errors
    /// When there is no vCPU here, it runs already, or KVM refuses.
    pub fn tsc_offset(&self) -> Result<u64, MachineError> {
        let first = self.shared.here().next();
        let Some(first) = first else { return Ok(self.shared.clock.offset()) };
        self.with_vcpu(first.id, "read the TSC offset", tsc_offset)
    }

    /// Gives all vCPUs and the clock the same offset. Ghosts come first: the master clock of KVM
    /// looks at who wrote last.
    ///
    /// # Errors
    /// When a vCPU runs already or KVM refuses.
    pub fn set_tsc_offset(&self, offset: u64) -> Result<(), MachineError> {
        for local in [false, true] {
            for core in self.shared.cores.iter().filter(|core| self.is_here(core) == local) {
                if !local && core.fd.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
                    continue; // no ghosts in this back end
                }
                self.with_vcpu(core.id, "set the TSC offset", |fd| set_tsc_offset(fd, offset))?;
            }
        }
        self.shared.clock.set_offset(offset);
        Ok(())
    }

    /// Steps the guest's counter forward on all vCPUs here at once, while none of them is in the guest. False, and
    /// nothing has changed, when one does not come out within `limit`.
    #[must_use]
    pub fn step_clock(&self, ticks: u64, limit: Duration) -> bool {
        let Shared { clock, gate, .. } = &*self.shared;
        let offset = clock.offset().wrapping_add(ticks);
        gate.step(offset, limit, || self.shared.ring_vcpus(), || clock.set_offset(offset))
    }

    /// System registers of a vCPU that does not run.
    ///
    /// # Errors
    /// When it runs, or is not here.
    pub fn sregs(&self, id: VcpuId) -> Result<kvm_sregs, MachineError> {
        self.with_vcpu(id, "read system registers", VcpuFd::get_sregs)
    }

    /// General registers of a vCPU that does not run.
    ///
    /// # Errors
    /// When it runs, or is not here.
    pub fn regs(&self, id: VcpuId) -> Result<kvm_regs, MachineError> {
        self.with_vcpu(id, "read registers", VcpuFd::get_regs)
    }

    /// Sets the registers of a vCPU that does not run. The APIC base stays as the machine set it.
    ///
    /// # Errors
    /// When it runs, is not here, or KVM refuses the values.
    pub fn set_registers(
        &self,
        id: VcpuId,
        regs: &kvm_regs,
        sregs: &kvm_sregs,
    ) -> Result<(), MachineError> {
        let apic_base = self.sregs(id)?.apic_base;
        let sregs = kvm_sregs { apic_base, ..*sregs };
        self.with_vcpu(id, "set system registers", |fd| fd.set_sregs(&sregs))?;
        self.with_vcpu(id, "set registers", |fd| fd.set_regs(regs))
    }

    /// Starts one thread per vCPU that runs here, and per ghost. All can be kicked on return, and what is sent to ghosts is told: a vCPU
    /// that was restored sends at once.
    ///
    /// # Errors
    /// When it was started before or a thread cannot be made; the machine must be stopped then.
    pub fn start(&self, bus: SharedBus) -> Result<(), MachineError> {
        for core in self.shared.cores.iter().filter(|core| !self.is_here(core)) {
            self.start_ghost(core, Before::New)?;
        }
        for core in self.shared.here() {
            if let Some(offset) = self.shared.gate.join(core.id) {
                let action = "set the TSC offset";
                self.with_vcpu(core.id, action, |fd| set_tsc_offset(fd, offset))?;
            }
            self.start_vcpu(core, Arc::clone(&bus))?;
        }
        // From here on vCPUs are handed over: each has a thread or a ghost, which a hand-over ends first.
        *self.shared.bus.lock().unwrap_or_else(PoisonError::into_inner) = Some(bus);
        Ok(())
    }

    /// Starts the thread of a vCPU that has joined the gate.
    fn start_vcpu(&self, core: &Arc<VcpuCore>, bus: SharedBus) -> Result<(), MachineError> {
        let own = Arc::clone(core);
        let body = move |shared: &Shared, fd: &mut VcpuFd, ready: Ready| {
            drop(ready);
            vcpu_loop::run(shared, &own, bus.as_ref(), fd)
        };
        self.spawn(format!("vcpu{}", core.id.0), false, Arc::clone(core), body)
    }

    /// Starts the thread of the ghost of a vCPU, if this back end has ghosts.
    fn start_ghost(&self, core: &Arc<VcpuCore>, before: Before) -> Result<(), MachineError> {
        let Some(ghost) = self.shared.interrupts.ghost(core, before) else { return Ok(()) };
        let call = ghost.call();
        let body = move |shared: &Shared, fd: &mut VcpuFd, ready: Ready| {
            ghost.run((shared.remote.as_ref(), &shared.stop), fd, || drop(ready))
        };
        // Whoever asks from now on must not ask the ghost before, which has nothing any more.
        self.shared.slots[core.place].set_call(call);
        self.spawn(format!("ghost{}", core.id.0), true, Arc::clone(core), body)
    }

    fn spawn(
        &self,
        name: String,
        is_ghost: bool,
        core: Arc<VcpuCore>,
        body: impl FnOnce(&Shared, &mut VcpuFd, Ready) -> Result<(), VcpuError> + Send + 'static,
    ) -> Result<(), MachineError> {
        let fd = core.fd.lock().unwrap_or_else(PoisonError::into_inner).take();
        let action = "start its thread";
        let mut fd = fd.ok_or(MachineError::NotStopped { vcpu: core.id, action })?;
        let shared = Arc::clone(&self.shared);
        let (vcpu, place) = (core.id, core.place);
        shared.running.enter();
        shared.slots[core.place].orders.begin(is_ghost);
        let running = Arc::clone(&shared.running);
        let (ready, is_ready) = sync_channel::<()>(1);
        let body = move |shared: &Shared, fd: &mut VcpuFd| body(shared, fd, ready);
        let run = move || {
            let result = vcpu_loop::attached(&shared, &core, &mut fd, body);
            if let Err(error) = result {
                tracing::error!(%error, "vCPU thread ends");
                shared.hooks.fatal(&error);
            }
            *core.fd.lock().unwrap_or_else(PoisonError::into_inner) = Some(fd);
            shared.gate.leave(core.id);
            shared.slots[core.place].orders.end();
            shared.running.leave();
        };
        match self.shared.spare.run(name, run) {
            Ok(()) => {
                // Ends when the thread is ready, or gone, which the hooks were told.
                let _ = is_ready.recv();
                Ok(())
            }
            Err(source) => {
                self.shared.gate.leave(vcpu);
                self.shared.slots[place].orders.end();
                running.leave();
                Err(MachineError::Thread { vcpu, source })
            }
        }
    }

    /// An event from another slice for a vCPU that is here, also if it is stopped or does not run yet. One for a vCPU
    /// elsewhere is sent on: the vCPU may just have moved.
    pub fn deliver_local(&self, target: VcpuId, event: VcpuEvent) {
        let Ok(core) = self.core(target) else {
            tracing::error!(%target, ?event, "interrupt for a vCPU that does not exist is dropped");
            return;
        };
        Counters::add(&core.counters.interrupts_in);
        if self.shared.slots[core.place].is_installed() {
            self.bring(core, event);
        } else {
            self.send(target, event);
        }
    }

    /// Brings an event to a vCPU that is here, but not while its APIC is set as a whole.
    fn bring(&self, core: &VcpuCore, event: VcpuEvent) {
        let _sending = self.shared.slots[core.place].sends();
        self.shared.interrupts.deliver_local(core.id, event);
    }

    fn send(&self, target: VcpuId, event: VcpuEvent) {
        let Ok(core) = self.core(target) else { return };
        if self.is_here(core) {
            self.bring(core, event);
        } else {
            Counters::add(&core.counters.interrupts_out);
            self.shared.remote.forward(target, event);
        }
    }

    /// The frame of the CR3 that a local vCPU had at its last exit.
    #[must_use]
    pub fn cr3(&self, id: VcpuId) -> Option<u64> {
        self.core(id).ok()?.last_cr3()
    }

    /// Makes a local vCPU exit soon, so that its CR3 is looked at. Does not wait.
    pub fn sample_cr3(&self, id: VcpuId) {
        if let Ok(core) = self.core(id)
            && self.is_here(core)
        {
            core.doorbell.ring();
        }
    }

    /// From now on `vector` is level-triggered (its EOI is told to the IOAPIC), or no longer.
    ///
    /// # Errors
    /// When KVM refuses the routes.
    pub fn set_level_vector(&self, vector: u8, level: bool) -> Result<(), MachineError> {
        let result = self.shared.interrupts.set_level_vector(vector, level);
        result.map_err(|source| MachineError::Vm { action: "set interrupt routes", source })
    }

    /// From now on KVM itself signals `event` when a vCPU here writes to this address, and the vCPU goes
    /// on at once; or no longer.
    ///
    /// # Errors
    /// When KVM refuses, e.g. because the address is taken.
    pub fn set_doorbell(
        &self,
        address: u64,
        event: &EventFd,
        on: bool,
    ) -> Result<(), MachineError> {
        let at = IoEventAddress::Mmio(address);
        let vm = &self.shared.vm;
        let result = if on {
            vm.register_ioevent(event, &at, NoDatamatch)
        } else {
            vm.unregister_ioevent(event, &at, NoDatamatch)
        };
        let action = "set a doorbell of a device";
        result.map_err(|source| MachineError::Vm { action, source: source.into() })
    }

    /// Thread numbers of the vCPUs that run here.
    #[must_use]
    pub fn tids(&self) -> Vec<(VcpuId, i32)> {
        self.shared.here().filter_map(|core| Some((core.id, core.doorbell.tid()?))).collect()
    }

    /// Counters of all vCPUs.
    #[must_use]
    pub fn stats(&self) -> Vec<VcpuStats> {
        let cores = self.shared.cores.iter();
        cores.map(|core| core.counters.snapshot(core.id, self.is_here(core))).collect()
    }

    /// For how long vCPUs have run here, and waited for a processor, added up.
    #[must_use]
    pub fn run_times(&self) -> RunTimes {
        let all = self.shared.cores.iter().map(|core| core.clock.read());
        all.fold(RunTimes::default(), RunTimes::plus)
    }

    /// Ends all threads and waits for them. A vCPU that sleeps in a page fault is woken; one that
    /// waits in the bus comes back when the bus does.
    ///
    /// # Errors
    /// Names the vCPUs whose threads did not end within `limit`.
    pub fn stop(&self, limit: Duration) -> Result<(), StopError> {
        self.shared.stop.store(true, SeqCst);
        self.shared.gate.end();
        let end = Instant::now() + limit;
        loop {
            self.shared.cores.iter().for_each(|core| core.doorbell.ring());
            let left = end.saturating_duration_since(Instant::now());
            if self.shared.running.wait_idle(left.min(Duration::from_millis(100))) {
                // Its devices have the machine.
                drop(self.shared.bus.lock().unwrap_or_else(PoisonError::into_inner).take());
                return Ok(());
            }
            if left.is_zero() {
                let cores = self.shared.cores.iter();
                let stuck = cores.filter(|core| core.doorbell.tid().is_some());
                return Err(StopError { stuck: stuck.map(|core| core.id).collect(), limit });
            }
        }
    }
}

impl InterruptSink for Machine {
    fn deliver(&self, message: InterruptMessage) {
        let event = VcpuEvent::of(message.mode, message.vector);
        let vcpus = u32::try_from(self.shared.cores.len()).unwrap_or(u32::MAX);
        resolve(&message, vcpus, |target| self.send(target, event));
    }
}
