//! What the bootstrap learns from the hosts before there is a VM, and what it concludes from that.
//!
//! ```text
//!   facts of each host --> interrupt back end, shapes of devices, are counters equally fast? --> offset of each clock
//! ```

use super::SliceError;
use super::checkpoint::{Description, Identity};
use super::host::{HostFacts, Offered};
use super::peripherals::{BackEndShape, DeviceSpec};
use super::restore::CheckpointName;
use super::spec::{Interrupts, PageTables, Shape, VmSpec};
use crate::clock::DRIFT_PPM;
use crate::cpuid::{Cpuid, intersect};
use crate::tsc::host_ticks;
use migrate::PlacementState;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use transport::{BootstrapMesh, ClockEstimate, MeshError};
use wire::SliceId;

/// How long a host may take to answer.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// How long a step of the start may take.
pub(super) const START_LIMIT: Duration = Duration::from_secs(60);
/// Round trips of a clock measurement; the fastest counts.
pub(super) const CLOCK_ROUNDS: u32 = 200;

/// What the bootstrap decides once every slice has agreed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Launch {
    /// What every host's processor has.
    pub(crate) cpuid: Cpuid,
    /// TSC offset of each slice's vCPUs.
    pub(crate) tsc_offsets: Vec<u64>,
    /// How page tables are kept; not `auto`.
    pub(crate) page_tables: PageTables,
    /// `ghost` or `userspace`.
    pub(crate) interrupts: Interrupts,
    /// Clock measurement of each slice against the bootstrap: skew and bound, nanoseconds.
    pub(crate) clocks: Vec<(i64, u64)>,
    /// The devices, in the order of the VM's description.
    #[serde(default)]
    pub(crate) devices: Vec<BackEndShape>,
    /// What the host of each slice of the start offers.
    pub(crate) offers: Vec<Offered>,
    /// Frequency of the bootstrap's counter, or of that of the host on which the VM began.
    pub(crate) tsc_khz: u32,
    /// Which VM it is.
    pub(crate) identity: Identity,
    /// For a slice that joins: where everything is then.
    #[serde(default)]
    pub(crate) joins: Option<PlacementState>,
}

impl Launch {
    /// The VM with this description.
    pub(super) fn describe(&self, spec: &VmSpec) -> Description {
        Description {
            spec: spec.clone(),
            cpuid: self.cpuid.clone(),
            interrupts: self.interrupts,
            tsc_khz: self.tsc_khz,
            devices: self.devices.clone(),
            identity: self.identity,
        }
    }
}

/// What a companion is asked to be a slice of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Proposal {
    /// The VM, as it started or is to start.
    pub(super) spec: VmSpec,
    /// How the companion's slice begins.
    pub(super) begins: Begins,
}

/// How a slice begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Begins {
    /// With the guest.
    Boot,
    /// The VM runs, and the companion is to be one slice more.
    Join,
    /// With what the slices of a checkpoint had.
    Restore(CheckpointName),
}

/// The interrupt back end that was asked for, or the best that every host has.
pub(super) fn choose_interrupts(
    asked: Interrupts,
    hosts: &[HostFacts],
) -> Result<Interrupts, SliceError> {
    let failed = (0u16..).zip(hosts).find(|(_, host)| !host.ghosts.is_empty());
    match (asked, failed) {
        (Interrupts::Ghost, Some((id, host))) => {
            Err(SliceError::Ghosts { slice: SliceId(id), cause: host.ghosts.clone() })
        }
        (Interrupts::Auto, Some((id, host))) => {
            let slice = SliceId(id);
            tracing::warn!("interrupts in user space: {slice} has no ghosts: {}", host.ghosts);
            Ok(Interrupts::Userspace)
        }
        (Interrupts::Userspace, _) => Ok(Interrupts::Userspace),
        (Interrupts::Auto | Interrupts::Ghost, None) => Ok(Interrupts::Ghost),
    }
}

/// How far the clocks of companions are off.
pub(super) fn measure_clocks(
    mesh: &mut BootstrapMesh,
    shape: &Shape,
    (offset, khz): (u64, u32),
    launch: &mut Launch,
) -> Result<(), SliceError> {
    for slice in shape.companions() {
        let measure = || {
            let deadline = Instant::now() + START_LIMIT;
            mesh.measure_clock(slice, CLOCK_ROUNDS, &host_ticks, deadline)
        };
        let (peer_offset, clock) = align_clock(measure, offset, khz).map_err(SliceError::Lost)?;
        launch.tsc_offsets.push(peer_offset);
        launch.clocks.push(clock);
    }
    Ok(())
}

/// What the processors of all hosts have.
pub(super) fn common_cpuid(hosts: &[HostFacts]) -> Result<Cpuid, SliceError> {
    let cpuids: Vec<Cpuid> = hosts.iter().map(|host| host.cpuid.clone()).collect();
    Ok(intersect(&cpuids)?)
}

/// The companions' facts, or the first refusal.
pub(super) fn gather(mesh: &mut BootstrapMesh) -> Result<Vec<HostFacts>, SliceError> {
    let answers = mesh.gather(Instant::now() + ANSWER_LIMIT)?;
    let read = |(slice, answer): (SliceId, Result<Vec<u8>, String>)| {
        let blob = answer.map_err(|cause| SliceError::Refused { slice, cause })?;
        serde_json::from_slice(&blob).map_err(|error| SliceError::Blob(slice, error))
    };
    answers.into_iter().map(read).collect()
}

/// What the hosts of the devices say that these are, in the order of the VM's description.
pub(super) fn gather_shapes(
    shape: &Shape,
    hosts: &[HostFacts],
) -> Result<Vec<BackEndShape>, SliceError> {
    let found = |(number, device): (u16, &DeviceSpec)| {
        let shapes = hosts.get(usize::from(device.slice)).map(|host| host.devices.iter());
        let mut shapes = shapes.into_iter().flatten();
        let shape = shapes.find(|(of, shape)| *of == number && shape.fits(&device.kind));
        shape.map(|(_, shape)| shape.clone()).ok_or_else(|| SliceError::Refused {
            slice: SliceId(device.slice),
            cause: format!("what it has for device {number} of the VM is not what was asked for"),
        })
    };
    (0u16..).zip(&shape.devices).map(found).collect()
}

/// Whether hosts that are to have a device later have the same one, as far as can be told before the guest has changed it.
pub(super) fn compare_standbys(
    shape: &Shape,
    hosts: &[HostFacts],
    devices: &[BackEndShape],
) -> Result<(), SliceError> {
    for (number, (spec, of)) in (0u16..).zip(shape.devices.iter().zip(devices)) {
        let sample = |slice: u16| {
            let samples = &hosts.get(usize::from(slice))?.samples;
            samples.iter().find(|(device, _)| *device == number).map(|(_, sample)| sample)
        };
        for standby in &spec.standby {
            let slice = SliceId(standby.slice);
            let refused = |why: &str| {
                let why = format!("as standby={} asks for: {why}", standby.slice);
                let cause = format!("it cannot have device {number} of the VM later, {why}");
                SliceError::Refused { slice, cause }
            };
            let shapes = hosts.get(usize::from(slice.0)).map_or(&[][..], |host| &host.standbys);
            let there = shapes.iter().find(|(device, _)| *device == number);
            let (_, there) = there.ok_or_else(|| refused("it says nothing of it"))?;
            there.carries_on(of).map_err(|why| refused(&why))?;
            if sample(slice.0) != sample(spec.slice) {
                return Err(refused("it contains something else there"));
            }
        }
    }
    Ok(())
}

pub(super) fn compare_clocks(hosts: &[HostFacts]) -> Result<(), SliceError> {
    let ours = hosts[0].tsc_khz;
    let mut all = (0u16..).zip(hosts);
    all.try_for_each(|(id, host)| compare_clock(ours, (SliceId(id), host.tsc_khz)))
}

/// Whether a slice's counter is as fast as ours, in kHz.
pub(super) fn compare_clock(ours: u32, (slice, theirs): (SliceId, u32)) -> Result<(), SliceError> {
    let difference = u64::from(ours.abs_diff(theirs));
    if difference * 1_000_000 > u64::from(ours) * DRIFT_PPM {
        return Err(SliceError::ClockSpeed { slice, theirs, ours });
    }
    Ok(())
}

/// Measures a companion's counter twice. Returns the TSC offset that makes its guest clock equal to
/// ours, and the difference of the measurements with its bound, in nanoseconds.
pub(super) fn align_clock(
    mut measure: impl FnMut() -> Result<ClockEstimate, MeshError>,
    offset: u64,
    khz: u32,
) -> Result<(u64, (i64, u64)), MeshError> {
    let first = measure()?;
    let again = measure()?;
    let best = if again.rtt_min < first.rtt_min { again } else { first };
    let nanoseconds = |ticks: i128| ticks * 1_000_000 / i128::from(khz.max(1));
    let skew = nanoseconds(i128::from(again.offset) - i128::from(first.offset));
    let bound = nanoseconds(i128::from(best.rtt_min) / 2);
    let theirs = offset.wrapping_sub(best.offset.cast_unsigned());
    Ok((theirs, (i64::try_from(skew).unwrap_or(i64::MAX), u64::try_from(bound).unwrap_or(0))))
}
