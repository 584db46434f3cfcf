//! Counters of the slices of a VM that runs, by their control sockets.

use std::time::Duration;

use anyhow::{Context, Result};
use lab::{Command, Host};
use serde::Deserialize;

use super::setup::Setup;

/// For one look at the counters of a slice.
const LIMIT: Duration = Duration::from_secs(60);

/// Counters of one slice.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Counters {
    /// The slice's process on its host.
    pub(crate) process: u32,
    pub(crate) memory: MemoryCounters,
}

/// What of them is looked at.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct MemoryCounters {
    pub(crate) device_pages: u64,
    pub(crate) device_page_moves: u64,
    pub(crate) device_frame_page_moves: u64,
    pub(crate) pages_in: u64,
    pub(crate) pages_out: u64,
}

impl Counters {
    /// Of all slices, in order. The guest does not notice.
    pub(crate) fn of(setup: &Setup<'_>) -> Result<Vec<Self>> {
        Self::ask(setup, &[])
    }

    /// The same, after all slices have forgotten which pages a device used so far.
    pub(crate) fn forgetting(setup: &Setup<'_>, device: u16) -> Result<Vec<Self>> {
        Self::ask(setup, &["--forget-device-pages", "--of-device", &device.to_string()])
    }

    fn ask(setup: &Setup<'_>, more: &[&str]) -> Result<Vec<Self>> {
        let ask = |host: Host<'_>| {
            let program = setup.scenario.program()?;
            let control = setup.scenario.control(host.number());
            let words = [&program, "counters", "--control", &control];
            let words = words.into_iter().chain(more.iter().copied());
            let said = host.output(&Command::new(words), LIMIT).with_context(|| {
                format!("ask the slice on host {}; `tessera counters` must be known", host.number())
            })?;
            serde_json::from_str(&said).context("read the counters of a slice")
        };
        setup.scenario.lab.hosts().map(ask).collect()
    }
}
