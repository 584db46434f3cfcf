//! What a VM needs before it starts: programs, the guest's files, hosts.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use lab::distro::{Distro, System};
use lab::kernel_build::{self, Variant};
use lab::{Config, Disk, KernelFiles, Lab};

use super::layout::Layout;
use super::options::{GuestKernel, VmOptions};
use crate::progress::Progress;
use crate::workspace;

/// What is ready before hosts are there.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) program: PathBuf,
    /// bzImage.
    pub(crate) vmlinuz: PathBuf,
    /// The same as ELF.
    pub(crate) vmlinux: PathBuf,
    pub(crate) initrd: PathBuf,
    /// The system that is booted; without one the guest's tests are.
    pub(crate) distro: Option<Distro>,
}

/// Builds tessera and the guest's files.
pub(crate) fn prepare(options: &VmOptions, progress: &Progress) -> Result<Prepared> {
    let root = workspace::root()?;
    let program = program(options, &root, progress)?;
    let kernel = kernel(options.guest_kernel, &root, progress)?;
    progress.say("building the guest's test program and initramfs");
    let initrd = lab::guest_image(&root, &kernel)?.path;
    let KernelFiles { vmlinuz, vmlinux, .. } = kernel;
    Ok(Prepared { program, vmlinuz, vmlinux, initrd, distro: None })
}

fn kernel(kernel: GuestKernel, root: &Path, progress: &Progress) -> Result<KernelFiles> {
    let say = |line: &str| progress.say(line);
    match kernel {
        GuestKernel::Debian => lab::guest_kernel(&say),
        GuestKernel::Stock => kernel_build::build(root, Variant::Stock, &say),
        GuestKernel::Patched => kernel_build::build(root, Variant::Patched, &say),
    }
}

/// Builds tessera and a Debian system that boots from a disk. It has Debian's own kernel.
pub(crate) fn prepare_distro(
    system: System,
    options: &VmOptions,
    progress: &Progress,
) -> Result<Prepared> {
    ensure!(
        options.guest_kernel == GuestKernel::Debian,
        "a Debian system boots its own kernel; --guest-kernel is for the guest's tests"
    );
    let program = program(options, &workspace::root()?, progress)?;
    let distro = lab::distro::distro(system, &|line| progress.say(line))?;
    let Distro { vmlinuz, vmlinux, initrd, .. } = distro.clone();
    Ok(Prepared { program, vmlinuz, vmlinux, initrd, distro: Some(distro) })
}

fn program(options: &VmOptions, root: &Path, progress: &Progress) -> Result<PathBuf> {
    options.program.clone().map_or_else(|| build(root, progress), Ok)
}

fn build(root: &Path, progress: &Progress) -> Result<PathBuf> {
    progress.say("building tessera (release)");
    workspace::run_cargo(root, &["build", "-q", "--release", "--locked", "-p", "tessera"])
        .context("build tessera")?;
    Ok(workspace::target(root).join("release/tessera"))
}

/// Brings up the hosts for a VM.
pub(crate) fn hosts(options: &VmOptions, layout: &Layout, progress: &Progress) -> Result<Lab> {
    hosts_with_disks(options, layout, Vec::new(), progress)
}

/// The same with disks.
pub(crate) fn hosts_with_disks(
    options: &VmOptions,
    layout: &Layout,
    disks: Vec<Disk>,
    progress: &Progress,
) -> Result<Lab> {
    let config = Config { disks, ..options.lab(layout.slices()) };
    let lab = Lab::up(&config, &|line| progress.say(line))?;
    let addresses: Vec<_> = lab.hosts().map(|host| host.address().to_string()).collect();
    progress.say(&format!("{} hosts are up: {}", addresses.len(), addresses.join(", ")));
    progress.say(&format!("logs are in {}", lab.folder().display()));
    Ok(lab)
}
