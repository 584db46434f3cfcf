//! What joins the slices of a benchmark.

use anyhow::{Context, Result};
use std::time::Duration;
use transport::{Config, Transport, rdma, shm, tcp};

/// What joins the slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Rings in shared memory.
    Shm,
    /// TCP over the loopback device.
    Tcp,
    /// Queue pairs of the first RDMA port.
    Rdma,
}

impl Carrier {
    /// All that this machine has: RDMA only with an active port.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::Shm, Self::Tcp];
        if rdma::available().is_ok() {
            all.push(Self::Rdma);
        }
        all
    }

    /// For tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }

    /// Endpoints of so many slices that are all connected.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn mesh(self, slices: u16) -> Result<Vec<Box<dyn Transport>>> {
        // A slice may prepare its memory for seconds before its engine keeps the lease.
        let config = Config { lease: Duration::from_secs(60), ..Config::default() };
        Ok(match self {
            Self::Shm => boxed(shm::mesh(slices, &config)?),
            Self::Tcp => boxed(tcp::mesh(slices, &config)?),
            Self::Rdma => boxed(rdma::mesh(slices, &config)?),
        })
    }

    /// The endpoints of slices 0 and 1.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn pair(self) -> Result<[Box<dyn Transport>; 2]> {
        self.mesh(2)?.try_into().ok().context("two endpoints")
    }
}

fn boxed(mesh: Vec<impl Transport + 'static>) -> Vec<Box<dyn Transport>> {
    mesh.into_iter().map(|end| Box::new(end) as Box<dyn Transport>).collect()
}
