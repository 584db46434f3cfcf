//! One turn of a guest: a boot, and what it says of its loads.

use anyhow::{Context, Result};
use lab::Lab;

use super::plan::{Guest, LOADS, Plan};
use crate::bench::rig::{Figures, Rig, count, load_seconds, waits};
use crate::vm::VmOptions;
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
        let (faults, waited_us) = outcome.report.as_ref().map_or((0, 0), waits);
        let dear = count(waited_us) * self.clock / count(faults.max(1));
        self.faults.add((), at, round, vec![count(faults), dear]);
        let mut said = Vec::new();
        for (load, (name, shown, _)) in LOADS.iter().enumerate() {
            let found = load_seconds(&outcome.guest, name)?;
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
