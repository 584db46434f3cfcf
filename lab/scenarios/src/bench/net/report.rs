//! Rows, ratios and bars of all rounds.

use lab::distro::Object;
use outcome::{Bar, Outcome, Row};

use super::plan::{FREE, MODES, Mode, Plan, objects};
use crate::bench::rig::Figures;

const COLUMNS: [&str; 2] = ["requests/s", "p50 ms"];

/// A row for each mode, and one with their ratios.
fn rows(figures: &Figures<usize, Mode>, object: Object, how: &str) -> Vec<Row> {
    let name = |of: &str| format!("{} {of}{how}", object.name);
    let each = |mode: Mode| figures.row(name(&mode.to_string()), object.bytes, mode, &COLUMNS);
    let mut rows: Vec<_> = MODES.into_iter().filter_map(each).collect();
    // Requests for each second: more of the first means that the second is slower.
    let pairs = [
        ("local/bypass", Mode::Local, Mode::Bypass),
        ("local/coherent", Mode::Local, Mode::Coherent),
        ("local/raw", Mode::Local, Mode::Raw),
        ("raw/bypass", Mode::Raw, Mode::Bypass),
    ];
    rows.extend(figures.ratios(name("times slower"), object.bytes, &pairs, 0));
    rows
}

/// Tells what was measured, with the client's line and `free` of it.
pub(crate) fn rows_and_bars(
    figures: &Figures<usize, Mode>,
    free: &Figures<usize, Mode>,
    plan: Plan,
    outcome: &mut Outcome,
) {
    COLUMNS[0].clone_into(&mut outcome.shown);
    for object in objects(plan.objects) {
        outcome.rows.extend(rows(figures, object, ""));
        let found = figures.ratio(object.bytes, Mode::Local, Mode::Bypass, 0);
        if let (Some(found), Some(bound)) = (found, bound(object.bytes)) {
            let what = format!("{}: times that bypass is slower than local", object.name);
            outcome.bars.push(Bar { what, found, bound, at_most: true });
        }
    }
    for object in objects(&[FREE]) {
        outcome.rows.extend(rows(free, object, " without a line"));
    }
}

/// How many times slower bypass may be.
fn bound(bytes: usize) -> Option<f64> {
    match bytes {
        0..4096 => Some(1.5),
        4096..0x4_0000 => None,
        _ => Some(1.05),
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::FULL;
    use super::*;

    #[test]
    fn bars_are_those_of_small_and_large_objects() {
        let mut figures = Figures::new();
        for object in objects(FULL.objects) {
            figures.add(object.bytes, Mode::Local, 0, vec![12.0, 1.0]);
            figures.add(object.bytes, Mode::Bypass, 0, vec![10.0, 1.2]);
        }
        let mut outcome = Outcome::new("net");
        rows_and_bars(&figures, &Figures::new(), FULL, &mut outcome);

        let bars: Vec<_> = outcome.bars.iter().map(|bar| (bar.bound, bar.holds())).collect();
        assert_eq!(bars, [(1.5, true), (1.05, false), (1.05, false), (1.05, false)]);
        assert!(outcome.table().contains("1k times slower"));
    }
}
