//! What a lab is made of: its configuration, its hosts by number, and what every kind of host can do.

use std::fmt::Debug;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::command::Command;
use crate::disk::Disk;
use crate::host_number::HostNumber;
use crate::remote::RemoteProcess;

/// Name of the copy of the running program in a lab's folder.
pub(crate) const PROGRAM: &str = "agent";
/// Name of the folder that all hosts of a lab share.
pub(crate) const SHARED: &str = "shared";
/// Most disks of a host.
pub(crate) const MAX_DISKS: usize = 8;
/// How the hosts of a lab are made where the machine has no VMX or SVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Namespaces on hardware, machines elsewhere.
    Auto,
    /// Each host its own QEMU machine, whatever the processor has.
    Machines,
    /// One QEMU machine whose time follows its instruction count; hosts are namespaces in it.
    Replay,
    /// Network namespaces of this machine, whatever the processor has.
    Namespaces,
}

/// What a lab is made of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Config {
    /// Name; labs of different names stand side by side.
    pub name: String,
    /// Number of hosts.
    pub hosts: usize,
    /// Memory of each machine in MiB.
    pub memory_mib: u32,
    /// Processors of each machine. More than 1 is less stable under emulation.
    pub processors: u32,
    /// How hosts are made.
    pub mode: Mode,
    /// Give every host an RDMA device (soft-RoCE on its network device).
    pub rdma: bool,
    /// How long one machine may take to boot.
    pub boot_limit: Duration,
    /// Disks of the hosts.
    pub disks: Vec<Disk>,
}

impl Config {
    /// Disks of a host, in order.
    pub(crate) fn disks_of(&self, host: HostNumber) -> Vec<Disk> {
        self.disks.iter().filter(|disk| disk.host == host).cloned().collect()
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            hosts: 2,
            memory_mib: 1024,
            processors: 1,
            mode: Mode::Auto,
            rdma: false,
            boot_limit: Duration::from_secs(180),
            disks: Vec::new(),
        }
    }
}

/// What is known about one host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostState {
    /// Its number.
    pub number: HostNumber,
    /// Its address on the private network.
    pub address: Ipv4Addr,
    /// False once it was killed or died.
    pub alive: bool,
    /// True while it is cut off from the network.
    pub cut: bool,
    /// Process that is the host, where there is one.
    pub process: Option<u32>,
    /// Its job folder on the machine.
    pub job: PathBuf,
    /// The same folder as the host sees it.
    pub job_inside: PathBuf,
    /// The folder that all hosts of the lab share, on the machine.
    pub shared: PathBuf,
    /// The same folder as the host sees it.
    pub shared_inside: PathBuf,
    /// What its kernel prints, where it has a kernel of its own.
    pub console: Option<PathBuf>,
    /// Its disks as the host sees them, in the order of [`Config::disks`].
    pub disks: Vec<PathBuf>,
}

/// A set of hosts, whatever they are made of.
pub trait Hosts: Debug + Send + Sync {
    /// How many there are.
    fn count(&self) -> usize;
    /// Starts a command in a host.
    ///
    /// # Errors
    /// When there is no such host or it is gone.
    fn spawn(&self, host: HostNumber, command: &Command) -> Result<RemoteProcess>;
    /// Cuts a host off from the network.
    ///
    /// # Errors
    /// When there is no such host.
    fn cut(&self, host: HostNumber) -> Result<()>;
    /// Connects a host again.
    ///
    /// # Errors
    /// When there is no such host.
    fn heal(&self, host: HostNumber) -> Result<()>;
    /// Ends a host and everything in it at once.
    ///
    /// # Errors
    /// When there is no such host.
    fn kill(&self, host: HostNumber) -> Result<()>;
    /// What is known about a host now.
    ///
    /// # Errors
    /// When there is no such host.
    fn state(&self, host: HostNumber) -> Result<HostState>;
}
