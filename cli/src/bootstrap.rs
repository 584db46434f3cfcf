//! The bootstrap role.

use crate::config::{Who, expand};
use crate::devices::Devices;
use crate::local::{Local, be_called_tessera};
use crate::pace;
use crate::report::ReportFile;
use crate::reset::{self, OnReset};
use crate::restore::{self, Restore, renumbered};
use crate::signals;
use crate::slices::SliceArgument;
use crate::words::behind;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use std::io::stdout;
use std::net::SocketAddr;
use std::path::{PathBuf, absolute};
use std::time::Duration;
use transport::{CarrierKind, RdmaMemory, Secret};
use vmm::cmdline::GuestPreset;
use vmm::slice::{
    Boot, BootstrapOptions, Borrow, Ending, Interrupts, LocalOptions, PageTables, SliceSpec, Start,
    StopHandle, VmSpec, bootstrap,
};

/// Ends the help.
pub(crate) const EXAMPLE: &str = "\
Example: a guest with one vCPU and 512 MiB here, and one vCPU and 512 MiB of 10.9.0.2, where a companion listens:
  tessera bootstrap --secret-file vm.key --kernel vmlinuz --initrd initrd.img \\
      --cmdline 'root=/dev/vda rw console=ttyS0 panic=-1 reboot=t' --disk guest.raw \\
      --slice local,cpus=1,memory=512M --slice 10.9.0.2:7100,cpus=1,memory=512M";

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// The VM as a file in TOML or YAML (docs/vm-file.md), in place of the options that say the same
    ///
    /// - Its name ends with .toml, .yaml, .yml or .json. Paths in it count from its folder.
    /// - `slices` says where companions listen. Without it all of the VM is here.
    /// - What it says no option may say: --slice, --kernel, --initrd, --cmdline, --guest-preset, --borrow, --disk, --net, --rng.
    /// - With --restore the kernel is that of the checkpoint.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["slices", "kernel", "initrd", "cmdline", "guest_preset", "borrow", "disks", "nics", "rng"],
        verbatim_doc_comment
    )]
    pub(crate) config: Option<PathBuf>,
    /// A slice, the local one first: `local,cpus=N[,max-cpus=M],memory=SIZE` or `ADDRESS:PORT,cpus=N,...`
    ///
    /// - ADDRESS is where that slice's companion listens: a name, which is looked up once, an IPv4 address, or an IPv6 address in
    ///   brackets.
    /// - SIZE is a number of bytes or ends with M, G or T. It is a multiple of 2 MiB and may be 0.
    /// - N may be 0, but not for the first slice.
    /// - M is N or more: vCPUs beyond N wait there until the guest is told of them (`tessera vm cpus`).
    /// - Slices may be unequal. A slice may have memory and no vCPU, or devices and nothing else
    ///   (`cpus=0,memory=0`).
    /// - A VM has at most 32 slices, 256 vCPUs and 31 devices, and at least 32 MiB of memory.
    #[arg(
        long = "slice",
        value_name = "SLICE",
        required_unless_present_any = ["restore", "config"],
        verbatim_doc_comment
    )]
    pub(crate) slices: Vec<SliceArgument>,
    /// File with the VM's secret; needed with companions, and for slices to join later (tessera vm add)
    ///
    /// It has 16 to 4096 bytes, is the same on all hosts, and only its owner may read it.
    /// One newline at its end does not count.
    #[arg(long, value_name = "FILE")]
    pub(crate) secret_file: Option<PathBuf>,
    /// Kernel of the guest: bzImage or ELF; required without --config and --restore
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present_any = ["restore", "config"],
        conflicts_with = "restore"
    )]
    kernel: Option<PathBuf>,
    /// Initial RAM disk of the guest
    #[arg(long, value_name = "FILE", conflicts_with = "restore")]
    initrd: Option<PathBuf>,
    /// Command line of the guest's kernel; it follows the words of the preset
    #[arg(long, default_value = "console=ttyS0", conflicts_with = "restore")]
    cmdline: String,
    #[command(flatten)]
    report: ReportFile,
    /// How interrupts reach vCPUs
    ///
    /// - `ghost`: by the kernel's APIC. vCPUs of other slices are parked ghosts, which collect interrupts for
    ///   them.
    /// - `userspace`: by Tessera's own APIC, in user space.
    /// - `auto`: ghosts where every host passes the self-test, else user space.
    ///
    /// Without this option a VM begins with `auto`. One that goes on from a checkpoint has what it had, or what is given
    /// here.
    #[arg(long, value_name = "auto|ghost|userspace", verbatim_doc_comment)]
    interrupts: Option<Interrupts>,
    /// How page tables are shared
    ///
    /// - `replicate`: tables of the kernel and of processes are replicas, one on each slice.
    /// - `kernel`: only tables of the kernel are replicas.
    /// - `coherent`: tables are ordinary pages. This does not boot on hosts whose page walks need write access
    ///   to tables.
    /// - `auto`: `replicate` if the page walks of some host need write access, else `coherent`.
    #[arg(
        long,
        default_value = "auto",
        value_name = "auto|replicate|kernel|coherent",
        verbatim_doc_comment
    )]
    page_tables: PageTables,
    /// What is added to the guest's command line when it has vCPUs of other hosts
    ///
    /// docs/guest-parameters.md lists the words and what each brings.
    #[arg(long, value_enum, default_value_t = Preset::Spread, conflicts_with = "restore")]
    guest_preset: Preset,
    /// Distance between the memory of two slices for the guest, 11 to 254 (ACPI SLIT; a slice's own memory is 10)
    ///
    /// Above 32, Linux starts and wakes programs on the slice where they were. Only its load balancer moves them
    /// then.
    #[arg(
        long,
        default_value_t = 40,
        value_parser = clap::value_parser!(u8).range(11..=254),
        conflicts_with = "restore"
    )]
    node_distance: u8,
    /// When the VM uses vCPUs of other hosts: always, after:SECONDS or adaptive[:SECONDS]
    ///
    /// `always`: from the start.
    ///
    /// `after`: the guest boots on this slice alone, and each vCPU of another slice goes there when so long has passed (1 to 86,400). Start-up
    /// runs hundreds of short programs, which gain nothing on borrowed vCPUs and wait there for pages. The guest knows from the start where its
    /// vCPUs will be.
    ///
    /// `adaptive`: the guest boots so too, and its vCPUs come and go by what they did in windows of SECONDS (1 to 600; 5 unless given). They go
    /// after three windows in which they have waited here for processors, at the end of the eighth at the earliest. They come back after three
    /// in which all of them together have run for less than the vCPUs of this `--slice` alone would, and have waited for pages for a
    /// twentieth of a window, as programs do that share much memory: at the end of the seventh at the earliest. Each such try that fails
    /// doubles the time until the next, up to 512 windows.
    ///
    /// vCPUs that somebody moves, and those of a slice whose memory is drained, are left alone from then on. While vCPUs go or come, other moves,
    /// pauses and checkpoints are refused as busy for a moment. A VM that goes on from a checkpoint begins with its vCPUs on their slices,
    /// where `after` leaves them. Where vCPUs cannot move to another host (PVM) they stay here, and a warning says so.
    #[arg(long, default_value_t = Borrow::Always, value_name = "WHEN")]
    borrow: Borrow,
    /// Guest seconds per real second, 0.001 to 1; for emulated hosts
    #[arg(long, default_value_t = 1.0, value_name = "RATE", conflicts_with = "restore")]
    guest_clock_rate: f64,
    /// Least time between timer interrupts of a vCPU: off, MILLISECONDS or adaptive[:MIN-MAX[/PARTS]]
    ///
    /// Times are in milliseconds, at most 10,000. `adaptive` alone means 2 to 200. It grows the spacing while
    /// handling a tick costs more than one part in PARTS of it, 32 unless given.
    /// `adaptive` unless given; of a guest whose clock is slower than 1 `adaptive:20-3200`.
    #[arg(long, value_name = "SPACING")]
    timer_spacing: Option<String>,
    /// Bounds of the hold window: least and most microseconds that a page stays where it just came
    ///
    /// 20:2000 unless given; 20:10000 of a guest whose clock is slower than 1.
    #[arg(long, value_name = "MIN:MAX", value_parser = window)]
    hold: Option<(u64, u64)>,
    /// End the VM after so many seconds
    #[arg(long, value_name = "SECONDS")]
    pub(crate) limit: Option<u64>,
    /// The guest's time to shut down after the first SIGTERM or SIGINT, which presses its power button
    ///
    /// A second signal, or the end of this time, ends the VM without the guest.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    stop_limit: u64,
    /// What becomes of the VM when its guest asks for a reset
    ///
    /// With `restart` this process executes its own command line again, a second later. Files that it names are read again, and `--limit`
    /// counts from there.
    /// Companions have a minute to wait again, which those of `tessera supervise companion` do.
    /// A VM that was asked to stop, whose kernel panicked, or that another slice coordinates, ends. `tessera supervise bootstrap` refuses it, and it does not go with `--restore`.
    #[arg(long, value_enum, default_value_t = OnReset::End, conflicts_with = "restore")]
    pub(crate) on_reset: OnReset,
    /// Every so many seconds all slices log where their vCPUs are
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    sample: Option<u32>,
    /// A slice that is silent for so many milliseconds is lost; 20 to 3,600,000
    #[arg(long, default_value_t = 3000, value_name = "MILLISECONDS")]
    pub(crate) lease: u64,
    /// What carries frames between all slices, best first: tcp, rdma, shm, or several with commas
    ///
    /// - `tcp`: TCP connections.
    /// - `rdma`: reliable queue pairs of InfiniBand or RoCE.
    /// - `shm`: shared memory. All slices must be on one host and in one network namespace; they find that out
    ///   themselves.
    ///
    /// All slices try a list such as `shm,rdma,tcp` together in this order. If one slice cannot use a carrier, a
    /// warning says which slice and why, and the next carrier is tried. The VM does not start after the last one.
    #[arg(
        long,
        default_value = "tcp",
        value_name = "LIST",
        value_delimiter = ',',
        verbatim_doc_comment
    )]
    transport: Vec<CarrierKind>,
    /// What RDMA pins on every host
    ///
    /// - `pool`: about 3.4 MiB for each peer. Pages are copied. Guest memory stays reclaimable.
    /// - `registered`: all memory of the VM. Pages are written from host to host without a copy. A faulty host
    ///   of the VM could write pages that it was not asked for. It needs RDMA in --transport, and
    ///   `--memory memfd` (the default) on the slices.
    #[arg(
        long,
        default_value_t = RdmaMemory::default(),
        value_name = "pool|registered",
        verbatim_doc_comment
    )]
    rdma_memory: RdmaMemory,
    /// Which slice of the VM as its devices are given each slice is now; a supervisor says so when it has left some out
    #[arg(long, hide = true, value_name = "NUMBERS", value_delimiter = ',')]
    slices_were: Vec<u16>,
    #[command(flatten)]
    pub(crate) restore: Restore,
    #[command(flatten)]
    pub(crate) devices: Devices,
    #[command(flatten)]
    pub(crate) local: Local,
}

/// What the guest's kernel is told about vCPUs of other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Preset {
    /// Programs run on every vCPU without being bound; housekeeping that only moves pages is off
    Spread,
    /// Programs run on vCPUs of other hosts only if they are bound to them; load balancing, ticks and housekeeping
    /// stay away from these vCPUs, and Linux refuses to take them off line
    Isolate,
    /// Nothing
    None,
}

impl From<Preset> for GuestPreset {
    fn from(preset: Preset) -> Self {
        match preset {
            Preset::Spread => Self::Spread,
            Preset::Isolate => Self::Isolate,
            Preset::None => Self::None,
        }
    }
}

pub(crate) fn window(text: &str) -> Result<(u64, u64), String> {
    let error = || format!("{text:?} is not MIN:MAX in microseconds");
    let (min, max) = text.split_once(':').ok_or_else(error)?;
    Ok((min.parse().map_err(|_| error())?, max.parse().map_err(|_| error())?))
}

impl Arguments {
    /// What the VM consists of, and how it begins: another one differs in some of this.
    pub(crate) fn beginning(&self) -> Result<serde_json::Value> {
        let path = |path: &Option<PathBuf>| {
            path.as_deref().map(absolute).transpose().context("find what the VM begins with")
        };
        let sum =
            |of: fn(&SliceSpec) -> u64| self.slices.iter().map(|one| of(&one.spec)).sum::<u64>();
        Ok(serde_json::json!({
            "kernel": path(&self.kernel)?,
            "initrd": path(&self.initrd)?,
            "cmdline": self.cmdline,
            "restore": path(&self.restore.restore)?,
            "devices": self.devices.specs(),
            "vcpus": sum(|spec| spec.vcpus.into()),
            "more vcpus": sum(|spec| spec.spare_vcpus.into()),
            "memory": sum(|spec| spec.memory),
        }))
    }
}

/// Where companions listen, each somewhere else.
fn addresses(remote: &[SliceArgument]) -> Result<Vec<SocketAddr>> {
    let companions: Vec<_> = remote.iter().filter_map(|slice| slice.address).collect();
    let twice = (1..).zip(&companions).find(|(next, one)| companions[*next..].contains(one));
    if let Some((_, address)) = twice {
        bail!("two slices have the same address {address}");
    }
    Ok(companions)
}

impl Arguments {
    /// Where companions listen, of a command line that can be: no host and no checkpoint is asked.
    ///
    /// # Errors
    /// No VM can begin so.
    pub(crate) fn companions(&self) -> Result<Vec<SocketAddr>> {
        let (local, remote) = self.slices.split_at(self.slices.len().min(1));
        if local.iter().any(|slice| slice.address.is_some())
            || remote.iter().any(|slice| slice.address.is_none())
        {
            bail!("the first --slice must be local and all others must have an address");
        }
        let companions = addresses(remote)?;
        if !companions.is_empty() && self.secret_file.is_none() {
            bail!("slices on other hosts need --secret-file");
        }
        let pins = self.rdma_memory == RdmaMemory::Registered;
        if pins && !self.transport.contains(&CarrierKind::Rdma) {
            bail!("--rdma-memory registered needs RDMA in --transport");
        }
        self.report.check()?;
        self.restore.check()?;
        Ok(companions)
    }

    /// The VM that is asked for: with what its checkpoint says, if it goes on from one.
    ///
    /// # Errors
    /// The checkpoint cannot be read, or no clone can be made of its VM.
    pub(crate) fn vm(&self, secret: Option<&Secret>) -> Result<VmSpec> {
        let asked = VmSpec {
            slices: self.slices.iter().map(|slice| slice.spec).collect(),
            interrupts: self.interrupts.unwrap_or_default(),
            page_tables: self.page_tables,
            sample: self.sample,
            clock_rate: self.guest_clock_rate,
            // These follow from the rate of the guest's clock, which a checkpoint may say.
            timer_spacing: String::new(),
            hold_us: (0, 0),
            devices: renumbered(self.devices.specs(), &self.slices_were),
            supervised: self.local.is_supervised(),
            boots_at_home: false,
        };
        let mut spec = match self.restore.options() {
            Some(restore) => {
                restore::spec(&restore, secret, asked, (self.interrupts, &self.slices_were))?
            }
            None => asked,
        };
        pace::set(&mut spec, self.timer_spacing.clone(), self.hold);
        Ok(spec)
    }
}

/// The same with what its VM file says, if it has one.
fn expanded(arguments: Arguments) -> Result<Arguments> {
    let Some(path) = &arguments.config else { return Ok(arguments) };
    Ok(expand(path, &behind(1), Who::Bootstrap)?.0)
}

pub(crate) fn run(arguments: Arguments) -> Result<Ending> {
    let arguments = expanded(arguments)?;
    arguments.local.stay_with_supervisor()?;
    let stop = signals::listen(arguments.local.is_supervised())?;
    let companions = arguments.companions()?;
    let on_reset = arguments.on_reset;
    if on_reset == OnReset::Restart {
        be_called_tessera();
    }
    let ending = begin(arguments, companions.clone(), stop.clone())?;
    if on_reset == OnReset::Restart {
        reset::begin_again(&ending, &companions, &stop);
    }
    Ok(ending)
}

/// Runs the VM to its end.
fn begin(arguments: Arguments, companions: Vec<SocketAddr>, stop: StopHandle) -> Result<Ending> {
    let secret = arguments.secret_file.as_deref().map(Secret::load).transpose();
    let secret = secret.context("load the VM's secret")?;
    let spec = arguments.vm(secret.as_ref())?;
    let start = match (arguments.restore.options(), arguments.kernel) {
        (Some(restore), _) => Start::Restore(restore),
        (None, Some(kernel)) => {
            let boot = Boot {
                kernel,
                initrd: arguments.initrd,
                cmdline: arguments.cmdline,
                guest_preset: arguments.guest_preset.into(),
                node_distance: arguments.node_distance,
            };
            Start::Boot(boot)
        }
        (None, None) => bail!("a VM begins with --kernel, or goes on with --restore"),
    };
    let api = arguments.local.api.clone();
    let local = LocalOptions::from(arguments.local);
    let _api = api.serve(&local)?;
    let options = BootstrapOptions {
        spec,
        companions,
        secret,
        start,
        console: Box::new(stdout()),
        limit: arguments.limit.map(Duration::from_secs),
        stop,
        stop_limit: Duration::from_secs(arguments.stop_limit),
        lease: Duration::from_millis(arguments.lease),
        carriers: arguments.transport,
        rdma_memory: arguments.rdma_memory,
        borrow: arguments.borrow,
        local,
    };
    let (ending, report) = bootstrap(options).context("start the VM")?;
    arguments.report.write(&report);
    Ok(ending)
}
