//! How the engine waits: for how long it looks before it sleeps, and which frames it puts off.
//!
//! ```text
//!   a vCPU waits for a page   --> look for about as long as a fault takes, then sleep ([`super::schedule`])
//!   a message came that somebody waits for   --> for a while take frames of runs one at a time
//!   a vCPU was given a chunk, nobody waits   --> for a while let frames of its run gather
//! ```

use super::schedule::{self, Look};
use dsm_protocol::{Gfn, Mechanisms, Node};
use std::time::Duration;

/// For so long after a message that somebody waits for, frames of runs are handled one at a time: each is work for
/// up to 64 pages, and the next such message may have come meanwhile.
const URGENT_NS: u64 = 5_000_000;
/// How long frames of a run may wait for a vCPU that goes through a chunk of the same run: about as long as it
/// takes a core to read 2 MiB. Whatever else wakes the engine ends that.
const REST_NS: u64 = 250_000;

/// What is known of those who wait.
#[derive(Debug)]
pub(super) struct WaitPolicy {
    mechanisms: Mechanisms,
    /// Cores that this process may use.
    cores: usize,
    /// Pages that a vCPU waits for.
    demanded: Vec<Gfn>,
    /// Until then frames of a run may wait.
    rest_until_ns: u64,
    /// Until then they are handled one at a time.
    urgent_until_ns: u64,
}

impl WaitPolicy {
    pub(super) fn new(mechanisms: Mechanisms) -> Self {
        let (cores, demanded) = (schedule::cores(), Vec::new());
        Self { mechanisms, cores, demanded, rest_until_ns: 0, urgent_until_ns: 0 }
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

    /// A vCPU was just given a chunk that it waited for, and more is on its way.
    pub(super) fn note_provided(&mut self, now: u64) {
        self.rest_until_ns = now + REST_NS;
    }

    /// For how long frames of a run may wait. `chunk_awaited`: a vCPU waits for a chunk to be full.
    pub(super) fn rest(&self, now: u64, chunk_awaited: bool) -> Option<Duration> {
        let is_awaited = !self.demanded.is_empty() || chunk_awaited;
        let left = self.rest_until_ns.saturating_sub(now);
        let may_rest = self.mechanisms.wakeup_coalescing && !is_awaited;
        (left > 0 && may_rest).then(|| Duration::from_nanos(left))
    }

    /// How long to look for answers before sleeping, and when to be awake for one.
    pub(super) fn look(&mut self, now: u64, node: &Node, chunk_awaited: bool) -> Look {
        self.demanded.retain(|gfn| node.is_waiting(*gfn));
        if !self.mechanisms.polling {
            return Look::default();
        }
        let limit = schedule::spin_limit(Duration::from_nanos(node.mean_transfer_ns()), self.cores);
        let chunk = chunk_awaited.then(|| Look::new(limit, now, None));
        let looks = self.demanded.iter().map(|gfn| Look::new(limit, now, node.expected_ns(*gfn)));
        let looks = looks.chain(chunk);
        looks.reduce(Look::join).unwrap_or_default()
    }
}
