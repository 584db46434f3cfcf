//! One boot: counters at each mark of the guest, and what an operation of each kind has cost.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use guest_tests::MOST_SHARING_PAUSE;
use lab::Lab;

use super::plan::{IDLE, KINDS, Plan};
use crate::bench::rig::{Counters, Figures, Marks, Rig, count, take_mark};
use crate::vm::VmOptions;
use crate::vm::guest_console::{GuestReport, Verdict};
use crate::vm::layout::Layout;
use crate::vm::prepare::Prepared;
use crate::vm::scenario::Scenario;

/// As much of the host's time is there to read counters, if the guest's clock is slow.
const PAUSE: Duration = Duration::from_secs(5);

/// All boots on the same hosts.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    pub(crate) rig: &'a Rig,
    pub(crate) options: &'a VmOptions,
    pub(crate) layout: &'a Layout,
    pub(crate) plan: Plan,
    pub(crate) prepared: &'a Prepared,
    pub(crate) lab: &'a Lab,
    /// By kind, of one operation: faults, upgrades, pages asked for ahead, milliseconds waited, milliseconds by the guest's clock.
    pub(crate) costs: Figures<usize, ()>,
}

impl Bench<'_> {
    /// All boots, until one fails.
    pub(crate) fn measure(&mut self) -> Result<()> {
        let rig = self.rig;
        rig.turns(self.plan.boots, &[()], &mut |round, ()| {
            self.one(round).with_context(|| format!("boot {}", round + 1))
        })
    }

    fn one(&mut self, round: usize) -> Result<()> {
        let mut options = self.options.clone();
        let clock = self.scenario(&options).guest_clock()?;
        let pause = pause(clock);
        options.cmdline = format!("{} tessera.pause={}", options.cmdline, pause.as_millis());
        let scenario = self.scenario(&options);
        let (mut marks, mut problem) = (Marks::new(), None);
        let output = scenario.output(false);
        let companions = scenario.start_companions_heard_by(&output)?;
        let outcome = scenario.run_beside((&companions, &output), &mut |guest| {
            if problem.is_none() {
                problem = take(&scenario, &mut marks, guest, pause.div_f64(clock)).err();
            }
        })?;
        let outcome = scenario.end(outcome, companions)?;
        problem.map_or(Ok(()), Err)?;
        outcome.check()?;
        let nodes: BTreeSet<_> = outcome.guest.nodes.values().collect();
        ensure!(nodes.len() > 1, "the guest's CPUs are all on one memory node: nothing is shared");
        for (at, cost) in costs(&marks, &outcome.guest, pause)?.into_iter().enumerate() {
            let [faults, upgrades, ahead, waited, took] = cost;
            self.rig.say(&format!(
                "boot {}: {}: {faults:.2} faults ({upgrades:.2} upgrades), {ahead:.2} pages ahead, {waited:.2} ms waited, \
                 {took:.3} guest ms",
                round + 1,
                KINDS[at].shown,
            ));
            self.costs.add(at, (), round, cost.to_vec());
        }
        Ok(())
    }

    fn scenario<'b>(&'b self, options: &'b VmOptions) -> Scenario<'b> {
        self.rig.scenario(options, self.layout, self.prepared, self.lab)
    }
}

/// For how long a guest pauses at its marks, by a clock that has so many seconds for one of the host's: whole milliseconds.
fn pause(clock: f64) -> Duration {
    let pause = PAUSE.mul_f64(clock).clamp(Duration::from_millis(1), MOST_SHARING_PAUSE);
    Duration::from_millis(pause.as_millis().try_into().unwrap_or(u64::MAX))
}

/// Reads the counters if the guest has said something new.
fn take(
    scenario: &Scenario<'_>,
    marks: &mut Marks,
    guest: &GuestReport,
    pause: Duration,
) -> Result<()> {
    if let Some((new, took)) = take_mark(scenario, marks, guest, is_mark)? {
        ensure!(
            took < pause,
            "reading counters at {new} took {took:?}, the guest pauses for {pause:?}"
        );
    }
    Ok(())
}

fn is_mark(name: &str) -> bool {
    name.starts_with("sharing-") && (name.ends_with("-begin") || name.ends_with("-end"))
}

/// What an operation of each kind has cost. Between two marks there is a pause besides the operations.
fn costs(marks: &Marks, guest: &GuestReport, pause: Duration) -> Result<Vec<[f64; 5]>> {
    let mut all = Vec::new();
    let mut idle_second = [0.0; 4];
    let pause = pause.as_secs_f64();
    for (at, kind) in KINDS.iter().enumerate() {
        let mark = |end: &str| {
            let name = format!("sharing-{}-{end}", kind.name);
            marks.get(&name).copied().with_context(|| format!("{name} was not seen in time"))
        };
        let (n, ms) = operations(guest, kind.name)?;
        let begin = mark("begin")?;
        ensure!(begin.faults > 0, "{}: slices have counted no fault since the start", kind.name);
        let sum = figures(mark("end")?.since(begin));
        let cost = if at == IDLE {
            sum.map(|sum| sum / (n + pause))
        } else {
            std::array::from_fn(|column| ((sum[column] - idle_second[column] * pause) / n).max(0.0))
        };
        if at == IDLE {
            idle_second = cost;
        }
        let [faults, upgrades, ahead, waited] = cost;
        all.push([faults, upgrades, ahead, waited, ms / n]);
    }
    Ok(all)
}

fn figures(counters: Counters) -> [f64; 4] {
    let Counters { faults, upgrades, prefetches, waited_us } = counters;
    [count(faults), count(upgrades), count(prefetches), count(waited_us) / 1e3]
}

/// How many operations the guest says it has done, and how many milliseconds they took.
fn operations(guest: &GuestReport, kind: &str) -> Result<(f64, f64)> {
    let name = format!("sharing-{kind}-end");
    let (verdict, detail) = guest.tests.get(&name).with_context(|| format!("no {name}"))?;
    ensure!(*verdict == Verdict::Pass, "{kind}: {detail}");
    let number = |key: &str| -> Result<f64> {
        let word = detail.split_whitespace().find_map(|word| word.strip_prefix(key));
        word.and_then(|word| word.parse().ok()).with_context(|| format!("{name}: {detail}"))
    };
    let (n, ns) = (number("n=")?, number("ns=")?);
    ensure!(n >= 1.0 && ns >= 0.0, "{kind}: {detail}");
    Ok((n, ns / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(faults: u64) -> Counters {
        Counters { faults, ..Counters::default() }
    }

    #[test]
    fn pauses_are_taken_out_of_what_operations_cost() {
        let (mut marks, mut guest) = (Marks::new(), GuestReport::default());
        for kind in KINDS {
            let name = |end: &str| format!("sharing-{}-{end}", kind.name);
            guest.take(&format!("TEST {} pass n=10 ns=70000000", name("end")));
            marks.insert(name("begin"), counters(1000));
            // 105 faults in 10.5 idle seconds: 10 a second, 5 of them in a pause.
            let faults = if kind.name == "idle" { 105 } else { 205 };
            marks.insert(name("end"), counters(1000 + faults));
        }

        let found = costs(&marks, &guest, MOST_SHARING_PAUSE).unwrap();
        assert!((found[IDLE][0] - 10.0).abs() < 1e-9);
        assert!((found[4][0] - 20.0).abs() < 1e-9, "{found:?}");
        assert!((found[4][4] - 7.0).abs() < 1e-9, "{found:?}");

        marks.remove("sharing-pipe-end");
        assert!(
            costs(&marks, &guest, MOST_SHARING_PAUSE)
                .unwrap_err()
                .to_string()
                .contains("sharing-pipe-end")
        );
    }

    /// Else minutes pass at each mark, or counters are read after the pause.
    #[test]
    fn pauses_are_as_long_for_the_host_by_any_slow_clock() {
        for clock in [0.005, 0.0075, 0.1] {
            let on_host = pause(clock).div_f64(clock).as_secs_f64();
            assert!((4.8..=5.0).contains(&on_host), "{clock}: {on_host}");
        }
        assert_eq!(pause(1.0), MOST_SHARING_PAUSE);
        assert_eq!(pause(0.0001), Duration::from_millis(1));
    }

    #[test]
    fn only_marks_are_marks() {
        assert!(is_mark("sharing-pipe-begin") && is_mark("sharing-tcp-end"));
        assert!(!is_mark("sharing-pipe") && !is_mark("programs-boot"));
    }
}
