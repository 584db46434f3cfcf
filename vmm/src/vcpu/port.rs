//! Port accesses, element by element.

#![expect(unsafe_code, reason = "the I/O exit data lies in a union and behind an offset")]
// UNSAFETY: kvm-ioctls hands out the data of an I/O exit without the size of its elements.

use devices::Bus;
use kvm_bindings::{KVM_EXIT_INTERNAL_ERROR, KVM_EXIT_IO_OUT, KVM_EXIT_X86_RDMSR, kvm_run};
use kvm_ioctls::VcpuFd;
use std::ptr::from_mut;
use std::slice;

/// Carries out the port access that the vCPU just exited for. Must follow a `KVM_EXIT_IO`.
pub(crate) fn access(vcpu: &mut VcpuFd, bus: &dyn Bus) {
    let (out, port, size, data) = decode(vcpu);
    for element in data.chunks_mut(size) {
        if out {
            bus.pio_write(port, element);
        } else {
            bus.pio_read(port, element);
        }
    }
}

/// Direction (true: out), port, size of an element and the data of the exit.
pub(crate) fn decode(vcpu: &mut VcpuFd) -> (bool, u16, usize, &mut [u8]) {
    let run = vcpu.get_kvm_run();
    // SAFETY: the caller saw an I/O exit, for which the kernel filled this member.
    let io = unsafe { run.__bindgen_anon_1.io };
    let size = usize::from(io.size).max(1);
    let count = usize::try_from(io.count).expect("u32 fits usize");
    let offset = usize::try_from(io.data_offset).expect("an offset in a mapping fits usize");
    let base = from_mut::<kvm_run>(run).cast::<u8>();
    // SAFETY: the kernel's offset points into the mapping of this vCPU.
    let start = unsafe { base.add(offset) };
    // SAFETY: the kernel put `count` elements of `size` bytes there, in the same mapping; the
    // slice borrows the vCPU, so nothing else reads or writes them.
    let data = unsafe { slice::from_raw_parts_mut(start, size * count) };
    (u32::from(io.direction) == KVM_EXIT_IO_OUT, io.port, size, data)
}

/// Completes an exit for a model-specific register: with the value of a read, or with a fault.
pub(crate) fn set_msr_result(vcpu: &mut VcpuFd, value: Option<u64>) {
    let run = vcpu.get_kvm_run();
    // SAFETY: the caller saw an MSR exit, for which the kernel filled this member.
    let msr = unsafe { &mut run.__bindgen_anon_1.msr };
    msr.error = u8::from(value.is_none());
    if let Some(value) = value
        && run_is_read(run.exit_reason)
    {
        run.__bindgen_anon_1.msr.data = value;
    }
}

fn run_is_read(exit_reason: u32) -> bool {
    exit_reason == KVM_EXIT_X86_RDMSR
}

/// Exit reason, and the sub-error of an internal error (0 for other exits).
pub(crate) fn suberror(vcpu: &mut VcpuFd) -> (u32, u32) {
    let run = vcpu.get_kvm_run();
    if run.exit_reason != KVM_EXIT_INTERNAL_ERROR {
        return (run.exit_reason, 0);
    }
    // SAFETY: the kernel filled this member for this exit reason.
    (run.exit_reason, unsafe { run.__bindgen_anon_1.internal.suberror })
}
