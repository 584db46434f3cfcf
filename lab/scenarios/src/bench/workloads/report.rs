//! Rows, gains and bars of all rounds.

use outcome::{Bar, Row};

use super::plan::{MODES, Mode, Workload};
use crate::bench::rig::Figures;

const SECONDS: usize = 0;
const COLUMNS: [&str; 3] = ["guest s", "faults", "waited guest s"];

fn gain(figures: &Figures<usize, Mode>, at: usize, mode: Mode) -> Option<f64> {
    figures.ratio(at, Mode::Overcommit, mode, SECONDS)
}

/// A row for each workload and mode.
pub(crate) fn rows(figures: &Figures<usize, Mode>, workloads: &[Workload]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (at, workload) in workloads.iter().enumerate() {
        for mode in MODES {
            let Some(mut row) =
                figures.row(format!("{}: {mode}", workload.shown), at, mode, &COLUMNS)
            else {
                continue;
            };
            if mode != Mode::Overcommit {
                row.figures.extend(gain(figures, at, mode).map(|gain| ("gain".to_owned(), gain)));
            }
            rows.push(row);
        }
    }
    rows
}

/// What each workload must gain.
pub(crate) fn bars(figures: &Figures<usize, Mode>, workloads: &[Workload]) -> Vec<Bar> {
    let bar = |((at, workload), mode): ((usize, &Workload), Mode)| {
        let what = format!("{}: {mode}: gain over overcommit", workload.shown);
        Some(Bar {
            what,
            found: gain(figures, at, mode)?,
            bound: workload.least_in(mode)?,
            at_most: false,
        })
    };
    let modes = MODES.into_iter().filter(|mode| *mode != Mode::Overcommit);
    let of_each = |one| modes.clone().map(move |mode| (one, mode));
    workloads.iter().enumerate().flat_map(of_each).filter_map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::chosen;
    use super::*;

    #[test]
    fn gain_is_how_much_sooner_it_is_done() {
        let workloads = chosen(&["pigz".to_owned(), "npb-cg-".to_owned()]).unwrap();
        let mut figures = Figures::new();
        for at in 0..2 {
            figures.add(at, Mode::Overcommit, 0, vec![3.0, 0.0, 0.0]);
            figures.add(at, Mode::Aggregate, 0, vec![2.0, 7.0, 0.5]);
        }
        assert_eq!(rows(&figures, &workloads).len(), 4);
        assert_eq!(rows(&figures, &workloads)[1].figures.last(), Some(&("gain".to_owned(), 1.5)));
        // Threads of one program have none.
        let judged = bars(&figures, &workloads);
        assert!(judged.len() == 1 && judged[0].holds(), "{judged:?}");

        // What cannot gain has one, where it is kept at home.
        let workloads = chosen(&["make".to_owned()]).unwrap();
        figures.add(0, Mode::Home, 0, vec![3.1, 0.0, 0.0]);
        let judged = bars(&figures, &workloads);
        assert_eq!(judged.iter().map(Bar::holds).collect::<Vec<_>>(), [true]);
        assert_eq!(rows(&figures, &workloads).len(), 3);
    }
}
