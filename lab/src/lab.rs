//! A lab: some hosts that stand for as long as the value lives.

use std::fs::{self, File, TryLockError};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::cache;
use crate::command::{Command, ExitStatus, Stream};
use crate::host_number::{HostNumber, MAX_HOSTS};
use crate::hosts::{Config, HostState, Hosts, MAX_DISKS, Mode, PROGRAM};
use crate::machine::remove_sockets;
use crate::machines::Machines;
use crate::namespaces::Namespaces;
use crate::remote::{Line, RemoteProcess};
use crate::substrate::{Substrate, substrate};

/// Longest time for setting up a device in a host.
const DEVICE_LIMIT: Duration = Duration::from_secs(60);

/// Hosts that stand. Dropping the lab ends them and removes what they leave.
#[derive(Debug)]
pub struct Lab {
    // First: hosts end before the lock is given back.
    hosts: Box<dyn Hosts>,
    folder: PathBuf,
    substrate: Substrate,
    mode: Mode,
    _lock: File,
}

/// What the lab writes into its folder for people and for `./x lab status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LabState {
    /// Process that owns the lab.
    pub owner: u32,
    /// What the hosts run on.
    pub substrate: Substrate,
    /// The hosts.
    pub hosts: Vec<HostState>,
}

impl Lab {
    /// Brings hosts up and waits until all of them answer; `say` is told what is going on.
    ///
    /// # Errors
    /// When a lab of this name is up, something the lab needs is missing, or a host does not answer.
    pub fn up(config: &Config, say: &(dyn Fn(&str) + Sync)) -> Result<Self> {
        ensure!(
            (1..=MAX_HOSTS).contains(&config.hosts),
            "{} hosts: a lab has 1 to {MAX_HOSTS}",
            config.hosts
        );
        for disk in &config.disks {
            ensure!(disk.host.get() <= config.hosts, "disk {disk}: there is no such host");
            ensure!(
                config.disks_of(disk.host).len() <= MAX_DISKS,
                "a host has up to {MAX_DISKS} disks"
            );
        }
        let folder = cache::run_folder(&config.name)?;
        let lock = claim(&config.name, &folder)?;
        cache::remove_folder(&folder)?;
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let hardware = substrate() == Substrate::Hardware;
        let mode = match config.mode {
            // Soft-RoCE needs a kernel of its own in each host.
            Mode::Auto if hardware && !config.rdma => Mode::Namespaces,
            Mode::Auto => Mode::Machines,
            mode => mode,
        };
        ensure!(
            !config.rdma || mode == Mode::Machines,
            "hosts with RDMA are QEMU machines: use --mode machines"
        );
        let (hosts, substrate): (Box<dyn Hosts>, _) = match mode {
            Mode::Namespaces => {
                let here = if hardware { Substrate::Hardware } else { Substrate::Namespaces };
                (Box::new(Namespaces::on_machine(config, &folder)?), here)
            }
            Mode::Replay => {
                (Box::new(Namespaces::in_replay(config, &folder, say)?), Substrate::LabMachines)
            }
            Mode::Machines | Mode::Auto => {
                (Box::new(Machines::up(config, &folder, say)?), Substrate::LabMachines)
            }
        };
        let lab = Self { hosts, folder, substrate, mode, _lock: lock };
        let state = serde_json::to_vec_pretty(&lab.state()?).context("write the state")?;
        cache::write_atomically(&lab.folder.join("state.json"), &state)?;
        Ok(lab)
    }

    /// A host by its number.
    ///
    /// # Errors
    /// When there is no such host.
    pub fn host(&self, number: HostNumber) -> Result<Host<'_>> {
        ensure!(
            number.get() <= self.hosts.count(),
            "there is no host {number}: the lab has {}",
            self.hosts.count()
        );
        Ok(Host { lab: self, number })
    }

    /// All hosts, in order.
    pub fn hosts(&self) -> impl Iterator<Item = Host<'_>> {
        HostNumber::first(self.hosts.count()).map(|number| Host { lab: self, number })
    }

    /// What the hosts run on.
    pub fn substrate(&self) -> Substrate {
        self.substrate
    }

    /// How the hosts are made; never [`Mode::Auto`].
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Folder with the lab's logs and job folders.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A copy of the running program that every host sees under this path, and that no rebuild changes.
    ///
    /// # Errors
    /// When it cannot be copied.
    pub fn own_program(&self) -> Result<PathBuf> {
        let copy = self.folder.join(PROGRAM);
        if !copy.exists() {
            let own = std::env::current_exe().context("find the running program")?;
            fs::copy(&own, &copy).with_context(|| format!("copy {}", own.display()))?;
        }
        Ok(copy)
    }

    /// What is known about the lab now.
    ///
    /// # Errors
    /// When the state of a host cannot be found out.
    pub fn state(&self) -> Result<LabState> {
        let hosts = HostNumber::first(self.hosts.count())
            .map(|host| self.hosts.state(host))
            .collect::<Result<_>>()?;
        Ok(LabState { owner: std::process::id(), substrate: self.substrate, hosts })
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Left-over sockets do no harm: the next lab of this name removes them.
        drop(remove_sockets(&self.folder));
        drop(fs::remove_file(self.folder.join("state.json")));
    }
}

/// Takes the lock of a lab name; the kernel gives it back when the owner ends, however it ends.
fn claim(name: &str, folder: &Path) -> Result<File> {
    let parent = folder.parent().context("the run folder has a parent")?;
    fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    let path = folder.with_extension("lock");
    let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!("a lab called '{name}' is up; end it with `./x lab down --name {name}`")
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("lock {}", path.display()))
        }
    }
}

/// One host of a [`Lab`].
#[derive(Clone, Copy, Debug)]
pub struct Host<'lab> {
    lab: &'lab Lab,
    number: HostNumber,
}

impl Host<'_> {
    /// Its number.
    pub fn number(&self) -> HostNumber {
        self.number
    }

    /// Its address on the private network.
    pub fn address(&self) -> Ipv4Addr {
        self.number.address()
    }

    /// Starts a command; it is killed when the returned handle is dropped.
    ///
    /// # Errors
    /// When the host is gone.
    pub fn spawn(&self, command: &Command) -> Result<RemoteProcess> {
        self.lab.hosts.spawn(self.number, command)
    }

    /// Runs a command to its end and returns how it ended and what it wrote.
    ///
    /// # Errors
    /// When it could not be started, the host is gone, or the limit passed (it is killed then).
    pub fn run(&self, command: &Command, limit: Duration) -> Result<(ExitStatus, Vec<Line>)> {
        let mut process = self.spawn(command)?;
        process.collect(limit).with_context(|| format!("run `{command}` on host {}", self.number))
    }

    /// The same for a command that must succeed: what it wrote to its standard output.
    ///
    /// # Errors
    /// As [`Self::run`], or when it ends badly; the message has what it wrote to its standard error.
    pub fn output(&self, command: &Command, limit: Duration) -> Result<String> {
        let (status, lines) = self.run(command, limit)?;
        let of = |stream| {
            let lines = lines.iter().filter(|line| line.stream == stream);
            lines.map(|line| format!("{}\n", line.text)).collect::<String>()
        };
        let error = of(Stream::Error);
        ensure!(status.success(), "`{command}` ended with {status}: {}", error.trim());
        Ok(of(Stream::Out))
    }

    /// Makes a tap device for a VM of this host, with an address (and the length of its prefix) that the
    /// host has on it. It has several queues and the virtio header; a VM opens it with `IFF_TAP |
    /// IFF_NO_PI | IFF_VNET_HDR | IFF_MULTI_QUEUE`. A device of this name is made anew.
    ///
    /// # Errors
    /// When the host cannot make it; the message has what `ip` said.
    pub fn tap(&self, name: &str, address: &str) -> Result<()> {
        let script = "set -e\n[ -e /sys/class/misc/tun ] || modprobe tun\n\
                      ip link delete \"$1\" 2>/dev/null || true\n\
                      ip tuntap add dev \"$1\" mode tap multi_queue vnet_hdr\n\
                      ip address add \"$2\" dev \"$1\"\nip link set \"$1\" up\n";
        let (status, lines) =
            self.run(&Command::new(["sh", "-c", script, "sh", name, address]), DEVICE_LIMIT)?;
        let said: Vec<_> = lines.into_iter().map(|line| line.text).collect();
        let number = self.number;
        ensure!(status.success(), "no tap device on host {number}: {}", said.join("; "));
        Ok(())
    }

    /// Cuts it off from the network.
    ///
    /// # Errors
    /// When the network cannot be changed.
    pub fn cut(&self) -> Result<()> {
        self.lab.hosts.cut(self.number)
    }

    /// Connects it again.
    ///
    /// # Errors
    /// When the network cannot be changed.
    pub fn heal(&self) -> Result<()> {
        self.lab.hosts.heal(self.number)
    }

    /// Ends it as a power cut would.
    ///
    /// # Errors
    /// When it cannot be ended.
    pub fn kill(&self) -> Result<()> {
        self.lab.hosts.kill(self.number)
    }

    /// What is known about it now.
    ///
    /// # Errors
    /// When its state cannot be found out.
    pub fn state(&self) -> Result<HostState> {
        self.lab.hosts.state(self.number)
    }

    /// Its job folder on the machine: files put here are seen by the host, and back.
    ///
    /// # Errors
    /// When its state cannot be found out.
    pub fn job(&self) -> Result<PathBuf> {
        Ok(self.state()?.job)
    }

    /// The folder that all hosts of the lab share, on the machine.
    ///
    /// # Errors
    /// When its state cannot be found out.
    pub fn shared(&self) -> Result<PathBuf> {
        Ok(self.state()?.shared)
    }

    /// The same folder as the host sees it.
    ///
    /// # Errors
    /// When its state cannot be found out.
    pub fn shared_inside(&self) -> Result<PathBuf> {
        Ok(self.state()?.shared_inside)
    }

    /// Its job folder as the host sees it.
    ///
    /// # Errors
    /// When its state cannot be found out.
    pub fn job_inside(&self) -> Result<PathBuf> {
        Ok(self.state()?.job_inside)
    }
}
