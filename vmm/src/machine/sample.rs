//! Where the vCPUs are: one log line per vCPU, for somebody who wonders why a guest does not get on, and
//! the registers of a vCPU that waits for a page, for the trace.

use super::{Machine, MachineHooks, VcpuCore};
use kvm_bindings::kvm_lapic_state;
use kvm_ioctls::VcpuFd;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;
use wire::Gfn;

/// Registers of the APIC page (Intel SDM vol. 3, table 12-1): in service, requested.
const ISR: usize = 0x100;
const IRR: usize = 0x200;

/// A page that a vCPU is asked about: its frame number and, in the lowest bit, whether it is certain
/// that this vCPU waits for it.
#[derive(Debug)]
pub struct Awaited(AtomicU64);

/// No question is open. No frame number is that large.
const NOTHING: u64 = u64::MAX;

impl Default for Awaited {
    fn default() -> Self {
        Self(AtomicU64::new(NOTHING))
    }
}

impl Awaited {
    /// The latest question counts.
    pub fn ask(&self, gfn: Gfn, certain: bool) {
        self.0.store(gfn.0 << 1 | u64::from(certain), SeqCst);
    }

    /// The open question, once.
    #[must_use]
    pub fn take(&self) -> Option<(Gfn, bool)> {
        let word = self.0.swap(NOTHING, SeqCst);
        (word != NOTHING).then_some((Gfn(word >> 1), word & 1 != 0))
    }
}

impl Machine {
    /// Makes the vCPU with this thread tell the hooks where it waits for a page; if no vCPU has it, a
    /// thread of the kernel waits in some vCPU's name, and all are asked. Does not wait.
    pub fn sample_fault(&self, gfn: Gfn, thread: u32) {
        let local = || self.shared.here();
        let is_thread = |tid: i32| u32::try_from(tid) == Ok(thread);
        let waiting = local().find(|core| core.doorbell.tid().is_some_and(is_thread));
        let certain = waiting.is_some();
        for core in local().filter(|core| waiting.is_none_or(|waiting| waiting.id == core.id)) {
            core.awaited.ask(gfn, certain);
            core.doorbell.ring();
        }
    }

    /// Makes each vCPU log where it is, every so often until the machine stops, and calls `more` each
    /// time. Each sample kicks all vCPUs.
    pub(crate) fn sample_every(
        &self,
        interval: Duration,
        more: impl Fn() + Send + 'static,
    ) -> Result<(), std::io::Error> {
        let machine = self.clone();
        let run = move || {
            while !machine.shared.stop.load(SeqCst) {
                thread::sleep(interval);
                for core in &machine.shared.cores {
                    core.sampled.store(true, SeqCst);
                    core.doorbell.ring();
                }
                more();
            }
        };
        thread::Builder::new().name("sampler".into()).spawn(run).map(drop)
    }
}

/// Logs where the vCPU is if it was asked for. Called on its thread after a kick.
pub(crate) fn tell(core: &VcpuCore, fd: &VcpuFd, is_ghost: bool) {
    if !core.sampled.swap(false, SeqCst) {
        return;
    }
    let (Ok(regs), Ok(sregs)) = (fd.get_regs(), fd.get_sregs()) else { return };
    let state = fd.get_mp_state().map_or(u32::MAX, |state| state.mp_state);
    let apic = fd.get_lapic().ok();
    let vectors = |base| apic.as_ref().map_or_else(|| "?".to_owned(), |apic| vectors(apic, base));
    let count = |counter: &AtomicU64| counter.load(SeqCst);
    tracing::info!(
        vcpu = core.id.0,
        ghost = is_ghost,
        rip = format_args!("{:#x}", regs.rip),
        rsp = format_args!("{:#x}", regs.rsp),
        flags = format_args!("{:#x}", regs.rflags),
        cs = sregs.cs.selector,
        cr3 = format_args!("{:#x}", sregs.cr3),
        state,
        irr = vectors(IRR),
        isr = vectors(ISR),
        runs = count(&core.counters.runs),
        interrupts_in = count(&core.counters.interrupts_in),
        interrupts_out = count(&core.counters.interrupts_out),
        "sample"
    );
}

/// Tells the hooks where the vCPU is if it was asked about a page. Called on its thread after a kick.
pub(crate) fn tell_fault(core: &VcpuCore, fd: &VcpuFd, hooks: &dyn MachineHooks) {
    let Some((gfn, certain)) = core.awaited.take() else { return };
    if let (Ok(regs), Ok(sregs)) = (fd.get_regs(), fd.get_sregs()) {
        hooks.fault_seen(core.id, gfn, certain, &regs, &sregs);
    }
}

/// The vectors whose bits are set in one of the APIC's 256-bit registers.
fn vectors(apic: &kvm_lapic_state, base: usize) -> String {
    let mut text = String::new();
    for vector in 0..256usize {
        let byte = apic.regs[base + vector / 32 * 16 + vector % 32 / 8];
        if byte.cast_unsigned() >> (vector % 8) & 1 != 0 {
            let _ = write!(text, "{}{vector:x}", if text.is_empty() { "" } else { "," });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_those_whose_bits_are_set() {
        let mut apic = kvm_lapic_state { regs: [0; 1024] };
        apic.regs[IRR + 0x10] = 2;
        apic.regs[IRR + 0x73] = 0x20;

        assert_eq!(vectors(&apic, IRR), "21,fd");
        assert_eq!(vectors(&apic, ISR), "");
    }
}
