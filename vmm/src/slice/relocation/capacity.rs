//! What the slices of a VM offer, as their hosts say, and which queue belongs to which vCPU.

use crate::slice::BOOTSTRAP;
use crate::slice::host::Offered;
use crate::slice::peripherals::BackEndShape;
use crate::slice::spec::Shape;
use migrate::plan::Capacity;
use std::collections::BTreeMap;
use wire::{SliceId, VcpuId};

/// Of a VM whose hosts have said what they have. `shapes` are those of its devices.
pub(in crate::slice) fn capacity(
    shape: &Shape,
    offers: &[Offered],
    shapes: &[BackEndShape],
) -> Capacity {
    let offer = |(slice, offered): (u16, &Offered)| {
        let slice = SliceId(slice);
        // The VM is to survive the loss of a slice that has devices only: no guest memory goes there.
        let bystander = shape.bystanders.contains(&slice);
        let mut offer = offered.of_slice(slice, &shape.devices);
        if bystander {
            (offer.vcpus, offer.bytes) = (0, 0);
            let at_home = |device: &u16| shape.devices[usize::from(*device)].has_rings_at_home();
            offer.reaches.retain(|device| !at_home(device));
        }
        (slice, offer)
    };
    let offers = (0u16..).zip(offers).map(offer).collect();
    Capacity { offers, queues: owners(shape, shapes), stays: shape.supervised.then_some(BOOTSTRAP) }
}

/// The vCPU of each queue that has one.
fn owners(shape: &Shape, shapes: &[BackEndShape]) -> BTreeMap<(u16, u16), VcpuId> {
    let devices = (0u16..).zip(shapes.iter().zip(&shape.devices));
    let queues = devices.flat_map(|(device, (of, spec))| {
        let owners = (0u16..).zip(of.owners(spec, shape.vcpus()));
        owners.filter_map(move |(queue, vcpu)| Some(((device, queue), vcpu?)))
    });
    queues.collect()
}
