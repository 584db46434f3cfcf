//! The back end with local APICs in the kernel and parked ghosts.
//!
//! Every slice creates every vCPU. Those that run elsewhere are ghosts: KVM delivers interrupts to
//! them like to any vCPU, and the ghost's thread learns of each and forwards it to the slice that
//! has the real vCPU. There it enters by `KVM_SIGNAL_MSI`, which carries fixed interrupts, NMI,
//! INIT and start-up alike and needs no vCPU lock. Interrupts between vCPUs of one slice never
//! leave the kernel.
//!
//! A ghost is *parked*: in state UNINITIALIZED, in which KVM runs no guest instruction whatever
//! arrives. That matters because INIT and start-up to a ghost that merely halts would run the
//! guest's boot trampoline on the wrong host (see `run` for the states of a ghost).
//!
//! That a deliverable interrupt ends `KVM_RUN` of a parked vCPU is observed behaviour of Linux
//! 5.x to 7.x, not documented, so `machine::ghost_self_test` tries it before a machine relies on it.

mod call;
mod pending;
mod run;
mod stub;
mod takeover;
mod vcpu_apic;

pub(crate) use call::GhostCall;
pub(crate) use pending::Pending;
pub(crate) use run::{Before, Ghost};
pub(crate) use stub::StubRegion;
#[cfg(test)]
pub(crate) use takeover::clear;

use super::saved::ApicState;
use super::{Interrupts, VcpuApic, VcpuEvent};
use crate::timer_spacing::TimerSpacing;
use crate::tsc::GuestTsc;
use crate::vcpu::{StateError, VcpuCore};
use kvm_bindings::{
    KVM_IRQ_ROUTING_MSI, KVM_MP_STATE_INIT_RECEIVED, KVM_MP_STATE_UNINITIALIZED, KvmIrqRouting,
    kvm_cpuid_entry2, kvm_irq_routing_entry, kvm_irq_routing_entry__bindgen_ty_1,
    kvm_irq_routing_msi, kvm_msi,
};
use kvm_ioctls::{VcpuFd, VmFd};
use migrate::Invalid;
use pending::set_mp_state;
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use vcpu_apic::KernelVcpuApic;
use wire::VcpuId;

/// The APICs' window in the address of an interrupt message.
const MSI_ADDRESS: u32 = 0xfee0_0000;
/// Level trigger in the data of an interrupt message.
const MSI_LEVEL: u32 = 1 << 15;
/// Routes that the split interrupt controller has.
const ROUTES: usize = 24;
/// Guest-physical address bits when the CPUID does not tell.
const DEFAULT_ADDRESS_BITS: u32 = 36;

/// The back end.
pub(crate) struct GhostInterrupts {
    vm: Arc<VmFd>,
    cores: Vec<Arc<VcpuCore>>,
    clock: Arc<GuestTsc>,
    spacing: TimerSpacing,
    level: Mutex<BTreeSet<u8>>,
    /// Where ghosts run. The guest maps it for as long as the machine lives.
    region: Arc<StubRegion>,
}

impl GhostInterrupts {
    /// The back end of a machine whose vCPUs exist. `region` has room for a ghost of each, which runs in it while its vCPU
    /// is elsewhere.
    pub(crate) fn new(
        vm: &Arc<VmFd>,
        cores: &[Arc<VcpuCore>],
        clock: &Arc<GuestTsc>,
        spacing: TimerSpacing,
        region: StubRegion,
    ) -> Self {
        Self {
            vm: Arc::clone(vm),
            cores: cores.to_vec(),
            clock: Arc::clone(clock),
            spacing,
            level: Mutex::new(BTreeSet::new()),
            region: Arc::new(region),
        }
    }
}

/// Fewest guest-physical address bits of any vCPU (CPUID leaf 8000_0008h).
pub(crate) fn address_bits(cpuid: &[Vec<kvm_cpuid_entry2>]) -> u32 {
    let leaves = cpuid.iter().flatten().filter(|leaf| leaf.function == 0x8000_0008);
    leaves.map(|leaf| leaf.eax & 0xff).min().unwrap_or(DEFAULT_ADDRESS_BITS)
}

/// Whether KVM tells in this MP state that INIT and start-up have come.
fn shows_startup(mp_state: u32) -> bool {
    matches!(mp_state, KVM_MP_STATE_UNINITIALIZED | KVM_MP_STATE_INIT_RECEIVED)
}

/// The message that brings an event to one APIC (KVM's 32-bit format: the upper 24 bits of the id
/// are in the upper half of the address).
fn message(target: VcpuId, event: VcpuEvent) -> kvm_msi {
    let data = match event {
        VcpuEvent::Fixed(vector) => u32::from(vector),
        VcpuEvent::Nmi => 0x400,
        VcpuEvent::Init => 0x500,
        VcpuEvent::Startup(page) => 0x600 | u32::from(page),
    };
    kvm_msi {
        address_lo: MSI_ADDRESS | (target.0 & 0xff) << 12,
        address_hi: target.0 & !0xff,
        data,
        ..Default::default()
    }
}

/// A route that makes every vCPU tell the end of a level-triggered `vector`.
fn level_route(pin: u32, vector: u8) -> kvm_irq_routing_entry {
    let msi = kvm_irq_routing_msi {
        address_lo: MSI_ADDRESS | 0xff << 12,
        address_hi: !0xff,
        data: u32::from(vector) | MSI_LEVEL,
        ..Default::default()
    };
    kvm_irq_routing_entry {
        gsi: pin,
        type_: KVM_IRQ_ROUTING_MSI,
        u: kvm_irq_routing_entry__bindgen_ty_1 { msi },
        ..Default::default()
    }
}

impl Interrupts for GhostInterrupts {
    fn deliver_local(&self, target: VcpuId, event: VcpuEvent) {
        // 0 is an interrupt that the guest's APIC dropped, as hardware would.
        if let Err(error) = self.vm.signal_msi(message(target, event)) {
            tracing::warn!(%target, ?event, %error, "KVM refused an interrupt");
        }
    }

    fn set_level_vector(&self, vector: u8, level: bool) -> Result<(), io::Error> {
        let mut vectors = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = if level { vectors.insert(vector) } else { vectors.remove(&vector) };
        if !changed {
            return Ok(());
        }
        if vectors.len() > ROUTES {
            vectors.remove(&vector);
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let routes: Vec<_> = (0..).zip(&*vectors).map(|(pin, v)| level_route(pin, *v)).collect();
        let routes = KvmIrqRouting::from_entries(&routes)
            .map_err(|_| io::Error::from_raw_os_error(libc::ENOSPC))?;
        self.vm.set_gsi_routing(&routes).map_err(io::Error::from)
    }

    fn vcpu_apic(&self, id: VcpuId) -> Result<Box<dyn VcpuApic>, io::Error> {
        let place = usize::try_from(id.0).expect("a vCPU id fits usize");
        let core = Arc::clone(&self.cores[place]);
        Ok(Box::new(KernelVcpuApic::new(core, Arc::clone(&self.clock), self.spacing)))
    }

    fn ghost(&self, core: &Arc<VcpuCore>, before: Before) -> Option<Ghost> {
        Some(Ghost::new(Arc::clone(core), Arc::clone(&self.region), before))
    }

    fn collect(&self, id: VcpuId, vcpu: &mut VcpuFd) -> Result<Option<Vec<VcpuEvent>>, StateError> {
        pending::collect(id, vcpu)
    }

    fn empty(&self, vcpu: &VcpuFd) -> Result<(), StateError> {
        set_mp_state(vcpu, KVM_MP_STATE_UNINITIALIZED)?;
        pending::empty(vcpu)
    }

    fn sends_without_exit(&self) -> bool {
        true
    }

    fn take_pending(&self, vcpu: &VcpuFd) -> Result<Pending, StateError> {
        pending::take(vcpu)
    }

    fn put_pending(&self, id: VcpuId, vcpu: &VcpuFd, pending: &Pending) -> Result<(), StateError> {
        let bring = || pending.events().for_each(|event| self.deliver_local(id, event));
        pending::while_on(vcpu, pending, bring)?;
        if pending.deadline != 0 {
            pending::set_deadline(vcpu, pending.deadline)?;
        }
        Ok(())
    }

    /// In UNINITIALIZED, so that an INIT and a start-up that come now show in what KVM tells later. A vCPU that waits for
    /// either shows them as it is.
    fn hold(&self, vcpu: &VcpuFd, mp_state: u32) -> Result<(), StateError> {
        if shows_startup(mp_state) {
            return Ok(());
        }
        set_mp_state(vcpu, KVM_MP_STATE_UNINITIALIZED)
    }

    fn let_go(&self, vcpu: &VcpuFd, mp_state: u32) -> Result<(), StateError> {
        if shows_startup(mp_state) { Ok(()) } else { set_mp_state(vcpu, mp_state) }
    }

    /// KVM itself resets a vCPU.
    fn keep_reset_state(&self, _id: VcpuId, _vcpu: &mut VcpuFd) -> Result<(), StateError> {
        Ok(())
    }

    fn restore(&self, _id: VcpuId, vcpu: &mut VcpuFd, state: &ApicState) -> Result<(), StateError> {
        let ApicState::Kernel(apic) = state else {
            return Err(
                Invalid::new("apic", "it was in user space, here it is in the kernel").into()
            );
        };
        let step = "set the local APIC";
        let error = |source: kvm_ioctls::Error| StateError::Kvm { step, source: source.into() };
        vcpu.set_lapic(&apic.into()).map_err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_carries_the_whole_apic_id() {
        let msi = message(VcpuId(0x111), VcpuEvent::Startup(0x9a));
        assert_eq!((msi.address_lo, msi.address_hi), (0xfee1_1000, 0x100));
        assert_eq!(msi.data, 0x69a);
        assert_eq!(message(VcpuId(0), VcpuEvent::Nmi).data, 0x400);
        assert_eq!(message(VcpuId(0), VcpuEvent::Init).data, 0x500);
        assert_eq!(message(VcpuId(0), VcpuEvent::Fixed(0xfd)).data, 0xfd);
    }

    #[test]
    fn address_bits_are_those_of_the_smallest_cpu() {
        let leaf = |eax| kvm_cpuid_entry2 { function: 0x8000_0008, eax, ..Default::default() };
        assert_eq!(address_bits(&[vec![leaf(0x3030)], vec![leaf(0x2d27)]]), 0x27);
        assert_eq!(address_bits(&[]), DEFAULT_ADDRESS_BITS);
    }
}
