//! Calls of KVM for one vCPU that take more than one ioctl, or one that kvm-ioctls lacks.

#![expect(unsafe_code, reason = "an ioctl that kvm-ioctls lacks")]
// UNSAFETY: the attribute of the TSC offset is read and written through an address.

use super::VcpuError;
use kvm_bindings::{Msrs, kvm_device_attr, kvm_msr_entry};
use kvm_ioctls::{Error, VcpuFd};
use std::io;
use vmm_sys_util::ioctl::ioctl_with_ref;
use vmm_sys_util::ioctl_iow_nr;
use wire::VcpuId;

const KVMIO: u32 = 0xAE;
ioctl_iow_nr!(KVM_SET_DEVICE_ATTR, KVMIO, 0xe1, kvm_device_attr);
ioctl_iow_nr!(KVM_GET_DEVICE_ATTR, KVMIO, 0xe2, kvm_device_attr);

/// The attribute `KVM_VCPU_TSC_OFFSET`, with its value at `value`.
fn tsc_offset_at(value: *mut u64) -> kvm_device_attr {
    let addr = u64::try_from(value.expose_provenance()).expect("an address fits u64");
    kvm_device_attr { addr, ..Default::default() }
}

/// What KVM adds to the host's counter for this vCPU.
pub(crate) fn tsc_offset(fd: &VcpuFd) -> Result<u64, Error> {
    let mut offset = 0;
    let attribute = tsc_offset_at(&raw mut offset);
    // SAFETY: the kernel writes eight bytes to `offset`, which outlives the call.
    if unsafe { ioctl_with_ref(fd, KVM_GET_DEVICE_ATTR(), &attribute) } == 0 {
        Ok(offset)
    } else {
        Err(Error::last())
    }
}

/// Sets what KVM adds to the host's counter for this vCPU.
pub(crate) fn set_tsc_offset(fd: &VcpuFd, mut offset: u64) -> Result<(), Error> {
    let attribute = tsc_offset_at(&raw mut offset);
    // SAFETY: the kernel reads eight bytes of `offset`, which outlives the call.
    if unsafe { ioctl_with_ref(fd, KVM_SET_DEVICE_ATTR(), &attribute) } == 0 {
        Ok(())
    } else {
        Err(Error::last())
    }
}

/// Sets one model-specific register.
pub(crate) fn set_msr(vcpu: &VcpuFd, index: u32, data: u64) -> Result<(), io::Error> {
    let entry = kvm_msr_entry { index, data, ..Default::default() };
    let msrs = Msrs::from_entries(&[entry]).expect("one register fits");
    match vcpu.set_msrs(&msrs)? {
        1 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// Lets KVM finish the instruction of the last exit without running any other. Needed before the
/// registers are replaced: the rest of the old instruction would change the new registers.
pub(crate) fn complete_exit(vcpu: VcpuId, fd: &mut VcpuFd) -> Result<(), VcpuError> {
    fd.set_kvm_immediate_exit(1);
    let result = fd.run().map(drop);
    fd.set_kvm_immediate_exit(0);
    match result {
        Err(error) if !matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {
            Err(run_error(vcpu, fd, error.into()))
        }
        _ => Ok(()),
    }
}

/// The instruction pointer, or all ones when it cannot be read.
pub(crate) fn rip(fd: &VcpuFd) -> u64 {
    fd.get_regs().map_or(u64::MAX, |regs| regs.rip)
}

/// `KVM_RUN` failed.
pub(crate) fn run_error(vcpu: VcpuId, fd: &mut VcpuFd, source: io::Error) -> VcpuError {
    let exit_reason = fd.get_kvm_run().exit_reason;
    VcpuError::Run { vcpu, rip: rip(fd), exit_reason, source }
}
