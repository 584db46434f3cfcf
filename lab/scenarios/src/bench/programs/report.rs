//! Rows, gains and bars of all rounds.

use outcome::{Bar, Row};

use super::plan::{DEFAULT, Guest, ISOLATE, LOADS, MOST_OF_START_UP, ONE, START_UP};
use crate::bench::rig::Figures;

/// Rows of each load, one for each guest, and the faults of whole runs.
pub(crate) fn rows(
    seconds: &Figures<usize, usize>,
    faults: &Figures<(), usize>,
    guests: &[Guest],
) -> Vec<Row> {
    let mut rows = Vec::new();
    for (load, (_, shown, _)) in LOADS.iter().enumerate() {
        for (at, guest) in guests.iter().enumerate() {
            let Some(time) = seconds.median(load, at, 0) else { continue };
            let mut figures = vec![("guest s".to_owned(), time)];
            figures.extend(seconds.ratio(load, ONE, at, 0).map(|gain| ("gain".to_owned(), gain)));
            let mut more = |column, name: &str| {
                figures.extend(seconds.median(load, at, column).map(|it| (name.to_owned(), it)));
            };
            if guest.borrows {
                more(1, "faults");
                more(2, "waited s");
            }
            rows.push(Row { name: format!("{shown}: {}", guest.name), figures });
        }
    }
    for (at, guest) in guests.iter().enumerate().filter(|(_, guest)| guest.borrows) {
        rows.extend(faults.row(
            format!("whole run: {}", guest.name),
            (),
            at,
            &["faults", "guest us a fault"],
        ));
    }
    rows
}

/// What the default preset must gain over one vCPU, and how much longer than with `isolate` its start may take, if that was measured.
pub(crate) fn bars(seconds: &Figures<usize, usize>, guests: &[Guest]) -> Vec<Bar> {
    let position = |preset| guests.iter().position(|guest| guest.name == preset);
    let default = position(DEFAULT);
    let gain = |(load, (_, shown, bound)): (usize, &(&str, &str, Option<f64>))| {
        let found = seconds.ratio(load, ONE, default?, 0)?;
        let what = format!("{shown}: gain by the default preset");
        Some(Bar { what, found, bound: (*bound)?, at_most: false })
    };
    let start_up = || {
        let found = seconds.ratio(START_UP, default?, position(ISOLATE)?, 0)?;
        let what = format!("start-up by the default preset / by {ISOLATE}");
        Some(Bar { what, found, bound: MOST_OF_START_UP, at_most: true })
    };
    LOADS.iter().enumerate().filter_map(gain).chain(start_up()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::{FULL, QUICK, guests};
    use super::*;

    #[test]
    fn each_load_has_its_bar_and_the_start_up_that_of_its_preset() {
        let mut figures = Figures::new();
        for load in 0..LOADS.len() {
            for at in 0..3 {
                figures.add(load, at, 0, vec![1.0]);
            }
        }
        let said = |presets: &[&str], figures: &Figures<usize, usize>| {
            let bars = bars(figures, &guests(presets, &[]));
            let held = bars.iter().map(|bar| (bar.what.clone(), bar.holds()));
            held.collect::<Vec<_>>()
        };

        // No loss and no gain.
        let held: Vec<_> = said(QUICK.presets, &figures).iter().map(|(_, held)| *held).collect();
        assert_eq!(held, [true, false, false, false, false, true]);

        let with_isolate = said(FULL.presets, &figures);
        let (start_up, held) = with_isolate.last().unwrap();
        assert!(start_up.starts_with("start-up") && *held, "{start_up}");
        figures.add(START_UP, 2, 0, vec![0.5]);
        assert!(!said(FULL.presets, &figures).last().unwrap().1);
    }
}
