//! Hosts that are QEMU machines of their own, joined by the [`Switch`].

use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};

use crate::command::Command;
use crate::host_number::HostNumber;
use crate::hosts::{Config, HostState, Hosts};
use crate::machine::{Kit, Machine, MachineConfig};
use crate::remote::RemoteProcess;
use crate::switch::Switch;

/// N machines on one private network.
#[derive(Debug)]
pub(crate) struct Machines {
    machines: Vec<Machine>,
    /// Disks of each machine.
    disks: Vec<usize>,
    switch: Switch,
    // Last: the thread that started the machines must outlive them.
    _kit: Kit,
}

impl Machines {
    /// Boots all machines at once.
    pub(crate) fn up(config: &Config, folder: &Path, say: &(dyn Fn(&str) + Sync)) -> Result<Self> {
        let kit = Kit::prepare(folder, say)?;
        let switch = Switch::start(folder, config.hosts)?;
        say(&format!("booting {} lab hosts, {} MiB each", config.hosts, config.memory_mib));
        let booted: Vec<Result<Machine>> = thread::scope(|scope| {
            let boots: Vec<_> = HostNumber::first(config.hosts)
                .map(|host| {
                    let machine = MachineConfig {
                        number: host.get(),
                        memory_mib: config.memory_mib,
                        processors: config.processors,
                        address: Some(format!("{}/24", host.address())),
                        rdma: config.rdma,
                        counted: false,
                        folder: folder.to_owned(),
                        boot_limit: config.boot_limit,
                        disks: config.disks_of(host),
                    };
                    let kit = &kit;
                    scope.spawn(move || Machine::boot(kit, &machine, say))
                })
                .collect();
            boots.into_iter().map(|boot| boot.join().expect("a boot does not panic")).collect()
        });
        let machines = booted.into_iter().collect::<Result<_>>()?;
        let disks = HostNumber::first(config.hosts).map(|host| config.disks_of(host).len());
        Ok(Self { machines, disks: disks.collect(), switch, _kit: kit })
    }

    fn machine(&self, host: HostNumber) -> Result<&Machine> {
        self.machines.get(host.index()).with_context(|| format!("there is no host {host}"))
    }
}

/// Names of the first virtio disks of a machine; a host has no other disks.
pub(crate) fn devices(count: usize) -> Vec<PathBuf> {
    (b'a'..=b'z')
        .take(count)
        .map(|letter| format!("/dev/vd{}", char::from(letter)).into())
        .collect()
}

impl Hosts for Machines {
    fn count(&self) -> usize {
        self.machines.len()
    }

    fn spawn(&self, host: HostNumber, command: &Command) -> Result<RemoteProcess> {
        self.machine(host)?.channel.spawn(command)
    }

    fn cut(&self, host: HostNumber) -> Result<()> {
        self.machine(host)?;
        self.switch.set_cut(host.index(), true);
        Ok(())
    }

    fn heal(&self, host: HostNumber) -> Result<()> {
        self.machine(host)?;
        self.switch.set_cut(host.index(), false);
        Ok(())
    }

    fn kill(&self, host: HostNumber) -> Result<()> {
        self.machine(host)?.kill();
        Ok(())
    }

    fn state(&self, host: HostNumber) -> Result<HostState> {
        let machine = self.machine(host)?;
        Ok(HostState {
            number: host,
            address: host.address(),
            alive: machine.is_alive(),
            cut: self.switch.is_cut(host.index()),
            process: Some(machine.process),
            job: machine.files.job.clone(),
            job_inside: PathBuf::from("/job"),
            shared: machine.files.shared.clone(),
            shared_inside: PathBuf::from("/shared"),
            console: Some(machine.files.console.clone()),
            disks: devices(self.disks[host.index()]),
        })
    }
}
