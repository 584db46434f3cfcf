//! What the root file systems are made of. Whatever is named here, and the scripts that run inside,
//! decide about an image; its digest is the image's name in the cache.

use sha2::{Digest, Sha256};

use super::objects::OBJECTS;
use crate::http;

/// Raise this when [`super::build`] does something else with the same recipe.
const VERSION: &str = "1";
/// The script that sets a system up, inside of it.
pub(super) const INSIDE: &str = include_str!("inside.sh");
/// The script that runs after it in the system with servers.
const SERVERS: &str = include_str!("servers.sh");
/// Label of the root file system.
pub const LABEL: &str = "tessera";

/// A system that can be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// A web server, fio, and what a machine is administered with.
    Base,
    /// The same with what people run on servers: PHP, MariaDB, PostgreSQL, Redis, compressors, make. None of it runs from the start.
    Servers,
}

/// All of them.
pub(super) const SYSTEMS: [System; 2] = [System::Base, System::Servers];

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
/// What the system with servers has beyond those.
const SERVER_PACKAGES: [&str; 10] = [
    "php-fpm",
    "php-mysql",
    "mariadb-server",
    "postgresql",
    "postgresql-contrib",
    "redis-server",
    "redis-tools",
    "pigz",
    "xz-utils",
    "make",
];
/// The kernel, from the suite where the kernels of the lab's other guests come from.
const KERNEL: &str = "linux-image-cloud-amd64";
/// Files of packages that nobody reads in a guest without people.
const LEFT_OUT: [&str; 4] =
    ["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*"];

impl System {
    /// Size of the image; what is not used of it takes no space.
    const fn size(self) -> &'static str {
        match self {
            Self::Base => "1280M",
            Self::Servers => "2560M",
        }
    }

    /// Scripts that set it up, one after the other.
    pub(super) const fn scripts(self) -> &'static [&'static str] {
        match self {
            Self::Base => &[INSIDE],
            Self::Servers => &[INSIDE, SERVERS],
        }
    }

    /// Arguments of mmdebstrap that say what to install; `kernel_suite` has the kernel.
    pub(super) fn arguments(self, kernel_suite: &str) -> Vec<String> {
        let mut arguments = vec!["--variant=minbase".to_owned()];
        let left_out = LEFT_OUT.iter().map(|path| format!("--dpkgopt=path-exclude={path}"));
        arguments.extend(left_out);
        let more: &[&str] = match self {
            Self::Base => &[],
            Self::Servers => &SERVER_PACKAGES,
        };
        let packages = [&PACKAGES[..], more].concat().join(",");
        arguments.push(format!("--include={packages},{KERNEL}/{kernel_suite}"));
        arguments
    }

    /// Arguments of mke2fs that make the image out of a folder.
    pub(super) fn image_arguments<'a>(self, folder: &'a str, image: &'a str) -> Vec<&'a str> {
        // No time of a check, no blocks set aside, and tables that are written now, not while the guest runs.
        let features = "lazy_itable_init=0,lazy_journal_init=0,root_owner=0:0";
        let own = ["-q", "-t", "ext4", "-L", LABEL, "-m", "0", "-E", features, "-d", folder];
        own.into_iter().chain([image, self.size()]).collect()
    }

    /// Digest of everything above, in short.
    pub(super) fn digest(self) -> String {
        let mut digest = Sha256::new();
        let mut add = |text: &str| {
            digest.update((text.len() as u64).to_le_bytes());
            digest.update(text);
        };
        add(VERSION);
        self.scripts().iter().for_each(|script| add(script));
        for argument in self.arguments("") {
            add(&argument);
        }
        for argument in self.image_arguments("", "") {
            add(argument);
        }
        for object in OBJECTS {
            add(&format!("{}={}", object.name, object.sha256()));
        }
        http::hexadecimal(&digest.finalize()).chars().take(16).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_have_images_of_their_own() {
        let digests = SYSTEMS.map(System::digest);
        assert_ne!(digests[0], digests[1]);
        assert!(SYSTEMS[1].arguments("").iter().any(|word| word.contains(",mariadb-server,")));
        assert!(!SYSTEMS[0].arguments("").iter().any(|word| word.contains("mariadb")));
    }
}
