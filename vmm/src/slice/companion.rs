//! The companion role: give vCPUs, memory or both to a VM that another host starts.

use super::bus::RemoteBus;
use super::events::SliceEvent;
use super::host::{self, HostFacts};
use super::launch::{JOBS_MAX, Launch, LocalOptions, Parts, Slot, ending_of, spawn_devices};
use super::peripherals::{BackEnds, Lend, Lent, follow};
use super::spec::{SpecError, VmSpec};
use super::stop::StopHandle;
use super::{BOOTSTRAP, Ending, SliceError, end, one_line};
use crate::control::ControlSocket;
use crate::tsc::host_ticks;
use crossbeam_channel::bounded;
use devices::SharedBus;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transport::{Assignment, CompanionMesh, Credential, Listener, MeshError, Refused};
use wire::Control;
use wire::control::EndCause;

const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// From the answer to the start: the other companions may be slow.
const START_LIMIT: Duration = Duration::from_secs(60);

/// What a companion is started with.
#[derive(Debug)]
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
}

/// Waits for a bootstrap, runs one slice of its VM, and returns how the VM ended. Callers that
/// cannot prove the secret, and VMs that do not fit, are refused; the companion keeps waiting.
///
/// # Errors
/// The address cannot be listened on, or this host turns out not to be able to run what it agreed
/// to.
pub fn companion(options: &CompanionOptions) -> Result<Ending, SliceError> {
    let control = options.local.control()?;
    let lent = Lent::open(&options.lend)?;
    // One socket for all callers: a second one would get no or another port.
    let listener = Listener::bind(options.listen, options.credential.clone())?;
    loop {
        tracing::info!("waiting for a bootstrap at {}", listener.address());
        let (assignment, mesh) = listener.accept(None, &mut warn_refused)?;
        match agree(&assignment, mesh, options, &lent) {
            Ok(agreed) => {
                // Who calls a companion that is taken is to hear so at once.
                drop(listener);
                return run(&assignment, agreed, options, control.as_ref());
            }
            Err(error) => tracing::warn!("the VM was not started: {}", one_line(&error)),
        }
    }
}

fn warn_refused(refused: &Refused) {
    tracing::warn!("{refused}");
}

/// What a companion and a bootstrap have agreed on.
struct Agreed {
    spec: VmSpec,
    /// Name of this host.
    host: String,
    mesh: CompanionMesh,
    launch: Launch,
    back_ends: BackEnds,
}

/// Answers the assignment and waits for the verdict.
fn agree(
    assignment: &Assignment,
    mut mesh: CompanionMesh,
    options: &CompanionOptions,
    lent: &Lent,
) -> Result<Agreed, SliceError> {
    let deadline = Instant::now() + ANSWER_LIMIT;
    let (spec, facts, back_ends) = match consider(assignment, options, lent) {
        Ok(answer) => answer,
        Err(error) => {
            mesh.answer(Err(&one_line(&error)), deadline)?;
            return Err(error);
        }
    };
    let blob = serde_json::to_vec(&facts).map_err(|e| SliceError::Blob(assignment.local, e))?;
    mesh.answer(Ok(&blob), deadline)?;
    let verdict = mesh.verdict(&host_ticks, Instant::now() + START_LIMIT)?;
    let launch =
        serde_json::from_slice(&verdict).map_err(|error| SliceError::Blob(BOOTSTRAP, error))?;
    Ok(Agreed { spec, host: facts.name, mesh, launch, back_ends })
}

/// Checks whether this host can be that slice, and opens the devices that it has for the VM; they are
/// closed again should the VM not be started.
fn consider(
    assignment: &Assignment,
    options: &CompanionOptions,
    lent: &Lent,
) -> Result<(VmSpec, HostFacts, BackEnds), SliceError> {
    let spec: VmSpec = serde_json::from_slice(&assignment.blob)
        .map_err(|error| SliceError::Blob(BOOTSTRAP, error))?;
    let shape = spec.shape()?;
    if !shape.placement.is_member(assignment.local) {
        let cause = "the VM has no such slice".into();
        return Err(SliceError::Refused { slice: assignment.local, cause });
    }
    let pinned = assignment.config.rdma_memory;
    host::check(&shape, assignment.local, options.local.memory, pinned)?;
    let mut facts = HostFacts::gather(spec.interrupts)?;
    let (for_whom, on_full) = ((assignment.local, shape.vcpus()), options.local.on_full);
    let back_ends = BackEnds::open(&shape.devices, for_whom, Some(lent), on_full)?;
    facts.devices = back_ends.shapes();
    facts.offered = options.local.offer.of_host(&shape.placement, assignment.local);
    Ok((spec, facts, back_ends))
}

fn run(
    assignment: &Assignment,
    agreed: Agreed,
    options: &CompanionOptions,
    control: Option<&ControlSocket>,
) -> Result<Ending, SliceError> {
    let CompanionOptions { local: options, stop, .. } = options;
    let Agreed { spec, host, mut mesh, launch, back_ends } = agreed;
    let shape = spec.shape()?;
    let local = assignment.local;
    let index = usize::from(local.0);
    let offset = launch.tsc_offsets.get(index).copied();
    let offset = offset.ok_or(SliceError::Mesh(MeshError::NoBootstrap))?;
    let back_end = launch.interrupts.back_end();
    let lease = assignment.config.lease;
    let slot = Slot { local, epoch: assignment.epoch, memory: options.memory, lease };
    let (jobs, work) = bounded(JOBS_MAX);
    let (applied, _) = bounded(0);
    let placement = shape.place(&launch.devices).map_err(SpecError::from)?;
    let mut parts =
        Parts::new((&shape, placement), slot, &launch.cpuid, back_end, (jobs, applied))?;
    parts.machine.set_tsc_offset(offset)?;
    let deadline = Instant::now() + START_LIMIT;
    if let Some(memory) = parts.remote_writable() {
        mesh.expose(memory);
    }
    let joined = mesh.into_transport(deadline, &mut warn_refused)?;
    tracing::info!("frames between slices go over {}", joined.kind);
    parts.take_lease(back_ends.fence(), assignment.config.lease);
    parts.connect(&shape, joined.transport, launch.page_tables, options, control)?;
    let bus: SharedBus = Arc::new(RemoteBus(Arc::clone(&parts.channels)));
    let bus = parts.attach_devices(&shape, &launch.devices, &back_ends, bus)?;
    let (channels, devices) =
        (Arc::clone(&parts.channels), parts.dispatcher.devices.get().cloned());
    spawn_devices(move || follow(&channels, devices.as_deref(), &work))?;
    stop.attach(&parts.channels.events);
    parts.allow_cuts(None, options.forms.clone())?;
    parts.allow_moves()?;
    parts.machine.start(bus)?;
    parts.keep_clocks(&shape, options.clock_test)?;
    parts.sample(&shape)?;
    tracing::info!("running as {local} with vCPUs {:?}", shape.placement.vcpus_on(local));
    let clock = launch.clocks.get(index).copied().unwrap_or_default();
    let ending = wait_for_end(&parts, &host, clock);
    if matches!(ending, Ending::Told(_)) {
        tracing::info!("the VM is over; the bootstrap tells the other slices");
        parts.stop_vcpus();
        // As long as the fence is open: who closes first is lost to the others, which shuts theirs.
        back_ends.finish();
        parts.channels.send(BOOTSTRAP, &Control::EndSeen);
        end::stay_until_all_know(&parts.events);
    }
    parts.stop();
    back_ends.finish();
    Ok(ending)
}

/// Answers the bootstrap until the VM is over, for this slice at least.
fn wait_for_end(parts: &Parts, host: &str, clock: (i64, u64)) -> Ending {
    let mut asked = false;
    loop {
        let Ok(event) = parts.events.recv(None) else {
            break Ending::Failed { slice: parts.local, cause: "its threads are gone".into() };
        };
        if matches!(event, SliceEvent::AskReport) {
            let report = parts.report(host, clock);
            let bytes = serde_json::to_vec(&report).unwrap_or_default();
            parts.channels.send(BOOTSTRAP, &Control::Report(bytes));
        }
        if matches!(event, SliceEvent::Stop) {
            if asked {
                break Ending::Stopped { cause: "asked twice; the VM has lost this slice".into() };
            }
            asked = true;
            tracing::info!(
                "asked to stop: the guest is to shut down; asked again, this slice ends at once"
            );
            parts.channels.send(BOOTSTRAP, &Control::WantStop);
        }
        if let SliceEvent::Fatal(cause) = &event {
            tracing::error!("{cause}");
            parts.channels.send(BOOTSTRAP, &Control::WantEnd(EndCause::Failure));
            // The bootstrap ends the VM; give the frame time to leave.
            std::thread::sleep(Duration::from_millis(200));
        }
        if let Some(ending) = ending_of(&event, parts.local, false) {
            break ending;
        }
    }
}
