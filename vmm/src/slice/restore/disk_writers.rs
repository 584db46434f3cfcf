//! Which VMs have left the disks of a VM that is to begin.

use crate::slice::BOOTSTRAP;
use crate::slice::peripherals::{DeviceKind, DeviceSpec};
use devices::back_end::image::{GenerationRecord, RecordError};
use std::path::PathBuf;

/// The disks of the first slice that are written, and the VM that the record beside each names, if there is one.
///
/// # Errors
/// A record cannot be read.
pub fn disk_writers(devices: &[DeviceSpec]) -> Result<Vec<(PathBuf, [u8; 16])>, RecordError> {
    let mut writers = Vec::new();
    for device in devices.iter().filter(|device| device.slice == BOOTSTRAP.0) {
        let DeviceKind::Disk(disk) = &device.kind else { continue };
        if disk.read_only {
            continue;
        }
        if let Some(writer) = GenerationRecord::last_writer(&disk.path)? {
            writers.push((disk.path.clone(), writer.vm));
        }
    }
    Ok(writers)
}
