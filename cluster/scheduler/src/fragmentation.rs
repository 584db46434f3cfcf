//! How much of what is free is of no use to the next VM.
//!
//! | measure | definition |
//! |---|---|
//! | Phi | the share of free cores on hosts where the next VM does not fit, expected over the VMs that come (as FGD counts unusable GPUs) |
//! | FR_16 | the share of free cores that are left when each NUMA node is cut into pieces of 16 |

use crate::cluster::{Cluster, HostState};
use crate::resources::Resources;

/// Kinds of VMs that come, with how often.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mix {
    shapes: Vec<(Resources, u32)>,
}

/// Shapes of a mix.
pub const SHAPES_MAX: usize = 64;

impl Mix {
    /// What VMs want, and how often one like that comes; only the proportions count. Shapes beyond [`SHAPES_MAX`] do not.
    #[must_use]
    pub fn new(mut shapes: Vec<(Resources, u32)>) -> Self {
        shapes.truncate(SHAPES_MAX);
        Self { shapes }
    }

    /// VMs as in Azure's trace of 2019, read off the published plots, with 4 GiB for each core.
    #[must_use]
    pub fn azure() -> Self {
        let shares = [(1, 290), (2, 290), (4, 230), (8, 120), (16, 50), (24, 12), (32, 8)];
        let shape = |(cores, share): (u32, u32)| (Resources::new(cores, cores * 2048), share);
        Self::new(shares.into_iter().map(shape).collect())
    }

    /// Free cores that the next VM cannot use, times the sum of all shares.
    #[must_use]
    pub fn unusable(&self, free: Resources) -> u64 {
        let unfit = self.shapes.iter().filter(|(needs, _)| !needs.fits_in(free));
        let shares: u64 = unfit.map(|(_, share)| u64::from(*share)).sum();
        shares * u64::from(free.cores)
    }

    /// Sum of all shares.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.shapes.iter().map(|(_, share)| u64::from(*share)).sum()
    }

    /// How the unusable cores change when something moves between hosts with so much free; less than nothing is better. What is
    /// free altogether stays, so Phi changes in the same direction.
    #[must_use]
    pub fn change(&self, from: Resources, to: Resources, moved: Resources) -> i64 {
        let before = self.unusable(from) + self.unusable(to);
        let after = self.unusable(from.plus(moved)) + self.unusable(to.minus(moved));
        let signed = |it: u64| i64::try_from(it).unwrap_or(i64::MAX);
        signed(after) - signed(before)
    }
}

/// Fragmentation of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fragmentation {
    /// Cores that are free on open hosts.
    pub free_cores: u64,
    /// From 0 to 1.
    pub phi: f64,
    /// From 0 to 1.
    pub fr_16: f64,
}

impl Fragmentation {
    /// Of all open hosts.
    #[must_use]
    pub fn of(cluster: &Cluster, mix: &Mix) -> Self {
        let (mut free_cores, mut unusable, mut pieces) = (0, 0, 0);
        for host in cluster.hosts_in(HostState::Open) {
            free_cores += u64::from(host.free().cores);
            unusable += mix.unusable(host.free());
            pieces += host.free_by_node().map(|free| u64::from(free.cores % 16)).sum::<u64>();
        }
        let phi = ratio(unusable, free_cores.saturating_mul(mix.sum()));
        Self { free_cores, phi, fr_16: ratio(pieces, free_cores) }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share for people")]
fn ratio(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::HostSpec;

    fn mix() -> Mix {
        Mix::new([(1, 1), (4, 2), (8, 1)].map(|(c, w)| (Resources::new(c, c), w)).to_vec())
    }

    #[test]
    fn free_cores_count_by_the_share_of_vms_that_do_not_fit() {
        assert_eq!(mix().unusable(Resources::new(0, 100)), 0);
        assert_eq!(mix().unusable(Resources::new(3, 100)), 3 * 3);
        assert_eq!(mix().unusable(Resources::new(8, 100)), 0);
        assert_eq!(mix().unusable(Resources::new(8, 4)), 8, "memory is too little for the largest");
    }

    #[test]
    fn phi_and_fr_16_are_shares_of_what_is_free() {
        let mut cluster = Cluster::new();
        for cores in [3, 8, 20] {
            cluster.add_host(&HostSpec::new(vec![Resources::new(cores, 100)])).unwrap();
        }

        let found = Fragmentation::of(&cluster, &mix());

        assert_eq!(found.free_cores, 31);
        assert!((found.phi - 9.0 / (31.0 * 4.0)).abs() < 1e-9, "{found:?}");
        assert!((found.fr_16 - (3.0 + 8.0 + 4.0) / 31.0).abs() < 1e-9, "{found:?}");
        assert_eq!(Fragmentation::of(&Cluster::new(), &mix()), Fragmentation::default());
    }
}
