//! Rows, ratios and bars of all rounds.

use outcome::{Bar, Outcome};

use super::fio::{Block, Job};
use super::plan::{MODES, Mode, Plan};
use crate::bench::rig::Figures;

/// What each row has.
pub(crate) const COLUMNS: [&str; 3] = ["MB/s", "requests/s", "p50 ms"];
/// Least share of the local bandwidth with large requests.
const BOUND: f64 = 0.9;

/// Tells what was measured.
pub(crate) fn rows_and_bars(figures: &Figures<Job, Mode>, plan: Plan, outcome: &mut Outcome) {
    COLUMNS[0].clone_into(&mut outcome.shown);
    for job in plan.loads() {
        for mode in MODES {
            outcome.rows.extend(figures.row(format!("{job} {mode}"), job, mode, &COLUMNS));
        }
    }
    let pairs = [
        ("bypass/local", Mode::Bypass, Mode::Local),
        ("coherent/local", Mode::Coherent, Mode::Local),
    ];
    for job in plan.loads() {
        outcome.rows.extend(figures.ratios(format!("{job} share"), job, &pairs, 0));
        let share = figures.ratio(job, Mode::Bypass, Mode::Local, 0);
        if let (Some(found), Block::Large) = (share, job.block) {
            let what = format!("{job}: share of the local bandwidth that bypass has");
            outcome.bars.push(Bar { what, found, bound: BOUND, at_most: false });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::FULL;
    use super::*;

    #[test]
    fn bars_are_those_of_large_requests() {
        let mut figures = Figures::new();
        for job in FULL.loads() {
            figures.add(job, Mode::Local, 0, vec![100.0, 1.0, 1.0]);
            figures.add(job, Mode::Bypass, 0, vec![f64::from(88 + job.jobs), 1.0, 1.0]);
        }
        let mut outcome = Outcome::new("disk");
        rows_and_bars(&figures, FULL, &mut outcome);

        let held: Vec<_> = outcome.bars.iter().map(Bar::holds).collect();
        assert_eq!(held, [false, true, true, true].repeat(2));
    }
}
