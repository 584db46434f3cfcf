//! `--on-reset restart`: a VM whose guest has asked for a reset begins anew, as its command line says.
//!
//! ```text
//!   the guest asked for a reset ──a second──> all companions wait again ──> exec of the same command line
//!     └─somebody has asked for the end:           └─not within a minute:
//!       over, with status 3                         over, with status 3
//! ```
//! From the end of the slice on a signal ends the process, in its handler, so that none is lost at the exec. The process keeps its
//! number, so whoever has started it need not know. Nothing of the VM before is kept but its disks.

use crate::listening::answering;
use crate::log;
use clap::ValueEnum;
use signal_hook::consts::{SIGINT, SIGPIPE, SIGTERM};
use signal_hook::flag::{register, register_conditional_default};
use std::env;
use std::io::Error;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};
use vmm::slice::{Ending, StopHandle};

/// Before it begins anew, as a guest may reset at once, and between looks for companions.
const PAUSE: Duration = Duration::from_secs(1);
/// For companions to wait again. Their supervisors start them anew, 10 s after a VM that ended soon at most.
const COMPANIONS_LIMIT: Duration = Duration::from_secs(60);

/// What becomes of the VM when its guest asks for a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnReset {
    /// It ends, with status 3
    End,
    /// It boots anew
    Restart,
}

/// Waits until all companions wait again; why not, if they do not.
fn await_companions(companions: &[SocketAddr]) -> Result<(), String> {
    let end = Instant::now() + COMPANIONS_LIMIT;
    let mut missing: Vec<(u16, SocketAddr)> = (0..).zip(companions.iter().copied()).collect();
    loop {
        let here = answering(&missing);
        missing.retain(|(number, _)| !here.contains(number));
        let Some((_, first)) = missing.first() else { return Ok(()) };
        if Instant::now() >= end {
            return Err(format!(
                "no companion waits at {first} (tessera supervise companion waits again after each VM)"
            ));
        }
        sleep(PAUSE);
    }
}

/// A handler that wakes a thread would be gone with that at the exec.
fn die_of_signals() -> Result<(), Error> {
    let at_once = Arc::new(AtomicBool::new(true));
    for signal in [SIGINT, SIGTERM] {
        register_conditional_default(signal, Arc::clone(&at_once))?;
    }
    Ok(())
}

/// Only returns if that fails. The file of this program may have been replaced: it is this version that goes on.
fn again() -> Error {
    let mut words = env::args_os();
    let name = words.next().unwrap_or_else(|| "tessera".into());
    Command::new("/proc/self/exe").arg0(name).args(words).exec()
}

/// Begins anew if the guest has asked for that. It returns if the VM is over.
pub(crate) fn begin_again(ending: &Ending, companions: &[SocketAddr], stop: &StopHandle) {
    // Whoever asked before this has told `stop`. Whoever signals in the pause ends the process.
    if *ending != Ending::Reset || die_of_signals().is_err() || stop.end() {
        return;
    }
    log::say("the guest asked for a reset: the VM is to begin anew");
    sleep(PAUSE);
    let why = match await_companions(companions) {
        Ok(()) if stop.end() => "it was asked to stop".to_owned(),
        Ok(()) => {
            log::finish();
            let why = again().to_string();
            // It has made this signal end the process, which is still to say why.
            let _ = register(SIGPIPE, Arc::default());
            why
        }
        Err(why) => why,
    };
    log::say(&format!("the VM does not begin anew: {why}"));
}
