//! The lines on the console, which the host side parses, and the kernel's own complaints.
//!
//! ```text
//! GUEST cpus_online=2 numa_nodes=2
//! GUEST cpu 0 node 0
//! TEST count-xadd pass total=2000 cpus=2
//! GUEST tests_done passed=31 failed=0 uptime=12.3
//! GUEST kernel_warnings=0
//! ```
//! Each byte costs a VM exit, so nothing else is printed, and each line is one write.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result};
use tessera_guest_tests::kernel_log::complaint;

use crate::affinity::Topology;

/// Prints one line. A console that cannot be written to leaves nobody to tell.
pub(crate) fn line(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(format!("{text}\n").as_bytes());
    let _ = out.flush();
}

/// Prints what the machine looks like.
pub(crate) fn machine(topology: &Topology) {
    let (cpus, nodes) = (topology.cpus.len(), topology.memory_nodes.len());
    line(&format!("GUEST cpus_online={cpus} numa_nodes={nodes}"));
    for cpu in &topology.cpus {
        line(&format!("GUEST cpu {} node {}", cpu.id, cpu.node));
    }
}

/// Passes and failures so far.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Score {
    /// Tests passed.
    pub(crate) passed: u32,
    /// Tests failed.
    pub(crate) failed: u32,
}

impl Score {
    /// Prints the line of a test and counts it.
    pub(crate) fn add(&mut self, name: &str, result: &Result<String>) {
        match result {
            Ok(detail) => {
                self.passed += 1;
                line(&format!("TEST {name} pass {}", one_line(detail)));
            }
            Err(error) => {
                self.failed += 1;
                line(&format!("TEST {name} fail {}", one_line(&format!("{error:#}"))));
            }
        }
    }

    /// Prints the sum.
    pub(crate) fn finish(self) {
        let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
        let uptime = uptime.split_ascii_whitespace().next().unwrap_or("0");
        let Self { passed, failed } = self;
        line(&format!("GUEST tests_done passed={passed} failed={failed} uptime={uptime}"));
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// Lines of the kernel log quoted at most.
const MOST_QUOTED: usize = 5;

/// Prints how many complaints the kernel log has, and the first of them.
pub(crate) fn kernel_warnings() {
    match complaints_in_log() {
        Ok(found) => {
            line(&format!("GUEST kernel_warnings={}", found.len()));
            for text in found.iter().take(MOST_QUOTED) {
                line(&format!("GUEST kernel_warning {}", one_line(text)));
            }
        }
        Err(error) => line(&format!("GUEST kernel_warnings=unknown {error:#}")),
    }
}

fn complaints_in_log() -> Result<Vec<String>> {
    let mut log = open_log().context("cannot open /dev/kmsg")?;
    let mut found = Vec::new();
    // One read gives one record, 8 KiB at most.
    let mut record = vec![0; 8192];
    loop {
        match log.read(&mut record) {
            Ok(0) => return Ok(found),
            Ok(len) => {
                found
                    .extend(complaint(&String::from_utf8_lossy(&record[..len])).map(str::to_owned));
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(found),
                // EPIPE: records were overwritten while we read; go on with the next.
                io::ErrorKind::BrokenPipe | io::ErrorKind::Interrupted => {}
                _ => return Err(error).context("cannot read /dev/kmsg"),
            },
        }
    }
}

fn open_log() -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn score_counts_both_results() {
        let mut score = Score::default();
        score.add("a", &Ok("x".to_owned()));
        score.add("b", &Err(anyhow::anyhow!("two\nlines")));
        assert_eq!(score, Score { passed: 1, failed: 1 });
    }
}
