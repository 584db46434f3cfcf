//! What a VM with a whole Debian system is given: disk, tap, and words for its kernel.

use anyhow::{Result, anyhow};
use lab::distro::{Distro, LABEL};
use lab::{Disk, Host, HostNumber};

/// Most seconds the VM may run, unless the options say.
pub(crate) const TIMEOUT: u64 = 7200;
/// The tap device on the first host.
pub(crate) const TAP: &str = "tap0";

/// Disks of the lab: the system's image on the first host.
pub(crate) fn disks(distro: &Distro, keep: bool) -> Result<Vec<Disk>> {
    Ok(vec![Disk { host: HostNumber::new(1)?, image: distro.image.clone(), keep, speed: None }])
}

/// Options of the guest's kernel that spare it writes to memory of all CPUs: ticks that one CPU counts and
/// none stops (each stop and start writes what all CPUs share), no accounting of pressure, of sessions or of
/// groups' memory, no security module that counts what refers to its labels, no watchdogs, grace periods that
/// ask the other CPUs at once instead of waiting for some of their ticks, and no memory put in order ahead.
const QUIET_KERNEL: &str = "nohz=off psi=0 noautogroup cgroup_disable=memory audit=0 apparmor=0 \
                            nowatchdog rcupdate.rcu_expedited=1 sysctl.vm.compaction_proactiveness=0";

/// What the guest's kernel is told beyond what all guests are.
pub(crate) fn command_line() -> String {
    format!("root=LABEL={LABEL} rw {QUIET_KERNEL}")
}

/// Options of `tessera bootstrap` for the devices of the first host, which has this slice.
pub(super) fn devices(first: &Host<'_>, slice: usize, system: Option<&str>) -> Result<Vec<String>> {
    let at = if slice == 0 { String::new() } else { format!(",slice={slice}") };
    let disk = system.map_or_else(|| disk(first), |disk| Ok(disk.to_owned()))?;
    let (disk, net) = (format!("{disk}{at}"), format!("{TAP}{at}"));
    Ok(vec!["--disk".to_owned(), disk, "--net".to_owned(), net])
}

/// How a companion on the first host lends them.
pub(super) fn lent(first: &Host<'_>, system: Option<&str>) -> Result<Vec<String>> {
    // Without what a disk is opened with.
    let path = |disk: &str| disk.split(',').next().unwrap_or_default().to_owned();
    let disk = system.map_or_else(|| disk(first), |disk| Ok(path(disk)))?;
    Ok(vec![format!("disk:rw:{disk}"), format!("tap:{TAP}")])
}

/// The disk of the first host, as that host sees it.
pub(crate) fn disk(first: &Host<'_>) -> Result<String> {
    let disks = first.state()?.disks;
    let disk = disks.first().and_then(|disk| disk.to_str());
    Ok(disk.ok_or_else(|| anyhow!("host 1 has no disk for the guest"))?.to_owned())
}
