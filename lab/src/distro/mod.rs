//! Debian systems for guests: root file system, kernel, initial RAM disk, keys.
//!
//! Each is built by Debian's own tools out of the packages of the machine's own archive, once for each
//! [`recipe`], and kept in the cache; no image is in git and nobody writes to the one in the cache.
//!
//! ```text
//!   recipe ── digest ──> cache/distro/DIGEST ── there? ── yes ─> Distro
//!                                                  └ no: mmdebstrap ─> inside.sh (─> servers.sh) ─> mke2fs -d ─> rename
//! ```
//! docs/distro.md says what is in it and how to change it.

mod build;
mod objects;
mod plain;
mod recipe;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cache;

pub use objects::{OBJECTS, Object};
pub use plain::{Plain, PlainConfig};
pub use recipe::{LABEL, System};

/// Address of the guest on its first network device; it is a /24.
pub const GUEST_ADDRESS: &str = "192.168.77.2";
/// Address of the host on the same network, with the length of its prefix.
pub const HOST_ADDRESS: &str = "192.168.77.1/24";
/// Port of the server that has a worker on each CPU. The servers with one worker on CPU N alone are at
/// [`CPU_PORT`] + N.
pub const HTTP_PORT: u16 = 80;
/// Port of the server that runs on CPU 0 alone.
pub const CPU_PORT: u16 = 8000;
/// What the console says last when the system is up.
pub const PROMPT: &str = "tessera login: ";
/// What the kernel needs to hear to find this system.
pub const COMMAND_LINE: &str = "root=LABEL=tessera ro console=ttyS0";

/// Files of the system.
#[derive(Clone, Debug)]
pub struct Distro {
    /// Folder of all the others.
    pub folder: PathBuf,
    /// The disk: ext4 without partitions, raw.
    pub image: PathBuf,
    /// The kernel as a bzImage.
    pub vmlinuz: PathBuf,
    /// The same kernel as ELF.
    pub vmlinux: PathBuf,
    /// The initial RAM disk.
    pub initrd: PathBuf,
    /// Private key that opens the guest's ssh to root.
    pub key: PathBuf,
    /// The guest's own ssh key, as a file of known hosts; the host is called `tessera`.
    pub known_hosts: PathBuf,
}

impl Distro {
    fn in_folder(folder: &Path) -> Self {
        let file = |name: &str| folder.join(name);
        Self {
            folder: folder.to_owned(),
            image: file("disk.raw"),
            vmlinuz: file("vmlinuz"),
            vmlinux: file("vmlinux"),
            initrd: file("initrd"),
            key: file("id_ed25519"),
            known_hosts: file("known_hosts"),
        }
    }

    /// An ssh command line that runs `command` in the guest as root. `address` and `port` are where
    /// the guest's ssh is reached.
    pub fn ssh(&self, address: &str, port: u16, command: &str) -> Vec<String> {
        let (key, hosts) = (self.key.display(), self.known_hosts.display());
        let mut words = vec!["ssh".to_owned(), "-F".to_owned(), "none".to_owned()];
        let options = [
            format!("IdentityFile={key}"),
            format!("UserKnownHostsFile={hosts}"),
            "HostKeyAlias=tessera".to_owned(),
            "StrictHostKeyChecking=yes".to_owned(),
            "BatchMode=yes".to_owned(),
            "IdentitiesOnly=yes".to_owned(),
            "LogLevel=ERROR".to_owned(),
            format!("Port={port}"),
        ];
        words.extend(options.into_iter().flat_map(|option| ["-o".to_owned(), option]));
        words.extend(["-l".to_owned(), "root".to_owned(), address.to_owned(), command.to_owned()]);
        words
    }
}

/// A system of this tree's recipes, built the first time; `say` hears the progress.
///
/// # Errors
/// When it is to be built and this is not root, a tool is missing, or the archive cannot be reached.
pub fn distro(system: System, say: &dyn Fn(&str)) -> Result<Distro> {
    let root = cache::root()?.join("distro");
    fs::create_dir_all(&root).with_context(|| format!("create {}", root.display()))?;
    let folder = root.join(system.digest());
    let _lock = cache::lock(&root.join("build.lock"))?;
    let distro = Distro::in_folder(&folder);
    if !folder.exists() {
        build::build(system, &root, &folder, say)?;
    }
    Ok(distro)
}

/// Removes the images of other recipes. Returns their folders.
///
/// # Errors
/// When one cannot be removed.
pub fn clean() -> Result<Vec<PathBuf>> {
    let root = cache::root()?.join("distro");
    let own = recipe::SYSTEMS.map(|system| root.join(system.digest()));
    let mut gone = Vec::new();
    if !root.exists() {
        return Ok(gone);
    }
    let _lock = cache::lock(&root.join("build.lock"))?;
    for entry in fs::read_dir(&root).with_context(|| format!("list {}", root.display()))? {
        let path = entry?.path();
        if path.is_dir() && !own.contains(&path) {
            cache::remove_folder(&path)?;
            gone.push(path);
        }
    }
    Ok(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_and_file_system_agree_on_the_label() {
        assert!(COMMAND_LINE.contains(&format!("root=LABEL={LABEL} ")));
        assert!(recipe::INSIDE.contains(&format!("LABEL={LABEL} / ext4")));
    }

    #[test]
    fn addresses_and_ports_are_those_of_the_script() {
        assert!(recipe::INSIDE.contains(&format!("Address={GUEST_ADDRESS}/24")));
        let gateway = HOST_ADDRESS.split('/').next().unwrap();
        assert!(recipe::INSIDE.contains(&format!("Gateway={gateway}")));
        assert!(recipe::INSIDE.contains(&format!("$(({CPU_PORT} + number))")));
    }

    #[test]
    fn ssh_trusts_the_key_of_the_build_and_no_other() {
        let words = Distro::in_folder(Path::new("/cache")).ssh("10.0.0.1", 22, "true");

        assert!(words.contains(&"UserKnownHostsFile=/cache/known_hosts".to_owned()));
        assert!(words.contains(&"StrictHostKeyChecking=yes".to_owned()));
        assert_eq!(&words[words.len() - 2..], ["10.0.0.1", "true"]);
    }
}
