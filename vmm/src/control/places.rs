//! The placement, as the control socket tells it.

use super::message::{PlacementAnswer, SlicePlaces};
use migrate::Placement;
use wire::SliceId;

/// Frames of 4 KiB in a MiB.
const FRAMES_PER_MIB: u64 = 256;

/// Where everything is.
pub(super) fn places(placement: &Placement, life: u64) -> PlacementAnswer {
    let of = |slice: &SliceId| of_slice(placement, *slice);
    let slices = placement.members().iter().map(of).collect();
    let (epoch, coordinator) = (placement.epoch().0, placement.coordinator().0);
    PlacementAnswer { epoch, coordinator, life, slices }
}

fn of_slice(placement: &Placement, slice: SliceId) -> SlicePlaces {
    let devices = || (0u16..).zip(placement.devices());
    let served = devices().flat_map(|(device, place)| {
        let queues = (0u16..).zip(&place.queues);
        queues.filter(|(_, at)| **at == slice).map(move |(queue, _)| (device, queue))
    });
    SlicePlaces {
        slice: slice.0,
        vcpus: placement.vcpus_on(slice).into_iter().map(|vcpu| vcpu.0).collect(),
        memory_mib: placement.frame_count(slice) / FRAMES_PER_MIB,
        devices: devices().filter(|(_, place)| place.owner == slice).map(|(id, _)| id).collect(),
        queues: served.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use migrate::{DevicePlace, MemoryPlace};
    use wire::Epoch;

    #[test]
    fn each_slice_has_its_parts() {
        let slices = [0, 1].map(SliceId);
        let memory = |frames, home| MemoryPlace { frames, home };
        let memory = vec![memory(0..512, slices[0]), memory(1024..2048, slices[1])];
        let disk = DevicePlace { owner: slices[1], queues: vec![slices[0], slices[1]] };
        let vcpus = vec![slices[0], slices[1], slices[0]];
        let placement = Placement::new(Epoch(3), slices.to_vec(), vcpus, memory, vec![disk]);
        let answer = places(&placement.unwrap(), 9);
        let first = SlicePlaces {
            slice: 0,
            vcpus: vec![0, 2],
            memory_mib: 2,
            devices: Vec::new(),
            queues: vec![(0, 0)],
        };
        let second = SlicePlaces {
            slice: 1,
            vcpus: vec![1],
            memory_mib: 4,
            devices: vec![0],
            queues: vec![(0, 1)],
        };
        assert_eq!(
            answer,
            PlacementAnswer { epoch: 3, coordinator: 0, life: 9, slices: vec![first, second] }
        );
    }
}
