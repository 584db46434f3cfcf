//! The saved state of a vCPU: no panic on any bytes, what is accepted is in order and written the same way, and KVM's
//! structures hold all of it. With the other kind of APIC it is refused, or in order again.

use kvm_bindings::{
    kvm_debugregs, kvm_lapic_state, kvm_regs, kvm_sregs, kvm_sregs2, kvm_vcpu_events, kvm_xcrs,
};
use migrate::SavedState;
use migrate::saved::{decode, encode};
use vmm::interrupts::lapic::Lapic;
use vmm::interrupts::saved::{ApicState, KernelApic};
use vmm::interrupts::{InterruptBackEnd, Moment};
use vmm::machine::saved::{
    Debug, Events, General, Running, System, VcpuState, XSAVE_BYTES_MAX, Xcrs, XsaveArea,
};
use wire::VcpuId;

/// Bytes of an XSAVE area on a host without AMX.
const SMALL_AREA: usize = 4096;
/// Frequency of a counter.
const KHZ: u32 = 2_400_000;

fn structures_hold(state: &VcpuState) {
    assert_eq!(General::from(kvm_regs::from(state.general)), state.general);
    assert_eq!(System::from(kvm_sregs2::from(state.system)), state.system);
    let without = System { pdptrs: None, ..state.system };
    assert_eq!(System::from(kvm_sregs::from(state.system)), without);
    assert_eq!(Debug::from(kvm_debugregs::from(state.debug)), state.debug);
    assert_eq!(Events::from(kvm_vcpu_events::from(state.events)), state.events);
    assert_eq!(Xcrs::from(kvm_xcrs::from(&state.xcrs)), state.xcrs);
    assert_eq!(Running::from_kvm(state.running.to_kvm()), Some(state.running));
}

fn lists_fit(state: &VcpuState) {
    let lists = state.msrs.to_kvm();
    let registers: usize = lists.iter().map(|list| list.as_slice().len()).sum();
    assert_eq!(registers, state.msrs.values.len());
    if let Ok(words) = state.xsave.to_words(SMALL_AREA) {
        assert_eq!(words.len() * 4, SMALL_AREA);
    }
    let words = state.xsave.to_words(XSAVE_BYTES_MAX).expect("no area is larger");
    let again = XsaveArea::from_words(words).to_words(XSAVE_BYTES_MAX);
    assert_eq!(again, state.xsave.to_words(XSAVE_BYTES_MAX));
}

fn apic_is_restored(state: &VcpuState) {
    match &state.apic {
        ApicState::Kernel(apic) => {
            assert_eq!(KernelApic::from(&kvm_lapic_state::from(apic)), *apic);
        }
        ApicState::Userspace(apic) => {
            let lapic =
                Lapic::restored(VcpuId(state.vcpu), KHZ, &apic.lapic).expect("it was checked");
            assert_eq!(lapic.save(), apic.lapic);
        }
    }
}

fn goes_on_with_either_apic(state: &VcpuState) {
    for of in [InterruptBackEnd::Ghost, InterruptBackEnd::Userspace] {
        for ticks in [0, 1 << 40, u64::MAX] {
            if let Ok(there) = state.with_interrupts(of, Moment { ticks, khz: KHZ }) {
                there.check().expect("it is converted to what can be");
            }
        }
    }
}

pub(crate) fn run(input: &[u8]) {
    let Ok(state) = decode::<VcpuState>(input) else { return };
    state.check().expect("decoding checks");
    let bytes = encode(&state).expect("what was read can be written");
    assert_eq!(decode::<VcpuState>(&bytes).expect("what was written can be read"), state);
    structures_hold(&state);
    lists_fit(&state);
    apic_is_restored(&state);
    goes_on_with_either_apic(&state);
}
