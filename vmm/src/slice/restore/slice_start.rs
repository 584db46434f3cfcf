//! What one slice begins with: of all that the former slices had, what the new placement has there.

use super::Restored;
use crate::machine::saved::VcpuState;
use crate::slice::peripherals::{DeviceStart, DeviceState, FrontEndState, OrderState};
use crate::slice::saved::SliceState;
use devices::saved::{ChipsetState, PciRootState};
use migrate::Placement;
use wire::SliceId;

/// What a slice begins with.
#[derive(Debug)]
pub(in crate::slice) struct SliceStart {
    /// The vCPUs here.
    pub(in crate::slice) vcpus: Vec<VcpuState>,
    /// The platform devices, on the slice that coordinates.
    pub(in crate::slice) chipset: Option<ChipsetState>,
    /// How far the devices have come.
    pub(in crate::slice) order: OrderState,
    /// The bus, if the VM has one.
    pub(in crate::slice) bus: Option<PciRootState>,
    /// Each device, by its number.
    pub(in crate::slice) devices: Vec<DeviceStart>,
}

impl Restored {
    /// What the slice `local` of a VM with this placement begins with.
    pub(in crate::slice) fn start_of(&self, placement: &Placement, local: SliceId) -> SliceStart {
        let here = placement.vcpus_on(local);
        let all = self.states.iter().flat_map(|state| &state.vcpus);
        let vcpus = all.filter(|state| here.iter().any(|vcpu| vcpu.0 == state.vcpu));
        let coordinates = placement.coordinator() == local;
        let chipset = self.states.iter().find_map(|state| state.chipset.clone());
        let bus = self.states[0].devices.as_ref().map(|devices| devices.bus.clone());
        let count = u16::try_from(placement.devices().len()).unwrap_or(u16::MAX);
        SliceStart {
            vcpus: vcpus.cloned().collect(),
            chipset: chipset.filter(|_| coordinates),
            order: self.states[0].order,
            bus,
            devices: (0..count).map(|device| self.device(placement, local, device)).collect(),
        }
    }

    fn device(&self, placement: &Placement, local: SliceId, device: u16) -> DeviceStart {
        let of = |state: &SliceState| {
            let devices = &state.devices.as_ref()?.devices;
            devices.get(usize::from(device)).cloned()
        };
        let former: Vec<_> = self.states.iter().filter_map(of).collect();
        // What the driver has said by its control queue, which is the last one, the slice knows that served it.
        let last = |state: &&DeviceState| state.queues.last().map(|served| served.queue);
        let knows = |state: &&DeviceState| state.front_end != FrontEndState::Nothing;
        let front_end = former.iter().filter(knows).max_by_key(last);
        let served = former.iter().flat_map(|state| &state.queues);
        let served = served.filter(|it| placement.queue_at(device, it.queue) == Some(local));
        let raised = former.iter().flat_map(|state| state.raised.pending.iter().copied());
        DeviceStart {
            front_end: front_end.map_or(FrontEndState::Nothing, |state| state.front_end.clone()),
            raised: raised.filter(|_| placement.coordinator() == local).collect(),
            queues: served.map(|it| (it.queue, it.worker.clone())).collect(),
        }
    }
}
