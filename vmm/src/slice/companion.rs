//! The companion role: give vCPUs, memory, devices or several of these to a VM that another host starts or runs.

use super::coordination::Terms;
use super::cut;
use super::host::{self, HostFacts};
use super::joining::JOIN_LIMIT;
use super::launch::{DeviceQueues, LocalOptions, Parts, Slot, Stands};
use super::negotiation::{Begins, Launch, Proposal};
use super::own_devices::OwnDevices;
use super::peripherals::{BackEnds, Lend, Lent};
use super::report::RunReport;
use super::restore::{LOAD_LIMIT, Place, Restored};
use super::saved::JoinState;
use super::spec::{SpecError, VmSpec};
use super::stop::StopHandle;
use super::watch::Watch;
use super::{BOOTSTRAP, Ending, SliceError, one_line};
use crate::named::name_vm;
use crate::tsc::host_ticks;
use dsm::{GuestRam, Loader};
use migrate::saved::decode;
use migrate::{Placement, PlacementState};
use std::io::Write;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transport::{Assignment, CompanionMesh, Credential, Listener, MeshError, Refused};
use wire::SliceId;

const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// From the answer to the start: the other companions may be slow.
const START_LIMIT: Duration = Duration::from_secs(60);

/// What a companion is started with.
pub struct CompanionOptions {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The VM's secret, or the key of one slice.
    pub credential: Credential,
    /// What is asked of this slice only.
    pub local: LocalOptions,
    /// What a VM may be given; opened at the start.
    pub lend: Vec<Lend>,
    /// Asks this slice to stop.
    pub stop: StopHandle,
    /// Where the guest's serial line goes while this slice coordinates.
    pub console: Box<dyn Write + Send>,
}

impl std::fmt::Debug for CompanionOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompanionOptions").field("listen", &self.listen).finish_non_exhaustive()
    }
}

/// Waits for a bootstrap whose VM starts, or is to have one slice more, runs one slice of it, and returns how the VM ended, with the reports of all slices if this one
/// coordinated then, else with its own. Callers that cannot prove the secret, and VMs that do not fit, are refused; the
/// companion keeps waiting.
///
/// # Errors
/// The address cannot be listened on, or this host turns out not to be able to run what it agreed
/// to.
pub fn companion(options: CompanionOptions) -> Result<(Ending, RunReport), SliceError> {
    let _socket = options.local.control()?;
    let lent = Lent::open(&options.lend)?;
    // One socket for all callers: a second one would get no or another port.
    let listener = Listener::bind(options.listen, options.credential.clone())?;
    loop {
        tracing::info!("waiting for a bootstrap at {}", listener.address());
        let (assignment, mesh) = listener.accept(None, &mut warn_refused)?;
        match agree(&assignment, mesh, &options, &lent) {
            Ok(agreed) => {
                // Who calls a companion that is taken is to hear so at once.
                drop(listener);
                return run(&assignment, agreed, options);
            }
            Err(error) => tracing::warn!("{}: {}", not_done(&assignment), one_line(&error)),
        }
    }
}

fn warn_refused(refused: &Refused) {
    tracing::warn!("{refused}");
}

/// What has not come about, for the log of a companion that waits on.
fn not_done(assignment: &Assignment) -> &'static str {
    let proposal = serde_json::from_slice::<Proposal>(&assignment.blob);
    match proposal.map(|it| it.begins) {
        Ok(Begins::Join) => "this host has not joined the VM",
        Ok(Begins::Restore(_)) => "the VM was not restored",
        Ok(Begins::Boot) | Err(_) => "the VM was not started",
    }
}

/// What a companion and a bootstrap have agreed on.
struct Agreed {
    /// The VM, which starts or, if the launch says so, runs.
    spec: VmSpec,
    /// Name of this host.
    host: String,
    mesh: CompanionMesh,
    launch: Launch,
    back_ends: BackEnds,
    /// What it goes on from, if it does.
    restored: Option<Goes>,
}

/// What a slice goes on from.
struct Goes {
    restored: Restored,
    /// Its memory with what was in it, or with what brings that.
    ram: Arc<GuestRam>,
    loader: Option<Loader>,
}

/// Answers the assignment and waits for the verdict.
fn agree(
    assignment: &Assignment,
    mut mesh: CompanionMesh,
    options: &CompanionOptions,
    lent: &Lent,
) -> Result<Agreed, SliceError> {
    let deadline = Instant::now() + ANSWER_LIMIT;
    let Considered { proposal, facts, back_ends, restored } =
        match consider(assignment, options, lent) {
            Ok(answer) => answer,
            Err(error) => {
                mesh.answer(Err(&one_line(&error)), deadline)?;
                return Err(error);
            }
        };
    let blob = serde_json::to_vec(&facts).map_err(|e| SliceError::Blob(assignment.local, e))?;
    mesh.answer(Ok(&blob), deadline)?;
    let (restored, limit) = match restored {
        Some(restored) => {
            (Some(load(restored, (assignment, &proposal.spec), &mut mesh, options)?), LOAD_LIMIT)
        }
        None => (None, START_LIMIT),
    };
    let host = facts.name.clone();
    let back_ends = match back_ends {
        Some(open) => open,
        None => {
            let goes = restored.as_ref().map(|goes| &goes.restored);
            own_devices(assignment, options, lent).open_last(
                (&proposal.spec, goes),
                facts,
                &mut mesh,
            )?
        }
    };
    let verdict = mesh.verdict(&host_ticks, Instant::now() + limit)?;
    let launch: Launch =
        serde_json::from_slice(&verdict).map_err(|error| SliceError::Blob(BOOTSTRAP, error))?;
    if launch.joins.is_some() != (proposal.begins == Begins::Join) {
        return Err(SliceError::Refused { slice: BOOTSTRAP, cause: "it says two things".into() });
    }
    if restored.is_some() {
        back_ends.go_on_as(launch.identity.writer());
    }
    name_vm(launch.identity.name());
    let spec = proposal.spec;
    Ok(Agreed { spec, host, mesh, launch, back_ends, restored })
}

fn own_devices<'a>(
    assignment: &Assignment,
    options: &CompanionOptions,
    lent: &'a Lent,
) -> OwnDevices<'a> {
    let (local, on_full) = (assignment.local, options.local.on_full);
    OwnDevices { local, on_full, lent: Some(lent) }
}

/// Reads the memory of this slice's home, once all have agreed.
fn load(
    restored: Restored,
    (assignment, spec): (&Assignment, &VmSpec),
    mesh: &mut CompanionMesh,
    options: &CompanionOptions,
) -> Result<Goes, SliceError> {
    mesh.prepare(Instant::now() + START_LIMIT)?;
    let shape = spec.shape()?;
    let ram = slot(assignment, &options.local).guest_ram(&shape, &shape.placement)?;
    let frames = shape.placement.frames_of(assignment.local);
    let (lease, pause) = (assignment.config.lease, options.local.load_pause);
    let place = Place { ram: &ram, frames: &frames, lease, pause };
    let loader = restored.load_own(mesh, place)?;
    Ok(Goes { restored, ram, loader })
}

fn slot(assignment: &Assignment, options: &LocalOptions) -> Slot {
    let (memory, lease) = (options.memory, assignment.config.lease);
    Slot { local: assignment.local, epoch: assignment.epoch, memory, lease }
}

/// What this host has for a slice that it is asked to be.
struct Considered {
    proposal: Proposal,
    facts: HostFacts,
    /// None yet if slices of a former life may still use them.
    back_ends: Option<BackEnds>,
    restored: Option<Restored>,
}

/// Checks whether this host can be that slice, and opens the devices that it has for the VM; they are
/// closed again should the VM not be started.
fn consider(
    assignment: &Assignment,
    options: &CompanionOptions,
    lent: &Lent,
) -> Result<Considered, SliceError> {
    let proposal: Proposal = serde_json::from_slice(&assignment.blob)
        .map_err(|error| SliceError::Blob(BOOTSTRAP, error))?;
    let (spec, joins) = (&proposal.spec, proposal.begins == Begins::Join);
    let shape = spec.shape()?;
    // One that joins is none that the VM started with.
    if shape.placement.is_member(assignment.local) == joins {
        let cause = "the VM has no such slice".into();
        return Err(SliceError::Refused { slice: assignment.local, cause });
    }
    let folder = options.local.checkpoints.as_deref();
    let mut restored = match &proposal.begins {
        Begins::Restore(name) => Some(Restored::open_named(folder, name)?),
        Begins::Boot | Begins::Join => None,
    };
    let (mut newest_life, mut is_overtaken) = (None, false);
    if let Some(restored) = &mut restored {
        restored.fits(spec, &shape)?;
        newest_life = restored.newest_life((&shape.devices, assignment.local, Some(lent)));
        is_overtaken = restored.overtaken_by(newest_life).is_some();
        restored.outlive(newest_life);
    }
    let pinned = (assignment.config.rdma_memory, true);
    host::check(&shape, assignment.local, options.local.memory, pinned)?;
    let mut facts = HostFacts::gather(spec.interrupts)?;
    let mut back_ends = None;
    // The bootstrap says so to all: to open them would take them from who goes on with the VM.
    if !is_overtaken && !restored.as_ref().is_some_and(|restored| restored.devices_last) {
        let open = own_devices(assignment, options, lent).open(&shape, restored.as_ref())?;
        facts = facts.with_devices(&open)?;
        back_ends = Some(open);
    }
    facts.newest_life = newest_life;
    facts.offered = options.local.offer.of_host(&shape.placement, assignment.local);
    Ok(Considered { proposal, facts, back_ends, restored })
}

fn run(
    assignment: &Assignment,
    agreed: Agreed,
    options: CompanionOptions,
) -> Result<(Ending, RunReport), SliceError> {
    let CompanionOptions { local: options, stop, console, credential, .. } = options;
    let options = &options;
    let Agreed { spec, host, mut mesh, launch, back_ends, restored } = agreed;
    let shape = spec.shape()?;
    let local = assignment.local;
    let offset = launch.tsc_offsets.get(usize::from(local.0)).copied();
    let offset = offset.ok_or(SliceError::Mesh(MeshError::NoBootstrap))?;
    let back_end = launch.interrupts.back_end();
    let slot = slot(assignment, options);
    let (to_devices, queues) = DeviceQueues::new();
    let placement = match &launch.joins {
        None => shape.place(&launch.devices).map_err(SpecError::from)?,
        Some(state) => {
            let at_start = shape.place(&launch.devices).map_err(SpecError::from)?;
            joined_placement(state, local, &at_start)?
        }
    };
    let (restored, ram, loader) = match restored {
        Some(Goes { restored, ram, loader }) => (Some(restored), ram, loader),
        None => (None, slot.guest_ram(&shape, &placement)?, None),
    };
    let whole = (&shape, placement, ram);
    let mut parts = Parts::new(whole, slot, &launch.cpuid, back_end, to_devices)?;
    parts.load_on(loader);
    parts.machine.set_tsc_offset(offset)?;
    let start = restored.map(|restored| parts.take_up(&restored, back_end)).transpose()?;
    let limit = if launch.joins.is_some() { JOIN_LIMIT } else { START_LIMIT };
    let deadline = Instant::now() + limit;
    if let Some(memory) = parts.remote_writable() {
        mesh.expose(memory);
    }
    let joined = mesh.into_transport(deadline, &mut warn_refused)?;
    tracing::info!("frames between slices go over {}", joined.kind);
    let state = joined.state.as_deref().filter(|_| launch.joins.is_some());
    let state = state.map(|bytes| how_it_stands(bytes, &parts)).transpose()?;
    parts.do_without(state.as_ref().map_or(&[], |state| &state.lost));
    parts.take_lease(back_ends.fence(), assignment.config.lease);
    let how = (launch.page_tables, state.as_ref().map(|state| &state.memory));
    parts.connect(&shape, joined, how, options)?;
    // What a coordinator would know; it is told when it is to be one.
    let terms = Terms::new(None, Duration::ZERO);
    let serial = (console, back_ends.panicked());
    let vm = (launch.describe(&spec), credential.secret());
    let (whole, terms, desk) = ((&shape, &launch), (terms, None), &options.desk);
    let coordination = parts.coordination(whole, serial, terms, vm, desk)?;
    let joined = state.as_ref().map(|state| (state.bus.clone(), state.order));
    let begins = start.is_some();
    let stands = match (joined, start) {
        (Some((bus, order)), _) => Stands::Joined(bus, order),
        (None, Some(start)) => Stands::Restored(Box::new(start)),
        (None, None) => Stands::New,
    };
    let bus = parts.attach_devices(&shape, (&launch.devices, &back_ends), queues, stands)?;
    coordination.appear(&stop);
    parts.allow_cuts(&coordination, options, begins)?;
    parts.allow_moves()?;
    back_ends.go_on()?;
    parts
        .run(bus, &shape, options.clock_test)
        .map_err(|error| SliceError::Begun(Box::new(error)))?;
    if let Some(state) = state {
        parts.begin_at_rest(state.cut);
    }
    if begins {
        cut::begun(&parts.channels);
    }
    tracing::info!(
        "running as {local} with vCPUs {:?}",
        parts.channels.placement.load().vcpus_on(local)
    );
    Ok(Watch { parts, coordination, back_ends, launch, host, told_by: None }.run(desk))
}

/// Where everything is in a VM that this slice joins, with the slice. `at_start` is where it was when the VM started.
fn joined_placement(
    state: &PlacementState,
    local: SliceId,
    at_start: &Placement,
) -> Result<Placement, SliceError> {
    let refused = |cause: String| SliceError::Refused { slice: BOOTSTRAP, cause };
    let placement =
        Placement::try_from(state.clone()).map_err(|error| refused(one_line(&error)))?;
    if !placement.is_member(local) {
        return Err(refused(format!("{local} is to join a VM without it")));
    }
    if parts_of(&placement) != parts_of(at_start) {
        return Err(refused("the VM has other parts than its description".into()));
    }
    Ok(placement)
}

/// What a VM consists of, wherever it is: how many vCPUs, which frames, and how many queues of each device.
fn parts_of(placement: &Placement) -> (usize, Vec<Range<u64>>, Vec<usize>) {
    let queues = placement.devices().iter().map(|device| device.queues.len()).collect();
    (placement.vcpus().len(), placement.frames(), queues)
}

/// What a slice that joins begins with.
fn how_it_stands(bytes: &[u8], parts: &Parts) -> Result<JoinState, SliceError> {
    let refused = |cause| SliceError::Refused { slice: BOOTSTRAP, cause };
    let state: JoinState = decode(bytes).map_err(|error| refused(one_line(&error)))?;
    let placement = parts.channels.placement.load().epoch();
    state.fits(parts.local, placement).map_err(|error| refused(one_line(&error)))?;
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use migrate::{DevicePlace, MemoryPlace};
    use wire::Epoch;

    /// Of two slices, or of one of them and the newcomer, with memory in so many pieces.
    fn placement(
        members: &[u16],
        vcpus: usize,
        memory: &[(u64, u64)],
        queues: &[usize],
    ) -> Placement {
        let members: Vec<_> = members.iter().copied().map(SliceId).collect();
        let home = members[0];
        let memory = memory.iter().zip(members.iter().cycle());
        let memory =
            memory.map(|((start, end), home)| MemoryPlace { frames: *start..*end, home: *home });
        let device = |queues: &usize| DevicePlace { owner: home, queues: vec![home; *queues] };
        let devices = queues.iter().map(device).collect();
        Placement::new(Epoch(3), members.clone(), vec![home; vcpus], memory.collect(), devices)
            .unwrap()
    }

    #[test]
    fn newcomer_takes_no_placement_of_another_vm() {
        let at_start = placement(&[0, 1], 2, &[(0, 8), (16, 24)], &[2, 3]);
        let joins =
            |now: &Placement| joined_placement(&PlacementState::from(now), SliceId(2), &at_start);
        let now = placement(&[0, 2], 2, &[(0, 4), (4, 8), (16, 24)], &[2, 3]);
        assert_eq!(joins(&now).unwrap(), now);
        for other in [
            placement(&[0, 1], 2, &[(0, 8), (16, 24)], &[2, 3]),
            placement(&[0, 2], 3, &[(0, 8), (16, 24)], &[2, 3]),
            placement(&[0, 2], 2, &[(0, 8), (16, 25)], &[2, 3]),
            placement(&[0, 2], 2, &[(0, 8), (16, 24)], &[2, 3, 1]),
            placement(&[0, 2], 2, &[(0, 8), (16, 24)], &[2]),
            placement(&[0, 2], 2, &[(0, 8), (16, 24)], &[3, 2]),
        ] {
            assert!(matches!(joins(&other), Err(SliceError::Refused { .. })), "{other:?}");
        }
    }
}
