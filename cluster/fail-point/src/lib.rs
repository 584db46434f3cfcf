//! Where a process dies, for tests: before the step of this number, at once and without anything that would tidy up after it.
//!
//! ```text
//!   step 0 ─> step 1 ─> ... ─> step N: dead.      TESSERA_DIES_BEFORE=N in its environment; else it never does
//! ```
//! Orchestrator and agent count what they record and what they have others do, one after another. A test that has one die at each number
//! has been everywhere in between (`cli/tests/cluster/points.rs`).

use std::env;
use std::process::abort;

/// The name in the environment.
pub const VARIABLE: &str = "TESSERA_DIES_BEFORE";

/// The step that a process does not live to take.
#[derive(Debug, Default)]
pub struct FailPoint {
    /// So many are taken before.
    left: Option<u64>,
}

impl FailPoint {
    /// As the environment says. What is no number there is never reached, and that is told.
    #[must_use]
    pub fn from_environment() -> Self {
        let Ok(text) = env::var(VARIABLE) else { return Self::default() };
        let left = text.parse().ok();
        match left {
            Some(left) => tracing::warn!(left, "this process is to die before a step, for a test"),
            None => tracing::error!(text, "{VARIABLE} is no number"),
        }
        Self { left }
    }

    /// A step is about to be taken, in these words. It is the caller's last if it is the one.
    pub fn before(&mut self, step: impl FnOnce() -> String) {
        if self.counts_down() {
            eprintln!("{VARIABLE}: dead before {}", step());
            abort();
        }
    }

    fn counts_down(&mut self) -> bool {
        let Some(left) = &mut self.left else { return false };
        let is_now = *left == 0;
        *left = left.saturating_sub(1);
        is_now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_of_the_number_is_the_last_one() {
        let mut point = FailPoint { left: Some(2) };
        let reached: Vec<bool> = (0..3).map(|_| point.counts_down()).collect();
        assert_eq!(reached, [false, false, true]);
        let mut never = FailPoint::default();
        assert!((0..100).all(|_| !never.counts_down()));
    }
}
