//! The roots of vCPUs' page tables: what a local vCPU was seen with, and roots that nobody uses any more.

use crate::node::Node;
use crate::store::PageStore;
use wire::{Gfn, Message, VcpuId};

impl Node {
    pub(crate) fn local_root(&mut self, vcpu: VcpuId, gfn: Gfn) {
        if self.home(gfn).is_some() && self.tables.set_root(vcpu, gfn) {
            self.post_to_others(&Message::Root { vcpu, gfn });
        }
    }

    /// Ends replicas of roots that no vCPU has used for a while. One slice decides, so that they do not
    /// all ask: the first of those that are left.
    pub(crate) fn drop_stale_roots(&mut self, store: &impl PageStore) {
        if self.config.slices.first() != Some(&self.config.local) {
            return;
        }
        for gfn in self.tables.stale_roots(self.now, store) {
            self.ask_demotion(gfn, false);
        }
    }
}
