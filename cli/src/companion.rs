//! The companion role.

use crate::local::Local;
use crate::signals;
use anyhow::{Context, Result};
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use transport::Credential;
use vmm::slice::{CompanionOptions, Ending, Lend, companion};

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Address and port to wait for a bootstrap at, e.g. 10.9.0.2:7100
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// File with the VM's secret (at least 16 bytes), or with the key of one slice (tessera slice-key);
    /// readable by its owner only
    #[arg(long, value_name = "FILE")]
    secret_file: PathBuf,
    /// What a VM may be given of this host: `disk:ro:PATH` or `disk:rw:PATH` (an image file or block device),
    /// `tap:NAME`, `console:stdio`, `console:file=PATH`, `console:socket=PATH` or `vsock:PATH`; may be repeated. It is
    /// opened at the start, so that the name means the same later
    #[arg(long, value_name = "KIND:NAME")]
    lend: Vec<Lend>,
    #[command(flatten)]
    local: Local,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Ending> {
    let stop = signals::listen()?;
    let credential = Credential::load(&arguments.secret_file).context("load the VM's secret")?;
    let (listen, local) = (arguments.listen, arguments.local.clone().into());
    let lend = arguments.lend.clone();
    companion(&CompanionOptions { listen, credential, local, lend, stop }).context("be a companion")
}
