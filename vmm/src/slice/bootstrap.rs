//! The bootstrap role: plan the VM, bring the companions together, and start the guest. `watch` ends it.

use super::borrowing::{self, Borrow};
use super::checkpoint::Identity;
use super::coordination::Terms;
use super::cut;
use super::host::{self, HostFacts};
use super::joining::Inviter;
use super::launch::{DeviceQueues, LocalOptions, Parts, Slot, Stands};
use super::negotiation::{
    ANSWER_LIMIT, Begins, Launch, Proposal, START_LIMIT, choose_interrupts, common_cpuid,
    compare_clock, compare_clocks, compare_standbys, gather, gather_shapes, measure_clocks,
};
use super::not_loaded::not_loaded;
use super::own_devices::{OwnDevices, go_on_nowhere_else, lost};
use super::peripherals::{BackEndShape, BackEnds};
use super::report::RunReport;
use super::restore::{Place, RestoreOptions, Restored, SliceStart, wait_for_fence};
use super::spec::{Interrupts, Shape, SpecError, VmSpec};
use super::stop::StopHandle;
use super::watch::Watch;
use super::{BOOTSTRAP, Ending, SliceError};
use crate::boot::{self, BootConfig, BootPlan};
use crate::cmdline::{GuestCmdline, GuestPreset, recommended_cmdline};
use crate::cpuid::Cpuid;
use crate::named::name_vm;
use devices::GenerationId;
use devices::acpi::{self, AcpiConfig};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use transport::{
    BootstrapMesh, CarrierKind, Config, Member, MeshTransport, PageMemory, Plan, RdmaMemory,
    Secret, VmId,
};
use wire::{Epoch, Gfn, SliceId, VcpuId};

/// To write one piece of what the guest boots with.
const WRITE_LIMIT: Duration = Duration::from_secs(120);

/// How a guest begins.
#[derive(Clone, Debug)]
pub enum Start {
    /// With its kernel.
    Boot(Boot),
    /// With what it had when a checkpoint was written.
    Restore(RestoreOptions),
}

/// What a guest boots with.
#[derive(Clone, Debug)]
pub struct Boot {
    /// Kernel image: bzImage or ELF.
    pub kernel: PathBuf,
    /// Initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// Command line of the guest's kernel; what the clock needs is added.
    pub cmdline: String,
    /// What the guest's kernel is told about vCPUs of other slices.
    pub guest_preset: GuestPreset,
    /// Distance between the memory nodes of two slices (ACPI SLIT; 10 is within a node).
    pub node_distance: u8,
}

/// What a bootstrap is started with.
pub struct BootstrapOptions {
    /// The VM.
    pub spec: VmSpec,
    /// Addresses of the companions: slice 1 and up.
    pub companions: Vec<SocketAddr>,
    /// The VM's secret; needed when there are companions, or slices are to join later.
    pub secret: Option<Secret>,
    /// How its guest begins.
    pub start: Start,
    /// Where the guest's console goes.
    pub console: Box<dyn Write + Send>,
    /// Ends the VM after this time.
    pub limit: Option<Duration>,
    /// Asks for the end of the VM.
    pub stop: StopHandle,
    /// The guest's time to shut down once it is asked to.
    pub stop_limit: Duration,
    /// A peer silent for this long is lost.
    pub lease: Duration,
    /// What carries frames between slices, best first; later ones when a slice cannot use the first.
    pub carriers: Vec<CarrierKind>,
    /// What RDMA pins.
    pub rdma_memory: RdmaMemory,
    /// When vCPUs of companions are there.
    pub borrow: Borrow,
    /// What is asked of this slice only.
    pub local: LocalOptions,
}

impl std::fmt::Debug for BootstrapOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BootstrapOptions").field("spec", &self.spec).finish_non_exhaustive()
    }
}

/// Starts a VM, runs it to its end and reports.
///
/// # Errors
/// Everything that keeps the VM from starting; nothing runs then, on any host.
pub fn bootstrap(mut options: BootstrapOptions) -> Result<(Ending, RunReport), SliceError> {
    let boots = matches!(options.start, Start::Boot(_));
    options.spec.boots_at_home = boots && options.borrow.begins_at_home();
    let shape = options.spec.shape()?;
    let _socket = options.local.control()?;
    let shares = options.secret.is_some();
    let pinned = (options.rdma_memory, shares);
    host::check(&shape, BOOTSTRAP, options.local.memory, pinned)?;
    let mut facts = HostFacts::gather(options.spec.interrupts)?;
    let begins = match &options.start {
        Start::Boot(boot) => Beginning::Boot(plan_boot(boot, &shape, facts.tsc_khz)?),
        Start::Restore(restore) => {
            let mut restored = Restored::open_as(restore, options.secret.as_ref())?;
            restored.fits(&options.spec, &shape)?;
            facts.newest_life = restored.newest_life((&shape.devices, BOOTSTRAP, None));
            go_on_nowhere_else(Some(&restored), std::slice::from_ref(&facts))?;
            restored.outlive(facts.newest_life);
            Beginning::Restore(Box::new(restored), restore.clone())
        }
    };
    let mut back_ends = None;
    if begins.fenced_at().is_none() {
        let open = own_devices(&options).open(&shape, begins.restored())?;
        facts = facts.with_devices(&open)?;
        back_ends = Some(open);
    }
    facts.offered = options.local.offer.of_host(&shape.placement, BOOTSTRAP);
    let mut vm = Vm::assemble(&options, shape, (facts, back_ends), &begins)?;
    if let Beginning::Boot(plan) = &begins {
        vm.load(plan)?;
    }
    // Its files would be open as long as the VM lives; what is loaded on has its own share of them.
    drop(begins);
    let terms = Terms::new(options.limit, options.stop_limit);
    let console = std::mem::replace(&mut options.console, Box::new(std::io::sink()));
    vm.run(console, terms, &options)
}

/// How the guest begins, checked.
enum Beginning {
    Boot(BootPlan),
    Restore(Box<Restored>, RestoreOptions),
}

impl Beginning {
    fn restored(&self) -> Option<&Restored> {
        match self {
            Self::Boot(_) => None,
            Self::Restore(restored, _) => Some(restored),
        }
    }

    /// What the guest's counter shows first, as an offset to that of this host.
    fn begin_clock(&self, parts: &Parts) -> Result<u64, SliceError> {
        let offset = match self {
            Self::Boot(_) => parts.machine.tsc_offset()?,
            Self::Restore(restored, options) => {
                parts.machine.set_clock(restored.ticks(options.clock))?;
                parts.machine.clock().offset()
            }
        };
        parts.machine.set_tsc_offset(offset)?;
        Ok(offset)
    }

    /// See [`RestoreOptions::fenced_at`].
    fn fenced_at(&self) -> Option<u64> {
        match self {
            Self::Boot(_) => None,
            Self::Restore(_, options) => options.fenced_at,
        }
    }
}

fn own_devices(options: &BootstrapOptions) -> OwnDevices<'static> {
    OwnDevices { local: BOOTSTRAP, on_full: options.local.on_full, lent: None }
}

/// Waits for the fence with the companions. One that is lost meanwhile is told of at once.
fn wait_with(mut mesh: Option<&mut BootstrapMesh>, fenced_at: u64) -> Result<(), SliceError> {
    wait_for_fence(fenced_at, &mut || {
        let Some(mesh) = &mut mesh else { return Ok(()) };
        mesh.check_waiting(Instant::now() + START_LIMIT).map_err(SliceError::Lost)
    })
}

fn plan_boot(boot: &Boot, shape: &Shape, khz: u32) -> Result<BootPlan, SliceError> {
    let tables = acpi::build(&AcpiConfig { remote_distance: boot.node_distance, ..shape.acpi() })?;
    let cmdline = recommended_cmdline(&GuestCmdline {
        tsc_khz: shape.clock_rate.told_khz(khz),
        borrowed: shape.borrowed(),
        preset: boot.guest_preset,
        user: &boot.cmdline,
    });
    let generation = GenerationId::random()
        .map_err(|source| SliceError::Io { what: "choose a generation id", source })?;
    Ok(boot::plan(&BootConfig {
        kernel: &boot.kernel,
        initrd: boot.initrd.as_deref(),
        cmdline: &cmdline,
        layout: &shape.layout,
        boot_node: 0,
        acpi: &tables,
        generation,
    })?)
}

/// The VM, assembled but not started.
struct Vm {
    shape: Shape,
    /// Name of this host.
    host: String,
    launch: Launch,
    /// For slices that join later.
    inviter: Inviter,
    parts: Parts,
    queues: DeviceQueues,
    back_ends: BackEnds,
    /// What its devices go on from, if it is restored.
    start: Option<SliceStart>,
}

impl Vm {
    fn assemble(
        options: &BootstrapOptions,
        shape: Shape,
        (facts, back_ends): (HostFacts, Option<BackEnds>),
        begins: &Beginning,
    ) -> Result<Self, SliceError> {
        let restored = begins.restored();
        let epoch = shape.placement.epoch();
        let (to_devices, queues) = DeviceQueues::new();
        let mut mesh = connect(options, epoch, restored)?;
        let mut hosts = vec![facts];
        if let Some(mesh) = &mut mesh {
            hosts.extend(gather(mesh).map_err(lost)?);
        }
        go_on_nowhere_else(restored, &hosts)?;
        let (cpuid, interrupts) = agree(options, &hosts, restored)?;
        if back_ends.is_some() {
            // What does not fit is refused before memory is read, which may take long.
            agree_on_devices(&shape, &hosts, restored)?;
        }
        let (memory, lease) = (options.local.memory, options.lease);
        let slot = Slot { local: BOOTSTRAP, epoch, memory, lease };
        let (back_end, ram) = (interrupts.back_end(), slot.guest_ram(&shape, &shape.placement)?);
        let frames = shape.placement.frames_of(BOOTSTRAP);
        let pause = options.local.load_pause;
        let place = || Place { ram: &ram, frames: &frames, lease, pause };
        let loader = restored.map(|restored| restored.load_all(mesh.as_mut(), place()));
        let loader = loader.transpose()?.flatten();
        let back_ends = match back_ends {
            Some(open) => open,
            None => {
                wait_with(mesh.as_mut(), begins.fenced_at().unwrap_or(0))?;
                let vm = (&shape, restored);
                let open = own_devices(options).open_with_others(vm, mesh.as_mut(), &mut hosts)?;
                // Much may have happened while memory was read.
                go_on_nowhere_else(restored, &hosts)?;
                open
            }
        };
        let devices = agree_on_devices(&shape, &hosts, restored)?;
        let placement = shape.place(&devices).map_err(SpecError::from)?;
        let whole = (&shape, placement, ram);
        let mut parts = Parts::new(whole, slot, &cpuid, back_end, to_devices)?;
        parts.load_on(loader);
        let offset = begins.begin_clock(&parts)?;
        let walks_write = hosts.iter().any(|host| host.walks_write);
        let page_tables = options.spec.page_tables.settle(walks_write);
        let mut launch = Launch {
            cpuid,
            tsc_offsets: vec![offset],
            page_tables,
            interrupts,
            clocks: vec![(0, 0)],
            devices,
            offers: hosts.iter().map(|host| host.offered).collect(),
            tsc_khz: hosts[0].tsc_khz,
            identity: identity(restored, &hosts, &back_ends)?,
            joins: None,
        };
        let start = restored.map(|restored| parts.take_up(restored, back_end)).transpose()?;
        if let Some(mut mesh) = mesh {
            measure_clocks(&mut mesh, &shape, (offset, hosts[0].tsc_khz), &mut launch)?;
            let blob = serde_json::to_vec(&launch).map_err(|e| SliceError::Blob(BOOTSTRAP, e))?;
            let joined = commit(mesh, &blob, parts.remote_writable()).map_err(lost)?;
            parts.take_lease(back_ends.fence(), options.lease);
            let how = (page_tables, None);
            parts.connect(&shape, joined, how, &options.local)?;
        }
        let facts = hosts.swap_remove(0);
        let inviter = inviter(options, &launch, (facts.tsc_khz, &parts));
        let host = facts.name;
        Ok(Self { shape, host, launch, inviter, parts, queues, back_ends, start })
    }

    /// Writes the payload into guest memory and sets the boot vCPU's registers.
    fn load(&mut self, plan: &BootPlan) -> Result<(), SliceError> {
        for piece in &plan.payload {
            match self.parts.channels.handle.get() {
                Some(handle) => handle
                    .write(piece.gpa, piece.bytes.clone(), WRITE_LIMIT)
                    .map_err(|error| not_loaded(&self.parts.events, error))?,
                None => write_directly(&self.parts, piece.gpa, &piece.bytes),
            }
        }
        for range in plan.ranges() {
            self.populate(range);
        }
        let boot = VcpuId(0);
        let mut regs = self.parts.machine.regs(boot)?;
        let mut sregs = self.parts.machine.sregs(boot)?;
        plan.state.apply(&mut sregs, &mut regs);
        self.parts.machine.set_registers(boot, &regs, &sregs)?;
        Ok(())
    }

    /// Maps what was loaded into memory of this slice, so that the guest's first touch costs no
    /// fault once the chunk is watched. Failing to do so only costs time.
    fn populate(&self, range: std::ops::Range<u64>) {
        let (first, last) = (range.start / 4096, range.end.div_ceil(4096));
        let own = |gfn: u64| self.shape.placement.home_of(Gfn(gfn)) == Some(BOOTSTRAP);
        if last > first && own(first) && own(last - 1) {
            let pages = usize::try_from(last - first).unwrap_or(0);
            if let Err(error) = self.parts.ram.populate(Gfn(first), pages) {
                tracing::debug!("populating loaded memory: {error}");
            }
        }
    }

    fn run(
        mut self,
        console: Box<dyn Write + Send>,
        terms: Terms,
        options: &BootstrapOptions,
    ) -> Result<(Ending, RunReport), SliceError> {
        let whole = (&self.shape, &self.launch);
        let panicked = self.back_ends.panicked();
        let (serial, inviter) = ((console, panicked), Some(self.inviter));
        let vm = (self.launch.describe(&options.spec), options.secret.as_ref());
        let (terms, desk) = ((terms, inviter), &options.local.desk);
        let coordination = self.parts.coordination(whole, serial, terms, vm, desk)?;
        let failed = |error| SliceError::Coordination(Box::new(error));
        let restored = self.start.is_some();
        let chipset = self.start.as_mut().and_then(|start| start.chipset.take());
        coordination.power_on(chipset).map_err(failed)?;
        let devices = (&self.launch.devices[..], &self.back_ends);
        let stands = self.start.map_or(Stands::New, |start| Stands::Restored(Box::new(start)));
        let bus = self.parts.attach_devices(&self.shape, devices, self.queues, stands)?;
        self.parts.allow_cuts(&coordination, &options.local, restored)?;
        self.parts.allow_moves()?;
        coordination.take_stops(&options.stop);
        coordination.begin(restored).map_err(failed)?;
        coordination.appear(&options.stop);
        self.back_ends.go_on()?;
        self.parts
            .run(bus, &self.shape, options.local.clock_test)
            .map_err(|error| SliceError::Begun(Box::new(error)))?;
        if restored {
            cut::begun(&self.parts.channels);
        }
        let slice = (&self.parts.channels, self.parts.machine.clone());
        if let Err(error) = borrowing::start(options.borrow, slice, desk, (&self.shape, restored)) {
            tracing::warn!("vCPUs stay where they are until they are moved: no thread: {error}");
        }
        let Self { parts, launch, back_ends, host, .. } = self;
        Ok(Watch { parts, coordination, back_ends, launch, host, told_by: None }.run(desk))
    }
}

fn write_directly(parts: &Parts, gpa: u64, bytes: &[u8]) {
    let mut at = gpa;
    let mut rest = bytes;
    while !rest.is_empty() {
        let offset = usize::try_from(at % 4096).expect("less than a page");
        let (piece, tail) = rest.split_at(rest.len().min(4096 - offset));
        parts.ram.write(Gfn(at / 4096), offset, piece);
        at += u64::try_from(piece.len()).expect("at most a page");
        rest = tail;
    }
}

fn inviter(
    options: &BootstrapOptions,
    launch: &Launch,
    (tsc_khz, parts): (u32, &Parts),
) -> Inviter {
    let (spec, launch, machine) = (options.spec.clone(), launch.clone(), parts.machine.clone());
    Inviter { spec, launch, tsc_khz, machine }
}

/// Finds out what all hosts have for the VM. One that is restored keeps what it had.
fn agree(
    options: &BootstrapOptions,
    hosts: &[HostFacts],
    restored: Option<&Restored>,
) -> Result<(Cpuid, Interrupts), SliceError> {
    compare_clocks(hosts)?;
    let cpuid = match restored {
        Some(restored) => {
            restored.hosts_fit(hosts)?;
            // All are as fast as the first one.
            compare_clock(restored.vm.tsc_khz, (BOOTSTRAP, hosts[0].tsc_khz))?;
            restored.vm.cpuid.clone()
        }
        None => common_cpuid(hosts)?,
    };
    let interrupts = choose_interrupts(options.spec.interrupts, hosts)?;
    restored.map_or(Ok(()), |restored| restored.interrupts_fit(interrupts.back_end()))?;
    Ok((cpuid, interrupts))
}

/// The same of devices.
fn agree_on_devices(
    shape: &Shape,
    hosts: &[HostFacts],
    restored: Option<&Restored>,
) -> Result<Vec<BackEndShape>, SliceError> {
    let devices = gather_shapes(shape, hosts)?;
    compare_standbys(shape, hosts, &devices)?;
    if let Some(restored) = restored {
        restored.devices_fit(&devices)?;
    }
    Ok(devices)
}

/// Which VM it is: a new one, or the next life of that in the checkpoint.
/// Disks of this host learn it, and so does what this process says.
fn identity(
    restored: Option<&Restored>,
    hosts: &[HostFacts],
    back_ends: &BackEnds,
) -> Result<Identity, SliceError> {
    let what = "choose an identity for the VM";
    let identity = match restored {
        None => Identity::random().map_err(|source| SliceError::Io { what, source })?,
        Some(restored) => {
            let lives = hosts.iter().filter_map(|host| host.newest_life);
            let identity = lives.fold(restored.identity, Identity::after);
            back_ends.go_on_as(identity.writer());
            identity
        }
    };
    name_vm(identity.name());
    Ok(identity)
}

fn connect(
    options: &BootstrapOptions,
    epoch: Epoch,
    restored: Option<&Restored>,
) -> Result<Option<BootstrapMesh>, SliceError> {
    let Some(secret) = options.secret.clone() else {
        if options.companions.is_empty() {
            return Ok(None);
        }
        let cause = "a VM with companions needs --secret-file".into();
        return Err(SliceError::Refused { slice: BOOTSTRAP, cause });
    };
    let name = restored.map(Restored::name).transpose()?;
    let begins = name.map_or(Begins::Boot, Begins::Restore);
    let proposal = Proposal { spec: options.spec.clone(), begins };
    let blob = serde_json::to_vec(&proposal).map_err(|error| SliceError::Blob(BOOTSTRAP, error))?;
    let companions = (1u16..).zip(&options.companions);
    let mut members = vec![Member { slice: BOOTSTRAP, address: None }];
    members.extend(companions.map(|(id, at)| Member { slice: SliceId(id), address: Some(*at) }));
    let vm = VmId::random()
        .map_err(|source| SliceError::Io { what: "choose an id for the VM", source })?;
    let carriers = options.carriers.clone();
    let config = Config {
        lease: options.lease,
        carriers,
        rdma_memory: options.rdma_memory,
        ..Config::default()
    };
    let plan = Plan { vm, epoch, members, config, blob };
    Ok(Some(BootstrapMesh::connect(secret, plan, Instant::now() + ANSWER_LIMIT)?))
}

fn commit(
    mut mesh: BootstrapMesh,
    blob: &[u8],
    memory: Option<PageMemory>,
) -> Result<MeshTransport, SliceError> {
    let deadline = Instant::now() + START_LIMIT;
    mesh.commit(blob, deadline)?;
    if let Some(memory) = memory {
        mesh.expose(memory);
    }
    let joined = mesh.into_transport(deadline, &mut |text| tracing::warn!("{text}"))?;
    tracing::info!("frames between slices go over {}", joined.kind);
    Ok(joined)
}
