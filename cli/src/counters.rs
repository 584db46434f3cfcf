//! `tessera counters`: what running slices have counted, without ending them.

use anyhow::Result;
use clap::Args;
use std::path::PathBuf;
use vmm::control::{Answer, Client, ReportRequest, Request};

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Control socket of a slice; may be given for several slices on this host
    #[arg(long, value_name = "PATH", required = true)]
    control: Vec<PathBuf>,
}

/// Prints the answer of each slice as JSON, a line each.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    for path in &arguments.control {
        let answer = Client::connect(path)?.ask(&Request::Report(ReportRequest {}))?;
        if let Answer::Report(report) = answer {
            println!("{}", serde_json::to_string(&report)?);
        }
    }
    Ok(())
}
