//! What the guest test program says on the guest's console.
//!
//! ```text
//! GUEST cpus_online=2 numa_nodes=2
//! GUEST cpu 0 node 0
//! TEST count-xadd pass total=2000 cpus=2
//! GUEST tests_done passed=31 failed=0 uptime=12.3
//! GUEST kernel_warnings=0
//! ```
//! Other lines are the kernel's. The guest is not trusted: a line that is almost one of these is not one.

use std::collections::BTreeMap;

use crate::progress::printable;

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    Fail,
}

/// The end of the guest's tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
}

/// Everything the guest said so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GuestReport {
    pub(crate) cpus_online: Option<u32>,
    pub(crate) numa_nodes: Option<u32>,
    /// NUMA node of each CPU.
    pub(crate) nodes: BTreeMap<u32, u32>,
    /// Verdict and details of each test.
    pub(crate) tests: BTreeMap<String, (Verdict, String)>,
    pub(crate) done: Option<Done>,
    pub(crate) kernel_warnings: Option<u32>,
}

/// More tests than this are not kept: the guest does not decide how much memory we use.
const MOST_TESTS: usize = 1000;

impl GuestReport {
    /// Takes in one line of the console; true when it was for us.
    pub(crate) fn take(&mut self, line: &str) -> bool {
        let line = printable(line);
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("TEST ") {
            return self.take_test(rest).is_some();
        }
        line.strip_prefix("GUEST ").is_some_and(|rest| self.take_guest(rest).is_some())
    }

    fn take_test(&mut self, rest: &str) -> Option<()> {
        let (name, rest) = rest.split_once(' ')?;
        let (verdict, detail) = rest.split_once(' ').unwrap_or((rest, ""));
        let verdict = match verdict {
            "pass" => Verdict::Pass,
            "fail" => Verdict::Fail,
            _ => return None,
        };
        if self.tests.len() < MOST_TESTS || self.tests.contains_key(name) {
            self.tests.insert(name.to_owned(), (verdict, detail.to_owned()));
        }
        Some(())
    }

    fn take_guest(&mut self, rest: &str) -> Option<()> {
        if let Some(rest) = rest.strip_prefix("cpu ") {
            let (cpu, node) = rest.split_once(" node ")?;
            let (cpu, node) = (cpu.parse().ok()?, node.parse().ok()?);
            if self.nodes.len() < MOST_TESTS {
                self.nodes.insert(cpu, node);
            }
            return Some(());
        }
        let fields: BTreeMap<_, _> =
            rest.split_whitespace().filter_map(|word| word.split_once('=')).collect();
        let number = |name: &str| fields.get(name).and_then(|value| value.parse::<u32>().ok());
        if rest.starts_with("tests_done ") {
            self.done = Some(Done { passed: number("passed")?, failed: number("failed")? });
        } else if rest.starts_with("cpus_online=") {
            self.cpus_online = Some(number("cpus_online")?);
            self.numa_nodes = Some(number("numa_nodes")?);
        } else if rest.starts_with("kernel_warnings=") {
            self.kernel_warnings = Some(number("kernel_warnings")?);
        } else {
            return None;
        }
        Some(())
    }

    /// Names of the tests that failed.
    pub(crate) fn failed(&self) -> Vec<&str> {
        let failed = self.tests.iter().filter(|(_, (verdict, _))| *verdict == Verdict::Fail);
        failed.map(|(name, _)| name.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn console_of_a_good_run_is_understood() {
        let mut report = GuestReport::default();

        for line in [
            "GUEST cpus_online=2 numa_nodes=2\r",
            "GUEST cpu 1 node 1",
            "TEST litmus-sb pass n=10 apart[00:1]",
            "TEST futex fail no answer from cpu 1",
            "GUEST tests_done passed=1 failed=1 uptime=3.5",
            "GUEST kernel_warnings=0",
        ] {
            assert!(report.take(line), "{line}");
        }

        assert_eq!((report.cpus_online, report.numa_nodes), (Some(2), Some(2)));
        assert_eq!(report.nodes.get(&1), Some(&1));
        assert_eq!(report.failed(), ["futex"]);
        assert_eq!(report.done, Some(Done { passed: 1, failed: 1 }));
        assert_eq!(report.kernel_warnings, Some(0));
    }

    #[test]
    fn kernel_line_is_not_taken() {
        let mut report = GuestReport::default();

        assert!(!report.take("[    0.0] TEST x pass"));
        assert!(!report.take("TEST x maybe"));
        assert_eq!(report, GuestReport::default());
    }

    proptest! {
        #[test]
        fn arbitrary_line_never_panics(line in "(GUEST |TEST )?[a-z_= 0-9]{0,40}|.{0,40}") {
            GuestReport::default().take(&line);
        }
    }
}
