//! Where every part of a VM is: one immutable value, versioned by its epoch.
//!
//! ```text
//!   Placement (epoch 1) --next(changes)--> Placement (epoch 2) --next(changes)--> ...
//! ```
//! A placement is only ever made whole and checked: every part is on a member, and no frame has two homes. Tables that
//! are read on hot paths (home table, mailboxes, ghosts) are derived from it and hold nothing of their own.

mod saved;

pub use saved::{DeviceState, MemoryState, PlacementState};

use std::ops::Range;
use thiserror::Error;
use wire::{Epoch, Gfn, SliceId, VcpuId};

/// A run of guest frames and their home.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemoryPlace {
    /// Guest frame numbers.
    pub frames: Range<u64>,
    /// The slice that keeps their directory entries.
    pub home: SliceId,
}

/// A device: its real part and its queues.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DevicePlace {
    /// The slice whose host has the real device.
    pub owner: SliceId,
    /// The slice that serves each queue, by queue number.
    pub queues: Vec<SliceId>,
}

/// Where everything of a VM is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    epoch: Epoch,
    members: Vec<SliceId>,
    vcpus: Vec<SliceId>,
    memory: Vec<MemoryPlace>,
    devices: Vec<DevicePlace>,
    coordinator: SliceId,
    /// Until it leaves.
    coordinated_before: Option<SliceId>,
}

/// One part that moves. Several make one step to the next epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// A slice becomes a member; it has nothing yet.
    Join(SliceId),
    /// A slice is a member no longer; it must have nothing left.
    Leave(SliceId),
    /// A vCPU runs elsewhere.
    Vcpu {
        /// The vCPU.
        vcpu: VcpuId,
        /// Where it runs from now on.
        to: SliceId,
    },
    /// Frames have another home. They may be parts of several ranges, but must all be memory.
    Memory {
        /// Guest frame numbers.
        frames: Range<u64>,
        /// Their home from now on.
        to: SliceId,
    },
    /// A queue is served elsewhere.
    Queue {
        /// The device, by its number on the bus.
        device: u16,
        /// The queue's number.
        queue: u16,
        /// The slice that serves it from now on.
        to: SliceId,
    },
    /// The real device is on another host.
    Device {
        /// The device, by its number on the bus.
        device: u16,
        /// The slice that has it from now on.
        to: SliceId,
    },
    /// Another slice coordinates.
    Coordinator(SliceId),
}

/// Why there is no such placement.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlacementError {
    /// A VM has at least one slice and one vCPU.
    #[error("place a VM: it has no {0}")]
    Nothing(&'static str),
    /// Something would be on a slice that is not of the VM.
    #[error("place {what}: {slice} is not a member")]
    NotAMember {
        /// What it is.
        what: String,
        /// Where it would be.
        slice: SliceId,
    },
    /// A slice joins twice.
    #[error("{0} is a member already")]
    MemberAlready(SliceId),
    /// A slice that leaves still has something.
    #[error("{slice} cannot leave: it still has {what}")]
    NotEmpty {
        /// The slice.
        slice: SliceId,
        /// What it has.
        what: String,
    },
    /// A change names what the VM does not have.
    #[error("the VM has no {0}")]
    Unknown(String),
    /// A range without frames.
    #[error("place memory: an empty range at frame {0:#x}")]
    EmptyRange(u64),
    /// Two ranges claim one frame.
    #[error("place memory: frame {0:#x} has two homes")]
    TwoHomes(u64),
    /// There is no epoch after this one.
    #[error("epoch {} is the last one", .0.0)]
    LastEpoch(Epoch),
}

impl Placement {
    /// A placement that is checked. `members` and `memory` may come in any order; `vcpus[n]` is where vCPU `n` runs. The
    /// first member coordinates.
    ///
    /// # Errors
    /// No member or vCPU, a member twice, a part that is on no member, ranges that are empty or overlap.
    pub fn new(
        epoch: Epoch,
        mut members: Vec<SliceId>,
        vcpus: Vec<SliceId>,
        mut memory: Vec<MemoryPlace>,
        devices: Vec<DevicePlace>,
    ) -> Result<Self, PlacementError> {
        members.sort_unstable();
        memory.sort_by_key(|place| place.frames.start);
        join_neighbours(&mut memory);
        let coordinator = *members.first().ok_or(PlacementError::Nothing("slice"))?;
        let coordinated_before = None;
        let placement =
            Self { epoch, members, vcpus, memory, devices, coordinator, coordinated_before };
        placement.check()?;
        Ok(placement)
    }

    /// The same, coordinated by these: now, and before if that slice is still there.
    ///
    /// # Errors
    /// One of them is no member.
    fn coordinated_by(
        mut self,
        now: SliceId,
        before: Option<SliceId>,
    ) -> Result<Self, PlacementError> {
        (self.coordinator, self.coordinated_before) = (now, before);
        self.check()?;
        Ok(self)
    }

    fn check(&self) -> Result<(), PlacementError> {
        if self.vcpus.is_empty() {
            return Err(PlacementError::Nothing("vCPU"));
        }
        if let Some(pair) = self.members.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(PlacementError::MemberAlready(pair[0]));
        }
        if let Some(place) = self.memory.iter().find(|place| place.frames.is_empty()) {
            return Err(PlacementError::EmptyRange(place.frames.start));
        }
        let overlap = |pair: &&[MemoryPlace]| pair[0].frames.end > pair[1].frames.start;
        if let Some(pair) = self.memory.windows(2).find(overlap) {
            return Err(PlacementError::TwoHomes(pair[1].frames.start));
        }
        match self.parts().find(|(_, slice)| !self.is_member(*slice)) {
            Some((part, slice)) => {
                Err(PlacementError::NotAMember { what: part.to_string(), slice })
            }
            None => Ok(()),
        }
    }

    /// Every part and where it is.
    fn parts(&self) -> impl Iterator<Item = (Part, SliceId)> + '_ {
        let vcpus = (0u32..).zip(&self.vcpus).map(|(n, slice)| (Part::Vcpu(VcpuId(n)), *slice));
        let memory = self.memory.iter().map(|place| (Part::Memory(place.frames.start), place.home));
        let devices = (0u16..).zip(&self.devices).flat_map(|(device, place)| {
            let queues = (0u16..).zip(&place.queues);
            let queues = queues.map(move |(queue, slice)| (Part::Queue { device, queue }, *slice));
            [(Part::Device(device), place.owner)].into_iter().chain(queues)
        });
        let coordination = std::iter::once((Part::Coordination, self.coordinator));
        let before = self.coordinated_before.map(|slice| (Part::FormerCoordination, slice));
        vcpus.chain(memory).chain(devices).chain(coordination).chain(before)
    }

    /// Version of the placement.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The VM's slices, ascending.
    #[must_use]
    pub fn members(&self) -> &[SliceId] {
        &self.members
    }

    /// Whether a slice is of the VM.
    #[must_use]
    pub fn is_member(&self, slice: SliceId) -> bool {
        self.members.binary_search(&slice).is_ok()
    }

    /// The slice of each vCPU, by its id.
    #[must_use]
    pub fn vcpus(&self) -> &[SliceId] {
        &self.vcpus
    }

    /// Where a vCPU runs; `None` for one that the VM does not have.
    #[must_use]
    pub fn slice_of(&self, vcpu: VcpuId) -> Option<SliceId> {
        self.vcpus.get(usize::try_from(vcpu.0).ok()?).copied()
    }

    /// The vCPUs of a slice, ascending.
    #[must_use]
    pub fn vcpus_on(&self, slice: SliceId) -> Vec<VcpuId> {
        let placed = (0u32..).zip(&self.vcpus);
        placed.filter(|(_, at)| **at == slice).map(|(id, _)| VcpuId(id)).collect()
    }

    /// Guest memory with its homes, ascending and disjoint. There may be holes.
    #[must_use]
    pub fn memory(&self) -> &[MemoryPlace] {
        &self.memory
    }

    /// The home of a frame; `None` where there is no memory.
    #[must_use]
    pub fn home_of(&self, gfn: Gfn) -> Option<SliceId> {
        let after = self.memory.partition_point(|place| place.frames.start <= gfn.0);
        let place = self.memory[..after].last()?;
        place.frames.contains(&gfn.0).then_some(place.home)
    }

    /// How many frames a slice is home of.
    #[must_use]
    pub fn frame_count(&self, slice: SliceId) -> u64 {
        self.frames_of(slice).iter().map(|frames| frames.end - frames.start).sum()
    }

    /// The frames that a slice is home of, ascending.
    #[must_use]
    pub fn frames_of(&self, slice: SliceId) -> Vec<Range<u64>> {
        let own = self.memory.iter().filter(|place| place.home == slice);
        own.map(|place| place.frames.clone()).collect()
    }

    /// All frames of the VM, ascending: ranges that touch are one, whoever is home of them.
    #[must_use]
    pub fn frames(&self) -> Vec<Range<u64>> {
        let mut frames: Vec<Range<u64>> = Vec::new();
        for place in &self.memory {
            match frames.last_mut() {
                Some(last) if last.end == place.frames.start => last.end = place.frames.end,
                _ => frames.push(place.frames.clone()),
            }
        }
        frames
    }

    /// The devices, by number on the bus.
    #[must_use]
    pub fn devices(&self) -> &[DevicePlace] {
        &self.devices
    }

    /// The slice that coordinates: it has the platform devices, orders changes of what all share, decides about cuts and
    /// moves, and ends the VM.
    #[must_use]
    pub fn coordinator(&self) -> SliceId {
        self.coordinator
    }

    /// Whether a slice coordinates, or did before the one that does: what it has sent may still come.
    #[must_use]
    pub fn coordinates_or_did(&self, slice: SliceId) -> bool {
        self.coordinator == slice || self.coordinated_before == Some(slice)
    }

    /// The slice that serves a queue; `None` for one that the VM does not have.
    #[must_use]
    pub fn queue_at(&self, device: u16, queue: u16) -> Option<SliceId> {
        self.devices.get(usize::from(device))?.queues.get(usize::from(queue)).copied()
    }

    /// The placement after all of these changes, which is of the next epoch. The changes are made in their order, and
    /// the result is checked as a whole: what leaves a slice may stand before or after the slice itself.
    ///
    /// # Errors
    /// A change of what is not there, or one whose result is no placement.
    pub fn next(&self, changes: &[Change]) -> Result<Self, PlacementError> {
        let mut next = self.clone();
        let epoch = self.epoch.0.checked_add(1).ok_or(PlacementError::LastEpoch(self.epoch))?;
        next.epoch = Epoch(epoch);
        for change in changes {
            next.apply(change)?;
        }
        let left = self.members.iter().copied().filter(|slice| !next.is_member(*slice));
        for slice in left {
            if let Some((part, _)) = next.parts().find(|(_, at)| *at == slice) {
                return Err(PlacementError::NotEmpty { slice, what: part.to_string() });
            }
        }
        next.check()?;
        Ok(next)
    }

    fn apply(&mut self, change: &Change) -> Result<(), PlacementError> {
        let unknown = |part: Part| PlacementError::Unknown(part.to_string());
        match change {
            Change::Join(slice) => match self.members.binary_search(slice) {
                Ok(_) => return Err(PlacementError::MemberAlready(*slice)),
                Err(at) => self.members.insert(at, *slice),
            },
            Change::Leave(slice) => match self.members.binary_search(slice) {
                Ok(at) => {
                    self.members.remove(at);
                    self.coordinated_before = self.coordinated_before.filter(|it| it != slice);
                }
                Err(_) => return Err(PlacementError::Unknown(format!("member {slice}"))),
            },
            Change::Vcpu { vcpu, to } => {
                let at = usize::try_from(vcpu.0).ok().and_then(|at| self.vcpus.get_mut(at));
                *at.ok_or_else(|| unknown(Part::Vcpu(*vcpu)))? = *to;
            }
            Change::Memory { frames, to } => self.rehome(frames, *to)?,
            Change::Queue { device, queue, to } => {
                let place = self.devices.get_mut(usize::from(*device));
                let at = place.and_then(|place| place.queues.get_mut(usize::from(*queue)));
                let part = Part::Queue { device: *device, queue: *queue };
                *at.ok_or_else(|| unknown(part))? = *to;
            }
            Change::Device { device, to } => {
                let place = self.devices.get_mut(usize::from(*device));
                place.ok_or_else(|| unknown(Part::Device(*device)))?.owner = *to;
            }
            Change::Coordinator(to) if *to != self.coordinator => {
                self.coordinated_before = Some(std::mem::replace(&mut self.coordinator, *to));
            }
            Change::Coordinator(_) => {}
        }
        Ok(())
    }

    /// Gives frames another home, splitting the ranges they are parts of.
    fn rehome(&mut self, frames: &Range<u64>, to: SliceId) -> Result<(), PlacementError> {
        if frames.is_empty() {
            return Err(PlacementError::EmptyRange(frames.start));
        }
        let mut next = Vec::with_capacity(self.memory.len() + 2);
        let mut covered = frames.start;
        for place in &self.memory {
            let start = place.frames.start.max(frames.start);
            let end = place.frames.end.min(frames.end);
            if start >= end {
                next.push(place.clone());
                continue;
            }
            if start != covered {
                break;
            }
            covered = end;
            let pieces = [
                (place.frames.start..start, place.home),
                (start..end, to),
                (end..place.frames.end, place.home),
            ];
            let pieces = pieces.into_iter().filter(|(frames, _)| !frames.is_empty());
            next.extend(pieces.map(|(frames, home)| MemoryPlace { frames, home }));
        }
        if covered != frames.end {
            return Err(PlacementError::Unknown(format!("memory at frame {covered:#x}")));
        }
        join_neighbours(&mut next);
        self.memory = next;
        Ok(())
    }
}

/// Makes one range of ranges that touch and have the same home.
fn join_neighbours(memory: &mut Vec<MemoryPlace>) {
    memory.dedup_by(|next, place| {
        let touch = place.home == next.home
            && place.frames.end == next.frames.start
            && !place.frames.is_empty()
            && !next.frames.is_empty();
        if touch {
            place.frames.end = next.frames.end;
        }
        touch
    });
}

/// A part of the VM, for messages.
enum Part {
    Vcpu(VcpuId),
    Memory(u64),
    Device(u16),
    Queue { device: u16, queue: u16 },
    Coordination,
    FormerCoordination,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Vcpu(vcpu) => write!(f, "{vcpu}"),
            Self::Memory(frame) => write!(f, "memory at frame {frame:#x}"),
            Self::Device(device) => write!(f, "device {device}"),
            Self::Queue { device, queue } => write!(f, "queue {queue} of device {device}"),
            Self::Coordination => f.write_str("the coordination"),
            Self::FormerCoordination => f.write_str("the coordination before"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(frames: Range<u64>, home: u16) -> MemoryPlace {
        MemoryPlace { frames, home: SliceId(home) }
    }

    /// Two slices with a vCPU each; a device on the second, whose queues are with the vCPUs.
    fn two() -> Placement {
        let slices = [SliceId(0), SliceId(1)];
        let device = DevicePlace { owner: SliceId(1), queues: slices.to_vec() };
        let memory = vec![range(8..16, 1), range(0..4, 0)];
        Placement::new(Epoch(1), slices.to_vec(), slices.to_vec(), memory, vec![device]).unwrap()
    }

    #[test]
    fn everything_is_found_where_it_was_put() {
        let placement = two();
        assert_eq!(placement.slice_of(VcpuId(1)), Some(SliceId(1)));
        assert_eq!(placement.slice_of(VcpuId(2)), None);
        assert_eq!(placement.vcpus_on(SliceId(0)), [VcpuId(0)]);
        let homes = [3, 4, 8, 16].map(|gfn| placement.home_of(Gfn(gfn)));
        assert_eq!(homes, [Some(SliceId(0)), None, Some(SliceId(1)), None]);
        assert_eq!(placement.frames_of(SliceId(1)), vec![Range { start: 8, end: 16 }]);
        assert_eq!(placement.queue_at(0, 0), Some(SliceId(0)));
        assert_eq!((placement.queue_at(0, 2), placement.queue_at(1, 0)), (None, None));
        assert_eq!(placement.members(), [SliceId(0), SliceId(1)]);
    }

    #[test]
    fn what_is_no_placement_is_refused() {
        let new = |members: &[u16], vcpus: &[u16], memory| {
            let slices = |of: &[u16]| of.iter().copied().map(SliceId).collect();
            Placement::new(Epoch(1), slices(members), slices(vcpus), memory, Vec::new())
        };
        assert_eq!(new(&[], &[0], Vec::new()), Err(PlacementError::Nothing("slice")));
        assert_eq!(new(&[0], &[], Vec::new()), Err(PlacementError::Nothing("vCPU")));
        let twice = new(&[1, 0, 1], &[0], Vec::new());
        assert_eq!(twice, Err(PlacementError::MemberAlready(SliceId(1))));
        assert!(matches!(new(&[0], &[1], Vec::new()), Err(PlacementError::NotAMember { .. })));
        let empty = new(&[0], &[0], vec![range(4..4, 0)]);
        assert_eq!(empty, Err(PlacementError::EmptyRange(4)));
        let both = new(&[0, 1], &[0], vec![range(0..9, 0), range(8..16, 1)]);
        assert_eq!(both, Err(PlacementError::TwoHomes(8)));
        let inside = new(&[0], &[0], vec![range(0..9, 0), range(4..9, 0)]);
        assert_eq!(inside, Err(PlacementError::TwoHomes(4)));
    }

    #[test]
    fn slice_is_drained_and_leaves_in_one_step() {
        let to = SliceId(0);
        let changes = [
            Change::Leave(SliceId(1)),
            Change::Vcpu { vcpu: VcpuId(1), to },
            Change::Memory { frames: 8..16, to },
            Change::Queue { device: 0, queue: 1, to },
            Change::Device { device: 0, to },
        ];
        let after = two().next(&changes).unwrap();
        assert_eq!((after.epoch(), after.members()), (Epoch(2), &[to][..]));
        for left in 1..changes.len() {
            let mut some = changes.to_vec();
            some.remove(left);
            let refused = two().next(&some);
            assert!(
                matches!(refused, Err(PlacementError::NotEmpty { slice: SliceId(1), .. })),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn coordinator_leaves_only_when_another_slice_coordinates() {
        let [first, second] = [SliceId(0), SliceId(1)];
        let leave = [
            Change::Vcpu { vcpu: VcpuId(0), to: second },
            Change::Memory { frames: 0..4, to: second },
            Change::Queue { device: 0, queue: 0, to: second },
            Change::Leave(first),
        ];
        let refused = two().next(&leave);
        assert!(
            matches!(&refused, Err(PlacementError::NotEmpty { what, .. }) if what == "the coordination")
        );
        let after = two().next(&[Change::Coordinator(second)]).unwrap();
        assert_eq!(after.coordinator(), second);
        assert!(after.coordinates_or_did(first));
        let left = after.next(&leave).unwrap();
        assert!(!left.coordinates_or_did(first) && left.coordinates_or_did(second));
        assert!(two().next(&[Change::Coordinator(SliceId(7))]).is_err());
    }

    #[test]
    fn change_of_what_is_not_there_is_refused() {
        let to = SliceId(0);
        for change in [
            Change::Vcpu { vcpu: VcpuId(2), to },
            Change::Memory { frames: 2..9, to },
            Change::Memory { frames: 100..101, to },
            Change::Queue { device: 0, queue: 2, to },
            Change::Queue { device: 1, queue: 0, to },
            Change::Device { device: 1, to },
            Change::Leave(SliceId(2)),
        ] {
            let refused = two().next(std::slice::from_ref(&change));
            assert!(matches!(refused, Err(PlacementError::Unknown(_))), "{change:?}: {refused:?}");
        }
        let stranger = two().next(&[Change::Vcpu { vcpu: VcpuId(1), to: SliceId(7) }]);
        assert!(matches!(stranger, Err(PlacementError::NotAMember { .. })));
    }

    proptest! {
        /// Frames that move one range after another are where a plain array says, and neighbours are one range.
        #[test]
        fn memory_is_where_it_was_moved(
            moves in prop::collection::vec((0u64..64, 1u64..64, 0u16..3), 0..20),
        ) {
            let members = vec![SliceId(0), SliceId(1), SliceId(2)];
            let memory = vec![range(0..40, 0), range(44..64, 1)];
            let mut placement =
                Placement::new(Epoch(1), members, vec![SliceId(0)], memory, Vec::new()).unwrap();
            let mut flat: Vec<_> = (0..64).map(|gfn| placement.home_of(Gfn(gfn))).collect();
            for (start, count, to) in moves {
                let (frames, to) = (start..(start + count).min(64), SliceId(to));
                let part = usize::try_from(frames.start).unwrap()..usize::try_from(frames.end).unwrap();
                let is_memory = flat[part.clone()].iter().all(Option::is_some);
                match placement.next(&[Change::Memory { frames, to }]) {
                    Ok(next) => {
                        prop_assert!(is_memory);
                        flat[part].fill(Some(to));
                        placement = next;
                    }
                    Err(error) => prop_assert!(!is_memory, "{error}"),
                }
                let now: Vec<_> = (0..64).map(|gfn| placement.home_of(Gfn(gfn))).collect();
                prop_assert_eq!(&now, &flat);
                let apart = |pair: &[MemoryPlace]| {
                    pair[0].frames.end < pair[1].frames.start || pair[0].home != pair[1].home
                };
                prop_assert!(placement.memory().windows(2).all(apart), "{:?}", placement.memory());
            }
        }
    }
}
