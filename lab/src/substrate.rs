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

/// Finds out what this machine offers: `hardware` when the processor reports VMX or SVM, `/dev/kvm` opens, and its kernel
/// can watch shared memory, for it is that of hosts that are network namespaces.
pub fn substrate() -> Substrate {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let opens = OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
    if opens && has_virtualisation(&processor) && watches_shared_memory(&release) {
        Substrate::Hardware
    } else {
        Substrate::LabMachines
    }
}

fn has_virtualisation(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or("");
    flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm")
}

/// Write protection by userfaultfd on shared memory files came with Linux 6.4.
fn watches_shared_memory(release: &str) -> bool {
    let mut numbers = release.split(|at: char| !at.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (6, 4),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_that_only_contains_svm_is_not_virtualisation() {
        assert!(has_virtualisation("model: x\nflags\t\t: fpu svm sse\n"));
        assert!(!has_virtualisation("flags\t\t: fpu svm_lock sse\n"));
    }

    #[test]
    fn kernel_before_6_4_cannot_watch_shared_memory() {
        assert!(watches_shared_memory("6.12.63+deb13-amd64\n") && watches_shared_memory("7.0-rc1"));
        assert!(!watches_shared_memory("6.1.0-40-amd64\n"), "Debian 12");
        assert!(!watches_shared_memory("5.19.0") && !watches_shared_memory(""));
    }
}
