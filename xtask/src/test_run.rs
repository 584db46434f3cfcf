//! `./x test`: all tests, and at the end how many there were and what was skipped, why.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::test_failures::Failures;
use crate::{test_programs, workspace};

/// Runs the tests of the workspace. With arguments, which go to cargo, cargo runs them, one program after the other.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode> {
    // Before an hour of tests, most of which would not notice.
    needs::required()?;
    let root = workspace::root()?;
    let notes = Notes::new(workspace::target(&root))?;
    let mut tally = Tally::default();
    let passed = if arguments.is_empty() {
        test_programs::run(&root, &notes.0, &mut |line| tally.read(line))?
    } else {
        let mut cargo = Command::new(workspace::cargo());
        cargo.args(["test", "--workspace", "--locked", "--no-fail-fast"]).args(arguments);
        cargo.current_dir(root).env(needs::SKIPS, &notes.0);
        test_programs::show(&mut cargo, &mut |line| tally.read(line))?.success()
    };
    if tally.programs > 0 {
        tally.note(&fs::read_to_string(&notes.0).context("read what was skipped")?);
        print!("{}", tally.summary(passed));
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The file that tests note their skips in; removed at the end.
struct Notes(PathBuf);

impl Notes {
    fn new(target: PathBuf) -> Result<Self> {
        let path = target.join(format!("skipped-tests-{}", std::process::id()));
        fs::create_dir_all(target).context("make the folder cargo builds into")?;
        fs::write(&path, "").with_context(|| format!("make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        // A left-over costs nothing: the next run has a file of its own.
        let _ = fs::remove_file(&self.0);
    }
}

/// What the test programs said.
#[derive(Debug, Default)]
struct Tally {
    /// Programs that closed with a result.
    programs: usize,
    passed: usize,
    failed: usize,
    /// Names of tests that passed, or returned since they were skipped.
    ended: BTreeSet<String>,
    /// Skipped tests by reason, and tests that left out cases.
    skipped: BTreeMap<String, BTreeSet<String>>,
    left_out: BTreeMap<String, BTreeSet<String>>,
    failures: Failures,
}

impl Tally {
    fn read(&mut self, line: &str) {
        self.failures.read(line);
        if let Some(result) = line.strip_prefix("test result: ") {
            let count = |what: &str| {
                let before = result.split([';', '.']).find_map(|part| part.strip_suffix(what));
                before.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
            };
            self.programs += 1;
            self.passed += count(" passed");
            self.failed += count(" failed");
        } else if let Some((name, verdict)) =
            line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "))
        {
            if verdict == "ok" {
                self.ended.insert(name.to_owned());
            } else if let Some(reason) = verdict.strip_prefix("ignored") {
                let reason = reason.trim_start_matches([',', ' ']);
                let reason = if reason.is_empty() { "ignored" } else { reason };
                self.skipped.entry(reason.to_owned()).or_default().insert(name.to_owned());
            }
        }
    }

    /// Adds what the tests noted themselves, a line each.
    fn note(&mut self, notes: &str) {
        for line in notes.lines() {
            let of = |kind| line.strip_prefix(kind).and_then(|rest: &str| rest.split_once(": "));
            if let Some((test, reason)) = of("skipped: ") {
                let new =
                    self.skipped.entry(reason.to_owned()).or_default().insert(test.to_owned());
                let name = test.split_once(' ').map_or(test, |(_, name)| name);
                // The harness takes a test that returns for one that passed.
                if new && self.ended.contains(name) {
                    self.passed = self.passed.saturating_sub(1);
                }
            } else if let Some((test, reason)) = of("left out: ") {
                self.left_out.entry(reason.to_owned()).or_default().insert(test.to_owned());
            }
        }
    }

    /// The closing lines. Continuous integration reads the last.
    fn summary(&self, success: bool) -> String {
        let mut text = String::from("\n");
        self.failures.lines().for_each(|line| text.push_str(&format!("failed: {line}\n")));
        for (what, groups) in [("skipped", &self.skipped), ("left out in part", &self.left_out)] {
            for (reason, tests) in groups {
                text.push_str(&format!("{what}: {reason} (tests: {})\n", tests.len()));
                tests.iter().for_each(|test| text.push_str(&format!("    {test}\n")));
            }
        }
        let mut failed = self.failed;
        if !success && failed == 0 {
            text.push_str("a test program ended without a result, which counts as a failed test\n");
            failed = 1;
        }
        let skipped: usize = self.skipped.values().map(BTreeSet::len).sum();
        text.push_str(&format!("{} passed, {failed} failed", self.passed));
        if skipped > 0 {
            text.push_str(&format!(", {skipped} skipped"));
        }
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_skips_are_counted() {
        let mut tally = Tally::default();
        for line in [
            "test a::one ... ok",
            "test a::two ... ok",
            "test a::three ... ignored, only by ./x lab rdma",
            "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out",
            "test main ... FAILED",
            "test result: FAILED. 10 passed; 1 failed; 0 ignored",
        ] {
            tally.read(line);
        }
        tally.note(
            "skipped: mesh a::two: rdma: no port: none\nskipped: mesh a::two: rdma: no port: none\n\
             left out: mesh a::one: no huge pages\nskipped: microguest main: kvm: no\n",
        );

        assert_eq!(
            tally.summary(false),
            "\nskipped: kvm: no (tests: 1)\n    microguest main\n\
             skipped: only by ./x lab rdma (tests: 1)\n    a::three\n\
             skipped: rdma: no port: none (tests: 1)\n    mesh a::two\n\
             left out in part: no huge pages (tests: 1)\n    mesh a::one\n\
             11 passed, 1 failed, 3 skipped\n"
        );
    }

    #[test]
    fn program_that_died_counts_as_failed() {
        let mut tally = Tally::default();
        tally.read("test result: ok. 2 passed; 0 failed; 0 ignored");

        assert_eq!(tally.summary(true), "\n2 passed, 0 failed\n");
        assert!(tally.summary(false).ends_with("\n2 passed, 1 failed\n"));
    }
}
