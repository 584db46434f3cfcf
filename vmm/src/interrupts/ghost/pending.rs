//! What is pending in the KVM vCPU of a vCPU that does not run, and how it is taken out and put back.
//!
//! ```text
//!   stop:     APIC --take--> saved state        what comes later stays in the APIC, alone
//!   resume, run:  saved state --put--> APIC     merged with what has come: pending once, as in any APIC
//! ```
//! The saved state and the APIC must not both have it: a vector that comes while the copy elsewhere has taken its own
//! already would be merged with the one here, and lost. An APIC is only set as a whole, so nobody may send to it while
//! something is taken out: no vCPU here is in the guest.

use super::takeover::SVR;
use crate::interrupts::VcpuEvent;
use crate::interrupts::lapic::TSC_DEADLINE;
use crate::interrupts::saved::KernelApic;
use crate::vcpu::StateError;
use crate::vcpu::kvm::{complete_exit, set_msr};
use kvm_bindings::{
    KVM_MP_STATE_RUNNABLE, KVM_MP_STATE_UNINITIALIZED, KVM_VCPUEVENT_VALID_NMI_PENDING, Msrs,
    kvm_lapic_state, kvm_mp_state, kvm_msr_entry,
};
use kvm_ioctls::VcpuFd;
use std::iter::repeat_n;
use wire::VcpuId;

/// In the spurious-vector register: the APIC is on.
const APIC_ON: u64 = 1 << 8;
/// Bits of a word of vectors.
const WORD_BITS: u8 = 32;

/// See the module's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Vectors, 32 a word.
    pub(crate) vectors: [u32; 8],
    /// NMIs.
    pub(crate) nmis: u8,
    /// Deadline of the timer, or 0.
    pub(crate) deadline: u64,
}

impl Pending {
    /// What arrives when it is put back, but for the deadline.
    pub(super) fn events(&self) -> impl Iterator<Item = VcpuEvent> + '_ {
        let vectors = (0..=u8::MAX).filter(|vector| has(&self.vectors, *vector));
        let nmis = repeat_n(VcpuEvent::Nmi, self.nmis.into());
        vectors.map(VcpuEvent::Fixed).chain(nmis)
    }
}

fn has(vectors: &[u32; 8], vector: u8) -> bool {
    vectors[usize::from(vector / WORD_BITS)] >> (vector % WORD_BITS) & 1 != 0
}

fn error(step: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> StateError {
    move |source| StateError::Kvm { step, source: source.into() }
}

pub(super) fn set_mp_state(fd: &VcpuFd, mp_state: u32) -> Result<(), StateError> {
    fd.set_mp_state(kvm_mp_state { mp_state }).map_err(error("set the MP state"))
}

fn apic(fd: &VcpuFd) -> Result<KernelApic, StateError> {
    Ok(KernelApic::from(&fd.get_lapic().map_err(error("read the local APIC"))?))
}

fn deadline(fd: &VcpuFd) -> Result<u64, StateError> {
    let entry = kvm_msr_entry { index: TSC_DEADLINE, ..Default::default() };
    let mut list = Msrs::from_entries(&[entry]).expect("one register fits");
    let read = fd.get_msrs(&mut list).map_err(error("read the deadline"))?;
    Ok(if read == 1 { list.as_slice()[0].data } else { 0 })
}

pub(super) fn set_deadline(fd: &VcpuFd, deadline: u64) -> Result<(), StateError> {
    let step = "set the deadline";
    set_msr(fd, TSC_DEADLINE, deadline).map_err(|source| StateError::Kvm { step, source })
}

/// Takes out what is pending, and disarms the deadline. Where KVM requests the timer's vector while the vCPU does not run
/// (posted interrupts), that may happen until the deadline is disarmed: it is seen in one of them.
pub(super) fn take(fd: &VcpuFd) -> Result<Pending, StateError> {
    let before = apic(fd)?;
    let mut deadline = deadline(fd)?;
    if deadline != 0 {
        set_deadline(fd, 0)?;
    }
    let after = apic(fd)?;
    let [vector, ..] = after.lvt[0].to_le_bytes();
    if has(&after.irr, vector) && !has(&before.irr, vector) {
        deadline = 0;
    }
    let events = fd.get_vcpu_events().map_err(error("read pending events"))?;
    empty(fd)?;
    Ok(Pending { vectors: after.irr, nmis: events.nmi.pending, deadline })
}

/// Takes out what waits in a ghost that has ended, and finishes its last exit. None while a start-up is under way: a
/// ghost must go on then.
pub(super) fn collect(id: VcpuId, fd: &mut VcpuFd) -> Result<Option<Vec<VcpuEvent>>, StateError> {
    let state = fd.get_mp_state().map_err(error("read the MP state"))?;
    if state.mp_state != KVM_MP_STATE_UNINITIALIZED {
        return Ok(None);
    }
    // Only a runnable vCPU finishes its last exit.
    set_mp_state(fd, KVM_MP_STATE_RUNNABLE)?;
    complete_exit(id, fd)?;
    set_mp_state(fd, KVM_MP_STATE_UNINITIALIZED)?;
    Ok(Some(take(fd)?.events().collect()))
}

/// Does `bring` while the APIC takes vectors. One that is off by its spurious-vector register does not, but keeps those
/// that it has had (SDM vol. 3, 12.4.7.2).
pub(super) fn while_on(
    fd: &VcpuFd,
    pending: &Pending,
    bring: impl FnOnce(),
) -> Result<(), StateError> {
    let step = "turn the APIC on for what was pending";
    let set = |svr| set_msr(fd, SVR, svr).map_err(|source| StateError::Kvm { step, source });
    let svr = u64::from(apic(fd)?.svr);
    let is_off = svr & APIC_ON == 0 && pending.vectors != [0; 8];
    if is_off {
        set(svr | APIC_ON)?;
    }
    bring();
    if is_off { set(svr) } else { Ok(()) }
}

/// From now on nothing is pending.
pub(super) fn empty(fd: &VcpuFd) -> Result<(), StateError> {
    let step = "take out what is pending";
    let apic = KernelApic { irr: [0; 8], ..apic(fd)? };
    fd.set_lapic(&kvm_lapic_state::from(&apic)).map_err(error(step))?;
    let mut events = fd.get_vcpu_events().map_err(error(step))?;
    events.flags |= KVM_VCPUEVENT_VALID_NMI_PENDING;
    events.nmi.pending = 0;
    fd.set_vcpu_events(&events).map_err(error(step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_pending_arrives_again_each_once() {
        let pending = Pending { vectors: [0, 2, 0, 0, 0, 0, 0, 1 << 31], nmis: 2, deadline: 7 };
        let (first, last) = (VcpuEvent::Fixed(33), VcpuEvent::Fixed(255));
        let events: Vec<_> = pending.events().collect();
        assert_eq!(events, [first, last, VcpuEvent::Nmi, VcpuEvent::Nmi]);
    }
}
