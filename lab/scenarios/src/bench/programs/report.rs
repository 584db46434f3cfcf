//! Rows, gains and bars of all rounds.

use outcome::{Bar, Row};

use super::plan::{DEFAULT, Guest, LOADS, ONE};
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

/// The default preset must gain with threads and with processes.
pub(crate) fn bars(seconds: &Figures<usize, usize>, guests: &[Guest]) -> Vec<Bar> {
    let default = guests.iter().position(|guest| guest.name == DEFAULT);
    let bar = |(load, (_, shown, bound)): (usize, &(&str, &str, Option<f64>))| {
        let found = seconds.ratio(load, ONE, default?, 0)?;
        let what = format!("{shown}: gain by the default preset");
        Some(Bar { what, found, bound: (*bound)?, at_most: false })
    };
    LOADS.iter().enumerate().filter_map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::{QUICK, guests};
    use super::*;

    #[test]
    fn bars_are_those_of_threads_and_processes() {
        let mut figures = Figures::new();
        for load in 0..LOADS.len() {
            figures.add(load, ONE, 0, vec![1.7]);
            figures.add(load, 1, 0, vec![if load == 2 { 1.0 } else { 1.1 }]);
        }

        let held: Vec<_> =
            bars(&figures, &guests(QUICK.presets, &[])).iter().map(Bar::holds).collect();
        assert_eq!(held, [true, false]);
    }
}
