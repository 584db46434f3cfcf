//! The disks of `./x bench disk`, the vCPU that each mode uses them from, and how much is measured.

use std::fmt;

use anyhow::{Context, Result};

use super::fio::{Block, Job, Pattern};
use crate::bench::devices::{LOCAL_CPU, REMOTE_CPU, Setup};

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
    pub(crate) fn find(setup: &Setup<'_>) -> Result<Self> {
        let line = "for path in /sys/block/vd*; do \
                    echo \"/dev/${path##*/} $(cat \"$path/size\")\"; done";
        let said = setup.guest.ssh(line)?;
        let name = |bytes: u64| {
            // In sectors of 512 bytes (Documentation/ABI/stable/sysfs-block).
            let end = format!(" {}", bytes / 512);
            let disk = said.lines().find_map(|line| line.strip_suffix(&end));
            disk.map(str::to_owned).with_context(|| format!("no disk of {bytes} bytes: {said}"))
        };
        Ok(Self([name(DISKS[0])?, name(DISKS[1])?]))
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) loads: &'static [(Block, Pattern)],
    pub(crate) jobs: &'static [u16],
    pub(crate) rounds: usize,
    /// Of one load.
    pub(crate) seconds: u32,
    /// MiB of the look at pages that travel.
    pub(crate) traffic: u64,
}

pub(crate) const QUICK: Plan = Plan {
    loads: &[
        (Block::Small, Pattern::RandRead),
        (Block::Small, Pattern::RandWrite),
        (Block::Large, Pattern::Read),
        (Block::Large, Pattern::Write),
    ],
    jobs: &[1],
    rounds: 1,
    seconds: 6,
    traffic: 64,
};
pub(crate) const FULL: Plan = Plan {
    loads: &[
        (Block::Small, Pattern::RandRead),
        (Block::Small, Pattern::RandWrite),
        (Block::Large, Pattern::Read),
        (Block::Large, Pattern::Write),
    ],
    jobs: &[1, 2, 4, 8],
    rounds: 3,
    // Eight jobs of large requests have some seconds of them on their way.
    seconds: 8,
    traffic: 1024,
};

impl Plan {
    /// Every load with every number of jobs.
    pub(crate) fn loads(&self) -> impl Iterator<Item = Job> {
        let jobs = self.jobs;
        let each = move |(block, pattern): (Block, Pattern)| {
            jobs.iter().map(move |&jobs| Job { block, pattern, jobs })
        };
        self.loads.iter().copied().flat_map(each)
    }
}
