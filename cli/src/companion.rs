//! The companion role.

use anyhow::{Context, Result};
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use transport::Secret;
use vmm::slice::{CompanionOptions, Ending, Memory, companion};

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Address and port to wait for a bootstrap at, e.g. 10.9.0.2:7100
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// File with the VM's secret: at least 16 bytes, readable by its owner only
    #[arg(long, value_name = "FILE")]
    secret_file: PathBuf,
    /// Core for the memory engine, best that of the slice's only vCPU; the scheduler's choice if not given
    #[arg(long, value_name = "CORE")]
    engine_core: Option<usize>,
    /// What memory of this slice is made of until another slice uses it: memfd, hugetlbfs or anonymous
    #[arg(long, default_value_t = Memory::default(), value_name = "KIND")]
    memory: Memory,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Ending> {
    let secret = Secret::load(&arguments.secret_file).context("load the VM's secret")?;
    let Arguments { listen, engine_core, memory, .. } = *arguments;
    companion(&CompanionOptions { listen, secret, engine_core, memory }).context("be a companion")
}
