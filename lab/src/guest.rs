//! The initramfs of the guest: busybox, the guest test program as `/init`, and some kernel modules.
//!
//! The test program (crate `tessera-guest-tests`) is linked statically, so the image needs no library.
//! The modules are Debian's own, unpacked, for a stress that loads and unloads them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

use anyhow::{Context, Result, ensure};

use crate::kernel::{self, KernelFiles};
use crate::{cache, cpio, initrd};

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Small modules without dependencies and without hardware.
const MODULES: [&str; 6] = ["cordic", "crc-itu-t", "crc7", "reed_solomon", "lru_cache", "dummy"];

/// Drivers of virtio disks and of the power button, what shows its events to programs, and the drivers of virtio
/// networks and sockets; each behind those that it needs.
const DRIVERS: [&str; 9] = [
    "virtio_blk",
    "button",
    "evdev",
    "failover",
    "net_failover",
    "virtio_net",
    "vsock",
    "vmw_vsock_virtio_transport_common",
    "vmw_vsock_virtio_transport",
];

/// An initramfs for a guest.
#[derive(Clone, Debug)]
pub struct GuestImage {
    /// The image, an uncompressed cpio archive.
    pub path: PathBuf,
    /// Names of the modules in `/modules`, without `.ko`.
    pub modules: Vec<String>,
}

/// Builds the guest test program and packs the guest's initramfs for a kernel. The image is kept by
/// its content.
///
/// # Errors
/// When the program does not build, or busybox or the kernel's modules are missing.
pub fn guest_image(workspace: &Path, kernel: &KernelFiles) -> Result<GuestImage> {
    let program = guest_program(workspace)?;
    let program = fs::read(&program).with_context(|| format!("read {}", program.display()))?;
    let mut archive = cpio::Archive::new();
    for folder in ["proc", "sys", "tmp", "run", "root", "etc"] {
        archive.folder(folder);
    }
    archive.file("bin/guest-tests", 0o755, &program);
    archive.link("init", "bin/guest-tests");
    archive.file("bin/busybox", 0o755, &initrd::busybox()?);
    let mut modules = Vec::new();
    let indexed = kernel.root.join("lib/modules").join(&kernel.version);
    let index = fs::read_to_string(indexed.join("modules.dep"))
        .with_context(|| format!("read the module index of {}", kernel.version))?;
    for name in MODULES {
        let path = indexed.join(module(&index, name, &[])?);
        archive.file(&format!("modules/{name}.ko"), 0o644, &kernel::module(&path)?);
        modules.push(name.to_owned());
    }
    for (before, name) in DRIVERS.iter().enumerate() {
        let driver = module(&index, name, &DRIVERS[..before])?;
        let driver = kernel::module(&indexed.join(driver))?;
        archive.file(&format!("drivers/{name}.ko"), 0o644, &driver);
    }
    let path = cache::keep_image("guest-initrd", &archive.finish())?;
    Ok(GuestImage { path, modules })
}

/// Path of a module, by its line of `modules.dep`, which may name those that are `there` only.
fn module<'index>(index: &'index str, name: &str, there: &[&str]) -> Result<&'index str> {
    let is_of = |path: &str, name: &str| {
        let file = format!("/{name}.ko");
        path.rfind(&file).is_some_and(|at| {
            let rest = &path[at + file.len()..];
            rest.is_empty() || rest.starts_with('.')
        })
    };
    let mut lines = index.lines().filter_map(|line| line.split_once(':'));
    let line = lines.find(|(path, _)| is_of(path, name));
    let (path, needs) = line.with_context(|| format!("the kernel has no module {name}"))?;
    let missing = needs.split_whitespace().find(|path| !there.iter().any(|name| is_of(path, name)));
    ensure!(missing.is_none(), "module {name} needs others: {needs}");
    Ok(path)
}

/// Builds the guest test program statically and returns its path.
///
/// # Errors
/// When it does not build.
pub fn guest_program(workspace: &Path) -> Result<PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = match env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => workspace.join(folder),
        None => workspace.join("target"),
    };
    let status = Process::new(cargo)
        .args(["build", "-q", "--release", "--target", TARGET, "-p", "tessera-guest-tests"])
        .current_dir(workspace)
        .env("RUSTFLAGS", "-C target-feature=+crt-static -C strip=symbols")
        .stdin(Stdio::null())
        .status()
        .context("start cargo")?;
    ensure!(status.success(), "the guest test program does not build: cargo ended with {status}");
    Ok(target.join(TARGET).join("release/guest-tests"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: &str = "kernel/lib/crc7.ko.xz:\nkernel/a/xcrc7.ko.xz: kernel/b.ko.xz\n\
                         kernel/c/needy.ko: kernel/lib/crc7.ko.xz\n";

    #[test]
    fn module_is_found_by_its_whole_name() {
        assert_eq!(module(INDEX, "crc7", &[]).unwrap(), "kernel/lib/crc7.ko.xz");
    }

    #[test]
    fn module_that_needs_one_that_is_not_there_is_refused() {
        assert!(module(INDEX, "needy", &[]).is_err());
        assert!(module(INDEX, "needy", &["crc7"]).is_ok());
        assert!(module(INDEX, "absent", &[]).is_err());
    }
}
