//! `tessera counters`: what running slices have counted, without ending them.

use anyhow::Result;
use clap::Args;
use std::path::PathBuf;
use vmm::control::{Answer, Client, ForgetRequest, ReportRequest, Request};

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Control socket of a slice; may be given for several slices on this host
    #[arg(long, value_name = "PATH", required = true)]
    control: Vec<PathBuf>,
    /// Forget which pages devices used until now
    ///
    /// `device_page_moves` goes on from where it is, but only with pages that devices use again.
    #[arg(long)]
    forget_device_pages: bool,
    /// With --forget-device-pages: only this device's pages count
    ///
    /// Disks come first, from 0 on in the order of the command line, then networks, the source of randomness, consoles,
    /// and the socket device.
    #[arg(long, value_name = "NUMBER", requires = "forget_device_pages")]
    of_device: Option<u16>,
}

/// Prints the answer of each slice as JSON, a line each.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let request = if arguments.forget_device_pages {
        Request::ForgetDevicePages(ForgetRequest { only: arguments.of_device })
    } else {
        Request::Report(ReportRequest {})
    };
    tell(&arguments.control, &request)
}

/// Asks slices for something that they answer with their counters, and prints these.
pub(crate) fn tell(control: &[PathBuf], request: &Request) -> Result<()> {
    for path in control {
        let answer = Client::connect(path)?.ask(request)?;
        if let Answer::Report(report) = answer {
            println!("{}", serde_json::to_string(&report)?);
        }
    }
    Ok(())
}
