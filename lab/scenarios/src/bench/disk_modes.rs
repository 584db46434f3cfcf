//! The disks of `./x bench disk`, and the vCPU that each mode uses them from.

use std::fmt;

use anyhow::{Context, Result};

use crate::bench::device::{Bed, LOCAL_CPU, REMOTE_CPU};

/// Bytes of the scratch disks; the guest tells them apart by that.
pub(crate) const DISKS: [u64; 2] = [256 << 20, 257 << 20];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    Local,
    Bypass,
    Coherent,
}

pub(crate) const MODES: [Mode; 3] = [Mode::Local, Mode::Bypass, Mode::Coherent];

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Local => "local",
            Self::Bypass => "bypass",
            Self::Coherent => "coherent",
        })
    }
}

impl Mode {
    pub(crate) fn cpu(self) -> u16 {
        if self == Self::Local { LOCAL_CPU } else { REMOTE_CPU }
    }
}

/// Disks as the guest calls them.
#[derive(Clone, Debug)]
pub(crate) struct Disks([String; 2]);

impl Disks {
    pub(crate) fn of(&self, mode: Mode) -> &str {
        &self.0[usize::from(mode == Mode::Coherent)]
    }

    /// The device's number in the VM: the system's disk is the first.
    pub(crate) fn device(&self, mode: Mode) -> u16 {
        1 + u16::from(mode == Mode::Coherent)
    }

    /// Finds them by their sizes.
    pub(crate) fn find(bed: &Bed<'_>) -> Result<Self> {
        let line = "for path in /sys/block/vd*; do \
                    echo \"/dev/${path##*/} $(cat \"$path/size\")\"; done";
        let said = bed.guest.ssh(line)?;
        let name = |bytes: u64| {
            // In sectors of 512 bytes (Documentation/ABI/stable/sysfs-block).
            let end = format!(" {}", bytes / 512);
            let disk = said.lines().find_map(|line| line.strip_suffix(&end));
            disk.map(str::to_owned).with_context(|| format!("no disk of {bytes} bytes: {said}"))
        };
        Ok(Self([name(DISKS[0])?, name(DISKS[1])?]))
    }
}
