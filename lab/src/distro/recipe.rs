//! What the root file system is made of. Whatever is named here, and the script that runs inside,
//! decides about the image; its digest is the image's name in the cache.

use sha2::{Digest, Sha256};

use super::objects::OBJECTS;
use crate::http;

/// Raise this when [`super::build`] does something else with the same recipe.
const VERSION: &str = "1";
/// The script that sets the system up, inside of it.
pub(super) const INSIDE: &str = include_str!("inside.sh");
/// Label of the root file system.
pub const LABEL: &str = "tessera";
/// Size of the image; what is not used of it takes no space.
pub(super) const SIZE: &str = "1280M";
/// Packages beyond those that Debian calls required.
const PACKAGES: [&str; 13] = [
    "systemd",
    "systemd-sysv",
    "udev",
    "kmod",
    "iproute2",
    "procps",
    "openssh-server",
    "nginx",
    "fio",
    "e2fsprogs",
    "ethtool",
    "initramfs-tools",
    "zstd",
];
/// The kernel, from the suite where the kernels of the lab's other guests come from.
const KERNEL: &str = "linux-image-cloud-amd64";
/// Files of packages that nobody reads in a guest without people.
const LEFT_OUT: [&str; 4] =
    ["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*"];

/// Arguments of mmdebstrap that say what to install; `kernel_suite` has the kernel.
pub(super) fn arguments(kernel_suite: &str) -> Vec<String> {
    let mut arguments = vec!["--variant=minbase".to_owned()];
    let left_out = LEFT_OUT.iter().map(|path| format!("--dpkgopt=path-exclude={path}"));
    arguments.extend(left_out);
    arguments.push(format!("--include={},{KERNEL}/{kernel_suite}", PACKAGES.join(",")));
    arguments
}

/// Arguments of mke2fs that make the image out of a folder.
pub(super) fn image_arguments<'a>(folder: &'a str, image: &'a str) -> Vec<&'a str> {
    // No time of a check, no blocks set aside, and tables that are written now, not while the guest runs.
    let features = "lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0";
    let own = ["-q", "-t", "ext4", "-L", LABEL, "-m", "0", "-E", features, "-d", folder];
    own.into_iter().chain([image, SIZE]).collect()
}

/// Digest of everything above, in short.
pub(super) fn digest() -> String {
    let mut digest = Sha256::new();
    let mut add = |text: &str| {
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text);
    };
    add(VERSION);
    add(INSIDE);
    for argument in arguments("") {
        add(&argument);
    }
    for argument in image_arguments("", "") {
        add(argument);
    }
    for object in OBJECTS {
        add(&format!("{}={}", object.name, object.sha256()));
    }
    http::hexadecimal(&digest.finalize()).chars().take(16).collect()
}
