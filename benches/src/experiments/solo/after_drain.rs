//! A VM whose other slice was drained, with one that was started on one slice: the same guest does the same loads in both,
//! in turns. And what the drained slice's host has back.
//!
//! ```text
//!   one slice:  start, all touched ---rests---> |turn|    |turn|    |turn| ...
//!   two slices: start, all touched, drain 1 --> rests |turn|    |turn| ...     (meanwhile the other one is stopped)
//! ```
//! A turn is a whole round of all loads; the one that a stop has cut is left out. A VM rests once its huge pages stay as they
//! are: first touches and the thread for huge pages are through then.

mod host;
mod rounds;
mod vm;

use super::{Setting, chosen, count};
use crate::experiments::cycles_per_ns;
use crate::samples::{Samples, median, ratios};
use anyhow::{Context, Result, ensure};
use outcome::{Bar, Outcome, Row};
use rounds::Round;
use vm::{Drained, Rest, Vm};

/// As much as a VM that was drained may be slower.
const BOUND: f64 = 1.02;
/// The guest's loads, in its order.
const LOADS: [&str; 8] = [
    "compute",
    "sequential reads",
    "random reads, each waiting for the last",
    "sequential writes",
    "additions of both vCPUs to one word",
    "a word handed over",
    "reads of a port",
    "interrupts there and back",
];
/// The last figure of each turn.
const WHOLE: &str = "a whole round";

/// Runs the experiment.
///
/// # Errors
/// This machine has no KVM or userfaultfd, or a guest failed.
pub fn run(setting: Setting<'_>) -> Result<Outcome> {
    let (pairs, turns) = if setting.quick { (2, 15) } else { (7, 21) };
    let guest = setting.image.with_file_name("loads");
    ensure!(guest.exists(), "no guest {}: it is built with the microguest", guest.display());
    let mut outcome = Outcome::new("solo-after-drain");
    outcome.shown = "drained / one slice".into();
    outcome.conditions.notes = vec![
        format!(
            "{} MiB, two vCPUs, memfd, guest pages of 2 MiB; {turns} rounds in turns of each of {pairs} pairs of VMs; medians \
             of the ratios of neighbours, of these the median of all pairs",
            vm::BYTES >> 20
        ),
        format!(
            "transparent huge pages: {}; of memory files: {}",
            chosen("enabled"),
            chosen("shmem_enabled")
        ),
    ];
    let mut found = Found::default();
    for pair in 0..pairs {
        one_pair(&guest, turns, &mut found).with_context(|| format!("pair {pair}"))?;
    }
    found.report(&mut outcome);
    Ok(outcome)
}

/// Nanoseconds of one turn: each load, the mean of both vCPUs, and [`WHOLE`].
type Turn = Vec<f64>;

/// What was found of all pairs.
#[derive(Default)]
struct Found {
    /// Turns by pair: on one slice, drained.
    turns: Vec<[Vec<Turn>; 2]>,
    rests: Vec<[Rest; 2]>,
    drained: Vec<Drained>,
    /// Share of one core that threads besides vCPUs took during the turns.
    beside: Vec<[f64; 2]>,
}

fn one_pair(guest: &std::path::Path, turns: usize, found: &mut Found) -> Result<()> {
    let mut alone = Vm::on_one_slice(guest).context("on one slice")?;
    let rest_alone = alone.rest().context("on one slice")?;
    alone.stop()?;
    let mut other = Vm::on_two_slices(guest).context("on two slices")?;
    let drained = other.drain().context("drain")?;
    let rest_other = other.rest().context("drained")?;
    other.stop()?;
    eprintln!("drained in {:.1} s; {rest_alone:?}, {rest_other:?}", drained.seconds);
    let mut vms = [alone, other];
    let mut times = <[Vec<Turn>; 2]>::default();
    let mut sums = Vec::new();
    let mut beside = [(0.0, 0.0); 2];
    for turn in 0..turns {
        for which in if turn % 2 == 0 { [0, 1] } else { [1, 0] } {
            let done = vms[which].turn()?;
            sums.push(done.round.sum);
            times[which].push(nanoseconds(&done.round, done.whole_ns));
            beside[which].0 += done.beside_ns;
            beside[which].1 += done.run_ns;
        }
    }
    sums.dedup();
    ensure!(sums.len() == 1, "the guests have found different sums: {sums:x?}");
    found.turns.push(times);
    found.rests.push([rest_alone, rest_other]);
    found.drained.push(drained);
    found.beside.push(beside.map(|(beside, run)| beside / run));
    Ok(())
}

fn nanoseconds(round: &Round, whole_ns: f64) -> Turn {
    let mean = |[first, second]: &[u64; 2]| count(first + second) / 2.0 / cycles_per_ns();
    round.times.iter().map(mean).chain([whole_ns]).collect()
}

/// What is told of a load.
struct Compared {
    alone: f64,
    drained: f64,
    /// Of each pair the median ratio.
    by_pair: Vec<f64>,
    /// Quarters of the ratios of all turns.
    quarters: [f64; 2],
}

/// Compares the figure with this number.
fn compare(pairs: &[[Vec<Turn>; 2]], at: usize) -> Compared {
    let of = |turns: &[Turn]| turns.iter().map(|turn| turn[at]).collect::<Vec<_>>();
    let all = |which: usize| median(pairs.iter().flat_map(|pair| of(&pair[which])).collect());
    let by_pair: Vec<Vec<f64>> =
        pairs.iter().map(|[alone, drained]| ratios(&of(drained), &of(alone))).collect();
    let turns = Samples::new(by_pair.concat());
    Compared {
        alone: all(0),
        drained: all(1),
        by_pair: by_pair.into_iter().map(median).collect(),
        quarters: [25, 75].map(|percent| turns.percentile(percent)),
    }
}

impl Found {
    fn report(self, outcome: &mut Outcome) {
        for (at, name) in LOADS.into_iter().chain([WHOLE]).enumerate() {
            let Compared { alone, drained, by_pair, quarters } = compare(&self.turns, at);
            let pairs = by_pair.iter().map(|ratio| format!("{ratio:.3}")).collect::<Vec<_>>();
            outcome.conditions.notes.push(format!("{name}: by pair {}", pairs.join(", ")));
            let found = median(by_pair);
            let figures = [
                ("one slice, ms", alone / 1e6),
                ("drained, ms", drained / 1e6),
                ("drained / one slice", found),
                ("p25", quarters[0]),
                ("p75", quarters[1]),
            ];
            outcome.rows.push(row(name, &figures));
            let what = format!("{name}: time drained / on one slice");
            outcome.bars.push(Bar { what, found, bound: BOUND, at_most: true });
        }
        self.report_rest(outcome);
        self.report_drained(outcome);
    }

    /// How both VMs came to rest, and what they are like then.
    fn report_rest(&self, outcome: &mut Outcome) {
        let of = |figure: &dyn Fn(&Rest) -> f64, which: usize| {
            median(self.rests.iter().map(|pair| figure(&pair[which])).collect())
        };
        type Figure<'a> = (&'a str, &'a dyn Fn(&Rest) -> f64);
        let figures: [Figure<'_>; 4] = [
            ("MiB on huge pages", &|rest| count(rest.state.huge_kib) / 1024.0),
            ("MiB on huge pages at first", &|rest| count(rest.first.huge_kib) / 1024.0),
            ("s until these stay", &|rest| rest.seconds),
            ("first whole round / last one", &|rest| rest.first_round),
        ];
        for (name, figure) in figures {
            outcome
                .rows
                .push(row(name, &[("alone", of(figure, 0)), ("after drain", of(figure, 1))]));
        }
        let beside = [0, 1]
            .map(|which| median(self.beside.iter().map(|pair| pair[which] * 100.0).collect()));
        let beside = [("alone", beside[0]), ("after drain", beside[1])];
        outcome.rows.push(row("% of a core, threads besides vCPUs", &beside));
        let worst = |figure: &dyn Fn(&[Rest; 2]) -> u64| {
            count(self.rests.iter().map(figure).max().unwrap_or(0))
        };
        let mut bar = |what: &str, found| {
            let what = what.to_owned();
            outcome.bars.push(Bar { what, found, bound: 0.0, at_most: true });
        };
        bar("mappings watched by userfaultfd", worst(&|[_, drained]| drained.state.watched));
        let fewer = |[alone, drained]: &[Rest; 2]| {
            alone.state.huge_kib.saturating_sub(drained.state.huge_kib) / 2048
        };
        bar("huge pages fewer than on one slice", worst(&fewer));
    }

    /// What the drain did, and what the host of the slice has back.
    fn report_drained(&self, outcome: &mut Outcome) {
        let mid =
            |figure: &dyn Fn(&Drained) -> f64| median(self.drained.iter().map(figure).collect());
        let mib = |kib: u64| count(kib) / 1024.0;
        let before = mid(&|drained| mib(drained.given_back.rss_kib));
        let file = mid(&|drained| mib(drained.given_back.file_kib));
        let figures = [("before, MiB", before), ("after, MiB", 0.0)];
        outcome.rows.push(row("process of the drained slice, RSS", &figures));
        let figures = [("before, MiB", file), ("after, MiB", 0.0)];
        outcome.rows.push(row("its memory file", &figures));
        let shared = |at: usize| mid(&|drained| mib(drained.shared_kib[at]));
        let figures = [("before, MiB", shared(0)), ("after, MiB", shared(1))];
        outcome.rows.push(row("shared memory of this machine (also of others)", &figures));
        let figures = [
            ("request to answer", mid(&|drained| drained.seconds)),
            ("answer to the end of its process", mid(&|drained| drained.seconds_to_end)),
        ];
        let figures = figures.map(|(what, seconds)| (what, seconds * 1000.0));
        for (what, milliseconds) in figures {
            outcome.rows.push(row(&format!("drain, {what}"), &[("ms", milliseconds)]));
        }
        let note = "the drained slice's process has ended, and no other has its memory file open or mapped: else the run fails";
        outcome.conditions.notes.push(note.into());
    }
}

fn row(name: &str, figures: &[(&str, f64)]) -> Row {
    let figures = figures.iter().map(|(column, value)| ((*column).to_owned(), *value)).collect();
    Row { name: name.to_owned(), figures }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_compared_within_their_pair() {
        // The second pair's machine is twice as slow, which is no cost of a drain.
        let pair = |alone: [f64; 3], drained: [f64; 3]| {
            [alone, drained].map(|times| times.map(|time| vec![0.0, time]).to_vec())
        };
        let pairs = [
            pair([10.0, 10.0, 20.0], [11.0, 10.0, 22.0]),
            pair([20.0, 20.0, 20.0], [20.0, 21.0, 24.0]),
        ];
        let compared = compare(&pairs, 1);
        assert_eq!(compared.by_pair, [1.1, 1.05]);
        assert_eq!((compared.alone, compared.drained), (20.0, 20.0));
        assert_eq!(compared.quarters, [1.0, 1.1]);
    }
}
