//! What is counted of one page, and where the guest was when it waited for it.

use super::kinds::FaultKind;
use crate::observe::classify::PageClass;
use dsm_protocol::{Access, Gfn};
use serde::{Deserialize, Serialize};
use wire::SliceId;

/// Places of the guest's code that are kept of a page. The rarest gives way to a new one.
pub const SITES_MAX: usize = 4;

/// How an instruction of the guest touched a page.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Touch {
    /// Not known: none of its operands is on the page.
    #[default]
    Unknown,
    /// It reads or writes there.
    Data,
    /// It lies there.
    Code,
    /// The page is one of the tables that translate an address it uses.
    Walk,
}

/// A place of the guest's code that waited for a page, and what it did there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// Instruction pointer.
    pub rip: u64,
    /// Whether it ran as a user (CPL 3).
    pub user: bool,
    /// How it touched the page.
    pub touch: Touch,
    /// The guest-virtual address it used, where that is known: of the last sample.
    pub address: Option<u64>,
    /// Base of GS at the last sample; where Linux keeps the data of a processor, in its kernel.
    pub gs: u64,
    /// The vCPU that was sampled last.
    pub vcpu: u32,
    /// Samples.
    pub count: u32,
}

/// What the slice lost when another came for a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Loss {
    /// Nothing, or not since it came.
    #[default]
    None,
    /// The right to write it.
    Writing,
    /// All of it.
    Page,
}

/// What one slice saw of one page since it first looked at it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageTrace {
    /// Guest frame number.
    pub gfn: u64,
    /// What it was at its last fault.
    pub class: PageClass,
    /// Faults that wanted to read it when it was not here.
    pub read: u32,
    /// Faults that wanted to write it when it was not here.
    pub write: u32,
    /// Faults that wanted to write it when it could only be read here.
    pub upgrade: u32,
    /// Of all faults, those while the protocol took it for a page table.
    pub as_table: u32,
    /// Times that another slice took it away.
    pub taken: u32,
    /// Times that another slice got a copy from here.
    pub shared: u32,
    /// Times that it, or the right to write it, came back after it had been taken.
    pub ping_pongs: u32,
    /// The slice that it came from or went to: the one with more than half of all times, if one has.
    pub peer: Option<u16>,
    /// All slices that it came from or went to, one bit each.
    pub peers: u64,
    /// Where the guest waited for it, by samples; at most [`SITES_MAX`].
    pub sites: Vec<Site>,
    /// What is left of the vote for `peer` (Boyer and Moore, 1981).
    #[serde(skip)]
    votes: u32,
    #[serde(skip)]
    lost: Loss,
}

impl PageTrace {
    pub(super) fn new(gfn: Gfn) -> Self {
        Self { gfn: gfn.0, ..Self::default() }
    }

    /// Faults of all kinds.
    #[must_use]
    pub fn faults(&self) -> u32 {
        self.read.saturating_add(self.write).saturating_add(self.upgrade)
    }

    /// Everything that happened to it: how hot it is.
    #[must_use]
    pub fn heat(&self) -> u32 {
        self.faults().saturating_add(self.taken).saturating_add(self.shared)
    }

    /// What happened since an earlier look at the same page. One that was forgotten in between counts
    /// from its return.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let counts = |page: &Self| {
            let Self { read, write, upgrade, as_table, taken, shared, ping_pongs, .. } = *page;
            [read, write, upgrade, as_table, taken, shared, ping_pongs]
        };
        let (now, then) = (counts(self), counts(before));
        if now.iter().zip(then).any(|(now, then)| *now < then) {
            return self.clone();
        }
        let [read, write, upgrade, as_table, taken, shared, ping_pongs] =
            std::array::from_fn(|at| now[at] - then[at]);
        let sites = self.sites.iter().map(|site| {
            let same = before.sites.iter().find(|old| old.rip == site.rip);
            let old = same.map_or(0, |old| old.count);
            Site { count: site.count.checked_sub(old).unwrap_or(site.count), ..*site }
        });
        let sites = sites.filter(|site| site.count > 0).collect();
        Self { read, write, upgrade, as_table, taken, shared, ping_pongs, sites, ..self.clone() }
    }

    pub(super) fn fault(&mut self, kind: FaultKind, class: PageClass, known: bool) -> u32 {
        let count = match kind {
            FaultKind::Read => &mut self.read,
            FaultKind::Write => &mut self.write,
            FaultKind::Upgrade => &mut self.upgrade,
        };
        *count = count.saturating_add(1);
        self.as_table = self.as_table.saturating_add(u32::from(known));
        self.class = class;
        self.faults()
    }

    /// It came, with this access.
    pub(super) fn came(&mut self, from: SliceId, access: Access) {
        self.met(from);
        if self.lost == Loss::Page || self.lost == Loss::Writing && access == Access::Write {
            self.ping_pongs = self.ping_pongs.saturating_add(1);
            self.lost = Loss::None;
        }
    }

    pub(super) fn went(&mut self, to: SliceId, loss: Loss) {
        self.met(to);
        let count = if loss == Loss::Page { &mut self.taken } else { &mut self.shared };
        *count = count.saturating_add(1);
        if self.lost != Loss::Page {
            self.lost = loss;
        }
    }

    fn met(&mut self, peer: SliceId) {
        self.peers |= 1u64.checked_shl(peer.0.into()).unwrap_or(0);
        if self.peer == Some(peer.0) {
            self.votes = self.votes.saturating_add(1);
        } else if self.votes == 0 {
            (self.peer, self.votes) = (Some(peer.0), 1);
        } else {
            self.votes -= 1;
        }
    }

    pub(super) fn forget_loss(&mut self) {
        self.lost = Loss::None;
    }

    pub(super) fn sampled(&mut self, site: Site) {
        let known = self.sites.iter_mut().find(|known| known.rip == site.rip);
        if let Some(known) = known {
            let count = known.count.saturating_add(1);
            // A sample that tells the address says more than one that does not.
            let told =
                if site.address.is_some() { site } else { Site { vcpu: site.vcpu, ..*known } };
            *known = Site { count, ..told };
            return;
        }
        if self.sites.len() >= SITES_MAX {
            let rarest = (0..self.sites.len()).min_by_key(|at| self.sites[*at].count);
            self.sites.swap_remove(rarest.unwrap_or(0));
        }
        self.sites.push(Site { count: 1, ..site });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn right_to_write_that_comes_back_is_a_ping_pong() {
        let mut page = PageTrace::default();
        page.went(SliceId(1), Loss::Writing);
        page.went(SliceId(2), Loss::Writing);
        page.came(SliceId(0), Access::Write);
        assert_eq!((page.shared, page.taken, page.ping_pongs), (2, 0, 1));
        page.came(SliceId(0), Access::Write);
        assert_eq!(page.ping_pongs, 1, "it had not gone again");
        assert_eq!(page.peers, 0b111);
    }

    #[test]
    fn copy_for_reading_does_not_bring_the_right_to_write_back() {
        let mut page = PageTrace::default();
        page.went(SliceId(1), Loss::Writing);
        page.came(SliceId(1), Access::Read);
        assert_eq!(page.ping_pongs, 0);
        page.went(SliceId(1), Loss::Page);
        page.came(SliceId(1), Access::Read);
        assert_eq!(page.ping_pongs, 1);
    }

    #[test]
    fn sites_are_bounded_and_keep_the_most_frequent() {
        let mut page = PageTrace::default();
        let site = |rip| Site { rip, ..Site::default() };
        for rip in 0..100 {
            page.sampled(site(1));
            page.sampled(site(rip));
        }
        assert_eq!(page.sites.len(), SITES_MAX);
        let most = page.sites.iter().max_by_key(|site| site.count).unwrap();
        assert_eq!((most.rip, most.count), (1, 101));
    }

    #[test]
    fn site_keeps_its_address_when_a_sample_has_none() {
        let mut page = PageTrace::default();
        let known = Site { rip: 1, address: Some(0x10), touch: Touch::Data, ..Site::default() };
        page.sampled(known);
        page.sampled(Site { rip: 1, vcpu: 3, ..Site::default() });
        assert_eq!(page.sites, [Site { count: 2, vcpu: 3, ..known }]);
    }

    #[test]
    fn difference_of_a_page_that_was_forgotten_is_the_page() {
        let before = PageTrace { read: 9, write: 1, ..PageTrace::default() };
        let now = PageTrace { read: 2, write: 5, ..PageTrace::default() };
        assert_eq!(now.since(&before), now);
    }

    proptest! {
        /// A peer with more than half of the events is the one that is named.
        #[test]
        fn peer_with_the_majority_is_named(peers in prop::collection::vec(0u16..3, 1..60)) {
            let mut page = PageTrace::default();
            for peer in &peers {
                page.came(SliceId(*peer), Access::Read);
            }
            for peer in 0..3 {
                let count = peers.iter().filter(|other| **other == peer).count();
                prop_assert!(count * 2 <= peers.len() || page.peer == Some(peer));
                prop_assert_eq!(page.peers >> peer & 1 == 1, count > 0);
            }
        }

        #[test]
        fn differences_add_up(
            first in prop::collection::vec(0u8..3, 0..50),
            second in prop::collection::vec(0u8..3, 0..50),
        ) {
            let kinds = [FaultKind::Read, FaultKind::Write, FaultKind::Upgrade];
            let mut page = PageTrace::default();
            let count = |page: &mut PageTrace, events: &[u8]| for at in events {
                page.fault(kinds[usize::from(*at)], PageClass::Other, *at == 0);
                page.sampled(Site { rip: u64::from(*at), ..Site::default() });
            };
            count(&mut page, &first);
            let before = page.clone();
            count(&mut page, &second);
            let between = page.since(&before);
            prop_assert_eq!(between.faults() as usize, second.len());
            prop_assert_eq!(between.faults() + before.faults(), page.faults());
            let samples = between.sites.iter().map(|site| site.count as usize).sum::<usize>();
            prop_assert_eq!(samples, second.len());
        }
    }
}
