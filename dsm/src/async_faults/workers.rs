//! Faults that a worker of the kernel takes in a vCPU's name, and what the vCPU wanted.
//!
//! With local APICs in the kernel, KVM does not make a vCPU whose interrupts are on wait for a page.
//! It halts the vCPU, and a worker fetches the page (asynchronous page faults, also for guests that
//! know nothing of them). The worker always asks to *write*, whatever the vCPU wanted
//! (`async_pf_execute` in Linux `virt/kvm/async_pf.c`): code that all vCPUs execute would go from slice
//! to slice as if all wrote it. Once the worker is done, with or without success, the vCPU takes the
//! fault itself, waits for it, and asks for what it wants. So the worker is made to fail, while the page is
//! fetched for reading. The page is *probed*:
//!
//! ```text
//!   a worker faults: the page's mapping         the vCPU faults: it reads
//!     becomes read-only, it is woken -> probed -----------------------------> the page is here
//!                                          |   KVM refuses the vCPU: it writes      ^
//!                                          +----------------- upgrade --------------+
//! ```
//!
//! A probe costs another fault. So a page that this slice writes whenever it has it
//! ([`dsm_protocol::prediction::write_prediction`]) is not probed. A wrong prediction costs a transfer, never coherence.
//! A worker that finds a page readable here does write: a vCPU that only reads would not have needed it.
#![expect(unsafe_code, reason = "tgkill asks whether a thread is one of this process")]
// UNSAFETY: one system call without pointers.

use dsm_protocol::Access;
use std::collections::BTreeSet;

use crate::kernel::Fault;

/// What to do about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A page with this access ends it.
    Wants(Access),
    /// Only the vCPU itself can tell.
    Probe,
}

/// What is known of the threads and pages.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    /// Threads of this process that took faults.
    own: BTreeSet<u32>,
    /// Faults of workers whose page was probed.
    pub(crate) probed: u64,
    /// Faults of workers on pages that this slice is predicted to write.
    pub(crate) guessed: u64,
}

impl Workers {
    /// Judges a fault on a page to which the protocol gives this slice `held`. Without `probes` workers are believed.
    pub(crate) fn judge(&mut self, fault: &Fault, held: Access, probes: bool) -> Verdict {
        let want = if fault.write { Access::Write } else { Access::Read };
        if !probes || self.is_own(fault.thread) {
            Verdict::Wants(want)
        } else if held >= Access::Read {
            Verdict::Wants(Access::Write)
        } else {
            Verdict::Probe
        }
    }

    fn is_own(&mut self, thread: u32) -> bool {
        if self.own.contains(&thread) {
            return true;
        }
        let own = is_of_this_process(thread);
        if own {
            self.own.insert(thread);
        }
        own
    }
}

/// Whether a thread id is one of this process. A worker's id, counted where no container changes it,
/// may by chance be that of one of our threads; it is taken for a vCPU that writes then.
fn is_of_this_process(thread: u32) -> bool {
    let Ok(thread) = libc::pid_t::try_from(thread) else { return false };
    let process = std::process::id();
    // SAFETY: signal 0 is not delivered; the call only tells whether it could be.
    let result = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) };
    result == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: u32 = 0; // no thread has this id

    #[test]
    fn only_a_worker_on_an_absent_page_is_doubted() {
        // SAFETY: the call takes nothing.
        let own = u32::try_from(unsafe { libc::gettid() }).unwrap();
        let (read, write) = (Verdict::Wants(Access::Read), Verdict::Wants(Access::Write));
        for (thread, writes, held, probes, verdict) in [
            (own, false, Access::None, true, read),
            (own, true, Access::None, true, write),
            (WORKER, true, Access::None, true, Verdict::Probe),
            (WORKER, true, Access::None, false, write),
            (WORKER, true, Access::Read, true, write),
        ] {
            let fault = Fault { address: 0, write: writes, thread };
            let found = Workers::default().judge(&fault, held, probes);
            assert_eq!(found, verdict, "{fault:?}, {held:?}");
        }
    }
}
