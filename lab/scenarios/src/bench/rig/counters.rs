//! Counters of the slices of a VM that runs, by their control sockets.

use std::time::Duration;

use anyhow::{Context, Result};
use lab::{Command, Host};
use serde::de::DeserializeOwned;

use crate::vm::scenario::Scenario;

/// For one look at the counters of a slice.
const LIMIT: Duration = Duration::from_secs(60);

/// What `tessera counters`, with `more` words, says of each slice, on the hosts in order. The guest does not notice.
pub(crate) fn counters<'a, T: DeserializeOwned>(
    scenario: &Scenario<'_>,
    hosts: impl IntoIterator<Item = Host<'a>>,
    more: &[&str],
) -> Result<Vec<T>> {
    let program = scenario.program()?;
    let ask = |host: Host<'_>| {
        let control = scenario.control(host.number());
        let words = [&program, "counters", "--control", &control];
        let words = words.into_iter().chain(more.iter().copied());
        let said = host.output(&Command::new(words), LIMIT).with_context(|| {
            format!("ask the slice on host {}; `tessera counters` must be known", host.number())
        })?;
        serde_json::from_str(&said).context("read the counters of a slice")
    };
    hosts.into_iter().map(ask).collect()
}
