//! Faults of vCPUs, and of the kernel's workers in their name.
//!
//! ```text
//!   fault --> what does the vCPU want? --> more than that? --> counted --> the protocol asks --> prefetches
//!             (`async_faults`)             (write prediction)
//! ```

use super::event_loop::Engine;
use crate::async_faults::Verdict;
use crate::error::EngineError;
use crate::kernel::Fault;
use crate::observe::{FaultKind, PageClass};
use dsm_protocol::prediction::Miss;
use dsm_protocol::{Access, Gfn, Input};

/// A page that is asked for that often and is not known as a table makes the VMM look at CR3 again.
const SAMPLE_EVERY: u32 = 16;
/// From so many faults on a page takes part in correlation prefetch. Most pages never come twice.
const OFTEN: u32 = 4;

impl Engine {
    /// Reads waiting faults and asks for their pages.
    pub(super) fn take_faults(&mut self) -> Result<(), EngineError> {
        let mut faults = std::mem::take(&mut self.faults);
        let (mut sampled, mut often) = (None, Vec::new());
        self.store.uffd.read(&mut faults).map_err(EngineError::Wait)?;
        for fault in faults.drain(..) {
            let Some(gfn) = self.store.ram.frame_at(fault.address) else { continue };
            if fault.write && self.store.is_protected(gfn) && self.node.access(gfn) == Access::Write
            {
                self.store.release(gfn)?;
                continue;
            }
            let want = self.wanted(gfn, fault)?;
            often.extend(self.demand(gfn, want)?);
            if self.trace.is_due(gfn) && self.node.is_waiting(gfn) {
                sampled = Some((gfn, fault.thread));
            }
        }
        self.faults = faults;
        // Behind the pages that all of them wait for.
        for miss in often {
            self.prefetch_correlated(miss)?;
        }
        self.carry_out()?;
        // The requests are out. The sampled vCPU waits for its page anyway.
        if let Some((gfn, thread)) = sampled {
            self.uplink.sample_fault(gfn, thread);
        }
        Ok(())
    }

    /// A vCPU wants a page. Its correlated pages are asked for with it.
    pub(super) fn fault(&mut self, gfn: Gfn, want: Access) -> Result<(), EngineError> {
        match self.demand(gfn, want)? {
            Some(miss) => self.prefetch_correlated(miss),
            None => Ok(()),
        }
    }

    /// A vCPU wants a page. Returns what is missed, if its correlated pages are to be asked for.
    fn demand(&mut self, gfn: Gfn, want: Access) -> Result<Option<Miss>, EngineError> {
        let held = self.node.access(gfn);
        let missed = held < want && !self.node.is_waiting(gfn);
        let (mut ask, mut often) = (want, false);
        if missed {
            ask = self.predicted(gfn, want, held);
            tracing::trace!(gfn = gfn.0, ?want, ?ask, ?held, "fault");
            often = self.count_fault(gfn, FaultKind::of(held, want))? >= OFTEN;
        }
        let marker = self.store.prefetched.touched(gfn);
        let chunk = self.touch_chunk_fetch(gfn)?;
        self.step(Input::Fault { gfn, want: ask })?;
        if self.node.is_waiting(gfn) {
            self.wait_policy.demand(gfn);
        }
        let correlates = often && self.node.is_waiting(gfn);
        match chunk {
            Some(first) => self.prefetch(Miss { gfn: first, want }, false)?,
            None if missed || marker => self.prefetch(Miss { gfn, want }, missed)?,
            None => {}
        }
        Ok(correlates.then_some(Miss { gfn, want: ask }))
    }

    /// The access to ask for. It is more than a read needs if this slice is predicted to write.
    fn predicted(&mut self, gfn: Gfn, want: Access, held: Access) -> Access {
        if self.node.table(gfn).is_some() || !self.node.mechanisms().write_prediction {
            return want;
        }
        self.store.write_prediction.fault(gfn, held, want)
    }

    /// What the vCPU behind a fault wants. If only the vCPU can tell, the page is probed and fetched for reading
    /// meanwhile, which the vCPU needs in any case.
    fn wanted(&mut self, gfn: Gfn, fault: Fault) -> Result<Access, EngineError> {
        let held = self.held(gfn);
        let probes = self.node.mechanisms().worker_probes;
        if let Verdict::Wants(want) = self.workers.judge(&fault, held, probes) {
            self.store.end_probe(gfn)?;
            return Ok(want);
        }
        if self.class(gfn) != PageClass::Other {
            // A page walk sets accessed bits, and on AMD always needs write access.
            return Ok(Access::Write);
        }
        if self.store.write_prediction.predicts(gfn) {
            self.workers.guessed += 1;
        } else {
            self.workers.probed += 1;
            self.store.probe(gfn)?;
        }
        Ok(Access::Read)
    }

    /// The access that a worker can have seen here. A probed page may have come since.
    fn held(&self, gfn: Gfn) -> Access {
        let store = &self.store;
        let hidden = store.prefetched.is_untouched(gfn) || store.chunk_fetches.hides(gfn);
        let unseen = store.probe_pages.contains(gfn) || hidden;
        if unseen { Access::None } else { self.node.access(gfn) }
    }

    /// KVM refused a vCPU a store, probably to the page that was probed last. If it was another page, one is fetched in
    /// vain and the vCPU is refused again.
    pub(super) fn refused(&mut self) -> Result<(), EngineError> {
        let Some(gfn) = self.store.probe_pages.latest() else { return Ok(()) };
        self.store.end_probe(gfn)?;
        self.fault(gfn, Access::Write)
    }

    fn class(&mut self, gfn: Gfn) -> PageClass {
        let now = self.now();
        self.classifier.class(gfn, now, &self.node, &self.store.ram)
    }

    /// Counts a fault on a page. Returns how many there were so far.
    fn count_fault(&mut self, gfn: Gfn, kind: FaultKind) -> Result<u32, EngineError> {
        let (class, known) = (self.class(gfn), self.node.table(gfn).is_some());
        let count = self.trace.fault(self.now(), gfn, kind, class, known);
        if known {
            return Ok(count);
        }
        let missed_table = class != PageClass::Other && count.is_power_of_two();
        if missed_table || count.is_multiple_of(SAMPLE_EVERY) {
            self.uplink.sample_roots();
        }
        if missed_table {
            self.fetch_roots()?;
        }
        Ok(count)
    }

    /// Asks for the roots of other slices' vCPUs, so that they become replicas.
    ///
    /// A kernel that starts a vCPU lets it run on a root of its own for a while. That root and this slice's root share
    /// the kernel's tables. No replica points to these tables while each root is used by one slice only, so they would
    /// go back and forth.
    fn fetch_roots(&mut self) -> Result<(), EngineError> {
        for gfn in self.classifier.roots() {
            let absent = self.node.access(gfn) == Access::None && !self.node.is_waiting(gfn);
            if absent && self.node.table(gfn).is_some() {
                self.step(Input::Fault { gfn, want: Access::Write })?;
            }
        }
        Ok(())
    }
}
