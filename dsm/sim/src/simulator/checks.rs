//! What must hold at any time, and in the end.

use super::report::{Failure, Report};
use super::world::World;
use crate::store::Page;
use dsm_protocol::{Access, Gfn, Message};

impl World {
    /// A page of data may be written remotely, by an adapter or out of a memory file: what its sender has
    /// is what arrives, so that must be what was sent.
    pub(super) fn check_stable(
        &self,
        from: u16,
        message: &Message,
        body: Option<&Page>,
    ) -> Result<(), Failure> {
        let (Message::Data { gfn, .. }, Some(body)) = (message, body) else { return Ok(()) };
        if self.slices[usize::from(from)].store.holds(*gfn, body) {
            return Ok(());
        }
        self.fail(&format!("{gfn} of slice{from} changed on its way"))
    }

    /// A page that is written is nobody else's, unless it is a replica.
    pub(super) fn check_alone(&self, gfn: u64, want: Access) -> Result<(), Failure> {
        let gfn = Gfn(gfn);
        let mut holders = 0;
        for slice in self.living() {
            if slice.node.is_replica(gfn) {
                return Ok(());
            }
            holders += u32::from(slice.store.access(gfn) != Access::None);
        }
        if want == Access::Write && holders != 1 {
            return self.fail("a writer is not alone");
        }
        Ok(())
    }

    /// The vCPUs that are not done, and the nodes that are not quiet.
    pub(super) fn waiting(&self) -> String {
        let vcpus = self.vcpus.iter().filter(|vcpu| !vcpu.plan.is_empty());
        let vcpus = vcpus.map(|vcpu| {
            format!("vCPU of slice {} at {:?}, page {:?}", vcpu.slice, vcpu.plan[0], vcpu.waits_for)
        });
        let nodes = self.living().filter(|slice| !slice.node.is_quiet());
        let nodes = nodes.map(|slice| slice.node.unrest());
        vcpus.chain(nodes).collect::<Vec<_>>().join("; ")
    }

    /// Nothing happens any more: everyone must be done, and all copies the same.
    pub(super) fn finish(mut self) -> Result<Report, Failure> {
        if self.vcpus.iter().any(|vcpu| vcpu.steps_left > 0 || !vcpu.plan.is_empty()) {
            return self.fail(&format!("somebody waits for ever: {}", self.waiting()));
        }
        if self.living().any(|slice| !slice.node.is_quiet()) {
            return self.fail("a node is not quiet in the end");
        }
        for gfn in (0..self.frames).map(Gfn) {
            let mut copies = self.living().filter(|s| s.node.access(gfn) != Access::None);
            let first = copies.next().map(|slice| slice.store.page(gfn));
            if !first.is_none_or(|page| copies.all(|slice| slice.store.holds(gfn, &page))) {
                return self.fail("copies differ in the end");
            }
        }
        self.check_homes()?;
        self.count();
        Ok(self.report)
    }

    /// Adds what the nodes have counted. Once for each node.
    pub(super) fn count(&mut self) {
        let Self { slices, report, .. } = self;
        slices.iter().filter(|slice| !slice.gone).for_each(|slice| report.add(&slice.node.stats()));
    }
}
