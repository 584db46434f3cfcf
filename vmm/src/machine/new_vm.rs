//! A new virtual machine of KVM, in a process whose threads get signals.

use kvm_ioctls::{Error, Kvm, VmFd};

/// Tries that signals interrupt.
const TRIES: usize = 20;

/// Creates one. KVM gives up (`EINTR`) if a signal comes while it takes the locks of all memory (`mm_take_all_locks`), and a process with
/// vCPUs has signals.
///
/// # Errors
/// KVM refuses it, or was interrupted again and again.
pub(super) fn new_vm(kvm: &Kvm) -> Result<VmFd, Error> {
    for _ in 0..TRIES {
        match kvm.create_vm() {
            Err(error) if error.errno() == libc::EINTR => {}
            done => return done,
        }
    }
    kvm.create_vm()
}
