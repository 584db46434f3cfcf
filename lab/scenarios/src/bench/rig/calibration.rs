//! How fast this machine's emulated hosts are, so that a fault costs the guest what it costs between real hosts, and a task takes as
//! long as it is meant to, on any machine.
//!
//! ```text
//!   boot over two hosts: microseconds of a fault ─> rate of the guests' clock ─┐
//!   boot with one vCPU: steps of a second ─────────────────────────────────────┴─> steps of a task
//! ```
//! What a program gains depends on what a fault costs it, beside its computing. Emulated hosts take milliseconds for a fault, and
//! each machine another time, so the guests' clock is slowed down by what was measured on this one.

use anyhow::{Context, Result, bail, ensure};
use lab::{Lab, Mode};
use serde_json::Value;

use super::Rig;
use super::figures::count;
use crate::vm::VmOptions;
use crate::vm::fault_classes::Classes;
use crate::vm::guest_console::{GuestReport, Verdict};
use crate::vm::layout::Layout;
use crate::vm::prepare::Prepared;

/// What a fault costs a guest between real hosts: 15 to 60 us (RDMA, TCP; assumed).
const REAL_FAULT_US: f64 = 40.0;
/// Guest seconds that a task computes.
pub(crate) const TASK_SECONDS: f64 = 0.4;
/// Million steps of a task while this is measured.
const MILLIONS: u32 = 1000;
/// How often two hosts run them: a fault costs more while both compute than while they boot.
const ROUNDS: u32 = 3;
/// Rate of the clock meanwhile. Figures are of this machine's clock.
const CLOCK: &str = "0.01";

/// What was measured, by this machine's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Calibration {
    /// For how long a vCPU waits for a page.
    pub(crate) fault_us: f64,
    millions_per_second: f64,
}

impl Calibration {
    /// That of emulated hosts, for VMs whose options say no rate of the clock: they get it.
    ///
    /// # Errors
    /// As [`Self::measure`].
    pub(crate) fn apply(
        rig: &Rig,
        options: &mut VmOptions,
        prepared: &Prepared,
        lab: &Lab,
    ) -> Result<Option<Self>> {
        if lab.mode() != Mode::Machines || options.guest_clock_rate.is_some() {
            return Ok(None);
        }
        let found = Self::measure(rig, options, prepared, lab)?;
        options.guest_clock_rate = Some(found.clock_rate());
        Ok(Some(found))
    }

    /// The same for guests that run tasks: those are long enough by that clock.
    ///
    /// # Errors
    /// As [`Self::measure`].
    pub(crate) fn apply_with_tasks(
        rig: &Rig,
        options: &mut VmOptions,
        prepared: &Prepared,
        lab: &Lab,
    ) -> Result<()> {
        if let Some(found) = Self::apply(rig, options, prepared, lab)? {
            // Whoever gives another size says so later in the line.
            options.cmdline =
                format!("tessera.task={} {}", found.millions_of_task(), options.cmdline);
        }
        Ok(())
    }

    /// Boots a guest over two of the hosts, and one with a vCPU, and has both run short tasks. `prepared` boots the guest's tests.
    fn measure(rig: &Rig, options: &VmOptions, prepared: &Prepared, lab: &Lab) -> Result<Self> {
        rig.say("measuring what a fault costs on this machine, for the rate of the guests' clock");
        let mut options = options.clone();
        options.guest_clock_rate = Some(CLOCK.to_owned());
        options.tests = Some("none".to_owned());
        let mut run = |slices, rounds| {
            options.cmdline = format!("tessera.programs={rounds} tessera.task={MILLIONS}");
            let layout = Layout::even(slices)?;
            let scenario = rig.scenario(&options, &layout, prepared, lab);
            let clock = scenario.guest_clock()?;
            let outcome = scenario.run()?;
            outcome.check()?;
            anyhow::Ok((outcome, clock))
        };
        let (borrows, _) = run(2, ROUNDS)?;
        let report = borrows.report.as_ref().context("the VM has no report")?;
        let (faults, waited_us) = waits(report);
        ensure!(faults > 0 && waited_us > 0, "no vCPU waited for a page");
        // Where none is waited for.
        let (alone, clock) = run(1, 1)?;
        let task = load_seconds(&alone.guest, "task")?;
        let [seconds] = task[..] else { bail!("a task ran {} times", task.len()) };
        let found = Self {
            fault_us: count(waited_us) / count(faults),
            millions_per_second: f64::from(MILLIONS) / seconds * clock,
        };
        rig.say(&format!(
            "a fault takes {:.0} us here: guests have {} seconds for each of this machine, and tasks of {} million steps",
            found.fault_us,
            found.clock_rate(),
            found.millions_of_task(),
        ));
        Ok(found)
    }

    /// Guest seconds for each second, as an option of the VM.
    pub(crate) fn clock_rate(self) -> String {
        format!("{:.5}", self.clock())
    }

    /// Million steps that take [`TASK_SECONDS`] by that clock.
    fn millions_of_task(self) -> u64 {
        let millions = (self.millions_per_second * TASK_SECONDS / self.clock()).clamp(1.0, 1e9);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let millions = millions.round() as u64;
        millions
    }

    /// No faster than this machine's, and no slower than an option may say.
    fn clock(self) -> f64 {
        (REAL_FAULT_US / self.fault_us).clamp(0.001, 1.0)
    }
}

/// Faults of all slices in a report, and for how long vCPUs waited for them (in microseconds).
pub(crate) fn waits(report: &Value) -> (u64, u64) {
    let faults = Classes::of(report).map_or(0, Classes::all);
    let slices = report["slices"].as_array().into_iter().flatten();
    (faults, slices.filter_map(|slice| slice["waited_us"].as_u64()).sum())
}

/// Seconds of one of the guest's loads by the guest's clock, one for each round.
pub(crate) fn load_seconds(guest: &GuestReport, load: &str) -> Result<Vec<f64>> {
    let (verdict, detail) = guest
        .tests
        .get(&format!("programs-{load}"))
        .with_context(|| format!("no time of {load}"))?;
    ensure!(*verdict == Verdict::Pass, "{load}: {detail}");
    let list =
        detail.strip_prefix("ns=").with_context(|| format!("no time of {load}: {detail}"))?;
    list.split(',')
        .map(|word| {
            let nanoseconds: f64 = word.parse().with_context(|| format!("{load}: {detail}"))?;
            ensure!(nanoseconds > 0.0, "{load} took no time: {detail}");
            Ok(nanoseconds / 1e9)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_costs_as_much_by_the_guests_clock_on_each_machine() {
        for fault_us in [1500.0, 6500.0] {
            let machine = Calibration { fault_us, millions_per_second: 800.0 };
            let clock: f64 = machine.clock_rate().parse().unwrap();
            assert!((fault_us * clock - REAL_FAULT_US).abs() < 0.1, "{clock}");
            let task = count(machine.millions_of_task()) / 800.0 * clock;
            assert!((task - TASK_SECONDS).abs() < 0.001, "{task}");
        }
        // Where faults are no dearer the clock is this machine's own.
        let near = Calibration { fault_us: 10.0, millions_per_second: 800.0 };
        assert_eq!((near.clock_rate().as_str(), near.millions_of_task()), ("1.00000", 320));
    }

    #[test]
    fn waits_of_all_slices_are_added() {
        let class = serde_json::json!({"kernel_page_table": 1, "user_page_table": 2, "other": 3});
        let report = serde_json::json!({"slices": [
            {"waited_us": 3, "faults_by_class": class}, {"waited_us": 4, "faults_by_class": class}
        ]});
        assert_eq!(waits(&report), (12, 7));
        assert_eq!(waits(&Value::Null), (0, 0));
    }

    #[test]
    fn times_of_the_guest_are_read_and_others_refused() {
        let mut guest = GuestReport::default();
        guest.take("TEST programs-task pass ns=400000000,500000000");
        guest.take("TEST programs-boot fail no clock");
        guest.take("TEST programs-jobs-1 pass ns=0");

        assert_eq!(load_seconds(&guest, "task").unwrap(), [0.4, 0.5]);
        assert!(load_seconds(&guest, "boot").unwrap_err().to_string().contains("no clock"));
        assert!(load_seconds(&guest, "jobs-1").is_err());
        assert!(load_seconds(&guest, "threads-2").is_err());
    }
}
