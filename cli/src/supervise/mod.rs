//! `tessera supervise`: runs a slice as a process of its own, and starts it again when its VM is lost.
//!
//! ```text
//!   tessera supervise bootstrap ── child: tessera bootstrap ────────────┐ one VM
//!     │ checkpoints over the control socket, restore after a loss       │
//!   tessera supervise companion ── child: tessera companion ────────────┘
//!       waits again after each VM
//! ```
//! What the first one does is decided in `migrate::supervise`. A supervisor that dies takes its slice along (`--supervised-by`).

mod arguments;
mod bootstrap;
mod child;
mod companion;
mod former;
mod options;
mod passed_on;
mod plan;
mod record;
mod retired;
mod task;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::thread;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Start a VM, have checkpoints of it written, and start it again from the newest one when a slice of it is lost. Takes the
    /// options of `tessera bootstrap`, but neither `--clone` nor `--on-reset restart`. It needs `--control`, `--checkpoints`, where its own go, and `--slice` (or
    /// `--config`), with `--restore` too.
    #[command(after_long_help = arguments::EXAMPLE)]
    Bootstrap(Box<arguments::Supervised>),
    /// Be a companion, and wait for the next bootstrap when the VM is over or lost. Takes all options of `tessera companion`.
    Companion(Box<crate::companion::Arguments>),
}

/// Supervises to the end; the exit status.
pub(crate) fn run(arguments: Arguments) -> Result<u8> {
    match arguments.role {
        Role::Bootstrap(arguments) => bootstrap::run(*arguments),
        Role::Companion(arguments) => companion::run(&arguments),
    }
}

/// Milliseconds of the clock that goes on while the host sleeps.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000
}

/// Has somebody hear of each SIGTERM and SIGINT, for as long as the process lives.
fn hear_signals(mut hear: impl FnMut() + Send + 'static) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("listen for signals")?;
    let forward = move || signals.forever().for_each(|_| hear());
    let thread = thread::Builder::new().name("signals".into()).spawn(forward);
    thread.map(drop).context("listen for signals")
}
