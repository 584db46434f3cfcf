//! A scenario: which pools, what comes, for how long; run with any policy and seed.

use crate::bound::fluid;
use crate::pool::Pool;
use crate::simulation::{Maintenance, Simulation, Times};
use crate::tally::Tally;
use crate::workload::{HOUR, Preset, Request, Workload};
use scheduler::policy::Policy;
use scheduler::{Settings, SpecError};

/// Pools that are alike, each with VMs of its own.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// One of them.
    pub pool: Pool,
    /// How many.
    pub pools: u32,
    /// Which VMs come.
    pub preset: Preset,
    /// The share of the cores that they would have if nobody waited.
    pub load: f64,
    /// Hours before anything is counted.
    pub warm_up: u64,
    /// Hours that are counted.
    pub hours: u64,
    /// How long things take.
    pub times: Times,
    /// The scheduler's.
    pub settings: Settings,
    /// Hosts that are drained.
    pub maintenance: Option<Maintenance>,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            pool: Pool::default(),
            pools: 1,
            preset: Preset::default(),
            load: 0.95,
            warm_up: 240,
            hours: 720,
            times: Times::default(),
            settings: Settings::default(),
            maintenance: None,
        }
    }
}

impl Scenario {
    fn seed_of(seed: u64, pool: u32) -> u64 {
        seed.wrapping_mul(1_000_003).wrapping_add(u64::from(pool))
    }

    /// What is counted of pools of so many hosts, one after the other, with the VMs of pools as they are.
    ///
    /// # Errors
    /// There cannot be such hosts.
    pub fn run_on(
        &self,
        hosts: u32,
        policy: impl Fn() -> Box<dyn Policy>,
        seed: u64,
    ) -> Result<Tally, SpecError> {
        let workload = Workload::new(self.preset, self.load);
        let (from, to) = self.window(&workload);
        let pool = Pool { hosts, ..self.pool };
        let mut sum = Tally::default();
        for number in 0..self.pools {
            let it = Simulation::new(pool, policy(), self.settings, self.times)?;
            let it = it.with_maintenance(self.maintenance);
            let seed = Self::seed_of(seed, number);
            sum.add(&it.run(workload.generate(self.pool.all_cores(), seed), from, to));
        }
        Ok(sum)
    }

    /// The same, with the hosts that there are.
    ///
    /// # Errors
    /// There cannot be such hosts.
    pub fn run(&self, policy: impl Fn() -> Box<dyn Policy>, seed: u64) -> Result<Tally, SpecError> {
        self.run_on(self.pool.hosts, policy, seed)
    }

    /// The same VMs as a fluid.
    #[must_use]
    pub fn bound(&self, seed: u64) -> Tally {
        let workload = Workload::new(self.preset, self.load);
        let (from, to) = self.window(&workload);
        let mut sum = Tally::default();
        for number in 0..self.pools {
            let seed = Self::seed_of(seed, number);
            let requests = workload.generate(self.pool.all_cores(), seed);
            sum.add(&fluid(self.pool, &self.settings, requests, from, to));
        }
        sum
    }

    fn window(&self, workload: &Workload) -> (u64, u64) {
        let from = workload.beginning() + self.warm_up * HOUR;
        (from, from + self.hours * HOUR)
    }

    /// The fewest hosts of a pool with which no more than this share of VMs waits, in per cent (cell compaction).
    ///
    /// # Errors
    /// There cannot be such hosts.
    pub fn fewest_hosts(
        &self,
        policy: impl Fn() -> Box<dyn Policy>,
        seed: u64,
        late_percent: f64,
    ) -> Result<u32, SpecError> {
        let (mut low, mut high) = (self.pool.hosts / 4, self.pool.hosts.saturating_mul(2));
        while high - low > 1 {
            let middle = u32::midpoint(low, high);
            let figures = self.run_on(middle, &policy, seed)?.figures();
            if figures.delayed_percent <= late_percent {
                high = middle;
            } else {
                low = middle;
            }
        }
        Ok(high)
    }
}

/// A trace that was imported, on one pool. What is before `from` warms up.
///
/// # Errors
/// There cannot be such hosts.
pub fn replay(
    pool: Pool,
    settings: Settings,
    policy: Box<dyn Policy>,
    requests: &[Request],
    (from, to): (u64, u64),
) -> Result<Tally, SpecError> {
    let it = Simulation::new(pool, policy, settings, Times::default())?;
    Ok(it.run(requests.iter().cloned(), from, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::Name;

    #[test]
    fn fewest_hosts_are_enough_and_one_less_is_not() {
        let pool = Pool { hosts: 8, ..Pool::default() };
        let it = Scenario { pool, load: 0.6, warm_up: 24, hours: 48, ..Scenario::default() };
        let policy = || Name::Bff.policy();

        let fewest = it.fewest_hosts(policy, 1, 1.0).unwrap();

        let late = |hosts| it.run_on(hosts, policy, 1).unwrap().figures().delayed_percent;
        assert!(late(fewest) <= 1.0 && late(fewest - 1) > 1.0, "{fewest}");
        assert!((3..=8).contains(&fewest), "{fewest}");
    }

    #[test]
    fn pools_are_added_up() {
        let pool = Pool { hosts: 5, ..Pool::default() };
        let one = Scenario { pool, load: 0.7, warm_up: 1, hours: 24, ..Scenario::default() };
        let three = Scenario { pools: 3, ..one };
        let policy = || Name::Bff.policy();

        let (one, three) = (one.run(policy, 5).unwrap(), three.run(policy, 5).unwrap());

        let ratio = three.core_seconds.all / one.core_seconds.all;
        assert!((ratio - 3.0).abs() < 1e-9, "{ratio}");
        assert!(three.figures().vms > one.figures().vms, "other VMs in each pool");
    }
}
