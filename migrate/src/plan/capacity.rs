//! What each slice offers to the VM, and how much room that leaves.

use crate::Placement;
use std::collections::{BTreeMap, BTreeSet};
use wire::{PAGE_SIZE, SliceId, VcpuId};

/// What a slice offers to the VM, what it has of the VM already included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// vCPUs that may run there at the same time: one for each core that may run vCPUs.
    pub vcpus: u32,
    /// Guest memory that may have its home there, in bytes. A part of a page does not count.
    pub bytes: u64,
    /// CPU features of the VM that the host lacks, by name. With any, no vCPU goes there.
    pub lacks: Vec<String>,
    /// Devices, by number on the bus, whose real part the host can have: it has a path to the same disk, or to the same
    /// network. A device's present owner need not be named.
    pub reaches: BTreeSet<u16>,
}

impl Offer {
    /// vCPUs that can run there.
    pub(super) fn usable_vcpus(&self) -> u64 {
        if self.lacks.is_empty() { u64::from(self.vcpus) } else { 0 }
    }
}

/// What all slices offer.
///
/// A slice without an offer, or with more of the VM than it offers, is given nothing. What it has stays, but for vCPUs
/// beyond its cores, which [`spread`](super::spread) and [`add`](super::add) take away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// The offer of each slice.
    pub offers: BTreeMap<SliceId, Offer>,
    /// The vCPU that a queue belongs to, by device and queue. Such a queue moves with its vCPU. Any other one is served
    /// where its device is once its slice leaves.
    pub queues: BTreeMap<(u16, u16), VcpuId>,
    /// A slice that does not leave, and coordinates as long as it does: it can be emptied.
    pub stays: Option<SliceId>,
}

impl Capacity {
    /// vCPUs that can run on a slice.
    pub(super) fn usable_vcpus(&self, slice: SliceId) -> u64 {
        self.offers.get(&slice).map_or(0, Offer::usable_vcpus)
    }

    /// Whether a slice's host can have the real part of a device.
    pub(super) fn reaches(&self, slice: SliceId, device: u16) -> bool {
        self.offers.get(&slice).is_some_and(|offer| offer.reaches.contains(&device))
    }

    /// As if one slice alone had room: for anything that it can use and reach, whatever it offers. One that offers neither vCPUs
    /// nor memory is in the VM for its devices only.
    #[must_use]
    pub(super) fn all_to(&self, slice: SliceId) -> Self {
        let mut alone = self.clone();
        for (at, offer) in &mut alone.offers {
            if *at != slice {
                (offer.vcpus, offer.bytes) = (0, 0);
                offer.reaches.clear();
            } else if (offer.vcpus, offer.bytes) != (0, 0) {
                (offer.vcpus, offer.bytes) = (u32::MAX, u64::MAX);
            }
        }
        alone
    }

    /// The room that a slice has left.
    pub(super) fn room(&self, placement: &Placement, slice: SliceId) -> Load {
        let used = Load::of(placement, slice);
        let bytes = self.offers.get(&slice).map_or(0, |offer| offer.bytes);
        Load {
            vcpus: self.usable_vcpus(slice).saturating_sub(used.vcpus),
            frames: (bytes / bytes_of(1)).saturating_sub(used.frames),
        }
    }
}

/// vCPUs and frames of memory, of a slice or for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) vcpus: u64,
    pub(super) frames: u64,
}

impl Load {
    /// What a slice has.
    pub(super) fn of(placement: &Placement, slice: SliceId) -> Self {
        let vcpus = placement.vcpus_on(slice).len();
        Self {
            vcpus: u64::try_from(vcpus).unwrap_or(u64::MAX),
            frames: placement.frame_count(slice),
        }
    }
}

/// Bytes of so many frames.
pub(super) fn bytes_of(frames: u64) -> u64 {
    let page = u64::try_from(PAGE_SIZE).unwrap_or(u64::MAX);
    frames.saturating_mul(page)
}

/// Shares out `need` to as few as possible: to the one with the least room that takes all of the rest, else to the one with
/// most. `toward` come before all others, in their order. `rooms` are ascending by slice, and the lower slice is taken of
/// two alike. What finds no room is returned beside.
pub(super) fn share_out(
    mut need: u64,
    rooms: &[(SliceId, u64)],
    toward: &[SliceId],
) -> (Vec<(SliceId, u64)>, u64) {
    let mut left: Vec<_> = rooms.iter().copied().filter(|(_, room)| *room > 0).collect();
    let mut shares = Vec::new();
    let mut toward = toward.iter();
    while need > 0 && !left.is_empty() {
        let at = match toward.next() {
            Some(slice) => left.iter().position(|(other, _)| other == slice),
            None => best_for(need, &left),
        };
        let Some(at) = at else { continue };
        let (slice, room) = left.remove(at);
        let share = room.min(need);
        need -= share;
        shares.push((slice, share));
    }
    (shares, need)
}

/// The one with the least room among those that take everything, else the one with most.
fn best_for(need: u64, left: &[(SliceId, u64)]) -> Option<usize> {
    let all = (0..left.len()).filter(|at| left[*at].1 >= need);
    let tightest = all.min_by_key(|at| left[*at].1);
    tightest.or_else(|| (0..left.len()).min_by_key(|at| u64::MAX - left[*at].1))
}
