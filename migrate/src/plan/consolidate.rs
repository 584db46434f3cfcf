//! The fewest slices.

use super::capacity::{Capacity, Load};
use super::drain::evacuate;
use super::refusal::joined;
use super::{Plan, Refusal, SLICES_MAX};
use crate::Placement;
use std::cmp::Reverse;
use wire::SliceId;

/// A set of slices: bit `n` is the `n`th member.
type Set = u32;

/// The fewest slices that have room for the VM; all others are drained and leave. What is on a slice that is kept stays
/// where it is.
///
/// Of two sets of equally many slices that one is kept which moves the fewest devices, then the fewest bytes, vCPUs and
/// queues: a device may take seconds, a GiB takes about one at 10 Gbit/s, a vCPU less than a millisecond. Then one with the
/// slice that coordinates is kept. If all this is equal, the slices with the lowest numbers are. One that [stays](Capacity::stays) is
/// always kept.
///
/// # Errors
/// No slice can be spared, and why each is needed; more than [`SLICES_MAX`] slices.
pub fn consolidate(placement: &Placement, capacity: &Capacity) -> Result<Plan, Refusal> {
    let members = placement.members();
    if members.len() > SLICES_MAX {
        return Err(Refusal::TooMany(members.len()));
    }
    let (kept, _) = Search::new(placement, capacity).fewest();
    let at = members.iter().enumerate();
    let leaving: Vec<_> = at.filter(|(at, _)| kept >> at & 1 == 0).map(|(_, it)| *it).collect();
    let plan = match leaving[..] {
        [] => Err(Vec::new()),
        _ => evacuate(placement, capacity, &leaving),
    };
    plan.map_err(|_| Refusal::NothingToDo(why_all(placement, capacity)))
}

/// Why each slice is needed. If several slices could leave, each of them could leave alone: more would be kept and less
/// would move.
fn why_all(placement: &Placement, capacity: &Capacity) -> String {
    let members = placement.members();
    if let [only] = members {
        return format!("the VM is on {only} alone");
    }
    let why = |slice: &SliceId| {
        if capacity.stays == Some(*slice) {
            return Some(format!("{slice} does not leave"));
        }
        let obstacles = evacuate(placement, capacity, &[*slice]).err()?;
        Some(format!("{slice} stays, {}", joined(&obstacles)))
    };
    let why: Vec<_> = members.iter().filter_map(why).collect();
    format!("all {} slices are needed: {}", members.len(), why.join("; "))
}

/// A device that its owner cannot take along.
struct Real {
    owner: Set,
    reached_from: Set,
}

/// What is known of the members, by their place in the list of members.
pub(super) struct Search {
    used: Vec<Load>,
    rooms: Vec<Load>,
    queues: Vec<u64>,
    devices: Vec<Real>,
    /// Who coordinates.
    coordinator: Set,
    /// Who is kept in any case.
    stays: Set,
}

impl Search {
    pub(super) fn new(placement: &Placement, capacity: &Capacity) -> Self {
        let members = placement.members();
        let bit = |at: usize| 1 << at;
        let set = |of: &dyn Fn(SliceId) -> bool| {
            let at = members.iter().enumerate().filter(|(_, slice)| of(**slice));
            at.fold(0, |set: Set, (at, _)| set | bit(at))
        };
        let real = |(device, place): (u16, &crate::DevicePlace)| Real {
            owner: set(&|slice| slice == place.owner),
            reached_from: set(&|slice| capacity.reaches(slice, device)),
        };
        let served = |slice: &SliceId| {
            let queues = placement.devices().iter().flat_map(|place| &place.queues);
            queues.filter(|at| *at == slice).fold(0, |count, _| count + 1)
        };
        Self {
            used: members.iter().map(|slice| Load::of(placement, *slice)).collect(),
            rooms: members.iter().map(|slice| capacity.room(placement, *slice)).collect(),
            queues: members.iter().map(served).collect(),
            devices: (0u16..).zip(placement.devices()).map(real).collect(),
            coordinator: set(&|slice| slice == placement.coordinator()),
            stays: set(&|slice| capacity.stays == Some(slice)),
        }
    }

    /// The best set of slices to keep, and how many sets were looked at: each once.
    pub(super) fn fewest(&self) -> (Set, u32) {
        let all: Set = (1 << self.used.len()) - 1;
        let mut looked_at = 0;
        let mut best = (self.rank(all), all);
        for kept in 1..=all {
            looked_at += 1;
            if kept & self.stays == self.stays && self.has_room(kept) {
                best = best.min((self.rank(kept), kept));
            }
        }
        (best.1, looked_at)
    }

    /// Whether these slices have room for what is on all others.
    fn has_room(&self, kept: Set) -> bool {
        let (mut need, mut room) = (Load::default(), Load::default());
        for (at, (used, rooms)) in self.used.iter().zip(&self.rooms).enumerate() {
            let (sum, of) =
                if kept >> at & 1 == 1 { (&mut room, rooms) } else { (&mut need, used) };
            // An offer may be any number.
            sum.vcpus = sum.vcpus.saturating_add(of.vcpus);
            sum.frames = sum.frames.saturating_add(of.frames);
        }
        let has_path = |it: &Real| it.owner & kept != 0 || it.reached_from & kept != 0;
        need.vcpus <= room.vcpus && need.frames <= room.frames && self.devices.iter().all(has_path)
    }

    /// What is least is best: slices, then what moves, then the numbers of the slices.
    fn rank(&self, kept: Set) -> (u32, [u64; 5], Reverse<Set>) {
        let mut moved = [0; 5];
        moved[4] = u64::from(self.coordinator & kept == 0);
        moved[0] = self.devices.iter().filter(|it| it.owner & kept == 0).fold(0, |sum, _| sum + 1);
        for (at, used) in self.used.iter().enumerate().filter(|(at, _)| kept >> at & 1 == 0) {
            moved[1] += used.frames;
            moved[2] += used.vcpus;
            moved[3] += self.queues[at];
        }
        (kept.count_ones(), moved, Reverse(kept.reverse_bits()))
    }
}
