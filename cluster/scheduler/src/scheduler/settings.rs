//! What an operator has said.

use crate::budget::Limits;
use crate::cost::Prices;
use crate::queue::Discipline;

/// What an operator has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Who may pass whom in the queue.
    pub discipline: Discipline,
    /// VMs that may wait.
    pub queue_max: usize,
    /// VMs of the queue that are looked at when something is free.
    pub look_ahead: usize,
    /// Reservations live so long, in milliseconds.
    pub reservation_ttl: u64,
    /// How often things may move.
    pub limits: Limits,
    /// What moves cost, of which the pause counts here.
    pub prices: Prices,
    /// No move stands still for longer, in microseconds.
    pub pause_max_us: u64,
    /// Aggregate VMs that are looked at when time passes.
    pub revisits_max: usize,
    /// A VM that waits more than its class allows for this long does not by chance, in milliseconds.
    pub stall_patience: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            discipline: Discipline::Backfill { age_max: 600_000 },
            queue_max: 10_000,
            look_ahead: 200,
            reservation_ttl: 30_000,
            limits: Limits::default(),
            prices: Prices::default(),
            pause_max_us: 10_000_000,
            revisits_max: 64,
            stall_patience: 60_000,
        }
    }
}
