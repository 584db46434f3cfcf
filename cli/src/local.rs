//! What both roles are told about their own process.

use clap::{Args, ValueEnum};
use dsm::Memory;
use std::path::PathBuf;
use vmm::crash::plan_panic;
use vmm::slice::{ClockTest, LocalOptions, OnFull};

#[derive(Args, Clone, Debug)]
pub(crate) struct Local {
    /// Core for the memory engine of this slice, best that of its only vCPU; the scheduler's choice if
    /// not given
    #[arg(long, value_name = "CORE")]
    engine_core: Option<usize>,
    /// What memory of this slice is made of until another slice uses it: memfd, memfd,prealloc (memory for
    /// the whole VM from the start), hugetlbfs or anonymous
    #[arg(long, default_value_t = Memory::default(), value_name = "KIND")]
    memory: Memory,
    /// Trace pages that travel, and sample the vCPUs that wait for them
    #[arg(long, value_enum, default_value_t = Switch::On)]
    trace: Switch,
    /// Offer a control socket there, for `tessera trace`
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// What follows when an image's file system here is full: report (an I/O error in the guest) or pause (requests
    /// wait until there is room). Both are logged
    #[arg(long, value_enum, default_value_t = WhenFull::Report)]
    on_full: WhenFull,
    /// Have the thread of this name panic, to see what follows
    #[arg(long, hide = true, value_name = "THREAD")]
    test_panic: Option<String>,
    /// Have the time stamp counter of this slice run faster than it does, to see what follows
    #[arg(long, hide = true, default_value_t = 0, value_name = "PPM")]
    test_tsc_ppm: u32,
    /// Measure guest clocks and do not correct them, to see what follows
    #[arg(long, hide = true)]
    test_clock_uncorrected: bool,
}

/// What a full disk leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WhenFull {
    Report,
    Pause,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
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
        Self { engine_core, memory, trace: trace == Switch::On, control, clock_test, on_full }
    }
}
