//! One turn of a guest: a boot, and what it says of its loads.

use anyhow::{Context, Result, ensure};
use lab::Lab;
use serde_json::Value;

use super::plan::{Guest, LOADS, Plan};
use crate::bench::rig::{Figures, Rig, count};
use crate::vm::VmOptions;
use crate::vm::fault_classes::Classes;
use crate::vm::guest_console::{GuestReport, Verdict};
use crate::vm::layout::Layout;
use crate::vm::prepare::Prepared;

/// All guests in turns on the same hosts.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) rig: &'a Rig,
    pub(crate) options: &'a VmOptions,
    pub(crate) layout: &'a Layout,
    pub(crate) plan: Plan,
    pub(crate) guests: Vec<Guest>,
    pub(crate) prepared: &'a Prepared,
    pub(crate) lab: &'a Lab,
    /// Seconds by load and guest.
    pub(crate) seconds: Figures<usize, usize>,
    /// Faults of a whole run, and what one costs in microseconds of the guest's clock, by guest.
    pub(crate) faults: Figures<(), usize>,
    /// Seconds of the guests' clock for each second.
    pub(crate) clock: f64,
}

impl Bench<'_> {
    /// All rounds, until one fails.
    pub(crate) fn measure(&mut self) -> Result<()> {
        let all: Vec<_> = (0..self.guests.len()).collect();
        let rig = self.rig;
        rig.turns(self.plan.boots, &all, &mut |round, at| {
            let name = self.guests[at].name.clone();
            self.one(at, round).with_context(|| format!("{name}, round {}", round + 1))
        })
    }

    /// Boots a guest and takes in what it says.
    fn one(&mut self, at: usize, round: usize) -> Result<()> {
        let guest = &self.guests[at];
        let mut options = self.options.clone();
        options.guest_preset.clone_from(&guest.preset);
        options.bootstrap.extend(guest.bootstrap.iter().cloned());
        options.cmdline = format!("{} {}", options.cmdline, guest.cmdline).trim_end().to_owned();
        let alone = Layout::even(1)?;
        let layout = if guest.borrows { self.layout } else { &alone };
        let scenario = self.rig.scenario(&options, layout, self.prepared, self.lab);
        self.clock = scenario.guest_clock()?;
        let outcome = scenario.run()?;
        outcome.check()?;
        let faults = outcome.report.as_ref().and_then(Classes::of).map_or(0, Classes::all);
        let waited_us = outcome.report.as_ref().map_or(0, waited_us);
        let dear = count(waited_us) * self.clock / count(faults.max(1));
        self.faults.add((), at, round, vec![count(faults), dear]);
        let mut said = Vec::new();
        for (load, (name, shown, _)) in LOADS.iter().enumerate() {
            let found = seconds(&outcome.guest, name)?;
            for (time, in_boot) in found.iter().zip(0..) {
                self.seconds.add(load, at, round * self.plan.loads + in_boot, vec![*time]);
            }
            let found: Vec<_> = found.iter().map(|time| format!("{time:.3}")).collect();
            said.push(format!("{shown} {}", found.join(" ")));
        }
        self.rig.say(&format!(
            "round {} of {}, {}: {} guest seconds; {faults} faults of {dear:.0} guest us",
            round + 1,
            self.plan.boots,
            guest.name,
            said.join(", ")
        ));
        Ok(())
    }
}

/// For how long the vCPUs of all slices have waited for pages.
fn waited_us(report: &Value) -> u64 {
    let slices = report["slices"].as_array().into_iter().flatten();
    slices.filter_map(|slice| slice["waited_us"].as_u64()).sum()
}

/// Seconds of a load by the guest's clock, one for each round.
fn seconds(guest: &GuestReport, load: &str) -> Result<Vec<f64>> {
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
    fn waits_of_all_slices_are_added() {
        let report = serde_json::json!({"slices": [{"waited_us": 3}, {"waited_us": 4}, {}]});
        assert_eq!(waited_us(&report), 7);
        assert_eq!(waited_us(&Value::Null), 0);
    }

    #[test]
    fn times_of_the_guest_are_read_and_others_refused() {
        let mut guest = GuestReport::default();
        guest.take("TEST programs-task pass ns=400000000,500000000");
        guest.take("TEST programs-boot fail no clock");
        guest.take("TEST programs-jobs-1 pass ns=0");

        assert_eq!(seconds(&guest, "task").unwrap(), [0.4, 0.5]);
        assert!(seconds(&guest, "boot").unwrap_err().to_string().contains("no clock"));
        assert!(seconds(&guest, "jobs-1").is_err());
        assert!(seconds(&guest, "threads-2").is_err());
    }
}
