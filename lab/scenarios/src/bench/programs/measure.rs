//! One turn of a guest: a boot, and what it says of its loads.

use anyhow::{Context, Result};
use lab::{Lab, Mode};

use super::plan::{Guest, LOADS, Plan};
use crate::bench::rig::{Counters, Figures, Marks, Rig, count, load_seconds, take_mark, waits};
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
        // In namespaces a load is over before anybody looks.
        let (mut marks, mut looks) = (Marks::new(), self.lab.mode() == Mode::Machines);
        let output = scenario.output(false);
        let companions = scenario.start_companions_heard_by(&output)?;
        let outcome = scenario.run_beside((&companions, &output), &mut |guest| {
            if looks && let Err(error) = take_mark(&scenario, &mut marks, guest, is_mark) {
                // The guest may have powered off behind its last load.
                self.rig.say(&format!("faults of loads are not told from here on: {error:#}"));
                looks = false;
            }
        })?;
        let outcome = scenario.end(outcome, companions)?;
        outcome.check()?;
        let (faults, waited_us) = outcome.report.as_ref().map_or((0, 0), waits);
        let dear = count(waited_us) * self.clock / count(faults.max(1));
        self.faults.add((), at, round, vec![count(faults), dear]);
        let mut said = Vec::new();
        for (load, (name, shown, _)) in LOADS.iter().enumerate() {
            let found = load_seconds(&outcome.guest, name)?;
            let mut words = Vec::new();
            for (time, in_boot) in found.iter().zip(0..) {
                let mut figures = vec![*time];
                if let Some(counted) = counted(&marks, name, in_boot) {
                    let waited = count(counted.waited_us) / 1e6 * self.clock;
                    figures.extend([count(counted.faults), waited]);
                    words.push(format!("{time:.3} ({} faults, {waited:.3})", counted.faults));
                } else {
                    words.push(format!("{time:.3}"));
                }
                self.seconds.add(load, at, round * self.plan.loads + in_boot, figures);
            }
            said.push(format!("{shown} {}", words.join(" ")));
        }
        self.rig.say(&format!(
            "round {} of {}, {}: {} guest seconds (faults, and seconds that vCPUs waited for them); {faults} faults of {dear:.0} \
             guest us in all",
            round + 1,
            self.plan.boots,
            guest.name,
            said.join(", ")
        ));
        Ok(())
    }
}

fn is_mark(name: &str) -> bool {
    name.starts_with("programs-") && (name.ends_with("-begin") || name.ends_with("-end"))
}

/// What slices counted during a load, in one of the rounds of a boot.
fn counted(marks: &Marks, load: &str, round: usize) -> Option<Counters> {
    let mark = |end: &str| marks.get(&format!("programs-{load}-{round}-{end}")).copied();
    let (begin, end) = (mark("begin")?, mark("end")?);
    // A load that was over before anybody looked has both of the same moment.
    (begin != end).then(|| end.since(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_a_load_are_those_between_its_marks() {
        let counters = |faults| Counters { faults, ..Counters::default() };
        let mut marks = Marks::new();
        marks.insert("programs-task-0-begin".to_owned(), counters(10));
        assert!(counted(&marks, "task", 0).is_none());
        marks.insert("programs-task-0-end".to_owned(), counters(17));
        assert_eq!(counted(&marks, "task", 0).unwrap().faults, 7);
        assert!(counted(&marks, "task", 1).is_none());
        marks.insert("programs-task-0-end".to_owned(), counters(10));
        assert!(counted(&marks, "task", 0).is_none(), "both were seen at once");
        assert!(marks.keys().all(|name| is_mark(name)) && !is_mark("programs-task"));
    }
}
