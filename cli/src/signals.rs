//! SIGTERM and SIGINT ask a slice to stop.

use crate::log;
use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::thread;
use vmm::slice::StopHandle;

/// Takes over both signals for as long as the process lives. Before a slice runs, and before a VM begins anew, they do what they do to
/// any process: nothing has started, or all is over, and peers see the end as that of any process that goes.
pub(crate) fn listen() -> Result<StopHandle> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("listen for signals")?;
    let stop = StopHandle::new();
    let handle = stop.clone();
    let forward = move || {
        for signal in signals.forever() {
            if !stop.ask() {
                log::say("stopped before a guest ran");
                log::finish();
                // It fails for signals that have no default, and does not return for these.
                let _ = emulate_default_handler(signal);
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(forward).context("listen for signals")?;
    Ok(handle)
}
