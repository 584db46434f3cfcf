//! What both roles are told about their own process.

use crate::api::Api;
use crate::log;
use crate::slices::bytes;
use anyhow::{Context, Result, bail};
use checkpoint::Point;
use clap::{Args, ValueEnum};
use dsm::{Mechanism, Mechanisms, Memory};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use vmm::control::Desk;
use vmm::crash::{plan_hang, plan_kill, plan_panic};
use vmm::slice::{ClockTest, LocalOptions, Offer, OnFull};

#[derive(Args, Clone, Debug)]
pub(crate) struct Local {
    /// Bind the engine's thread of this slice to this core; with one vCPU, best to the core of that vCPU
    #[arg(long, value_name = "CORE")]
    engine_core: Option<usize>,
    /// Backing of this slice's memory while it is private to the slice
    ///
    /// - `memfd`: the memory file. A chunk of 2 MiB is put on a huge page once it is full.
    /// - `memfd,prealloc`: the same, with memory for the whole VM from the start. For slices that go through much
    ///   memory of others.
    /// - `hugetlbfs`: huge pages of 2 MiB that the administrator set aside (`sysctl vm.nr_hugepages=N`).
    /// - `anonymous`: private memory with transparent huge pages.
    ///
    /// Each slice chooses for itself. `hugetlbfs` and `anonymous` are copied into the memory file, 2 MiB at a time,
    /// when another slice first asks.
    #[arg(
        long,
        default_value_t = Memory::default(),
        value_name = "memfd|memfd,prealloc|hugetlbfs|anonymous",
        verbatim_doc_comment
    )]
    memory: Memory,
    /// Trace pages that travel, and sample the vCPUs that wait for them
    ///
    /// docs/tracing.md says what this shows.
    #[arg(long, value_enum, default_value_t = Switch::On)]
    trace: Switch,
    /// vCPUs that the VM may run on this host when its parts move (tessera vm drain, consolidate, spread, add); as many as this
    /// process may use cores unless given, and never fewer than at the start
    #[arg(long, value_name = "N")]
    offer_cpus: Option<u32>,
    /// Memory that the VM may have on this host when its parts move: bytes, or with M or G; what is available at the start
    /// unless given, and never less than at the start
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    offer_memory: Option<u64>,
    /// Create the control socket of this slice there, for tessera trace, counters, tune, vm, and clients of the gRPC API (docs/api.md)
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) api: Api,
    /// Folder for the parts of checkpoints that another slice has this one write (tessera vm checkpoint), and from which a
    /// companion reads when a VM goes on from one (--restore). All slices reach the same files by it
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoints: Option<PathBuf>,
    /// What follows when the file system of an image on this host is full; both are logged
    #[arg(long, value_enum, default_value_t = WhenFull::Report)]
    on_full: WhenFull,
    /// End when this process, which has started this one, ends
    #[arg(long, hide = true, value_name = "PROCESS")]
    supervised_by: Option<i32>,
    /// Leave an optional mechanism of the memory engine out, to measure what it is worth; may be repeated
    #[arg(long, hide = true, value_name = "NAME")]
    without: Vec<Mechanism>,
    /// Have the thread of this name panic, to see what follows
    #[arg(long, hide = true, value_name = "THREAD")]
    test_panic: Option<String>,
    /// Have the memory engine stand still for ever once there is this file, to see what follows
    #[arg(long, hide = true, value_name = "FILE")]
    test_hang: Option<PathBuf>,
    /// Have this process be killed when a checkpoint that it writes has come so far, to see what is left
    #[arg(long, hide = true, value_name = "POINT")]
    test_kill: Option<Point>,
    /// Have the time stamp counter of this slice run faster than it does, to see what follows
    #[arg(long, hide = true, default_value_t = 0, value_name = "PPM")]
    test_tsc_ppm: u32,
    /// Measure guest clocks and do not correct them, to see what follows
    #[arg(long, hide = true)]
    test_clock_uncorrected: bool,
    /// Write the saved form of this slice into this folder at each pause, to see that those of all slices fit together
    #[arg(long, hide = true, value_name = "FOLDER")]
    test_forms: Option<PathBuf>,
}

/// What a full disk leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WhenFull {
    /// An I/O error in the guest
    Report,
    /// Requests wait until there is room
    Pause,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// A process that executes itself has another name. Whoever looks for processes may be content with that.
pub(crate) fn be_called_tessera() {
    let _ = fs::write("/proc/self/comm", "tessera");
}

impl Local {
    pub(crate) fn is_supervised(&self) -> bool {
        self.supervised_by.is_some()
    }

    /// Has this process end with the one that supervises it, if there is one: nobody else would know of it.
    pub(crate) fn stay_with_supervisor(&self) -> Result<()> {
        let Some(supervisor) = self.supervised_by else { return Ok(()) };
        let kill = set_parent_process_death_signal(Some(Signal::KILL));
        kill.context("ask for the end with the supervisor")?;
        // It may have ended before.
        if getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(supervisor) {
            bail!("the supervisor has ended");
        }
        be_called_tessera();
        Ok(())
    }

    /// Says at once what would be found out at the first checkpoint. A file system may be mounted there later.
    pub(crate) fn look_at_checkpoints(&self) {
        if let Some(folder) = self.checkpoints.as_ref().filter(|folder| !folder.is_dir()) {
            let folder = folder.display();
            log::say(&format!(
                "warning: --checkpoints {folder}: there is no such folder; this slice writes and reads no part of a checkpoint until it is there"
            ));
        }
    }
}

impl From<Local> for LocalOptions {
    fn from(arguments: Local) -> Self {
        let Local { engine_core, memory, trace, control, test_panic, .. } = arguments;
        let on_full = match arguments.on_full {
            WhenFull::Report => OnFull::Report,
            WhenFull::Pause => OnFull::Pause,
        };
        let clock_test = ClockTest {
            ppm: arguments.test_tsc_ppm,
            uncorrected: arguments.test_clock_uncorrected,
        };
        if let Some(thread) = test_panic {
            plan_panic(thread);
        }
        if let Some(file) = arguments.test_hang {
            plan_hang(file);
        }
        if let Some(point) = arguments.test_kill {
            plan_kill(point);
        }
        Self {
            engine_core,
            memory,
            trace: trace == Switch::On,
            mechanisms: arguments.without.into_iter().fold(Mechanisms::ALL, Mechanisms::without),
            offer: Offer { vcpus: arguments.offer_cpus, bytes: arguments.offer_memory },
            control,
            desk: Desk::new(),
            clock_test,
            on_full,
            checkpoints: arguments.checkpoints,
            load_pause: Duration::ZERO,
            forms: arguments.test_forms,
        }
    }
}
