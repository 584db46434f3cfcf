//! What a plan comes to: one thing after another. Nothing here acts.
//!
//! ```text
//!   Plan --Step--> Change::Vcpu   --> Vcpu
//!                  Change::Queue  --> Queues (neighbours of one device together)
//!                  Change::Device --> Device
//!                  Change::Memory --> Home, Home, ... (pieces)
//!                  Change::Coordinator --> Pull, Pull, ... (as below), Coordinate
//!                  Change::Join   --> Join
//!                  Change::Leave  --> Pull, Pull, ... (what the slice still has of any home), Leave unless it is to stay
//!        a slice that is emptied and never leaves --> Pull, Pull, ...
//! ```

use dsm::frame_pieces;
use migrate::plan::Plan;
use migrate::{Change, Placement, PlacementError};
use std::fmt;
use std::ops::Range;
use thiserror::Error;
use wire::{SliceId, VcpuId};

/// Frames whose home moves at one time, 16 MiB: they are recorded in the placement together.
const HOME_PIECE: u64 = 4096;
/// Frames that a home is asked for at one time, 64 MiB.
const PULL_PIECE: u64 = 16384;

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::slice) enum Job {
    /// A vCPU runs elsewhere.
    Vcpu { vcpu: VcpuId, to: SliceId },
    /// Queues of a device are served elsewhere.
    Queues { device: u16, first: u16, queues: u16, to: SliceId },
    /// A device has its real part on another host.
    Device { device: u16, to: SliceId },
    /// Frames have another home.
    Home { frames: Range<u64>, to: SliceId },
    /// What a slice has of these frames comes to their home.
    Pull { home: SliceId, frames: Range<u64>, from: SliceId },
    /// Another slice coordinates.
    Coordinate(SliceId),
    /// A slice that has nothing any more is a member no longer.
    Leave(SliceId),
    /// A slice that has nothing yet is a member.
    Join(SliceId),
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vcpu { vcpu, to } => write!(f, "{vcpu} to {to}"),
            Self::Queues { device, to, .. } => write!(f, "queues of device {device} to {to}"),
            Self::Device { device, to } => write!(f, "device {device} to {to}"),
            Self::Home { to, .. } => write!(f, "homes of memory to {to}"),
            Self::Pull { home, from, .. } => write!(f, "pages of {from} to {home}"),
            Self::Coordinate(slice) => write!(f, "the coordination to {slice}"),
            Self::Leave(slice) => write!(f, "{slice} leaves"),
            Self::Join(slice) => write!(f, "{slice} joins"),
        }
    }
}

/// Why a plan cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(in crate::slice) enum JobError {
    /// It was made for another placement.
    #[error(transparent)]
    Placement(#[from] PlacementError),
}

/// All that a plan for this placement comes to. Slices that would leave can stay, empty; this one stays in any case.
pub(super) fn jobs(
    plan: &Plan,
    placement: &Placement,
    (stay, stays): (bool, Option<SliceId>),
) -> Result<Vec<Job>, JobError> {
    let mut jobs = Vec::new();
    let mut now = placement.clone();
    for step in &plan.steps {
        for change in &step.changes {
            push(&mut jobs, (placement, &now), change)?;
        }
        now = now.next(&step.changes)?;
    }
    if let Some(stays) = stays {
        push_pulls(&mut jobs, &now, stays);
    }
    jobs.retain(|job| !stay || !matches!(job, Job::Leave(_)));
    Ok(jobs)
}

/// What a change comes to, in a plan for one placement that has come to another one.
fn push(
    jobs: &mut Vec<Job>,
    (first, now): (&Placement, &Placement),
    change: &Change,
) -> Result<(), JobError> {
    match change {
        Change::Vcpu { vcpu, to } => jobs.push(Job::Vcpu { vcpu: *vcpu, to: *to }),
        Change::Memory { frames, to } => {
            jobs.extend(
                frame_pieces(frames, HOME_PIECE).map(|frames| Job::Home { frames, to: *to }),
            );
        }
        Change::Queue { device, queue, to } => {
            let next = |first: u16, queues: u16| first.checked_add(queues) == Some(*queue);
            match jobs.last_mut() {
                Some(Job::Queues { device: same, first, queues, to: there })
                    if same == device && there == to && next(*first, *queues) =>
                {
                    *queues += 1;
                }
                _ => {
                    jobs.push(Job::Queues { device: *device, first: *queue, queues: 1, to: *to });
                }
            }
        }
        Change::Leave(from) => {
            // Who has coordinated until then was emptied before.
            if *from != first.coordinator() {
                push_pulls(jobs, now, *from);
            }
            jobs.push(Job::Leave(*from));
        }
        // Homes answer who coordinates.
        Change::Coordinator(to) => {
            push_pulls(jobs, now, now.coordinator());
            jobs.push(Job::Coordinate(*to));
        }
        Change::Join(slice) => jobs.push(Job::Join(*slice)),
        Change::Device { device, to } => jobs.push(Job::Device { device: *device, to: *to }),
    }
    Ok(())
}

fn push_pulls(jobs: &mut Vec<Job>, now: &Placement, from: SliceId) {
    jobs.extend(pulls(now, from).map(|(home, frames)| Job::Pull { home, frames, from }));
}

/// What homes are to bring there of what a slice may have of their frames, in pieces.
pub(super) fn pulls(
    now: &Placement,
    from: SliceId,
) -> impl Iterator<Item = (SliceId, Range<u64>)> + '_ {
    let others = now.memory().iter().filter(move |place| place.home != from);
    others.flat_map(|place| {
        frame_pieces(&place.frames, PULL_PIECE).map(|frames| (place.home, frames))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use migrate::plan::{Capacity, Offer, drain};
    use migrate::{DevicePlace, MemoryPlace};
    use std::collections::BTreeMap;
    use wire::Epoch;

    const SLICES: [SliceId; 2] = [SliceId(0), SliceId(1)];

    #[test]
    fn drain_comes_to_single_jobs_and_the_last_pages_come_last() {
        let [here, there] = SLICES;
        let memory = vec![
            MemoryPlace { frames: 0..5000, home: here },
            MemoryPlace { frames: 5000..10_000, home: there },
        ];
        // A disk with a queue for each vCPU, and a network with two for each and one more.
        let disk = DevicePlace { owner: here, queues: SLICES.to_vec() };
        let network = DevicePlace { owner: here, queues: vec![here, here, there, there, here] };
        let placement =
            Placement::new(Epoch(1), SLICES.to_vec(), SLICES.to_vec(), memory, vec![disk, network])
                .unwrap();
        let of = |vcpu| move |queue| (queue, VcpuId(vcpu));
        let queues = [(0, 0), (1, 0), (1, 1)].map(of(0));
        let queues = queues.into_iter().chain([(0, 1), (1, 2), (1, 3)].map(of(1)));
        let offer = Offer { vcpus: 2, bytes: 1 << 30, ..Offer::default() };
        let offers = BTreeMap::from(SLICES.map(|slice| (slice, offer.clone())));
        let capacity = Capacity { offers, queues: queues.collect(), stays: None };
        let plan = drain(&placement, &capacity, there).unwrap();
        let home = |frames| Job::Home { frames, to: here };
        let pull = |frames| Job::Pull { home: here, frames, from: there };
        let expected = [
            Job::Vcpu { vcpu: VcpuId(1), to: here },
            Job::Queues { device: 0, first: 1, queues: 1, to: here },
            Job::Queues { device: 1, first: 2, queues: 2, to: here },
            home(5000..8192),
            home(8192..10_000),
            pull(0..10_000),
            Job::Leave(there),
        ];
        assert_eq!(jobs(&plan, &placement, (false, None)).unwrap(), expected);
        assert_eq!(jobs(&plan, &placement, (true, None)).unwrap(), expected[..expected.len() - 1]);
    }

    #[test]
    fn coordinator_is_emptied_before_another_one_is_told() {
        let [here, there] = SLICES;
        let memory = vec![MemoryPlace { frames: 0..8, home: here }];
        let (members, vcpus) = (SLICES.to_vec(), vec![here]);
        let placement = Placement::new(Epoch(1), members, vcpus, memory, Vec::new()).unwrap();
        let offer = Offer { vcpus: 1, bytes: 1 << 30, ..Offer::default() };
        let offers = BTreeMap::from(SLICES.map(|slice| (slice, offer.clone())));
        let plan = drain(&placement, &Capacity { offers, ..Capacity::default() }, here).unwrap();
        let expected = [
            Job::Vcpu { vcpu: VcpuId(0), to: there },
            Job::Home { frames: 0..8, to: there },
            Job::Pull { home: there, frames: 0..8, from: here },
            Job::Coordinate(there),
            Job::Leave(here),
        ];
        assert_eq!(jobs(&plan, &placement, (false, None)).unwrap(), expected);
    }

    #[test]
    fn what_cannot_be_done_is_named_before_anything_is() {
        let memory = vec![MemoryPlace { frames: 0..8, home: SLICES[0] }];
        let disk = DevicePlace { owner: SLICES[1], queues: vec![SLICES[0]] };
        let vcpus = vec![SLICES[0]];
        let placement =
            Placement::new(Epoch(1), SLICES.to_vec(), vcpus, memory, vec![disk]).unwrap();
        let plan = |change| Plan { steps: vec![migrate::plan::Step { changes: vec![change] }] };
        let device = plan(Change::Device { device: 0, to: SLICES[0] });
        let moved = Job::Device { device: 0, to: SLICES[0] };
        assert_eq!(jobs(&device, &placement, (false, None)), Ok(vec![moved]));
        let join = plan(Change::Join(SliceId(2)));
        assert_eq!(jobs(&join, &placement, (false, None)), Ok(vec![Job::Join(SliceId(2))]));
        let stale = plan(Change::Leave(SliceId(3)));
        assert!(matches!(jobs(&stale, &placement, (false, None)), Err(JobError::Placement(_))));
    }

    #[test]
    fn pieces_end_at_multiples_and_cover_everything() {
        let all: Vec<_> = frame_pieces(&(3..21), 8).collect();
        assert_eq!(all, [3..8, 8..16, 16..21]);
        assert_eq!(frame_pieces(&(8..8), 8).count(), 0);
        let last = u64::MAX - 2..u64::MAX;
        assert_eq!(frame_pieces(&last, 8).collect::<Vec<_>>(), std::slice::from_ref(&last));
    }
}
