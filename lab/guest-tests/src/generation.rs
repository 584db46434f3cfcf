//! The VM's generation id: Linux has found the device, and its driver listens (`drivers/virt/vmgenid.c`, 5.18 and later).

use std::fs;

use anyhow::{Context, Result, bail};

use crate::bench::{Bench, SKIP};

/// Linux 6.10 made a platform driver of what was one of ACPI.
const DRIVERS: [&str; 2] = ["/sys/bus/platform/drivers/vmgenid", "/sys/bus/acpi/drivers/vmgenid"];

pub(crate) fn driver(bench: &mut Bench) -> Result<String> {
    let Some(driver) = DRIVERS.iter().find(|path| fs::exists(path).unwrap_or(false)) else {
        return Ok(format!("{SKIP}the kernel has no driver vmgenid"));
    };
    match device_of(driver)? {
        Some(device) => Ok(format!("device={device}")),
        None if bench.owns_machine => bail!("no device is bound to {driver}"),
        None => Ok(format!("{SKIP}this machine has no generation id")),
    }
}

/// The device that a driver is bound to: a link in its folder, beside the one to its module.
fn device_of(driver: &str) -> Result<Option<String>> {
    let entries = fs::read_dir(driver).with_context(|| format!("read {driver}"))?;
    let links = entries.flatten().filter(|entry| entry.path().is_symlink());
    let mut names = links.map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.find(|name| name != "module"))
}
