//! Where a vCPU is: one log line, for somebody who wonders why a guest does not get on, and the question which code
//! waits for a page.

use super::VcpuCore;
use kvm_bindings::kvm_lapic_state;
use kvm_ioctls::VcpuFd;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
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
