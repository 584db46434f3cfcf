//! `tessera tune`: other settings for running slices.

use anyhow::Result;
use clap::{ArgAction, Args};
use control::v1::TuneDsmRequest;
use control::v1::tune_dsm_request::HoldWindow;
use std::path::PathBuf;
use std::time::Duration;

use crate::bootstrap::window;
use crate::counters::tell;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Control socket of a slice; may be given for several slices on this host
    #[arg(long, value_name = "PATH", required = true)]
    control: Vec<PathBuf>,
    /// Bounds of the hold window from now on: least and most microseconds that a page stays where it just came
    #[arg(long, value_name = "MIN:MAX", value_parser = window)]
    hold: Option<(u64, u64)>,
    /// Correlation prefetch: whether pages that were missed together are asked for together
    #[arg(long, value_name = "true|false", action = ArgAction::Set)]
    correlation: Option<bool>,
}

/// Changes what is given, and prints the counters of each slice as JSON, a line each.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let request = TuneDsmRequest {
        hold: arguments.hold.map(|(min, max)| HoldWindow { min: micros(min), max: micros(max) }),
        correlation_prefetch: arguments.correlation,
        ..TuneDsmRequest::default()
    };
    tell(&arguments.control, |mut vm| {
        let request = request.clone();
        async move { vm.tune_dsm(request).await }
    })
}

fn micros(micros: u64) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(Duration::from_micros(micros)).ok()
}
