//! What the hosts of a lab run on.

use std::fmt;
use std::fs::{self, OpenOptions};

use serde::{Deserialize, Serialize};

/// What the hosts of a lab run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Substrate {
    /// The machine's own processor has VMX or SVM: hosts are network namespaces.
    Hardware,
    /// It has none: hosts are emulated machines.
    LabMachines,
    /// It has none, and hosts are network namespaces because somebody asked for that.
    Namespaces,
}

impl fmt::Display for Substrate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hardware => "hardware",
            Self::LabMachines => "lab-machines",
            Self::Namespaces => "namespaces",
        })
    }
}

/// Finds out what this machine offers: `hardware` when the processor reports VMX or SVM and
/// `/dev/kvm` opens.
pub fn substrate() -> Substrate {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let opens = OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
    if opens && has_virtualisation(&processor) {
        Substrate::Hardware
    } else {
        Substrate::LabMachines
    }
}

fn has_virtualisation(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or("");
    flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_that_only_contains_svm_is_not_virtualisation() {
        assert!(has_virtualisation("model: x\nflags\t\t: fpu svm sse\n"));
        assert!(!has_virtualisation("flags\t\t: fpu svm_lock sse\n"));
    }
}
