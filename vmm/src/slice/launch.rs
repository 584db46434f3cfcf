//! The parts of a slice, put together the same way in both roles.

mod beginning;

pub(crate) use beginning::Stands;

use super::channels::{Channels, DeviceJob};
use super::checkpoint::{self, Description};
use super::clock_sync::{self, ClockSync, ClockTest};
use super::coordination::{Coordination, CoordinationConfig, Terms};
use super::cut::{self, Restable};
use super::dispatch::{Dispatcher, Link};
use super::events::{self, Events, SliceEvent};
use super::handover::MoveHandle;
use super::host::Offer;
use super::joining::Inviter;
use super::negotiation::Launch;
use super::pulling;
use super::relocation::capacity;
use super::report::SliceReport;
use super::spec::{PageTables, Shape};
use super::standstill;
use super::{Ending, SliceError};
use crate::control::{ControlSocket, Desk};
use crate::cpuid::{Cpuid, Topology, for_vcpu};
use crate::interrupts::InterruptBackEnd;
use crate::machine::{Machine, MachineConfig, MemorySlot};
use crate::named::name_slice;
use crate::tsc::ticks_to_duration;
use ::checkpoint::Key;
use crossbeam_channel::{Receiver, Sender, bounded};
use devices::back_end::image::OnFull;
use devices::{Fence, SharedBus};
use dsm::saved::NodeState;
use dsm::{
    Engine, EngineConfig, GuestRam, HugePages, Loader, Mechanisms, Memory, NodeConfig, Tracing,
};
use migrate::{Placement, PlacementOwner, PlacementView};
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use transport::{MeshTransport, PageMemory, Secret};
use wire::control::{CutMessage, CutStep, EndCause};
use wire::{Epoch, SliceId};

/// What the device thread may have waiting.
pub(crate) const JOBS_MAX: usize = 4096;
/// How long a stopping slice waits for its own threads.
const STOP_LIMIT: Duration = Duration::from_secs(2);
/// So many leases may pass before a page comes: peers that are lost are known after one.
const LEASES_MAX: u32 = 10;
const REPORT_LIMIT: Duration = Duration::from_secs(2);

/// What a slice's device thread receives from.
pub(crate) struct DeviceQueues {
    jobs: Receiver<DeviceJob>,
    applied: Receiver<(SliceId, u64)>,
}

/// Their other ends.
pub(crate) type ToDevices = (Sender<DeviceJob>, Sender<(SliceId, u64)>);

impl DeviceQueues {
    /// Both ends.
    pub(crate) fn new() -> (ToDevices, Self) {
        let ((to_jobs, jobs), (to_applied, applied)) = (bounded(JOBS_MAX), bounded(JOBS_MAX));
        ((to_jobs, to_applied), Self { jobs, applied })
    }
}

/// Which slice this process is, and of what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) local: SliceId,
    pub(crate) epoch: Epoch,
    /// What its private memory is made of.
    pub(crate) memory: Memory,
    /// A peer that is silent for so long is lost.
    pub(crate) lease: Duration,
}

impl Slot {
    /// The memory of the VM as this slice has it, with nothing in it.
    pub(crate) fn guest_ram(
        &self,
        shape: &Shape,
        placement: &Placement,
    ) -> Result<Arc<GuestRam>, SliceError> {
        let own = placement.frames_of(self.local);
        Ok(Arc::new(GuestRam::with_memory(&shape.frames(), &own, self.memory)?))
    }
}

/// What a slice is told by who starts it, and no other slice needs to know.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// Core that the memory engine runs on; left to the scheduler if none.
    pub engine_core: Option<usize>,
    /// What private memory of this slice is made of.
    pub memory: Memory,
    /// Whether pages are traced and vCPUs that wait for them sampled.
    pub trace: bool,
    /// The optional mechanisms that the memory engine uses.
    pub mechanisms: Mechanisms,
    /// What the VM may have of this host.
    pub offer: Offer,
    /// Where the control socket is, if there is to be one.
    pub control: Option<PathBuf>,
    /// Where the slice is asked, by that socket and by whoever else has it.
    pub desk: Desk,
    /// What follows when the file system of an image here is full.
    pub on_full: OnFull,
    /// For tests: what is wrong with the clock of this slice.
    pub clock_test: ClockTest,
    /// Where parts of checkpoints go that another slice has this one write.
    pub checkpoints: Option<PathBuf>,
    /// For tests: a pause between two pieces of memory that are read while the guest runs, and that nobody needs.
    pub load_pause: Duration,
    /// For tests: the folder that gets the saved form of this slice at each pause.
    pub forms: Option<PathBuf>,
}

impl LocalOptions {
    /// The control socket, if one is wanted. Nobody has asked for it before.
    pub(crate) fn control(&self) -> Result<Option<ControlSocket>, SliceError> {
        let open = |path| ControlSocket::open(path, self.desk.clone());
        let socket = self.control.as_deref().map(open);
        socket.transpose().map_err(SliceError::from)
    }
}

/// A slice before and while it runs.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) local: SliceId,
    pub(crate) ram: Arc<GuestRam>,
    pub(crate) machine: Machine,
    pub(crate) channels: Arc<Channels>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) events: Events,
    engine: Option<standstill::Engine>,
    memory: Memory,
    lease: Duration,
    /// Loads memory while the guest runs.
    pub(super) loader: Option<Loader>,
    _huge_pages: HugePages,
}

impl Parts {
    /// The KVM machine with all vCPUs and ghosts, over this memory. Nothing runs yet.
    pub(crate) fn new(
        (shape, placement, ram): (&Shape, Placement, Arc<GuestRam>),
        slot: Slot,
        cpuid: &Cpuid,
        back_end: InterruptBackEnd,
        to_devices: ToDevices,
    ) -> Result<Self, SliceError> {
        let Slot { local, epoch, memory, lease } = slot;
        name_slice(local);
        let owner = PlacementOwner::new(local, placement);
        let view = owner.view();
        let huge_pages = HugePages::start(Arc::clone(&ram))
            .map_err(|source| SliceError::Io { what: "start the thread for huge pages", source })?;
        let (sender, events) = events::channel();
        let bystanders = shape.bystanders.clone();
        let channels = Channels::new(epoch, owner, bystanders, sender, to_devices);
        let channels = Arc::new(channels);
        let dispatcher = Arc::new(Dispatcher::new(Arc::clone(&channels), Arc::clone(&ram)));
        let config = machine_config(shape, cpuid, back_end, &ram, view, &dispatcher)?;
        let machine = Machine::new(config)?;
        dispatcher.machine.set(machine.clone()).expect("set once, here");
        Ok(Self {
            local,
            ram,
            machine,
            channels,
            dispatcher,
            events,
            engine: None,
            memory,
            lease,
            loader: None,
            _huge_pages: huge_pages,
        })
    }

    /// Has the vCPUs run, and starts what goes along with them. After an error some may have run.
    pub(crate) fn run(
        &self,
        bus: SharedBus,
        shape: &Shape,
        test: ClockTest,
    ) -> Result<(), SliceError> {
        self.machine.start(bus)?;
        self.keep_clocks(test)?;
        self.sample(shape)
    }

    /// Keeps the guest clocks of all slices together from now on, if there are several.
    fn keep_clocks(&self, test: ClockTest) -> Result<(), SliceError> {
        let Some(clock_sync) = self.dispatcher.clock_sync.get() else { return Ok(()) };
        let started = clock_sync::start(&self.channels, clock_sync, test);
        started.map_err(|source| SliceError::Io { what: "start the clock's thread", source })
    }

    /// Starts the log lines about the vCPUs, if they are wanted.
    fn sample(&self, shape: &Shape) -> Result<(), SliceError> {
        let Some(interval) = shape.sample else { return Ok(()) };
        let memory = self.channels.handle.get().cloned();
        let started = self.machine.sample_every(interval, move || {
            if let Some(memory) = &memory {
                memory.log_state();
            }
        });
        started.map_err(|source| SliceError::Io { what: "start the sampling thread", source })
    }

    /// Guest memory as peers may be lent it.
    pub(crate) fn remote_writable(&self) -> Option<PageMemory> {
        self.ram.remote_writable()
    }

    /// From now on there are peers, which give this slice up after so long a silence; or one can join.
    pub(crate) fn take_lease(&self, fence: &Arc<Fence>, lease: Duration) {
        if !self.channels.others().is_empty() {
            fence.take_lease(Fence::now(), lease);
        }
        self.channels.fence.set(Arc::clone(fence)).expect("one mesh for each slice");
    }

    /// Starts the memory engine on an open transport; of a slice that joins with what the others give it.
    pub(crate) fn connect(
        &mut self,
        shape: &Shape,
        joined: MeshTransport,
        (page_tables, begins_with): (PageTables, Option<&NodeState>),
        options: &LocalOptions,
    ) -> Result<(), SliceError> {
        let MeshTransport { transport, membership, .. } = joined;
        self.channels.joining.set_membership(membership, self.lease);
        let placement = Placement::clone(&self.channels.placement.load());
        let at = (self.local, self.channels.epoch);
        let node = shape.node(&placement, at, page_tables.scope());
        let config = EngineConfig {
            core: options.engine_core,
            wait_limit: self.lease * LEASES_MAX,
            node: NodeConfig { mechanisms: options.mechanisms, ..node },
            ram: Arc::clone(&self.ram),
            bystanders: shape.bystanders.clone(),
            transport,
            uplink: Box::new(Link::new(Arc::clone(&self.dispatcher))),
            trace: if options.trace { Tracing::On } else { Tracing::Off },
        };
        let (handle, engine) = match begins_with {
            None => Engine::start(config)?,
            Some(form) => Engine::join(config, form)?,
        };
        let dispatcher = Arc::downgrade(&self.dispatcher);
        let delegated = move || dispatcher.upgrade()?.devices.get().map(|all| all.delegated());
        options.desk.attach(self.channels.placement.clone(), handle.clone(), delegated);
        self.channels.handle.set(handle).expect("connected once");
        let clock_sync = Arc::new(ClockSync::new(self.machine.clone()));
        self.dispatcher.clock_sync.set(clock_sync).expect("connected once");
        let engine = standstill::Engine::new(engine, &self.channels, self.lease);
        let failed = |source| SliceError::Io {
            what: "start the thread that looks at the memory engine",
            source,
        };
        self.engine = Some(engine.map_err(failed)?);
        Ok(())
    }

    /// What this slice needs to coordinate, at the start or later. The serial line then goes to the console, and what is
    /// beside it is set when a panic goes by.
    pub(super) fn coordination(
        &self,
        (shape, launch): (&Shape, &Launch),
        (console, panicked): (Box<dyn Write + Send>, Arc<AtomicBool>),
        (terms, inviter): (Terms, Option<Inviter>),
        (vm, secret): (Description, Option<&Secret>),
        desk: &Desk,
    ) -> Result<Arc<Coordination>, SliceError> {
        let config = CoordinationConfig {
            channels: Arc::clone(&self.channels),
            machine: self.machine.clone(),
            vcpus: shape.vcpus(),
            hotplug: shape.hotplug(),
            shutdown: Arc::clone(&self.dispatcher) as _,
            moves: self.moves(),
            capacity: Arc::new(Mutex::new(capacity(shape, &launch.offers, &launch.devices))),
            inviter: inviter.map(Arc::new),
            desk: desk.clone(),
            vm: Arc::new(vm),
            key: secret.map(|secret| secret.derive(Key::of_secret)),
            panicked,
        };
        let failed =
            |source| SliceError::Io { what: "start the thread of the serial port", source };
        Ok(Arc::new(Coordination::new(config, console, terms).map_err(failed)?))
    }

    /// From now on vCPUs can leave this slice and come to it.
    pub(crate) fn allow_moves(&self) -> Result<(), SliceError> {
        self.dispatcher.handovers.start()?;
        pulling::start(&self.channels)
            .map_err(|source| SliceError::Io { what: "start the thread that pulls", source })
    }

    /// This slice joins a VM that has lost these: nobody here waits for them. Before the memory engine starts.
    pub(super) fn do_without(&self, lost: &[SliceId]) {
        for slice in lost {
            self.channels.cut.lost(*slice);
            self.dispatcher.handovers.lost(*slice);
        }
    }

    /// This slice joins a VM whose slices are at rest in this cut: it comes to rest as well, and tells the coordinator that
    /// it is there.
    pub(super) fn begin_at_rest(&self, cut: u64) {
        let (channels, step) = (&self.channels, CutStep::MayJoin(self.local));
        // Nobody else asks it for anything yet.
        let _ = channels.cut.take(channels.coordinator(), CutMessage::Take(cut, step));
    }

    fn moves(&self) -> MoveHandle {
        MoveHandle(Arc::downgrade(&self.dispatcher.handovers))
    }

    /// From now on this slice can be brought to rest, and write its part of a checkpoint. One of a VM that is restored is at
    /// rest from now on.
    pub(super) fn allow_cuts(
        &self,
        coordination: &Arc<Coordination>,
        options: &LocalOptions,
        begins: bool,
    ) -> Result<(), SliceError> {
        let succeeds = Arc::clone(coordination) as _;
        let (machine, channels) = (self.machine.clone(), Arc::clone(&self.channels));
        let devices = self.dispatcher.devices.get().cloned();
        let handovers = Arc::clone(&self.dispatcher.handovers);
        let failed = |source| SliceError::Io { what: "start the thread for checkpoints", source };
        let (weak, here) = (Arc::downgrade(&channels), devices.clone());
        let release = move |names: &[String]| {
            if let (Some(channels), Some(devices)) = (weak.upgrade(), here) {
                devices.release(&channels, names);
            }
        };
        checkpoint::start_member(&channels, options.checkpoints.clone(), release)
            .map_err(failed)?;
        let ram = Arc::clone(&self.ram);
        let slice = Restable { machine, channels, handovers, ram, devices, succeeds };
        cut::start(slice, options.forms.clone(), begins)
    }

    /// What this slice did until now.
    pub(crate) fn report(&self, host: &str, clock: (i64, u64)) -> SliceReport {
        let handle = self.channels.handle.get();
        let answer = handle.and_then(|handle| handle.report(REPORT_LIMIT));
        let traffic = &self.channels.traffic;
        let placement = self.channels.placement.load();
        // The kernel may hold what is read for it as long as an engine hangs in a system call.
        let stands = handle.is_none() || answer.is_some();
        let memory = answer.unwrap_or_default();
        let huge_bytes = stands.then(|| self.ram.huge_bytes().ok()).flatten().unwrap_or(0);
        let mut report = SliceReport {
            slice: self.local.0,
            host: host.to_owned(),
            vcpus: placement.vcpus_on(self.local).iter().map(|vcpu| vcpu.0).collect(),
            memory_mib: placement.frame_count(self.local) / 256,
            memory_kind: self.memory.to_string(),
            huge_mib: huge_bytes >> 20,
            memory,
            interrupts_in: traffic.interrupts_in.load(Ordering::Relaxed),
            interrupts_out: traffic.interrupts_out.load(Ordering::Relaxed),
            device_calls: traffic.device_calls.load(Ordering::Relaxed),
            clock_skew_ns: clock.0,
            clock_bound_ns: clock.1,
            clock_stepped_ns: self.dispatcher.clock_sync.get().map_or(0, |clock| {
                let khz = self.machine.true_tsc_khz();
                let stepped = ticks_to_duration(clock.stepped(), khz).as_nanos();
                u64::try_from(stepped).unwrap_or(u64::MAX)
            }),
            delegated: self.dispatcher.devices.get().map(|all| all.delegated()),
            handovers: self.machine.handover_times(),
            ..SliceReport::default()
        };
        report.set_vcpu_stats(&self.machine.stats());
        report
    }

    /// The guest stops; the memory engine goes on. Nobody brings the slice to rest, or moves a vCPU, any more.
    pub(crate) fn stop_vcpus(&self) {
        self.channels.cut.end();
        self.channels.checkpoints.end();
        self.dispatcher.handovers.end();
        self.channels.pulls.end();
        self.channels.succession.end();
        self.channels.joining.end();
        if let Some(clock_sync) = self.dispatcher.clock_sync.get() {
            clock_sync.stop();
        }
        if let Err(error) = self.machine.stop(STOP_LIMIT) {
            tracing::warn!("{error}");
        }
    }

    /// Stops vCPUs and engine, waiting a bounded time for each.
    pub(crate) fn stop(self) {
        self.stop_vcpus();
        if let Some(engine) = &self.engine {
            engine.is_to_end();
        }
        if let Some(handle) = self.channels.handle.get() {
            handle.stop();
        }
        if let Some(engine) = self.engine {
            engine.join();
        }
    }
}

fn machine_config(
    shape: &Shape,
    cpuid: &Cpuid,
    back_end: InterruptBackEnd,
    ram: &GuestRam,
    placement: PlacementView,
    dispatcher: &Arc<Dispatcher>,
) -> Result<MachineConfig, SliceError> {
    let khz = crate::machine::host_tsc_khz()?;
    let topology = Topology {
        vcpus: shape.vcpus(),
        guest_tsc_khz: Some(shape.clock_rate.told_khz(khz)),
        msi_ext_dest_id: false,
    };
    let slot =
        |(guest_address, host_address, bytes)| MemorySlot { guest_address, host_address, bytes };
    Ok(MachineConfig {
        placement,
        memory: ram.slots().into_iter().map(slot).collect(),
        cpuid: (0..shape.vcpus()).map(|id| for_vcpu(cpuid, id, &topology).to_kvm()).collect(),
        remote: Arc::clone(dispatcher) as _,
        shutdown: Arc::clone(dispatcher) as _,
        hooks: Arc::clone(dispatcher) as _,
        back_end,
        timer_spacing: shape.timer_spacing,
        clock_rate: shape.clock_rate,
    })
}

/// The ending that an event means, if it ends the VM.
pub(crate) fn ending_of(event: &SliceEvent, local: SliceId, panicked: bool) -> Option<Ending> {
    match event {
        SliceEvent::WantEnd(slice, cause) => Some(ending_by(*cause, *slice, panicked)),
        SliceEvent::End(_, cause) => Some(Ending::Told(*cause)),
        SliceEvent::Lost(slice, cause) => {
            Some(Ending::LostSlice { slice: *slice, cause: cause.clone() })
        }
        SliceEvent::Fatal(cause) => Some(Ending::Failed { slice: local, cause: cause.clone() }),
        SliceEvent::Overtaken(cause) => {
            Some(Ending::Overtaken { slice: local, cause: cause.clone() })
        }
        SliceEvent::Dismissed => Some(Ending::Drained),
        SliceEvent::Stop
        | SliceEvent::Coordinates
        | SliceEvent::EndSeen(_)
        | SliceEvent::WantStop(_)
        | SliceEvent::AskReport
        | SliceEvent::AskLoad
        | SliceEvent::Report(..)
        | SliceEvent::LostDevices(..) => None,
    }
}

fn ending_by(cause: EndCause, said_by: SliceId, panicked: bool) -> Ending {
    match cause {
        EndCause::PowerOff => Ending::PowerOff,
        EndCause::Reset if !panicked => Ending::Reset,
        EndCause::Reset | EndCause::GuestPanic => Ending::GuestPanic,
        EndCause::TimeLimit => Ending::TimeLimit,
        EndCause::Saved => Ending::Saved,
        EndCause::Stopped => Ending::Stopped { cause: "another slice says so".into() },
        EndCause::Overtaken => {
            Ending::Overtaken { slice: said_by, cause: "its own output says by which".into() }
        }
        EndCause::Failure => {
            Ending::Failed { slice: said_by, cause: "its own output says why".into() }
        }
    }
}
