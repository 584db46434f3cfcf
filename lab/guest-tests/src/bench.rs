//! What a test gets to work with, and the common ways to spread a job over the CPUs.

use anyhow::{Result, bail};

use crate::affinity::Topology;
use crate::pool::{Args, Job, Pool, Values};

/// The tests' workbench.
pub(crate) struct Bench {
    /// Workers.
    pub(crate) pool: Pool,
    /// CPUs and nodes.
    pub(crate) topology: Topology,
    /// Scale of the iterations.
    pub(crate) rounds: u32,
    /// Whether the machine is ours to change (we are its pid 1).
    pub(crate) owns_machine: bool,
}

/// A detail that starts with this word tells that the machine is too small for the test.
pub(crate) const SKIP: &str = "skip: ";

impl Bench {
    /// Turns that each CPU takes where one goes on and all others watch. A turn costs a fault of every
    /// watcher, so a round of turns costs one for each pair of CPUs.
    pub(crate) fn turns(&self) -> Result<u64> {
        let cpus = u64::try_from(self.topology.cpus.len())?;
        Ok((800 / (cpus * cpus)).max(20) * u64::from(self.rounds))
    }

    /// Runs a job on each pair of CPUs in turn.
    pub(crate) fn over_pairs(
        &mut self,
        job: Job,
        args: Args,
        mut judge: impl FnMut(&[Values]) -> Result<()>,
    ) -> Result<()> {
        for pair in self.needed_pairs()? {
            judge(&self.pool.run(&pair, job, args)?)?;
        }
        Ok(())
    }

    /// Runs a job on the first CPU of each pair; argument 3 is the second one, for its thread.
    pub(crate) fn over_threads(
        &mut self,
        job: Job,
        mut args: Args,
        mut judge: impl FnMut(&[Values]) -> Result<()>,
    ) -> Result<()> {
        for [near, far] in self.needed_pairs()? {
            args[3] = u64::try_from(self.topology.cpus[far].id)?;
            judge(&self.pool.run(&[near], job, args)?)?;
        }
        Ok(())
    }

    /// The pairs; an error where there is only one CPU (the list of tests skips before that).
    fn needed_pairs(&self) -> Result<Vec<[usize; 2]>> {
        let pairs = self.topology.pairs();
        if pairs.is_empty() {
            bail!("needs 2 cpus");
        }
        Ok(pairs)
    }

    /// The pairs as `0+2,1+2`.
    pub(crate) fn pairs_text(&self) -> String {
        let id = |index: usize| self.topology.cpus[index].id;
        let pairs = self.topology.pairs();
        let texts: Vec<_> = pairs.iter().map(|&[a, b]| format!("{}+{}", id(a), id(b))).collect();
        texts.join(",")
    }
}
