//! Asks the vCPUs where they are: for the log, and for the trace, which wants the registers of a vCPU that waits for a
//! page.

use super::{Machine, MachineHooks};
use crate::vcpu::VcpuCore;
use kvm_ioctls::VcpuFd;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;
use wire::Gfn;

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
    /// time. Each sample kicks all vCPUs here.
    pub(crate) fn sample_every(
        &self,
        interval: Duration,
        more: impl Fn() + Send + 'static,
    ) -> Result<(), std::io::Error> {
        let machine = self.clone();
        let run = move || {
            while !machine.shared.stop.load(SeqCst) {
                thread::sleep(interval);
                machine.shared.cores.iter().for_each(|core| core.sampled.store(true, SeqCst));
                // A ghost wakes now and then by itself, and a kick could hide a start-up from it.
                machine.shared.ring_vcpus();
                more();
            }
        };
        thread::Builder::new().name("sampler".into()).spawn(run).map(drop)
    }
}

/// Tells the hooks where the vCPU is if it was asked about a page. Called on its thread after a kick.
pub(crate) fn tell_fault(core: &VcpuCore, fd: &VcpuFd, hooks: &dyn MachineHooks) {
    let Some((gfn, certain)) = core.awaited.take() else { return };
    if let (Ok(regs), Ok(sregs)) = (fd.get_regs(), fd.get_sregs()) {
        hooks.fault_seen(core.id, gfn, certain, &regs, &sregs);
    }
}
