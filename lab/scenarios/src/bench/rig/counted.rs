//! What the slices of a VM have counted at a moment.

use anyhow::Result;
use serde::Deserialize;

use super::counters::counters;
use crate::vm::scenario::Scenario;

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
        let mut sum = Self::default();
        counters(scenario, scenario.hosts(), &[])?.into_iter().for_each(|it| sum.add(it));
        Ok(sum)
    }

    fn add(&mut self, Slice { memory }: Slice) {
        let Memory { faults, prefetches, waited_us } = memory;
        self.faults += faults.read + faults.write + faults.upgrade;
        self.upgrades += faults.upgrade;
        self.prefetches += prefetches;
        self.waited_us += waited_us;
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
        let says = |read: u32| -> Slice {
            let said = format!(
                r#"{{"slice":1,"memory":{{"faults":{{"read":{read},"write":2,"upgrade":3}},"prefetches":4,"waited_us":5,"x":1}}}}"#
            );
            serde_json::from_str(&said).unwrap()
        };
        let mut sum = Counters::default();
        sum.add(says(1));
        let before = sum;
        sum.add(says(10));

        assert_eq!(before, Counters { faults: 6, upgrades: 3, prefetches: 4, waited_us: 5 });
        assert_eq!(
            sum.since(before),
            Counters { faults: 15, upgrades: 3, prefetches: 4, waited_us: 5 }
        );
        assert!(serde_json::from_str::<Slice>("{}").is_err());
    }
}
