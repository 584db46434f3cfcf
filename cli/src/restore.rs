//! A bootstrap that goes on from a checkpoint: what of the VM is as it was, and what the command line says anew.

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use migrate::supervise::Lives;
use std::path::PathBuf;
use transport::Secret;
use vmm::slice::{
    DeviceSpec, Interrupts, RestoreOptions, RestoredClock, SliceSpec, VmSpec, clone_spec,
    saved_spec,
};

#[derive(Args, Clone, Debug)]
pub(crate) struct Restore {
    /// Go on from the checkpoint in this folder (tessera vm checkpoint), on any number of slices
    ///
    /// - Together the slices have as many vCPUs and as much memory as the VM had. Without --slice all of it is here.
    /// - Companions are started with `--checkpoints DIR`, where DIR has the checkpoint's folder.
    /// - Devices are those of the VM. If any is given, all are: of the same kinds, in the same order.
    #[arg(long, value_name = "FOLDER", verbatim_doc_comment)]
    pub(crate) restore: Option<PathBuf>,
    /// What the guest's clock shows first when the VM goes on from a checkpoint
    #[arg(long, value_enum, default_value_t = Clock::Keep)]
    clock: Clock,
    /// Do not check who wrote the checkpoint: go on from one that was written without a secret, or whose secret is not given
    #[arg(long, requires = "restore")]
    pub(crate) unauthenticated: bool,
    /// Go on although a disk of which the checkpoint has no state is not what the VM has left there
    #[arg(long, requires = "restore")]
    no_disk_guarantee: bool,
    /// Run the guest before its memory is read: what it touches is read first, the rest meanwhile
    ///
    /// - Without this all memory is read and verified before the guest runs.
    /// - The VM ends if some of the checkpoint turns out to be damaged or cannot be read later.
    /// - The checkpoint and its bases must stay where they are until all is read.
    #[arg(long, requires = "restore", verbatim_doc_comment)]
    pub(crate) lazy: bool,
    /// Go on as another VM, of this name: the one of the checkpoint may run beside it, and so may other clones
    ///
    /// - Each disk that is written is `IMAGE.clone-NAME`, beside IMAGE and over its state, which stays for as long as that file is there. Name
    ///   disks as those of the original, and give that file from then on.
    /// - Networks have other addresses (MAC) unless `mac=` is given, and need taps of their own (`--net`).
    /// - The guest has another generation id. What it keeps on its disks it shares with the original: give it another machine id and
    ///   other host keys (docs/operations.md).
    #[arg(long, value_name = "NAME", requires = "restore", verbatim_doc_comment)]
    pub(crate) clone: Option<String>,
    /// Slices of the VM that was lost may be there until then, in milliseconds of CLOCK_BOOTTIME; a supervisor says so
    #[arg(long, value_name = "MILLISECONDS", requires = "restore", hide = true)]
    fenced_at: Option<u64>,
    /// The last life of the VM that its supervisor has begun, and the number of this one; a supervisor says so
    #[arg(long, value_name = "LAST:NEXT", value_parser = lives, requires = "restore", hide = true)]
    lives: Option<Lives>,
}

/// `LAST:NEXT`, in this order.
fn lives(text: &str) -> Result<Lives, String> {
    let numbers = text.split_once(':').and_then(|(last, next)| {
        let (last, next) = (last.parse().ok()?, next.parse().ok()?);
        (last < next).then_some(Lives { last, next })
    });
    numbers.ok_or_else(|| "write LAST:NEXT, two numbers of which the second is higher".to_owned())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Clock {
    /// What it showed last
    Keep,
    /// As if it had run on
    CatchUp,
}

impl Restore {
    /// Clap does not ask for `--restore` where `--kernel` is given, which conflicts with it. Other options of this kind do no harm then,
    /// and a supervisor, which goes on from a checkpoint later, gives them from the start.
    ///
    /// # Errors
    /// A clone of nothing: it would run on the disks themselves.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(
            self.clone.is_none() || self.restore.is_some(),
            "--clone is of the VM in a checkpoint: give that by --restore, or leave --clone out"
        );
        Ok(())
    }

    /// Whether it is wanted, and how.
    pub(crate) fn options(&self) -> Option<RestoreOptions> {
        let clock = match self.clock {
            Clock::Keep => RestoredClock::Keep,
            Clock::CatchUp => RestoredClock::CatchUp,
        };
        let path = self.restore.clone()?;
        let Self { unauthenticated, no_disk_guarantee, lazy, fenced_at, lives, .. } = *self;
        let clone = self.clone.clone();
        Some(RestoreOptions {
            path,
            clock,
            unauthenticated,
            no_disk_guarantee,
            lazy,
            clone,
            fenced_at,
            lives,
        })
    }
}

/// The VM in a checkpoint on these slices, or on one, and with these devices and interrupts, or with those that it had; `were`
/// says which slice of the checkpoint each slice is, if anything.
pub(crate) fn spec(
    restore: &RestoreOptions,
    secret: Option<&Secret>,
    asked: VmSpec,
    (interrupts, were): (Option<Interrupts>, &[u16]),
) -> Result<VmSpec> {
    let saved = saved_spec(&restore.path, restore.secret(secret)).context("read the checkpoint")?;
    let slices = if asked.slices.is_empty() { vec![whole(&saved)] } else { asked.slices };
    let given = !asked.devices.is_empty();
    let devices = if given {
        asked.devices
    } else {
        let devices = renumbered(saved.devices, were).into_iter();
        devices.map(|device| placed(device, slices.len())).collect()
    };
    let (interrupts, clock_rate) = (interrupts.unwrap_or(saved.interrupts), saved.clock_rate);
    let spec = VmSpec { slices, devices, interrupts, clock_rate, ..asked };
    clone_spec(restore, secret, (spec, given)).context("make a clone")
}

/// One slice with all of a VM.
fn whole(spec: &VmSpec) -> SliceSpec {
    let all = |of: fn(&SliceSpec) -> u32| spec.slices.iter().map(of).sum();
    SliceSpec {
        vcpus: all(|slice| slice.vcpus),
        spare_vcpus: all(|slice| slice.spare_vcpus),
        memory: spec.slices.iter().map(|slice| slice.memory).sum(),
    }
}

/// The same devices where slices have other numbers, if anybody says so.
pub(crate) fn renumbered(devices: Vec<DeviceSpec>, were: &[u16]) -> Vec<DeviceSpec> {
    if were.is_empty() {
        return devices;
    }
    devices.iter().map(|device| device.renumbered(were)).collect()
}

/// A device where it was, or, if there are not so many slices, at the first one.
fn placed(mut device: DeviceSpec, slices: usize) -> DeviceSpec {
    let is_there = |slice: u16| usize::from(slice) < slices;
    if !is_there(device.slice) {
        device.slice = 0;
    }
    let own = device.slice;
    device.standby.retain(|other| is_there(other.slice) && other.slice != own);
    device
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_are_two_ascending_numbers() {
        assert_eq!(lives("0:1"), Ok(Lives { last: 0, next: 1 }));
        for text in ["", "1", "1:1", "2:1", "x:2", "1:", "1:2:3", "-1:2"] {
            assert!(lives(text).is_err(), "{text}");
        }
    }
}
