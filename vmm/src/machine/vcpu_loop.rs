//! The loop of one vCPU: prepare, enter the guest, answer the exit.

use super::Shared;
use super::config::{InMemory, MemoryAccess};
use super::gate::{Participant, Task};
use super::orders::{Order, Orders};
use super::sample::tell_fault;
use super::saved;
use crate::interrupts::{MsrAnswer, Next, VcpuApic};
use crate::vcpu::kvm::{rip, run_error, set_tsc_offset};
use crate::vcpu::stats::Counters;
use crate::vcpu::{StateError, VcpuCore, VcpuError, port, sample, signal};
use devices::{Bus, ShutdownCause};
use kvm_ioctls::{SyncReg, VcpuExit, VcpuFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// The frame in CR3: below the bits that LAM and PCID use above and below it.
const CR3_FRAME: u64 = 0x000f_ffff_ffff_f000;
/// Unknown registers are told of this many times per vCPU.
const UNKNOWN_MSR_LINES: u64 = 20;
/// Refused accesses to guest memory in a row that end the vCPU. A few come when several vCPUs store
/// to pages whose faults are being sorted out.
const MOST_REFUSALS: u32 = 10_000;
/// A thread with nothing left to do looks at the stop flag this often.
const PARKED: Duration = Duration::from_secs(1);

/// Sets the calling thread up for a vCPU, runs `body`, and takes it down again.
pub(super) fn attached(
    shared: &Shared,
    core: &VcpuCore,
    fd: &mut VcpuFd,
    body: impl FnOnce(&Shared, &mut VcpuFd) -> Result<(), VcpuError>,
) -> Result<(), VcpuError> {
    let action = "prepare the signals of its thread";
    signal::prepare_thread(fd).map_err(|source| VcpuError::Ioctl {
        vcpu: core.id,
        action,
        source,
    })?;
    core.doorbell.attach();
    let result = body(shared, fd);
    core.doorbell.detach();
    result
}

/// What is left to do for an exit once the borrow of its data is over.
enum After {
    Nothing,
    /// The guest was not entered, or a kick took it out: nothing of the exit before is left.
    Kicked,
    Port,
    ReadMsr(u32),
    WriteMsr(u32, u64),
    Halted,
    EndOfInterrupt(u8),
    Shutdown,
    Strange(String),
}

/// Runs the vCPU until the machine stops, or it is handed over.
pub(super) fn run(
    shared: &Shared,
    core: &Arc<VcpuCore>,
    bus: &dyn Bus,
    fd: &mut VcpuFd,
) -> Result<(), VcpuError> {
    let vcpu = core.id;
    let apic = shared.interrupts.vcpu_apic(vcpu).map_err(|source| VcpuError::Ioctl {
        vcpu,
        action: "make its interrupt state",
        source,
    })?;
    fd.set_sync_valid_reg(SyncReg::SystemRegister);
    core.clock.attach();
    let result = Loop { shared, core, bus, apic, refusals: 0, is_shut_down: false }.run(fd);
    core.clock.detach();
    fd.clear_sync_valid_reg(SyncReg::SystemRegister);
    result
}

struct Loop<'a> {
    shared: &'a Shared,
    core: &'a VcpuCore,
    bus: &'a dyn Bus,
    apic: Box<dyn VcpuApic>,
    /// Refused accesses to guest memory, one after the other.
    refusals: u32,
    /// A triple fault ended it.
    is_shut_down: bool,
}

/// The vCPU at the gate.
struct AtGate<'a, 'b> {
    vcpu_loop: &'a mut Loop<'b>,
    fd: &'a mut VcpuFd,
}

impl Participant for AtGate<'_, '_> {
    type Error = VcpuError;

    fn settle(&mut self) -> Result<(), VcpuError> {
        self.vcpu_loop.settle(self.fd)
    }

    fn run(&mut self, task: Task) -> Result<(), VcpuError> {
        match task {
            Task::SetOffset(offset) => self.vcpu_loop.set_offset(self.fd, offset),
            Task::Save => {
                let state = self.vcpu_loop.save(self.fd);
                let Loop { shared, core, .. } = self.vcpu_loop;
                *shared.saved[core.place].lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(state);
                Ok(())
            }
        }
    }
}

impl Loop<'_> {
    fn run(&mut self, fd: &mut VcpuFd) -> Result<(), VcpuError> {
        loop {
            self.pass_gate(fd)?;
            // A machine at rest that stops lets nobody into the guest again.
            if self.shared.stop.load(SeqCst) {
                return Ok(());
            }
            if self.orders().are_given() {
                if !self.halt(fd)? {
                    return Ok(());
                }
                // The machine may have come to rest while this vCPU was no member of the gate.
                continue;
            }
            match self.apic.prepare(fd)? {
                Next::Wait(limit) => {
                    signal::wait(limit);
                    continue;
                }
                Next::Run => {}
            }
            let after = self.enter(fd)?;
            self.apic.after_run(fd);
            self.note_cr3(fd);
            self.finish(fd, after)?;
        }
    }

    /// Where the counters of all vCPUs step forward together, and where they are at rest.
    fn pass_gate(&mut self, fd: &mut VcpuFd) -> Result<(), VcpuError> {
        let (shared, vcpu) = (self.shared, self.core.id);
        shared.gate.pass(vcpu, &mut AtGate { vcpu_loop: self, fd })
    }

    /// Gives the vCPU another offset of its counter.
    fn set_offset(&self, fd: &VcpuFd, offset: u64) -> Result<(), VcpuError> {
        let (vcpu, action) = (self.core.id, "set the TSC offset");
        let error =
            |source: kvm_ioctls::Error| VcpuError::Ioctl { vcpu, action, source: source.into() };
        set_tsc_offset(fd, offset).map_err(error)
    }

    /// Has KVM finish the last exit, and answers the exits that this leads to (the rest of an access, or of a string
    /// instruction), until nothing is left (Linux, Documentation/virt/kvm/api.rst, 5: `immediate_exit` and `KVM_EXIT_IO`).
    fn settle(&mut self, fd: &mut VcpuFd) -> Result<(), VcpuError> {
        if self.is_shut_down {
            return Ok(());
        }
        self.apic.settle(fd);
        fd.set_kvm_immediate_exit(1);
        let settled = self.run_until_kicked(fd);
        fd.set_kvm_immediate_exit(0);
        settled?;
        // The kernel's APIC tells the end of a level-triggered interrupt at the next entry, though not at such a one. A kick
        // that is there already ends the entry after that, in front of the guest.
        if self.shared.interrupts.sends_without_exit() && !self.is_shut_down {
            self.core.doorbell.ring();
            self.run_until_kicked(fd)?;
        }
        Ok(())
    }

    /// Answers exits until KVM has nothing to tell.
    fn run_until_kicked(&mut self, fd: &mut VcpuFd) -> Result<(), VcpuError> {
        loop {
            let after = self.enter(fd)?;
            let is_over = matches!(after, After::Kicked);
            self.apic.after_run(fd);
            self.finish(fd, after)?;
            if is_over || self.is_shut_down {
                return Ok(());
            }
        }
    }

    /// The state of the vCPU, which has settled.
    fn save(&mut self, fd: &mut VcpuFd) -> Result<saved::VcpuState, StateError> {
        if self.is_shut_down {
            return Err(StateError::ShutDown);
        }
        let Shared { host, clock, .. } = self.shared;
        saved::get(self.core.id, fd, self.apic.as_mut(), host, clock.offset())
    }

    fn orders(&self) -> &Orders {
        &self.shared.slots[self.core.place].orders
    }

    /// Leaves the guest for a hand-over, until it is told to go on (true), or to end. It is no member of the gate
    /// meanwhile: a clock steps without it.
    fn halt(&mut self, fd: &mut VcpuFd) -> Result<bool, VcpuError> {
        let (shared, vcpu) = (self.shared, self.core.id);
        let timers = &shared.handovers;
        let since = |given| timers.leave.since(given);
        let out = self.orders().given().map_or_else(Instant::now, since);
        self.settle(fd)?;
        let settled = timers.settle.since(out);
        let mut state = match self.save(fd) {
            Ok(state) => state,
            Err(error) => {
                self.orders().report(Err(error));
                return Ok(true);
            }
        };
        let saved = timers.save.since(settled);
        shared.gate.leave(vcpu);
        let held = match shared.hold((self.core.place, fd), &mut state, self.orders().limit()) {
            Ok(held) => held,
            Err(error) => {
                let offset = shared.gate.join(vcpu);
                self.orders().report(Err(error));
                offset.map_or(Ok(()), |offset| self.set_offset(fd, offset))?;
                return Ok(true);
            }
        };
        timers.hold.since(saved);
        let offset = if self.orders().report(Ok(state)) {
            loop {
                match self.orders().next() {
                    Order::Go(offset) => break offset,
                    Order::Leave => return Ok(false),
                    Order::Stay if shared.stop.load(SeqCst) => return Ok(false),
                    Order::Stay => drop(signal::wait(PARKED)),
                }
            }
        } else {
            shared.gate.join(vcpu)
        };
        if let Some(offset) = offset {
            self.set_offset(fd, offset.wrapping_add_signed(held.tsc_ahead))?;
        }
        let error = |error| VcpuError::Held { vcpu, source: Box::new(error) };
        shared.let_go(vcpu, fd, &held).map_err(error)?;
        Ok(true)
    }

    /// Whether the vCPU may try an access again that KVM refused.
    fn is_retried(&mut self) -> bool {
        self.refusals += 1;
        Counters::add(&self.core.counters.exits_other);
        self.refusals <= MOST_REFUSALS && self.shared.hooks.access_refused(self.core.id)
    }

    fn enter(&mut self, fd: &mut VcpuFd) -> Result<After, VcpuError> {
        Counters::add(&self.core.counters.runs);
        let exit = match fd.run() {
            Ok(VcpuExit::MemoryFault { .. }) if self.is_retried() => return Ok(After::Nothing),
            Err(error) if error.errno() == libc::EFAULT && self.is_retried() => {
                return Ok(After::Nothing);
            }
            Ok(exit) => exit,
            Err(error) => {
                let counters = &self.core.counters;
                match error.errno() {
                    libc::EINTR => {
                        self.refusals = 0;
                        Counters::add(&counters.exits_kicked);
                        signal::drain();
                        sample::tell(self.core, fd, false);
                        tell_fault(self.core, fd, self.shared.hooks.as_ref());
                    }
                    libc::EAGAIN => Counters::add(&counters.exits_again),
                    _ => return Err(run_error(self.core.id, fd, error.into())),
                }
                return Ok(After::Kicked);
            }
        };
        self.refusals = 0;
        let counters = &self.core.counters;
        let (counter, after) = match exit {
            VcpuExit::IoIn(..) | VcpuExit::IoOut(..) => (&counters.exits_io, After::Port),
            VcpuExit::MmioRead(address, data) => {
                let hooks = &self.shared.hooks;
                let found = hooks.access_memory(address, MemoryAccess::Read(data));
                if found == InMemory::No {
                    self.bus.mmio_read(address, data);
                }
                (&counters.exits_mmio, after_memory(found, address))
            }
            VcpuExit::MmioWrite(address, data) => {
                let hooks = &self.shared.hooks;
                let found = hooks.access_memory(address, MemoryAccess::Write(data));
                if found == InMemory::No {
                    self.bus.mmio_write(address, data);
                }
                (&counters.exits_mmio, after_memory(found, address))
            }
            VcpuExit::X86Rdmsr(msr) => (&counters.exits_rdmsr, After::ReadMsr(msr.index)),
            VcpuExit::X86Wrmsr(msr) => {
                (&counters.exits_wrmsr, After::WriteMsr(msr.index, msr.data))
            }
            VcpuExit::Hlt => (&counters.halts, After::Halted),
            VcpuExit::IrqWindowOpen => (&counters.exits_interrupt_window, After::Nothing),
            VcpuExit::Intr => (&counters.exits_kicked, After::Nothing),
            VcpuExit::SetTpr => (&counters.exits_other, After::Nothing),
            VcpuExit::IoapicEoi(vector) => (&counters.exits_eoi, After::EndOfInterrupt(vector)),
            VcpuExit::Shutdown => (&counters.exits_other, After::Shutdown),
            other => (&counters.exits_other, After::Strange(format!("{other:?}"))),
        };
        Counters::add(counter);
        Ok(after)
    }

    fn finish(&mut self, fd: &mut VcpuFd, after: After) -> Result<(), VcpuError> {
        match after {
            After::Nothing | After::Kicked => {}
            After::Port => port::access(fd, self.bus),
            After::ReadMsr(index) => {
                let answer = self.apic.read_msr(index);
                self.answer_msr(fd, index, answer, "read");
            }
            After::WriteMsr(index, value) => {
                let answer = self.apic.write_msr(index, value);
                self.answer_msr(fd, index, answer, "write");
            }
            After::Halted => self.apic.halted(),
            After::EndOfInterrupt(vector) => self.shared.remote.end_of_interrupt(vector),
            After::Shutdown => self.triple_fault(fd)?,
            After::Strange(exit) => {
                let rip = rip(fd);
                let detail = internal_error(fd);
                return Err(VcpuError::Exit {
                    vcpu: self.core.id,
                    exit: format!("{exit}{detail}"),
                    rip,
                });
            }
        }
        Ok(())
    }

    /// Tells who keeps the page tables coherent which tables the vCPU uses.
    fn note_cr3(&self, fd: &mut VcpuFd) {
        let cr3 = fd.sync_regs_mut().sregs.cr3 & CR3_FRAME;
        if self.core.cr3.swap(cr3, SeqCst) != cr3 {
            self.shared.hooks.cr3_changed(self.core.id, cr3);
        }
    }

    fn answer_msr(&self, fd: &mut VcpuFd, index: u32, answer: MsrAnswer, access: &str) {
        let value = match answer {
            MsrAnswer::Value(value) => Some(value),
            MsrAnswer::Fault => None,
            MsrAnswer::NotMine if is_paravirtual(index) => None,
            MsrAnswer::NotMine => {
                let seen = self.core.counters.unknown_msrs.fetch_add(1, SeqCst);
                if seen < UNKNOWN_MSR_LINES {
                    tracing::debug!(vcpu = %self.core.id, index, access, "unknown register");
                }
                Some(0)
            }
        };
        port::set_msr_result(fd, value);
    }

    /// A triple fault is how Linux resets a machine when nothing else works. On AMD, KVM resets the
    /// vCPU before it tells, and the registers are those of a reset.
    fn triple_fault(&mut self, fd: &mut VcpuFd) -> Result<(), VcpuError> {
        let (regs, sregs) = (fd.get_regs(), fd.get_sregs());
        tracing::warn!(vcpu = %self.core.id, ?regs, ?sregs, "triple fault");
        self.shared.shutdown.shutdown(ShutdownCause::Reset);
        self.is_shut_down = true;
        while !self.shared.stop.load(SeqCst) {
            self.pass_gate(fd)?;
            if self.orders().are_given() {
                self.orders().report(Err(StateError::ShutDown));
            }
            signal::wait(PARKED);
        }
        Ok(())
    }
}

/// Registers of KVM's paravirtual features (Linux, Documentation/virt/kvm/x86/msr.rst), of which the guest has none
/// that KVM does not know itself.
fn is_paravirtual(index: u32) -> bool {
    matches!(index, 0x11 | 0x12 | 0x4b56_4d00..=0x4b56_4dff)
}

/// What is left to do once it is known whether an access was one of memory.
fn after_memory(found: InMemory, address: u64) -> After {
    match found {
        InMemory::No | InMemory::Done => After::Nothing,
        InMemory::Failed => {
            let what = "KVM takes it for a device, and the memory engine does not answer";
            After::Strange(format!("access to guest memory at {address:#x}: {what}"))
        }
    }
}

fn internal_error(fd: &mut VcpuFd) -> String {
    let (reason, suberror) = port::suberror(fd);
    format!(" (exit reason {reason}, suberror {suberror})")
}

#[cfg(test)]
mod tests;
