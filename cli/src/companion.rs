//! The companion role.

use crate::local::Local;
use anyhow::{Context, Result};
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use transport::Credential;
use vmm::slice::{CompanionOptions, Ending, companion};

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Address and port to wait for a bootstrap at, e.g. 10.9.0.2:7100
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// File with the VM's secret (at least 16 bytes), or with the key of one slice (tessera slice-key);
    /// readable by its owner only
    #[arg(long, value_name = "FILE")]
    secret_file: PathBuf,
    /// An image file, block device or tap interface that a VM may be given; may be repeated
    #[arg(long, value_name = "PATH|TAP")]
    lend: Vec<String>,
    #[command(flatten)]
    local: Local,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Ending> {
    let credential = Credential::load(&arguments.secret_file).context("load the VM's secret")?;
    let (listen, local) = (arguments.listen, arguments.local.clone().into());
    let lend = arguments.lend.clone();
    companion(&CompanionOptions { listen, credential, local, lend }).context("be a companion")
}
