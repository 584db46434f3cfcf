//! How a VM went whose guest ran its tests, and what is wrong with it.

use anyhow::{Result, ensure};
use lab::ExitStatus;
use serde_json::Value;

use super::fault_classes::Classes;
use super::guest_console::GuestReport;

/// How a VM went.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) guest: GuestReport,
    pub(crate) exit: Result<ExitStatus>,
    /// What `tessera bootstrap --report` wrote.
    pub(crate) report: Option<Value>,
    /// Seconds from the start of the bootstrap slice to the guest's first own line.
    pub(crate) boot_seconds: Option<f64>,
    pub(crate) seconds: f64,
    /// How often a slice was left without memory: it had no table of the guest's kernel any more.
    pub(crate) emptied: usize,
    /// Everything that is not as it should be; empty for a good run.
    pub(crate) problems: Vec<String>,
    pub(crate) tail: Vec<String>,
}

impl Outcome {
    /// Fails with the problems and the last lines, if there are problems.
    pub(crate) fn check(&self) -> Result<()> {
        let Self { problems, tail, .. } = self;
        ensure!(problems.is_empty(), "{}\n{}", problems.join("; "), tail.join("\n"));
        Ok(())
    }

    /// Takes warnings of the guest's kernel, and a log that was not read, for problems.
    pub(crate) fn judge_kernel(&mut self) {
        match self.guest.kernel_warnings {
            Some(0) => {}
            Some(count) => {
                self.problems.push(format!("{count} warnings in the guest's kernel log"));
            }
            None => self.problems.push("the guest's kernel log was not read".to_owned()),
        }
    }

    /// Adds what is not as it should be to the problems. The VM began with so many slices, and the guest should have so many
    /// CPUs; `strict` takes warnings of its kernel for failures.
    pub(crate) fn judge(&mut self, (slices, cpus): (usize, u32), strict: bool) {
        let problems = &mut self.problems;
        match &self.exit {
            Ok(status) if status.success() => {}
            Ok(status) => problems.push(format!("tessera bootstrap ended with {status}")),
            Err(error) => problems.push(format!("tessera bootstrap: {error:#}")),
        }
        let guest = &self.guest;
        match guest.cpus_online {
            Some(online) if online == cpus => {}
            Some(online) => problems.push(format!("{online} of {cpus} CPUs online")),
            None => problems.push("the guest did not reach its tests".to_owned()),
        }
        if guest.cpus_online.is_some() && guest.done.is_none() {
            problems.push("the guest did not finish its tests".to_owned());
        }
        let failed = guest.failed();
        if !failed.is_empty() {
            problems.push(format!("tests failed: {}", failed.join(", ")));
        }
        if let Some(done) = guest.done.filter(|done| done.failed > 0 && failed.is_empty()) {
            problems.push(format!("the guest counts {} failed tests", done.failed));
        }
        // A slice that has left has taken its counts along: shares of the others' say nothing then.
        let is_whole = |report: &Value| report["slices"].as_array().map_or(0, Vec::len) == slices;
        let classes = self.report.as_ref().filter(|report| replicates(report) && is_whole(report));
        let classes = classes.and_then(Classes::of);
        if let Some(classes) = classes.filter(|c| c.too_many_for_tables(self.emptied)) {
            let line = classes.line();
            problems.push(format!("replicas did not keep page tables local: {}", line.trim()));
        }
        let warnings = guest.kernel_warnings.unwrap_or(0);
        if strict && warnings > 0 {
            problems.push(format!("{warnings} warnings in the guest's kernel log"));
        }
    }
}

/// True when page tables of the kernel became replicas.
fn replicates(report: &Value) -> bool {
    let how = report.get("page_tables").and_then(Value::as_str);
    how.is_some_and(|how| how == "replicate" || how == "kernel")
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use serde_json::json;

    use super::*;

    /// A good run, after something was done to it.
    fn problems(strict: bool, change: impl FnOnce(&mut Outcome)) -> Vec<String> {
        problems_of(1, strict, change)
    }

    /// The same of a VM that began with so many slices.
    fn problems_of(slices: usize, strict: bool, change: impl FnOnce(&mut Outcome)) -> Vec<String> {
        let mut guest = GuestReport::default();
        for line in [
            "GUEST cpus_online=2 numa_nodes=2",
            "TEST futex pass",
            "GUEST tests_done passed=1 failed=0 uptime=1",
            "GUEST kernel_warnings=0",
        ] {
            assert!(guest.take(line));
        }
        let mut outcome = Outcome {
            guest,
            exit: Ok(ExitStatus::Code(0)),
            report: Some(report("replicate", 1)),
            boot_seconds: Some(1.0),
            seconds: 2.0,
            emptied: 0,
            problems: Vec::new(),
            tail: Vec::new(),
        };
        change(&mut outcome);
        outcome.judge((slices, 2), strict);
        outcome.problems
    }

    fn report(tables: &str, kernel: u64) -> Value {
        let faults = json!({"kernel_page_table": kernel, "user_page_table": 0, "other": 99});
        json!({"page_tables": tables, "slices": [{"faults_by_class": faults}]})
    }

    #[test]
    fn good_run_has_no_problem() {
        assert!(problems(true, |_| {}).is_empty());
        // Nobody promises local tables then.
        assert!(problems(true, |run| run.report = Some(report("coherent", 50))).is_empty());
        assert!(problems(false, |run| run.guest.kernel_warnings = Some(3)).is_empty());
        // It was without memory for a while.
        let moved = |run: &mut Outcome| (run.report, run.emptied) = (Some(report("kernel", 20)), 1);
        assert!(problems(true, moved).is_empty());
        // A slice has left, and its faults are not known.
        let tables = |run: &mut Outcome| run.report = Some(report("kernel", 50));
        assert!(problems_of(2, true, tables).is_empty() && !problems(true, tables).is_empty());
    }

    #[test]
    fn each_thing_that_is_wrong_is_one_problem() {
        let found = |change: fn(&mut Outcome)| match &problems(true, change)[..] {
            [only] => only.clone(),
            others => panic!("{others:?}"),
        };

        assert!(found(|run| run.exit = Ok(ExitStatus::Code(5))).contains("ended with"));
        assert!(found(|run| run.exit = Err(anyhow!("gone"))).contains("gone"));
        assert_eq!(found(|run| run.guest.cpus_online = Some(1)), "1 of 2 CPUs online");
        assert!(found(|run| run.guest.cpus_online = None).contains("did not reach"));
        assert!(found(|run| run.guest.done = None).contains("did not finish"));
        let failed = found(|run| assert!(run.guest.take("TEST pipe fail late")));
        assert_eq!(failed, "tests failed: pipe");
        let hidden = "GUEST tests_done passed=1 failed=2 uptime=1";
        assert!(problems(true, |run| assert!(run.guest.take(hidden)))[0].contains("counts 2"));
        assert!(found(|run| run.report = Some(report("kernel", 2))).contains("page tables local"));
        assert!(found(|run| run.guest.kernel_warnings = Some(3)).contains("3 warnings"));
    }
}
