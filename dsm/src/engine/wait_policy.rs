//! How the engine waits: for how long it looks before it sleeps, and which frames it puts off.
//!
//! ```text
//!   a vCPU waits for a page   --> look for about as long as a fault takes, then sleep ([`super::schedule`])
//!   a message came that somebody waits for   --> for a while take frames of runs one at a time
//! ```

use super::schedule;
use dsm_protocol::{Gfn, Mechanisms, Node};
use std::time::Duration;

/// For so long after a message that somebody waits for, frames of runs are handled one at a time: each is work for
/// up to 64 pages, and the next such message may have come meanwhile.
const URGENT_NS: u64 = 5_000_000;

/// What is known of those who wait.
#[derive(Debug)]
pub(super) struct WaitPolicy {
    mechanisms: Mechanisms,
    /// Cores that this process may use.
    cores: usize,
    /// Pages that a vCPU waits for.
    demanded: Vec<Gfn>,
    /// Until then frames of runs are handled one at a time.
    urgent_until_ns: u64,
}

impl WaitPolicy {
    pub(super) fn new(mechanisms: Mechanisms) -> Self {
        let (cores, demanded) = (schedule::cores(), Vec::new());
        Self { mechanisms, cores, demanded, urgent_until_ns: 0 }
    }

    /// A vCPU waits for a page.
    pub(super) fn demand(&mut self, gfn: Gfn) {
        if !self.demanded.contains(&gfn) {
            self.demanded.push(gfn);
        }
    }

    /// A message came that somebody waits for.
    pub(super) fn note_urgent(&mut self, now: u64) {
        self.urgent_until_ns = now + URGENT_NS;
    }

    /// Whether frames of runs are handled one at a time.
    pub(super) fn is_urgent(&self, now: u64) -> bool {
        self.mechanisms.urgent_first && now < self.urgent_until_ns
    }

    /// How long to look for answers before sleeping.
    pub(super) fn look(&mut self, node: &Node, chunk_awaited: bool) -> Duration {
        self.demanded.retain(|gfn| node.is_waiting(*gfn));
        let is_awaited = chunk_awaited || !self.demanded.is_empty();
        if !self.mechanisms.polling || !is_awaited {
            return Duration::ZERO;
        }
        schedule::spin_limit(Duration::from_nanos(node.mean_transfer_ns()), self.cores)
    }
}
