//! What the slices of a VM have written about it: `--report`, one file on each host.
//!
//! ```text
//!   slice 0 ─┬─ it coordinated at the end ─> the report of all slices
//!            └─ drained, or told ─> slice 1 ─┬─ ...
//! ```

use std::fs;

use anyhow::Result;
use serde_json::Value;

use super::scenario::{Scenario, report_of};

/// How a slice ends that has left.
const DRAINED: &str = "the slice was drained; the VM goes on without it";
/// How a slice ends that has not coordinated; more follows.
const TOLD: &str = "the coordinator says that the VM is over: ";

impl Scenario<'_> {
    /// What the slice wrote that coordinated at the end.
    pub(crate) fn read_report(&self, problems: &mut Vec<String>) -> Result<Option<Value>> {
        for (slice, host) in self.hosts().iter().enumerate() {
            let Ok(bytes) = fs::read(report_of(host)?) else {
                problems.push(format!("slice{slice} wrote no report"));
                return Ok(None);
            };
            match serde_json::from_slice(&bytes) {
                Ok(report) if is_of_vm(&report) => return Ok(Some(report)),
                Ok(_) => {}
                Err(error) => {
                    problems.push(format!("the report of slice{slice} is no JSON: {error}"));
                    return Ok(None);
                }
            }
        }
        problems.push("no slice has coordinated at the end".to_owned());
        Ok(None)
    }

    /// Whether the bootstrap's slice has left the VM, and its process is about to end or has.
    pub(crate) fn bootstrap_has_left(&self) -> Result<bool> {
        // A file that is not whole yet is read again.
        let bytes = fs::read(report_of(&self.host(0)?)?).unwrap_or_default();
        let report: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        Ok(report["ending"] == DRAINED)
    }
}

fn is_of_vm(report: &Value) -> bool {
    let ending = report["ending"].as_str();
    ending.is_some_and(|ending| ending != DRAINED && !ending.starts_with(TOLD))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn report_of_the_vm_is_of_who_knows_the_end_by_itself() {
        let of = |ending: &str| is_of_vm(&json!({ "ending": ending }));
        assert!(of("the guest powered off") && of("slice1 is lost: its lease is over"));
        assert!(!of(DRAINED) && !of(&format!("{TOLD}the guest powered off")));
        assert!(!is_of_vm(&json!({})));
    }
}
