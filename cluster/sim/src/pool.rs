//! Hosts that are alike.

use scheduler::cluster::{Cluster, HostSpec};
use scheduler::{Fabric, FailureDomain, Resources, Spec, SpecError};
use serde::{Deserialize, Serialize};

/// Hosts that share their VMs with no other pool. Each has two NUMA nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// How many.
    pub hosts: u32,
    /// Cores of each.
    pub cores: u32,
    /// GiB of each.
    pub gib: u32,
    /// Hosts over which a VM may be split: those of one fabric.
    pub fabric: u32,
    /// Hosts that are lost together.
    pub domain: u32,
}

impl Default for Pool {
    fn default() -> Self {
        Self { hosts: 100, cores: 48, gib: 384, fabric: 100, domain: 20 }
    }
}

impl Pool {
    /// What one host has. It has no more memory than a number of units can count.
    #[must_use]
    pub fn host(&self) -> Resources {
        Resources::new(self.cores, self.gib.saturating_mul(512))
    }

    /// Cores of all hosts.
    #[must_use]
    pub fn all_cores(&self) -> u64 {
        u64::from(self.hosts) * u64::from(self.cores)
    }

    /// Whether an empty host has room for it.
    #[must_use]
    pub fn holds(&self, spec: &Spec) -> bool {
        spec.needs.fits_in(self.host())
    }

    /// All hosts, empty.
    ///
    /// # Errors
    /// There are too many, or one has too much.
    pub fn cluster(&self) -> Result<Cluster, SpecError> {
        let mut cluster = Cluster::new();
        let host = self.host();
        let half = Resources::new(host.cores / 2, host.memory / 2);
        for number in 0..self.hosts {
            cluster.add_host(&HostSpec {
                fabric: Fabric(number / self.fabric.max(1)),
                domain: FailureDomain(number / self.domain.max(1)),
                ..HostSpec::new(vec![half, host.minus(half)])
            })?;
        }
        Ok(cluster)
    }
}
