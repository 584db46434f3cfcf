//! Rows and bars of all boots.

use outcome::{Bar, Row};

use super::plan::KINDS;
use crate::bench::rig::Figures;

/// A row of each kind.
pub(crate) fn rows(costs: &Figures<usize, ()>) -> Vec<Row> {
    let row = |(at, kind): (usize, &super::plan::Kind)| {
        let columns = ["faults", "upgrades", "ahead", "ms waited", "guest ms"];
        costs.row(kind.shown.to_owned(), at, (), &columns)
    };
    KINDS.iter().enumerate().filter_map(row).collect()
}

/// Most faults of one operation.
pub(crate) fn bars(costs: &Figures<usize, ()>) -> Vec<Bar> {
    let bar = |(at, kind): (usize, &super::plan::Kind)| {
        let found = costs.median(at, (), 0)?;
        Some(Bar {
            what: format!("{}: faults", kind.shown),
            found,
            bound: kind.bound?,
            at_most: true,
        })
    };
    KINDS.iter().enumerate().filter_map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_without_a_bound_have_rows_and_no_bars() {
        let mut costs = Figures::new();
        for at in 0..KINDS.len() {
            costs.add(at, (), 0, vec![19.0, 0.0, 0.0, 0.0, 0.0]);
        }
        let held: Vec<_> = bars(&costs).iter().map(Bar::holds).collect();
        assert_eq!(held, [true, false, false, false, true, false, true, true]);
        assert_eq!(rows(&costs).len(), KINDS.len());
    }
}
