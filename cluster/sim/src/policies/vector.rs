//! Vector bin packing: cores and memory as one vector, as shares of a host.

use super::scored::lowest;
use scheduler::cluster::{Cluster, Host, Move};
use scheduler::policy::{Facts, Policy, Refusal};
use scheduler::{Decision, Resources, Spec, VmId};

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// The direction of what is wanted with that of what is free: their dot product as unit vectors.
    DotProduct,
    /// The length of what is left.
    L2,
}

/// Greedy by a measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vector {
    /// Which.
    pub measure: Measure,
}

impl Policy for Vector {
    fn place(&self, cluster: &Cluster, spec: &Spec) -> Result<Decision, Refusal> {
        lowest(cluster, spec, |host| {
            let wanted = shares(host, spec.needs);
            match self.measure {
                Measure::DotProduct => {
                    let free = shares(host, host.free());
                    let product = wanted[0] * free[0] + wanted[1] * free[1];
                    // In hundredths, so that hosts nearly alike are, and the best fit of them is taken.
                    -(100.0 * product / (length(wanted) * length(free))).round()
                }
                Measure::L2 => length(shares(host, host.free().minus(spec.needs))),
            }
        })
    }

    fn consolidate(&self, _: &Cluster, _: VmId, _: &Facts<'_>) -> Vec<Move> {
        Vec::new()
    }
}

fn shares(host: &Host, of: Resources) -> [f64; 2] {
    let total = host.total();
    let share = |part: u32, all: u32| f64::from(part) / f64::from(all.max(1));
    [share(of.cores, total.cores), share(of.memory, total.memory)]
}

fn length(of: [f64; 2]) -> f64 {
    of[0].hypot(of[1])
}
