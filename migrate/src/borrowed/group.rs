//! Which vCPUs are borrowed still, and where each of them was left.

use super::Side;
use crate::Placement;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use wire::{SliceId, VcpuId};

/// Why a vCPU is not borrowed any more: it stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenBack {
    /// Somebody has moved it.
    Moved,
    /// Its slice has left the VM.
    Left(SliceId),
    /// Its slice was emptied of its memory.
    Emptied(SliceId),
    /// Its slice does not take it.
    Refused(SliceId),
}

impl fmt::Display for GivenBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moved => f.write_str("somebody else has moved it"),
            Self::Left(slice) => write!(f, "{slice} has left the VM"),
            Self::Emptied(slice) => write!(f, "{slice} was emptied"),
            Self::Refused(slice) => write!(f, "{slice} does not take it"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    own: SliceId,
    at: Side,
}

/// The borrowed vCPUs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Borrowed {
    home: SliceId,
    vcpus: BTreeMap<VcpuId, Place>,
    /// Slices that had memory.
    homes: BTreeSet<SliceId>,
}

impl Borrowed {
    /// Those that the layout has on other slices than `home`, and where they are now: `layout` has each on its own. Of a VM that gets
    /// more vCPUs later, only the first `present` ones.
    #[must_use]
    pub fn new(layout: &Placement, home: SliceId, at: Side, present: Option<u32>) -> Self {
        let all = (0..present.unwrap_or(u32::MAX)).map(VcpuId).zip(layout.vcpus());
        let others = all.filter(|(_, own)| **own != home);
        let has_memory = |slice: &&SliceId| layout.frame_count(**slice) > 0;
        Self {
            home,
            vcpus: others.map(|(vcpu, own)| (vcpu, Place { own: *own, at })).collect(),
            homes: layout.members().iter().filter(has_memory).copied().collect(),
        }
    }

    /// Whether none is borrowed any more.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.vcpus.is_empty()
    }

    /// A vCPU's own slice, if it is borrowed.
    #[must_use]
    pub fn own_slice(&self, vcpu: VcpuId) -> Option<SliceId> {
        self.vcpus.get(&vcpu).map(|place| place.own)
    }

    /// Looks where everything is. Whatever others have moved is theirs from now on.
    pub fn observe(&mut self, now: &Placement) -> Vec<(VcpuId, GivenBack)> {
        let why = |vcpu: VcpuId, place: &Place| {
            let Place { own, at } = *place;
            let left = if at == Side::Home { self.home } else { own };
            if now.slice_of(vcpu) != Some(left) {
                Some(GivenBack::Moved)
            } else if !now.is_member(own) {
                Some(GivenBack::Left(own))
            } else if self.homes.contains(&own) && now.frame_count(own) == 0 {
                Some(GivenBack::Emptied(own))
            } else {
                None
            }
        };
        let whose = self.vcpus.iter();
        let given: Vec<_> =
            whose.filter_map(|(vcpu, place)| Some((*vcpu, why(*vcpu, place)?))).collect();
        self.vcpus.retain(|vcpu, _| !given.iter().any(|(given, _)| given == vcpu));
        given
    }

    /// The next move that brings them to this side.
    #[must_use]
    pub fn next(&self, side: Side) -> Option<(VcpuId, SliceId)> {
        let (vcpu, place) = self.vcpus.iter().find(|(_, place)| place.at != side)?;
        Some((*vcpu, if side == Side::Home { self.home } else { place.own }))
    }

    /// One of them has moved to this side.
    pub fn moved(&mut self, vcpu: VcpuId, side: Side) {
        if let Some(place) = self.vcpus.get_mut(&vcpu) {
            place.at = side;
        }
    }

    /// It cannot move to its slice; it stays where it is.
    pub fn refused(&mut self, vcpu: VcpuId) -> Option<GivenBack> {
        self.vcpus.remove(&vcpu).map(|place| GivenBack::Refused(place.own))
    }
}
