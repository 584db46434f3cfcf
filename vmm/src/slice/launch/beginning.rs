//! What a slice begins with: its devices as at power-on, as in a VM that it joins, or, with its memory and vCPUs, as in a
//! checkpoint.

use super::{DeviceQueues, Parts};
use crate::crash;
use crate::interrupts::{InterruptBackEnd, Moment};
use crate::slice::SliceError;
use crate::slice::bus::PlatformBus;
use crate::slice::events::SliceEvent;
use crate::slice::one_line;
use crate::slice::peripherals::{
    BackEndShape, BackEnds, DeviceThread, OrderState, PciBus, SliceDevices,
};
use crate::slice::restore::{RestoreError, Restored, SliceStart, with_interrupts};
use crate::slice::spec::Shape;
use devices::layout::GENERATION_ADDRESS;
use devices::saved::PciRootState;
use devices::{GenerationId, NotOurs, SharedBus};
use dsm::Loader;
use std::sync::Arc;
use std::thread;
use wire::Gfn;

/// How the devices of a slice stand when it starts.
#[derive(Debug)]
pub(crate) enum Stands {
    /// As at power-on.
    New,
    /// As in the VM that the slice joins: the bus, and how far it has come.
    Joined(Option<PciRootState>, OrderState),
    /// As in the checkpoint that the VM goes on from.
    Restored(Box<SliceStart>),
}

impl Parts {
    /// Gives this slice of a VM that goes on from a checkpoint, whose memory is there and whose clock is set, the state of its
    /// vCPUs, before anybody can interrupt them. What is left for its devices.
    pub(in crate::slice) fn take_up(
        &mut self,
        restored: &Restored,
        interrupts: InterruptBackEnd,
    ) -> Result<SliceStart, SliceError> {
        let placement = self.channels.placement.load();
        let start = restored.start_of(&placement, self.local);
        if !placement.devices().is_empty() {
            self.dispatcher.devices.expect_early();
        }
        let clock = self.machine.clock();
        let at = Moment { ticks: clock.now(), khz: clock.true_khz() };
        for state in &start.vcpus {
            self.machine.restore_vcpu(&with_interrupts(state, interrupts, at)?)?;
        }
        if placement.home_of(Gfn(GENERATION_ADDRESS / 4096)) == Some(self.local) {
            self.write_generation()?;
        }
        let failed = |failure| Err(RestoreError::Load(failure).into());
        self.ram.load_failure().map_or(Ok(start), failed)
    }

    /// What is not here of this slice's memory comes while the guest runs. Without it the VM ends.
    pub(in crate::slice) fn load_on(&mut self, loader: Option<Loader>) {
        self.loader = loader;
        let channels = Arc::downgrade(&self.channels);
        self.ram.when_load_fails(move |failure| {
            if let Some(channels) = channels.upgrade() {
                channels.event(SliceEvent::Fatal(one_line(failure)));
            }
        });
    }

    /// The guest has another generation id than the VM in the checkpoint, which may go on once more elsewhere.
    fn write_generation(&self) -> Result<(), SliceError> {
        let generation = GenerationId::random()
            .map_err(|source| SliceError::Io { what: "choose a generation id", source })?;
        let (frame, at) = (Gfn(GENERATION_ADDRESS / 4096), GENERATION_ADDRESS % 4096);
        self.ram.write(frame, usize::try_from(at).unwrap_or(0), generation.bytes());
        Ok(())
    }

    /// The VM's bus: the platform devices, and those on PCI if there are any. The device thread serves them from now on.
    pub(in crate::slice) fn attach_devices(
        &mut self,
        shape: &Shape,
        devices: (&[BackEndShape], &BackEnds),
        queues: DeviceQueues,
        stands: Stands,
    ) -> Result<SharedBus, SliceError> {
        let (bus, order) = match stands {
            Stands::New => (self.bus(shape, devices, None)?, OrderState::default()),
            Stands::Joined(bus, order) => (self.bus(shape, devices, bus)?, order),
            Stands::Restored(start) => {
                let bus = self.bus(shape, devices, None)?;
                if let (Some(devices), Some(state)) = (self.dispatcher.devices.get(), start.bus) {
                    devices.go_on(state, start.devices)?;
                }
                (bus, start.order)
            }
        };
        self.serve_devices(queues, order)?;
        Ok(bus)
    }

    /// Starts the device thread, of devices that have come so far.
    fn serve_devices(&self, queues: DeviceQueues, order: OrderState) -> Result<(), SliceError> {
        let devices = self.dispatcher.devices.get().cloned();
        let work = DeviceThread::new(Arc::clone(&self.channels), devices, queues.applied, order);
        spawn_devices(move || work.serve(&queues.jobs))
    }

    /// The bus, with devices on PCI as they stand in a VM that runs.
    fn bus(
        &mut self,
        shape: &Shape,
        (shapes, back_ends): (&[BackEndShape], &BackEnds),
        state: Option<PciRootState>,
    ) -> Result<SharedBus, SliceError> {
        let rest: SharedBus = Arc::new(PlatformBus(Arc::clone(&self.channels)));
        if shape.devices.is_empty() {
            return Ok(rest);
        }
        back_ends.start()?;
        let events = self.channels.events.clone();
        back_ends.fence().when_not_ours(move |why| {
            events.send(match why.clone() {
                NotOurs::Overtaken(cause) => SliceEvent::Overtaken(cause),
                // It is as if this slice were lost: whoever has the VM go on finds out whether that is elsewhere already.
                NotOurs::Unknown(cause) => SliceEvent::Fatal(cause),
            });
        });
        let (channels, ram) = (&self.channels, &self.ram);
        let devices = SliceDevices::new(shapes, back_ends, channels, ram, &self.machine)?;
        state.map_or(Ok(()), |state| devices.take_up(state))?;
        let devices = Arc::new(devices);
        let attached = self.dispatcher.devices.attach(Arc::clone(&devices));
        attached.map_err(|(from, cause)| {
            SliceError::Devices(format!("{from} breaks the protocol of devices: {cause}"))
        })?;
        // Their loss was known before there was anybody to tell.
        self.channels.cut.lost_slices().into_iter().for_each(|slice| devices.lost(slice));
        Ok(Arc::new(PciBus { devices, channels: Arc::clone(channels), rest }))
    }
}

/// Starts the device thread of a slice.
fn spawn_devices(work: impl FnOnce() + Send + 'static) -> Result<(), SliceError> {
    let run = || {
        crash::point();
        work();
    };
    let thread = thread::Builder::new().name("devices".into()).spawn(run);
    let failed = |source| SliceError::Io { what: "start the device thread", source };
    thread.map(drop).map_err(failed)
}
