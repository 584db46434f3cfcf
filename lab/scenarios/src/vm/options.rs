//! What `demo` and `soak` can be told about the VM and its hosts.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use lab::{Config, Mode};

use crate::vm::layout::Layout;

/// Default memory of a VM.
const MEMORY_MIB: u32 = 512;

/// Default time limit of a VM, in seconds.
const TIMEOUT: u64 = 1500;

/// Where interrupts are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "what is said of a variant becomes help text")]
pub enum Interrupts {
    Ghost,
    Userspace,
}

impl Interrupts {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ghost => "ghost",
            Self::Userspace => "userspace",
        }
    }
}

/// How the hosts of the scenario are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LabMode {
    /// Namespaces where the processor has VMX or SVM, QEMU machines elsewhere
    Auto,
    /// A QEMU machine for each host
    Machines,
    /// Namespaces in one QEMU machine under -icount
    Replay,
    /// Namespaces of this machine
    Namespaces,
}

/// Kernels that guests of tests boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GuestKernel {
    /// Of Debian's package
    Debian,
    /// Built here from Debian's sources, with a small configuration
    Stock,
    /// The same with the patches of guest-patches/
    Patched,
}

impl GuestKernel {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Debian => "debian",
            Self::Stock => "stock",
            Self::Patched => "patched",
        }
    }
}

/// What `demo` and `soak` can be told about the VM.
#[derive(Args, Clone, Debug)]
pub struct VmOptions {
    /// Number of hosts; 2 unless --layout says otherwise
    #[arg(long)]
    pub(crate) hosts: Option<usize>,
    /// vCPUs of each slice, as 2+1+0; one on each host unless given
    #[arg(long)]
    pub(crate) layout: Option<Layout>,
    /// Memory of the VM in MiB, shared out evenly; 512, or a little more, unless given
    #[arg(long)]
    memory: Option<u32>,
    /// Memory of each host in MiB (where hosts are machines)
    #[arg(long, default_value_t = 1024)]
    pub(crate) host_memory: u32,
    /// How hosts are made
    #[arg(long, value_enum, default_value_t = LabMode::Auto)]
    pub(crate) mode: LabMode,
    /// Passed on to tessera: what carries frames between slices (tcp, rdma, shm, or several with commas); with rdma
    /// the hosts get soft-RoCE
    #[arg(long)]
    pub(crate) transport: Option<String>,
    /// Passed on to tessera: how kernel page-table pages are kept (auto, replicate, kernel, coherent)
    #[arg(long)]
    pub(crate) page_tables: Option<String>,
    /// Passed on to tessera: what the guest's kernel is told about vCPUs of other hosts (spread, isolate, none)
    #[arg(long)]
    pub(crate) guest_preset: Option<String>,
    /// Which kernel the guest boots with its tests: Debian's (unless given), or one of `./x guest-kernel build`
    #[arg(long, value_enum, default_value_t = GuestKernel::Debian)]
    pub(crate) guest_kernel: GuestKernel,
    /// Boot the packed kernel image and let it unpack itself, which takes long on emulated machines;
    /// otherwise the ELF image inside it
    #[arg(long)]
    pub(crate) bzimage: bool,
    /// Passed on to tessera: rate of the guest's clock; 0.1 on emulated hosts (bench programs, sharing-linux and workloads: by what a fault costs), none in namespaces
    #[arg(long)]
    pub(crate) guest_clock_rate: Option<String>,
    /// Tests the guest runs: all, none, or names and name prefixes; all unless given (soak boot: some
    /// that look for lost or reordered writes and for time going back)
    #[arg(long)]
    pub(crate) tests: Option<String>,
    /// Scale of the iterations of the guest's tests
    #[arg(long = "test-rounds", default_value_t = 1)]
    pub(crate) rounds: u32,
    /// Stress runs after the tests, as forks:60,modules:60
    #[arg(long)]
    pub(crate) stress: Option<String>,
    /// Most seconds the VM may run; 1500 unless given (with --distro 7200)
    #[arg(long)]
    pub(crate) timeout: Option<u64>,
    /// Words added to the guest's command line
    #[arg(long, default_value = "")]
    pub(crate) cmdline: String,
    /// Name of the lab
    #[arg(long, default_value = "demo")]
    pub(crate) name: String,
    /// Use this tessera instead of building it
    #[arg(long)]
    pub(crate) program: Option<PathBuf>,
    /// So many vCPUs more on each slice with some, which come later
    #[arg(skip)]
    pub(crate) spare: u32,
    /// So many slices, the last of the layout, have devices and nothing else
    #[arg(skip)]
    pub(crate) device_slices: usize,
    /// Slices are on the hosts in reverse order: the bootstrap on the last one
    #[arg(skip)]
    pub(crate) reversed: bool,
    /// What companions lend
    #[arg(skip)]
    pub(crate) lend: Vec<String>,
    /// The checkpoint that the VM goes on from, as hosts see it, in place of a boot
    #[arg(skip)]
    pub(crate) restore: Option<String>,
    /// The disk of a Debian system, as hosts see it and `--disk` takes it; that of the first host unless given
    #[arg(skip)]
    pub(crate) system_disk: Option<String>,
    /// Slices have supervisors, and the bootstrap's is given these words
    #[arg(skip)]
    pub(crate) supervise: Option<Vec<String>>,
    /// More arguments for `tessera companion`
    #[arg(skip)]
    pub(crate) companion: Vec<String>,
    /// More arguments for `tessera bootstrap`
    #[arg(last = true)]
    pub(crate) bootstrap: Vec<String>,
}

impl VmOptions {
    /// The layout, with hosts and vCPUs agreed on.
    pub(crate) fn layout(&self) -> Result<Layout> {
        let layout = match (&self.layout, self.hosts) {
            (Some(layout), Some(hosts)) => {
                ensure!(
                    layout.slices() == hosts,
                    "--layout {layout} has {} slices, --hosts says {hosts}",
                    layout.slices()
                );
                layout.clone()
            }
            (Some(layout), None) => layout.clone(),
            (None, hosts) => Layout::even(hosts.unwrap_or(2))?,
        };
        let slices = u32::try_from(layout.slices())?;
        if let Some(memory) = self.memory {
            ensure!(
                memory.is_multiple_of(2 * slices) && memory / slices >= 64,
                "--memory {memory}: it must share out evenly over {slices} slices, an even number \
                 of MiB, 64 or more, each"
            );
        }
        Ok(layout)
    }

    /// Has so much memory, in MiB, unless the command line says.
    pub(crate) fn default_memory(&mut self, mib: u32) {
        self.memory.get_or_insert(mib);
    }

    /// Memory of each of so many slices, in MiB.
    pub(crate) fn share(&self, slices: usize) -> u32 {
        let slices = u32::try_from(slices).unwrap_or(u32::MAX).max(1);
        self.memory.map_or_else(|| MEMORY_MIB.div_ceil(2 * slices) * 2, |memory| memory / slices)
    }

    /// Has each host offer as many CPUs and as much memory as the whole VM has, unless the command line says what the first
    /// one offers. An emulated host has fewer CPUs; that is slow then, and no more.
    pub(crate) fn offer_all(&mut self, layout: &Layout) {
        if self.bootstrap.iter().any(|word| word.starts_with("--offer-")) {
            return;
        }
        let slices = u32::try_from(layout.slices()).unwrap_or(u32::MAX);
        let memory = self.share(layout.slices()).saturating_mul(slices);
        let cpus = (layout.all() + self.spare * slices).to_string();
        let words =
            ["--offer-cpus".to_owned(), cpus, "--offer-memory".to_owned(), format!("{memory}M")];
        self.bootstrap.extend(words.clone());
        self.companion.extend(words);
    }

    /// Most seconds the VM may run.
    pub(crate) fn timeout(&self) -> u64 {
        self.timeout.unwrap_or(TIMEOUT)
    }

    /// True when the kernel's complaints decide too.
    pub(crate) fn strict(&self) -> bool {
        self.stress.is_some()
    }

    pub(crate) fn lab(&self, hosts: usize) -> Config {
        Config {
            name: self.name.clone(),
            hosts,
            memory_mib: self.host_memory,
            processors: 1,
            rdma: self.transport.as_ref().is_some_and(|list| list.contains("rdma")),
            mode: match self.mode {
                LabMode::Auto => Mode::Auto,
                LabMode::Machines => Mode::Machines,
                LabMode::Replay => Mode::Replay,
                LabMode::Namespaces => Mode::Namespaces,
            },
            ..Config::default()
        }
    }
}
