//! `--on-reset restart`: a VM whose guest has asked for a reset begins anew, as its command line says.
//!
//! ```text
//!   the guest asked for a reset ──a second──> all companions wait again ──> exec of the same command line
//!                                   │           └─not within a minute─> over, with status 3
//!                                   └─somebody has asked for the end──> over, with status 3
//! ```
//! The process stays the same one, so whoever has started it need not know. Nothing of the VM before is kept but its disks.

use crate::listening::answering;
use crate::log;
use clap::ValueEnum;
use std::env;
use std::io::Error;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use vmm::slice::{Ending, StopHandle};

/// Before it begins anew: a guest that resets at once does not take a whole core.
const PAUSE: Duration = Duration::from_secs(1);
/// For companions to wait again. Their supervisors start them anew, 10 s after a VM that ended soon at most.
const COMPANIONS_LIMIT: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What becomes of the VM when its guest asks for a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnReset {
    /// It ends, with status 3
    End,
    /// It begins anew
    Restart,
}

/// Waits; false if somebody has asked for the end meanwhile.
fn wait(time: Duration, stop: &StopHandle) -> bool {
    let end = Instant::now() + time;
    while !stop.is_asked() && Instant::now() < end {
        sleep(LOOK_EVERY);
    }
    !stop.is_asked()
}

/// Whether all companions wait again.
fn companions_wait(companions: &[SocketAddr], stop: &StopHandle) -> Result<(), String> {
    let end = Instant::now() + COMPANIONS_LIMIT;
    let all: Vec<(u16, SocketAddr)> = (0..).zip(companions.iter().copied()).collect();
    loop {
        let here = answering(&all);
        let Some((_, missing)) = all.iter().find(|(host, _)| !here.contains(host)) else {
            return Ok(());
        };
        if Instant::now() >= end {
            return Err(format!(
                "no companion waits at {missing} (tessera supervise companion waits again after each VM)"
            ));
        }
        if !wait(LOOK_EVERY, stop) {
            return Err("it was asked to stop".to_owned());
        }
    }
}

/// Only returns if that fails.
fn again() -> Error {
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let mut words = env::args_os();
    let name = words.next().unwrap_or_else(|| program.clone().into_os_string());
    Command::new(program).arg0(name).args(words).exec()
}

/// Begins anew if the guest has asked for that. It returns if the VM is over.
pub(crate) fn begin_again(ending: &Ending, companions: &[SocketAddr], stop: &StopHandle) {
    if *ending != Ending::Reset || stop.is_asked() {
        return;
    }
    log::say("the guest asked for a reset: the VM begins anew");
    let why = match wait(PAUSE, stop) {
        true => match companions_wait(companions, stop) {
            Ok(()) => {
                log::finish();
                again().to_string()
            }
            Err(why) => why,
        },
        false => "it was asked to stop".to_owned(),
    };
    log::say(&format!("the VM does not begin anew: {why}"));
}
