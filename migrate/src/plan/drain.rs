//! Everything leaves a slice.
//!
//! A slice's vCPUs go to as few slices as possible, since they are likely to share memory with each other. Its memory
//! goes to the same slices as far as there is room: the vCPUs that come from a slice use its memory most.

use super::capacity::{Capacity, Load, Offer, share_out};
use super::{Obstacle, Plan, Refusal};
use crate::{Change, DevicePlace, Placement};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use wire::{SliceId, VcpuId};

/// Frames of 2 MiB. A range is cut where a chunk ends if there is room for that, so that huge pages stay whole.
pub(super) const CHUNK_FRAMES: u64 = 512;

/// Where every vCPU, range of memory, device and queue of a slice goes; then the slice leaves, unless it [stays](Capacity::stays).
///
/// # Errors
/// No such member, the last one, or parts for which no other slice has room or a path: all of them are named.
pub fn drain(placement: &Placement, capacity: &Capacity, slice: SliceId) -> Result<Plan, Refusal> {
    if !placement.is_member(slice) {
        return Err(Refusal::Unknown(slice));
    }
    if placement.members().len() == 1 {
        return Err(Refusal::LastSlice(slice));
    }
    let plan = evacuate(placement, capacity, &[slice]);
    plan.map_err(|obstacles| Refusal::Stuck { slice, obstacles })
}

/// The same with everything going to one slice, for which it has room whatever it offers.
///
/// # Errors
/// As [`drain`], and a slice to go to that is the drained one, or has devices only while there is more to take.
pub fn drain_to(
    placement: &Placement,
    capacity: &Capacity,
    slice: SliceId,
    to: SliceId,
) -> Result<Plan, Refusal> {
    if !placement.is_member(to) {
        return Err(Refusal::Unknown(to));
    }
    let offers_nothing = |offer: &Offer| (offer.vcpus, offer.bytes) == (0, 0);
    let for_devices = capacity.offers.get(&to).is_none_or(offers_nothing);
    let why = match () {
        () if to == slice => "it is the slice that is to be empty",
        () if for_devices && Load::of(placement, slice) != Load::default() => {
            "it is in the VM for its devices only"
        }
        () => return drain(placement, &capacity.all_to(to), slice),
    };
    Err(Refusal::NotThere { slice, to, why })
}

/// Everything leaves all of these slices, one after another, for those that are kept. There is a plan if the room of these
/// is enough in sum, for vCPUs and pages are alike, and a path leads from one of them to each device.
pub(super) fn evacuate(
    placement: &Placement,
    capacity: &Capacity,
    leaving: &[SliceId],
) -> Result<Plan, Vec<Obstacle>> {
    let members = placement.members().iter().copied();
    let kept: Vec<_> = members.filter(|slice| !leaving.contains(slice)).collect();
    let rooms = kept.iter().map(|slice| (*slice, capacity.room(placement, *slice))).collect();
    let mut evacuation =
        Evacuation { placement, capacity, leaving, kept, rooms, vcpus: BTreeMap::new() };
    // The largest group first: it is the hardest to keep together.
    let mut order = leaving.to_vec();
    order.sort_by_key(|slice| (Reverse(placement.vcpus_on(*slice).len()), *slice));
    let mut obstacles = Vec::new();
    let mut targets = BTreeMap::new();
    for slice in &order {
        targets.insert(*slice, evacuation.assign_vcpus(*slice, &mut obstacles));
    }
    let devices = evacuation.assign_devices(&mut obstacles);
    let mut plan = Plan::default();
    for slice in &order {
        evacuation.plan_devices(*slice, &devices, &mut plan);
    }
    // A queue may follow a vCPU of another slice that leaves: no slice is empty before all vCPUs have moved.
    for slice in &order {
        evacuation.plan_vcpus(*slice, &mut plan);
    }
    // Who coordinates has all others leave before.
    order.sort_by_key(|slice| *slice == placement.coordinator());
    for slice in &order {
        evacuation.plan_queues(*slice, &devices, &mut plan);
        evacuation.plan_memory(*slice, &targets[slice], &mut plan, &mut obstacles);
        if capacity.stays == Some(*slice) {
            continue;
        }
        if *slice == placement.coordinator() {
            evacuation.plan_coordination(&mut plan);
        }
        plan.push(vec![Change::Leave(*slice)]);
    }
    if obstacles.is_empty() { Ok(plan) } else { Err(obstacles) }
}

struct Evacuation<'a> {
    placement: &'a Placement,
    capacity: &'a Capacity,
    leaving: &'a [SliceId],
    kept: Vec<SliceId>,
    /// What the kept slices have left.
    rooms: BTreeMap<SliceId, Load>,
    /// Where vCPUs go.
    vcpus: BTreeMap<VcpuId, SliceId>,
}

impl Evacuation<'_> {
    /// Decides where a slice's vCPUs go. Returns where, most first.
    fn assign_vcpus(&mut self, slice: SliceId, obstacles: &mut Vec<Obstacle>) -> Vec<SliceId> {
        let vcpus = self.placement.vcpus_on(slice);
        let rooms: Vec<_> = self.rooms.iter().map(|(at, room)| (*at, room.vcpus)).collect();
        let need = Load::of(self.placement, slice).vcpus;
        let (mut shares, _) = share_out(need, &rooms, &[]);
        let mut left = vcpus.into_iter();
        for (to, share) in &shares {
            let share = (0..*share).filter_map(|_| left.next());
            self.vcpus.extend(share.map(|vcpu| (vcpu, *to)));
        }
        for (to, share) in &shares {
            self.rooms.entry(*to).and_modify(|room| room.vcpus -= share);
        }
        let left: Vec<_> = left.collect();
        if !left.is_empty() {
            let known = (self.placement, self.capacity);
            obstacles.push(Obstacle::vcpus(&left, known, &self.kept));
        }
        shares.sort_by_key(|(to, share)| (Reverse(*share), *to));
        shares.into_iter().map(|(to, _)| to).collect()
    }

    /// Decides who has the devices of the slices that leave: of those with a path, the one that will serve most of the
    /// device's queues, and of these the one that will coordinate.
    fn assign_devices(&self, obstacles: &mut Vec<Obstacle>) -> BTreeMap<u16, SliceId> {
        let mut devices = BTreeMap::new();
        let coordinator = self.coordinator_after();
        for (device, place) in (0u16..).zip(self.placement.devices()) {
            if !self.leaving.contains(&place.owner) {
                continue;
            }
            let queues = self.queues_after(device, place);
            let reach = self.kept.iter().filter(|slice| self.capacity.reaches(**slice, device));
            let served = |slice: &SliceId| queues.iter().filter(|at| **at == Some(*slice)).count();
            let rank =
                |slice: &&SliceId| (Reverse(served(slice)), Some(**slice) != coordinator, **slice);
            match reach.min_by_key(rank) {
                Some(slice) => drop(devices.insert(device, *slice)),
                None => obstacles.push(Obstacle::device(device, &self.kept)),
            }
        }
        devices
    }

    /// Where a vCPU is after the plan.
    fn vcpu_after(&self, vcpu: VcpuId) -> Option<SliceId> {
        self.vcpus.get(&vcpu).copied().or_else(|| self.placement.slice_of(vcpu))
    }

    /// Where the queues of a device are after the plan, if that does not depend on the device.
    fn queues_after(&self, device: u16, place: &DevicePlace) -> Vec<Option<SliceId>> {
        let after = |(queue, at): (u16, &SliceId)| {
            let vcpu = self.capacity.queues.get(&(device, queue));
            let moved = vcpu.filter(|vcpu| self.vcpus.contains_key(vcpu));
            match (moved, self.leaving.contains(at)) {
                (None, false) => Some(*at),
                _ => vcpu.and_then(|vcpu| self.vcpu_after(*vcpu)),
            }
        };
        (0u16..).zip(&place.queues).map(after).collect()
    }

    fn plan_coordination(&self, plan: &mut Plan) {
        plan.push(self.coordinator_after().map(Change::Coordinator).into_iter().collect());
    }

    /// Who coordinates after the plan: who does now, or else the slice with most vCPUs then, since most of those that ask the
    /// platform devices are there.
    fn coordinator_after(&self) -> Option<SliceId> {
        let now = self.placement.coordinator();
        if !self.leaving.contains(&now) {
            return Some(now);
        }
        let vcpus = |slice: &SliceId| {
            let all = (0..).map(VcpuId).take(self.placement.vcpus().len());
            all.filter(|vcpu| self.vcpu_after(*vcpu) == Some(*slice)).count()
        };
        self.kept.iter().copied().max_by_key(|slice| (vcpus(slice), Reverse(*slice)))
    }

    fn plan_devices(&self, slice: SliceId, devices: &BTreeMap<u16, SliceId>, plan: &mut Plan) {
        for (device, place) in (0u16..).zip(self.placement.devices()) {
            if place.owner == slice
                && let Some(to) = devices.get(&device)
            {
                plan.push(vec![Change::Device { device, to: *to }]);
            }
        }
    }

    fn plan_vcpus(&self, slice: SliceId, plan: &mut Plan) {
        for vcpu in self.placement.vcpus_on(slice) {
            if let Some(to) = self.vcpus.get(&vcpu) {
                plan.push(with_queues(self.placement, self.capacity, vcpu, *to));
            }
        }
    }

    /// The queues that no vCPU has taken along, those of a device at one time.
    fn plan_queues(&self, slice: SliceId, devices: &BTreeMap<u16, SliceId>, plan: &mut Plan) {
        for (device, place) in (0u16..).zip(self.placement.devices()) {
            let mut changes = Vec::new();
            for (queue, _) in (0u16..).zip(&place.queues).filter(|(_, at)| **at == slice) {
                let vcpu = self.capacity.queues.get(&(device, queue));
                if vcpu.is_some_and(|vcpu| self.vcpus.contains_key(vcpu)) {
                    continue;
                }
                let owner = || devices.get(&device).copied().unwrap_or(place.owner);
                let to = vcpu.and_then(|vcpu| self.vcpu_after(*vcpu)).unwrap_or_else(owner);
                changes.push(Change::Queue { device, queue, to });
            }
            plan.push(changes);
        }
    }

    fn plan_memory(
        &mut self,
        slice: SliceId,
        toward: &[SliceId],
        plan: &mut Plan,
        obstacles: &mut Vec<Obstacle>,
    ) {
        let rooms: Vec<_> = self.rooms.iter().map(|(at, room)| (*at, room.frames)).collect();
        let need = Load::of(self.placement, slice).frames;
        let (shares, missing) = share_out(need, &rooms, toward);
        if missing > 0 {
            let known = (self.placement, self.capacity);
            obstacles.push(Obstacle::memory(missing, known, &self.kept));
        }
        // Others are there for what is left when no chunk is cut.
        let chosen: Vec<_> = shares.iter().map(|(to, _)| *to).collect();
        let others = rooms.iter().map(|(at, _)| *at).filter(|at| !chosen.contains(at));
        let order = chosen.iter().copied().chain(others);
        let order: Vec<_> = order.map(|at| (at, self.rooms[&at].frames)).collect();
        let ranges = self.placement.frames_of(slice);
        let pieces = cut(&ranges, &order, CHUNK_FRAMES)
            .or_else(|| cut(&ranges, &order, 1))
            .unwrap_or_default();
        for (frames, to) in pieces {
            let count = frames.end - frames.start;
            self.rooms.entry(to).and_modify(|room| room.frames -= count);
            plan.push(vec![Change::Memory { frames, to }]);
        }
    }
}

/// A vCPU and its queues go to another slice, whatever that offers.
#[must_use]
pub fn vcpu(placement: &Placement, capacity: &Capacity, vcpu: VcpuId, to: SliceId) -> Plan {
    let mut plan = Plan::default();
    plan.push(with_queues(placement, capacity, vcpu, to));
    plan
}

/// The change of a vCPU and of the queues that follow it.
pub(super) fn with_queues(
    placement: &Placement,
    capacity: &Capacity,
    vcpu: VcpuId,
    to: SliceId,
) -> Vec<Change> {
    let mut changes = vec![Change::Vcpu { vcpu, to }];
    let own = capacity.queues.iter().filter(|(_, of)| **of == vcpu);
    for ((device, queue), _) in own {
        if placement.queue_at(*device, *queue).is_some_and(|at| at != to) {
            changes.push(Change::Queue { device: *device, queue: *queue, to });
        }
    }
    changes
}

/// Ranges in pieces, each with its new home, which are filled one after another. A range is cut at multiples of `grain`
/// only. `None` if that leaves something over.
fn cut(
    ranges: &[Range<u64>],
    order: &[(SliceId, u64)],
    grain: u64,
) -> Option<Vec<(Range<u64>, SliceId)>> {
    let mut order = order.iter();
    let mut target = order.next().copied();
    let mut pieces = Vec::new();
    for range in ranges {
        let mut start = range.start;
        while start < range.end {
            let (to, room) = target?;
            let mut end = range.end;
            if end - start > room {
                end = (start + room) / grain * grain;
            }
            if end <= start {
                target = order.next().copied();
                continue;
            }
            pieces.push((start..end, to));
            target = Some((to, room - (end - start)));
            start = end;
        }
    }
    Some(pieces)
}
