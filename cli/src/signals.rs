//! SIGTERM and SIGINT ask a slice to stop.
//!
//! ```text
//!   service manager --SIGTERM--> supervisor --SIGINT--> slice     one request, although the slice hears of it twice
//!                 \---------------SIGTERM----------------^
//! ```
//! systemd's default is to signal all processes of a unit. A second request ends a slice without its guest.

use crate::log;
use anyhow::{Context, Result};
use rustix::process::Signal;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::thread;
use vmm::slice::StopHandle;

/// Counts requests.
#[derive(Debug, Default)]
struct Requests {
    /// A supervisor's signals are [`BY_SUPERVISOR`].
    is_supervised: bool,
    by_supervisor: u32,
    by_others: u32,
}

impl Requests {
    /// Whether this signal is one more request.
    fn hear(&mut self, signal: i32) -> bool {
        let before = self.by_supervisor.max(self.by_others);
        let by_supervisor = self.is_supervised && signal == BY_SUPERVISOR.as_raw();
        let count = if by_supervisor { &mut self.by_supervisor } else { &mut self.by_others };
        *count = count.saturating_add(1);
        self.by_supervisor.max(self.by_others) > before
    }
}

/// What a supervisor sends to its slice when it is asked to stop.
pub(crate) const BY_SUPERVISOR: Signal = Signal::INT;

/// Takes over both signals for as long as the process lives. Before a slice runs, and before a VM begins anew, they do what they do to
/// any process: nothing has started, or all is over, and peers see the end as that of any process that goes.
pub(crate) fn listen(is_supervised: bool) -> Result<StopHandle> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("listen for signals")?;
    let stop = StopHandle::new();
    let handle = stop.clone();
    let forward = move || {
        let mut requests = Requests { is_supervised, ..Requests::default() };
        for signal in signals.forever() {
            if requests.hear(signal) && !stop.ask() {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(is_supervised: bool, signals: &[i32]) -> usize {
        let mut requests = Requests { is_supervised, ..Requests::default() };
        signals.iter().filter(|signal| requests.hear(**signal)).count()
    }

    #[test]
    fn whoever_signals_a_supervisor_and_its_slice_asks_once() {
        for both in [[SIGTERM, SIGINT], [SIGINT, SIGTERM]] {
            assert_eq!(requests(true, &both), 1, "{both:?}");
            assert_eq!(requests(true, &[both, both].concat()), 2, "{both:?}");
            assert_eq!(requests(false, &both), 2, "{both:?}");
        }
        // Each of them alone may ask again.
        for one in [SIGTERM, SIGINT] {
            assert_eq!(requests(true, &[one, one]), 2);
        }
    }
}
