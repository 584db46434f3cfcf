//! What is done to slices, hosts, lines and disks in a round of `soak chaos`, and how it is taken back.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use lab::{Command, Host, HostNumber};

use super::plan::Harm;
use super::round::{Chaos, LEASE};
use crate::soak::disks::Writing;
use crate::vm::companion::Companion;

/// A pause that [`LEASE`] survives.
const PAUSE: Duration = Duration::from_secs(1);
/// Of delayed frames, a full disk, and a console that nobody reads.
const WHILE: Duration = Duration::from_secs(20);
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// Lateness of frames.
const DELAY: &str = "40ms";
/// Where a disk lies that gets full: a file system of 2.2 MiB for an image of 2 MiB.
const SMALL: &str = "/run/tessera-chaos";

impl Chaos<'_> {
    /// Does it.
    pub(super) fn harm(&self, vm: &mut Writing<'_>, companion: &Companion) -> Result<()> {
        let victim = self.host(self.round.victim)?;
        match self.round.harm {
            Harm::Kill => self.signal(vm, companion, "KILL"),
            Harm::Freeze => self.signal(vm, companion, "STOP"),
            Harm::Pause => {
                let began = Instant::now();
                self.signal(vm, companion, "STOP")?;
                listen_for(vm, PAUSE)?;
                self.signal(vm, companion, "CONT")?;
                ensure_short(began)
            }
            Harm::Cut => victim.cut(),
            Harm::Blink => {
                let began = Instant::now();
                victim.cut()?;
                listen_for(vm, PAUSE)?;
                victim.heal()?;
                ensure_short(began)
            }
            Harm::Mute => self.line(&victim, "loss 100%"),
            Harm::Delay => {
                self.line(&victim, &format!("delay {DELAY}"))?;
                listen_for(vm, WHILE)
            }
            // It is so from the start.
            Harm::ClockDrift | Harm::ClockRunAway => Ok(()),
            Harm::FullDisk => {
                let fill = format!("dd if=/dev/zero of={SMALL}/filler bs=64k 2>/dev/null; true");
                self.shell(self.owner, &fill)
            }
            Harm::StalledConsole => {
                self.shell(self.host(0)?.number(), "pkill -STOP -x cat")?;
                listen_for(vm, WHILE)
            }
        }
    }

    /// Takes back what lasts; what was not done may be taken back as well.
    pub(super) fn undo(&self) -> Result<()> {
        match self.round.harm {
            Harm::Cut => self.host(self.round.victim)?.heal(),
            Harm::Mute | Harm::Delay => {
                let host = self.host(self.round.victim)?;
                self.shell(host.number(), "tc qdisc del dev eth0 root 2>/dev/null; true")
            }
            Harm::StalledConsole => self.shell(self.host(0)?.number(), "pkill -CONT -x cat; true"),
            _ => Ok(()),
        }
    }

    /// Something that happens to every frame that a host sends.
    fn line(&self, host: &Host<'_>, what: &str) -> Result<()> {
        self.shell(host.number(), &format!("tc qdisc replace dev eth0 root netem {what}"))
    }

    pub(super) fn signal(&self, vm: &Writing<'_>, companion: &Companion, name: &str) -> Result<()> {
        let number = match name {
            "KILL" => signal_hook::consts::SIGKILL,
            "STOP" => signal_hook::consts::SIGSTOP,
            "CONT" => signal_hook::consts::SIGCONT,
            _ => bail!("no signal {name}"),
        };
        match self.round.victim {
            0 => vm.bootstrap.handle().signal(number),
            _ => companion.signal(number),
        }
    }

    /// All zeros at the start of each life; on a file system that can be filled if it is about that.
    pub(super) fn make_disks(&mut self) -> Result<()> {
        if self.round.harm == Harm::FullDisk {
            self.shell(
                self.owner,
                &format!(
                    "set -e; mkdir -p {SMALL}; umount {SMALL} 2>/dev/null || true; \
                     mount -t tmpfs -o size=2200k tmpfs {SMALL}; truncate -s 2M {SMALL}/raw"
                ),
            )?;
            self.disks.raw = format!("{SMALL}/raw");
            return Ok(());
        }
        let raw = &self.disks.raw;
        self.shell(
            self.owner,
            &format!("dd if=/dev/zero of={raw} bs=1M count=2 conv=fsync,notrunc"),
        )
    }

    /// After the disks were judged.
    pub(super) fn unmake_disks(&self) -> Result<()> {
        match self.round.harm {
            Harm::FullDisk => self.shell(self.owner, &format!("umount {SMALL}")),
            _ => Ok(()),
        }
    }

    /// Of both disks, as their host sees them.
    pub(super) fn digest(&self) -> Result<String> {
        let words = ["sha256sum", &self.disks.raw, &self.disks.files];
        self.scenario.lab.host(self.owner)?.output(&Command::new(words), COMMAND_LIMIT)
    }

    fn shell(&self, host: HostNumber, line: &str) -> Result<()> {
        self.scenario.lab.host(host)?.output(&Command::shell(line), COMMAND_LIMIT).map(drop)
    }

    fn host(&self, slice: usize) -> Result<Host<'_>> {
        self.scenario.lab.host(HostNumber::new(slice + 1)?)
    }
}

/// A harm that lasted as long as a lease is another harm.
fn ensure_short(began: Instant) -> Result<()> {
    let lasted = began.elapsed();
    ensure!(lasted < LEASE, "the soak itself was late: a pause of {PAUSE:?} took {lasted:.1?}");
    Ok(())
}

fn listen_for(vm: &mut Writing<'_>, time: Duration) -> Result<()> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        vm.listen()?;
    }
    Ok(())
}
