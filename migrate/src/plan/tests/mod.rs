//! Plans against brute force, and advice against counters that are known.

mod advice;
mod plans;

use super::*;
use crate::{DevicePlace, MemoryPlace};
use std::collections::BTreeMap;
use std::ops::Range;
use wire::{Epoch, PAGE_SIZE, SliceId, VcpuId};

fn slices(of: &[u16]) -> Vec<SliceId> {
    of.iter().copied().map(SliceId).collect()
}

fn range(frames: Range<u64>, home: u16) -> MemoryPlace {
    MemoryPlace { frames, home: SliceId(home) }
}

/// An offer of cores and frames.
fn offer(vcpus: u32, frames: u64) -> Offer {
    Offer { vcpus, bytes: capacity::bytes_of(frames), ..Offer::default() }
}

/// Offers of slices 0, 1, 2 and so on.
fn offers(of: &[(u32, u64)]) -> Capacity {
    let offers = of.iter().map(|(vcpus, frames)| offer(*vcpus, *frames));
    Capacity { offers: (0..).map(SliceId).zip(offers).collect(), ..Capacity::default() }
}

/// The placement of `vcpus[n]` and, in ranges of `each` frames one behind the other, `memory[n]`, on as many slices.
fn placement(
    members: u16,
    vcpus: &[u16],
    (each, memory): (u64, &[u16]),
    devices: Vec<DevicePlace>,
) -> Placement {
    let starts = (0..).map(|n| n * each);
    let memory = starts.zip(memory).map(|(at, home)| range(at..at + each, *home)).collect();
    let members = (0..members).map(SliceId).collect();
    Placement::new(Epoch(1), members, slices(vcpus), memory, devices).unwrap()
}

/// vCPUs and frames of a slice, counted one by one.
fn load(placement: &Placement, slice: SliceId) -> (u64, u64) {
    let vcpus = placement.vcpus().iter().filter(|at| **at == slice).count();
    let own = placement.memory().iter().filter(|place| place.home == slice);
    (vcpus.try_into().unwrap(), own.map(|place| place.frames.end - place.frames.start).sum())
}

/// vCPUs and frames that a slice can have at all.
fn limit(capacity: &Capacity, slice: SliceId) -> (u64, u64) {
    let Some(offer) = capacity.offers.get(&slice) else { return (0, 0) };
    let vcpus = if offer.lacks.is_empty() { offer.vcpus.into() } else { 0 };
    (vcpus, offer.bytes / u64::try_from(PAGE_SIZE).unwrap())
}
