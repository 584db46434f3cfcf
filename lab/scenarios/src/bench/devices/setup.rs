//! A VM that runs, to be measured.

use anyhow::Result;
use lab::{Host, HostNumber};

use crate::bench::rig::Rig;
use crate::distro::guest::Guest;
use crate::vm::scenario::Scenario;

/// vCPU of the first host, where the devices are.
pub(crate) const LOCAL_CPU: u16 = 0;
/// vCPU of the second host.
pub(crate) const REMOTE_CPU: u16 = 1;

/// A VM that runs.
#[derive(Debug)]
pub(crate) struct Setup<'a> {
    pub(crate) guest: &'a Guest<'a>,
    pub(crate) scenario: &'a Scenario<'a>,
    pub(crate) rig: &'a Rig,
}

impl Setup<'_> {
    pub(crate) fn host(&self, number: usize) -> Result<Host<'_>> {
        self.scenario.lab.host(HostNumber::new(number)?)
    }
}
