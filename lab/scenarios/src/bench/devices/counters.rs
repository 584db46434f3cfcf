//! Counters of the slices of a VM that runs, by their control sockets.

use std::time::Duration;

use anyhow::{Context, Result};
use lab::{Command, Host};
use serde::Deserialize;

use super::bed::Bed;

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
    pub(crate) fn of(bed: &Bed<'_>) -> Result<Vec<Self>> {
        Self::ask(bed, &[])
    }

    /// The same, after all slices have forgotten which pages a device used so far.
    pub(crate) fn forgetting(bed: &Bed<'_>, device: u16) -> Result<Vec<Self>> {
        Self::ask(bed, &["--forget-device-pages", "--of-device", &device.to_string()])
    }

    fn ask(bed: &Bed<'_>, more: &[&str]) -> Result<Vec<Self>> {
        let ask = |host: Host<'_>| {
            let program = bed.scenario.program()?;
            let control = bed.scenario.control(host.number());
            let words = [&program, "counters", "--control", &control];
            let words = words.into_iter().chain(more.iter().copied());
            let said = host.output(&Command::new(words), LIMIT).with_context(|| {
                format!("ask the slice on host {}; `tessera counters` must be known", host.number())
            })?;
            serde_json::from_str(&said).context("read the counters of a slice")
        };
        bed.scenario.lab.hosts().map(ask).collect()
    }
}
