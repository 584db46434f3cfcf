//! What the machine that decides is told: the VM of a command line, and what its user wants.

use super::options::OnLost;
use crate::bootstrap::Arguments as Bootstrap;
use anyhow::{Context, Result, ensure};
use migrate::supervise::{DeviceReach, Plan, Policy, Room, Share};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use transport::Secret;
use vmm::slice::{DeviceSpec, SliceSpec, saved_spec};

/// Starts again in a row without a new checkpoint.
const RESTARTS_MAX: usize = 5;
const WINDOW_MS: u64 = 600_000;
/// Counters of hosts differ by 100 ppm at most. So much of a lease is ten times as much.
const CLOCK_ERROR_OF_LEASE: u64 = 1000;

/// The VM, and where else it may be.
pub(super) fn plan(
    bootstrap: &Bootstrap,
    spares: &[SocketAddr],
    fits: Option<Room>,
    secret: Option<&Secret>,
) -> Result<Plan> {
    if fits.is_some() && bootstrap.devices.specs().is_empty() {
        refuse_unnamed_devices(bootstrap, secret)?;
    }
    let reach = |device: &DeviceSpec| {
        let standby = device.standby.iter().map(|other| other.slice).collect();
        DeviceReach { slice: device.slice, standby }
    };
    Ok(Plan {
        slices: bootstrap.slices.iter().map(|slice| share(slice.spec)).collect(),
        spares: u16::try_from(spares.len()).context("count spares")?,
        room: fits,
        devices: bootstrap.devices.specs().iter().map(reach).collect(),
    })
}

/// Refuses to leave slices out of a VM whose devices only its checkpoint names: they are of slices of before, which need not be these.
fn refuse_unnamed_devices(bootstrap: &Bootstrap, secret: Option<&Secret>) -> Result<()> {
    let Some(restore) = bootstrap.restore.options() else { return Ok(()) };
    // A VM that begins with it is refused for that; one that has later checkpoints needs it no more.
    if matches!(restore.path.try_exists(), Ok(false)) {
        return Ok(());
    }
    let saved = saved_spec(&restore.path, restore.secret(secret))
        .context("see whether the VM of --restore has devices, for --fits")?;
    ensure!(
        saved.devices.is_empty(),
        "the VM of --restore has devices: with --fits give them too (--disk, --net, ...), or it is not known which slices it can do without"
    );
    Ok(())
}

/// Address of each host but the first, by its number in the plan.
pub(super) fn hosts(
    bootstrap: &Bootstrap,
    spares: Vec<SocketAddr>,
) -> Result<BTreeMap<u16, SocketAddr>> {
    let others = bootstrap.slices.iter().skip(1);
    let others = others.map(|slice| slice.address.context("only the first --slice is local"));
    let others = others.chain(spares.into_iter().map(Ok)).collect::<Result<Vec<_>>>()?;
    Ok((1..).zip(others).collect())
}

fn share(spec: SliceSpec) -> Share {
    let SliceSpec { vcpus, spare_vcpus, memory } = spec;
    Share { vcpus, spare_vcpus, memory }
}

/// What its user wants.
pub(super) fn policy(on_lost: &OnLost, (lease_ms, gather_ms): (u64, u64)) -> Policy {
    Policy {
        every_ms: on_lost.every_ms,
        keep: on_lost.keep,
        full_every: on_lost.full,
        lease_ms,
        clock_error_ms: lease_ms.div_ceil(CLOCK_ERROR_OF_LEASE),
        gather_ms,
        restarts_max: RESTARTS_MAX,
        window_ms: WINDOW_MS,
        on_panic: on_lost.on_panic,
        lazy: on_lost.lazy,
    }
}
