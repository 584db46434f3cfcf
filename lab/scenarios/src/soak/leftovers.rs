//! What a VM that has ended must not leave.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use lab::Command;

use crate::vm::scenario::Scenario;

/// Processes of the program that are still in a host.
pub(crate) fn left_processes(scenario: &Scenario<'_>) -> Result<Vec<String>> {
    // Processes that were just killed may take a moment to go.
    thread::sleep(Duration::from_millis(500));
    let mut left = Vec::new();
    for host in scenario.lab.hosts() {
        let look = Command::new(["pgrep", "-x", "tessera"]);
        let (status, lines) = host.run(&look, Duration::from_secs(60))?;
        if status.success() {
            left.push(format!("{} processes left on host {}", lines.len(), host.number()));
        }
    }
    Ok(left)
}
