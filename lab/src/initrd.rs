//! The initramfs of a lab host: busybox, the modules its root file system needs, and two scripts.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::kernel::KernelFiles;
use crate::{cache, cpio, kernel, packages};

const FIRST_STAGE: &str = include_str!("host-initramfs.sh");
const SECOND_STAGE: &str = include_str!("host-init.sh");
/// What a host needs before it sees the machine's file system, and the agent's port.
const MODULES: [&str; 6] =
    ["virtio_pci", "9p", "9pnet_virtio", "overlay", "virtio_net", "virtio_console"];
const QUERY_LIMIT: Duration = Duration::from_secs(60);

/// Busybox of the machine; it must be the static one.
pub(crate) fn busybox() -> Result<Vec<u8>> {
    let path =
        ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
    let path = path.context("busybox is missing; install the package busybox-static")?;
    let bytes = fs::read(path).with_context(|| format!("read {path}"))?;
    // A dynamic program names its loader in the first page.
    let head = &bytes[..bytes.len().min(4096)];
    let loader = b"/lib64/ld-linux";
    ensure!(
        !head.windows(loader.len()).any(|window| window == loader),
        "{path} needs shared libraries; install the package busybox-static"
    );
    Ok(bytes)
}

/// The host initramfs for a kernel, from the cache if it is there.
pub(crate) fn host_initrd(kernel: &KernelFiles) -> Result<PathBuf> {
    let mut archive = cpio::Archive::new();
    for folder in ["proc", "sys", "lower", "layer", "new"] {
        archive.folder(folder);
    }
    archive.file("init", 0o755, FIRST_STAGE.as_bytes());
    archive.file("host-init.sh", 0o755, SECOND_STAGE.as_bytes());
    archive.file("bin/busybox", 0o755, &busybox()?);
    let mut order = String::new();
    for path in modules_in_order(kernel)? {
        let name = path.file_name().context("name of a module")?.to_string_lossy();
        let name = name.split_once(".ko").map_or(&*name, |(name, _)| name);
        archive.file(&format!("modules/{name}.ko"), 0o644, &kernel::module(&path)?);
        order.push_str(name);
        order.push_str(".ko\n");
    }
    archive.file("modules/order", 0o644, order.as_bytes());
    cache::keep_image("host-initrd", &archive.finish())
}

/// The module files to insert, dependencies first; modules built into the kernel have none.
fn modules_in_order(kernel: &KernelFiles) -> Result<Vec<PathBuf>> {
    let root = packages::text(&kernel.root)?;
    let mut seen = HashSet::new();
    let mut order = Vec::new();
    for module in MODULES {
        let arguments = ["-S", &kernel.version, "-d", root, "--show-depends", module];
        let said = cache::run("modprobe", &arguments, QUERY_LIMIT)?;
        for line in String::from_utf8_lossy(&said).lines() {
            if let Some(path) = line.trim().strip_prefix("insmod ") {
                let path = PathBuf::from(path.trim());
                if seen.insert(path.clone()) {
                    order.push(path);
                }
            }
        }
    }
    Ok(order)
}
