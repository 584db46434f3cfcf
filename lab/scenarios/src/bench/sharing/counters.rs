//! What the slices of a VM have counted at a moment.

use std::time::Duration;

use anyhow::{Context, Result};
use lab::Command;
use serde::Deserialize;

use crate::vm::scenario::Scenario;

/// For one look at the counters of a slice.
const LIMIT: Duration = Duration::from_secs(60);

/// What `tessera counters` says of a slice.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Slice {
    memory: Memory,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Memory {
    faults: Faults,
    prefetches: u64,
    waited_us: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Faults {
    read: u64,
    write: u64,
    upgrade: u64,
}

/// The sum over all slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Faults that needed another slice: a vCPU waited for each.
    pub(crate) faults: u64,
    /// Of these, writes to pages that could be read already.
    pub(crate) upgrades: u64,
    /// Pages asked for ahead of a fault.
    pub(crate) prefetches: u64,
    /// For how long vCPUs waited, all together.
    pub(crate) waited_us: u64,
}

impl Counters {
    /// Asks all slices, one after the other.
    pub(crate) fn of(scenario: &Scenario<'_>) -> Result<Self> {
        let program = scenario.program()?;
        let mut sum = Self::default();
        for host in scenario.hosts() {
            let words = [&program, "counters", "--control", &scenario.control(host.number())];
            let said = host
                .output(&Command::new(words), LIMIT)
                .with_context(|| format!("ask the slice on host {}", host.number()))?;
            sum.add(&said)?;
        }
        Ok(sum)
    }

    fn add(&mut self, said: &str) -> Result<()> {
        let slice: Slice = serde_json::from_str(said).context("read the counters of a slice")?;
        let Memory { faults, prefetches, waited_us } = slice.memory;
        self.faults += faults.read + faults.write + faults.upgrade;
        self.upgrades += faults.upgrade;
        self.prefetches += prefetches;
        self.waited_us += waited_us;
        Ok(())
    }

    /// What was counted since then.
    pub(crate) fn since(self, before: Self) -> Self {
        let Self { faults, upgrades, prefetches, waited_us } = self;
        Self {
            faults: faults.saturating_sub(before.faults),
            upgrades: upgrades.saturating_sub(before.upgrades),
            prefetches: prefetches.saturating_sub(before.prefetches),
            waited_us: waited_us.saturating_sub(before.waited_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_added_and_earlier_counts_taken_away() {
        let says = |read: u32| {
            format!(
                r#"{{"slice":1,"memory":{{"faults":{{"read":{read},"write":2,"upgrade":3}},"prefetches":4,"waited_us":5,"x":1}}}}"#
            )
        };
        let mut sum = Counters::default();
        sum.add(&says(1)).unwrap();
        let before = sum;
        sum.add(&says(10)).unwrap();

        assert_eq!(before, Counters { faults: 6, upgrades: 3, prefetches: 4, waited_us: 5 });
        assert_eq!(
            sum.since(before),
            Counters { faults: 15, upgrades: 3, prefetches: 4, waited_us: 5 }
        );
        assert!(sum.add("{}").is_err());
    }
}
