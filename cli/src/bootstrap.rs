//! The bootstrap role.

use crate::devices::Devices;
use crate::local::Local;
use crate::signals;
use crate::slices::SliceArgument;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use std::fs;
use std::io::stdout;
use std::path::{Path, PathBuf};
use std::time::Duration;
use transport::{CarrierKind, RdmaMemory, Secret};
use vmm::cmdline::GuestPreset;
use vmm::slice::{BootstrapOptions, Ending, Interrupts, PageTables, RunReport, VmSpec, bootstrap};

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// A slice, the local one first: `local,cpus=1,memory=256M` or `10.9.0.2:7100,cpus=1,memory=256M`
    #[arg(long = "slice", value_name = "SLICE", required = true)]
    slices: Vec<SliceArgument>,
    /// File with the VM's secret; needed with companions
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Kernel of the guest: bzImage or ELF
    #[arg(long, value_name = "FILE")]
    kernel: PathBuf,
    /// Initial RAM disk of the guest
    #[arg(long, value_name = "FILE")]
    initrd: Option<PathBuf>,
    /// Command line of the guest's kernel
    #[arg(long, default_value = "console=ttyS0")]
    cmdline: String,
    /// Write a report of the run as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// How interrupts reach vCPUs: ghost (kernel APIC), userspace, or auto (ghost where it works)
    #[arg(long, default_value = "auto")]
    interrupts: Interrupts,
    /// Page tables: replicate, kernel (replicate those of the kernel), coherent, or auto (by what the
    /// hosts' page walks need)
    #[arg(long, default_value = "auto")]
    page_tables: PageTables,
    /// What is added to the guest's command line when it has vCPUs of other hosts
    #[arg(long, value_enum, default_value_t = Preset::Spread)]
    guest_preset: Preset,
    /// How far the guest takes the memory of another slice to be (ACPI SLIT; its own is 10)
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u8).range(11..=254))]
    node_distance: u8,
    /// Guest seconds per real second, e.g. 0.1; for emulated hosts
    #[arg(long, default_value_t = 1.0)]
    guest_clock_rate: f64,
    /// Least time between timer interrupts of a vCPU: off, MILLISECONDS or adaptive[:MIN-MAX]
    #[arg(long, default_value = "adaptive")]
    timer_spacing: String,
    /// Least and most microseconds that a page stays where it just came
    #[arg(long, default_value = "20:2000", value_name = "MIN:MAX", value_parser = window)]
    hold: (u64, u64),
    /// End the VM after so many seconds
    #[arg(long, value_name = "SECONDS")]
    limit: Option<u64>,
    /// The guest's time to shut down after the first SIGTERM or SIGINT, which presses its power button; a second
    /// one, or the end of this time, ends the VM without it
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    stop_limit: u64,
    /// Every so many seconds all slices log where their vCPUs are
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    sample: Option<u32>,
    /// A slice that is silent for so many milliseconds is lost
    #[arg(long, default_value_t = 3000, value_name = "MILLISECONDS")]
    lease: u64,
    /// What carries frames between slices, best first: tcp, rdma, shm (shared memory, where all slices are on one
    /// host), or several with commas; a later one is taken where some slice cannot use those before
    #[arg(long, default_value = "tcp", value_name = "LIST", value_delimiter = ',')]
    transport: Vec<CarrierKind>,
    /// What RDMA pins on every host: pool (a few MiB; pages are copied) or registered (all memory of the
    /// VM; pages are written from host to host without a copy)
    #[arg(long, default_value_t = RdmaMemory::default(), value_name = "CHOICE")]
    rdma_memory: RdmaMemory,
    #[command(flatten)]
    devices: Devices,
    #[command(flatten)]
    local: Local,
}

/// What the guest's kernel is told about vCPUs of other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Preset {
    /// Programs run on every vCPU; less housekeeping
    Spread,
    /// Only programs that are bound to them run on vCPUs of other hosts; no housekeeping there
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

/// A run is not to end without a report because of a misspelt folder. Creates nothing: the VM may
/// still be refused.
fn check_report(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if !folder.is_none_or(Path::is_dir) {
        bail!("cannot write the report {}: its folder does not exist", path.display());
    }
    if path.is_dir() {
        bail!("cannot write the report {}: it is a folder", path.display());
    }
    Ok(())
}

fn write_report(path: &Path, report: &RunReport) -> Result<()> {
    let text = serde_json::to_string_pretty(report).context("format the report")?;
    fs::write(path, text).with_context(|| format!("write the report {}", path.display()))
}

pub(crate) fn run(arguments: Arguments) -> Result<Ending> {
    let stop = signals::listen()?;
    let (local, remote) = arguments.slices.split_first().context("no --slice given")?;
    if local.address.is_some() || remote.iter().any(|slice| slice.address.is_none()) {
        bail!("the first --slice must be local and all others must have an address");
    }
    let companions: Vec<_> = remote.iter().filter_map(|slice| slice.address).collect();
    let twice = (1..).zip(&companions).find(|(next, one)| companions[*next..].contains(one));
    if let Some((_, address)) = twice {
        bail!("two slices have the same address {address}");
    }
    if !companions.is_empty() && arguments.secret_file.is_none() {
        bail!("slices on other hosts need --secret-file");
    }
    let pins = arguments.rdma_memory == RdmaMemory::Registered;
    if pins && !arguments.transport.contains(&CarrierKind::Rdma) {
        bail!("--rdma-memory registered needs RDMA in --transport");
    }
    if let Some(path) = &arguments.report {
        check_report(path)?;
    }
    let secret = arguments.secret_file.as_deref().map(Secret::load).transpose();
    let options = BootstrapOptions {
        spec: VmSpec {
            slices: arguments.slices.iter().map(|slice| slice.spec).collect(),
            interrupts: arguments.interrupts,
            page_tables: arguments.page_tables,
            sample: arguments.sample,
            clock_rate: arguments.guest_clock_rate,
            timer_spacing: arguments.timer_spacing,
            hold_us: arguments.hold,
            devices: arguments.devices.specs(),
        },
        companions,
        secret: secret.context("load the VM's secret")?,
        kernel: arguments.kernel,
        initrd: arguments.initrd,
        cmdline: arguments.cmdline,
        guest_preset: arguments.guest_preset.into(),
        node_distance: arguments.node_distance,
        console: Box::new(stdout()),
        limit: arguments.limit.map(Duration::from_secs),
        stop,
        stop_limit: Duration::from_secs(arguments.stop_limit),
        lease: Duration::from_millis(arguments.lease),
        carriers: arguments.transport,
        rdma_memory: arguments.rdma_memory,
        local: arguments.local.into(),
    };
    let (ending, report) = bootstrap(options).context("start the VM")?;
    if let Some(path) = arguments.report
        && let Err(error) = write_report(&path, &report)
    {
        // The VM has run; the exit status tells how it ended.
        tracing::error!("{error:#}");
    }
    Ok(ending)
}
