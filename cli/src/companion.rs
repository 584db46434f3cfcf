//! The companion role: of a VM that another host starts, or that runs and takes it in (`tessera vm add`).

use crate::local::Local;
use crate::names::address;
use crate::report::ReportFile;
use crate::signals;
use anyhow::{Context, Result};
use clap::Args;
use std::io::stdout;
use std::net::SocketAddr;
use std::path::PathBuf;
use transport::Credential;
use vmm::slice::{CompanionOptions, Ending, Lend, LocalOptions, companion};

/// Ends the help.
pub(crate) const EXAMPLE: &str = "\
Example: a VM may use this host's vCPUs and memory, one disk and one network:
  tessera companion --listen 10.9.0.2:7100 --secret-file vm.key --lend disk:rw:/srv/guest.raw --lend tap:tap0

It serves one VM. Its exit status is 0 once the VM is over, or has been drained from this host. Should this slice come to
coordinate the VM (tessera vm drain of the bootstrap's slice), the guest's serial line goes to standard output here, and the
exit status says how the VM ended.";

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Address and port to wait for a bootstrap at, e.g. 10.9.0.2:7100; the other slices must reach it there too
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    listen: SocketAddr,
    /// File with the VM's secret, or with the key of one slice (tessera slice-key); readable by its owner only
    ///
    /// A secret has 16 to 4096 bytes. One newline at its end does not count.
    #[arg(long, value_name = "FILE")]
    secret_file: PathBuf,
    /// What a VM may be given of this host; opened at the start, so that the name means the same later
    ///
    /// - `disk:ro:PATH`, `disk:rw:PATH`: an image file or block device, for reading only or for writing too.
    /// - `tap:NAME`: a tap interface.
    /// - `console:stdio`, `console:file=PATH`, `console:socket=PATH`: an end for a console.
    /// - `vsock:PATH`: a UNIX socket for the guest's sockets.
    ///
    /// PATH must be spelled as in the bootstrap's option, such as `--disk PATH,slice=K` or `standby=K:PATH`. See docs/operations.md.
    #[arg(long, value_name = "KIND:NAME", verbatim_doc_comment)]
    lend: Vec<Lend>,
    #[command(flatten)]
    report: ReportFile,
    #[command(flatten)]
    local: Local,
}

pub(crate) fn run(arguments: &Arguments) -> Result<Ending> {
    arguments.local.stay_with_supervisor()?;
    arguments.local.look_at_checkpoints();
    let stop = signals::listen(arguments.local.is_supervised())?;
    let credential = Credential::load(&arguments.secret_file).context("load the VM's secret")?;
    let (listen, local) = (arguments.listen, LocalOptions::from(arguments.local.clone()));
    let _api = arguments.local.api.serve(&local)?;
    let lend = arguments.lend.clone();
    arguments.report.check()?;
    let console = Box::new(stdout());
    let options = CompanionOptions { listen, credential, local, lend, stop, console };
    let (ending, report) = companion(options).context("be a companion")?;
    arguments.report.write(&report);
    Ok(ending)
}
