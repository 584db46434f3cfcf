//! `tessera counters`: what running slices have counted, without ending them.

use crate::asking::{Asking, Vm};
use anyhow::{Context, Result};
use clap::Args;
use control::v1::{DsmReport, ForgetDevicePagesRequest, GetDsmReportRequest};
use std::future::Future;
use std::io::{Write, stdout};
use std::path::PathBuf;
use tonic::{Response, Status};

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
    if !arguments.forget_device_pages {
        let request = GetDsmReportRequest::default();
        return tell(&arguments.control, |mut vm| {
            let request = request.clone();
            async move { vm.get_dsm_report(request).await }
        });
    }
    let device = arguments.of_device.map(u32::from);
    let request = ForgetDevicePagesRequest { device, ..ForgetDevicePagesRequest::default() };
    tell(&arguments.control, |mut vm| {
        let request = request.clone();
        async move { vm.forget_device_pages(request).await }
    })
}

/// Asks slices for something that they answer with their counters, and prints these.
pub(crate) fn tell<F>(control: &[PathBuf], ask: impl Fn(Vm) -> F) -> Result<()>
where
    F: Future<Output = std::result::Result<Response<DsmReport>, Status>>,
{
    let mut told = Ok(());
    for path in control {
        let json = Asking::connect(path)?.ask(&ask)?.json;
        // The others are asked even if nobody reads.
        if told.is_ok() {
            told = writeln!(stdout(), "{json}").context("print the answer");
        }
    }
    told
}
