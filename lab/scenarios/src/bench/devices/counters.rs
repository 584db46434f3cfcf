//! What slices count of the pages of devices.

use anyhow::Result;
use serde::Deserialize;

use super::setup::Setup;
use crate::bench::rig;

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
        rig::counters(setup.scenario, setup.scenario.lab.hosts(), more)
    }
}
