//! Figures of several rounds, in which every mode had its turn.

use std::collections::BTreeMap;

use outcome::Row;

/// What was measured: of each case (an object, a job of fio) and mode a figure for each round, by column.
/// A round without a figure has none in any column.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures<C: Ord, M: Ord> {
    figures: BTreeMap<(C, M), BTreeMap<usize, Vec<f64>>>,
}

impl<C: Ord + Copy, M: Ord + Copy> Figures<C, M> {
    pub(crate) fn new() -> Self {
        Self { figures: BTreeMap::new() }
    }

    /// Takes in the columns of one round.
    pub(crate) fn add(&mut self, case: C, mode: M, round: usize, columns: Vec<f64>) {
        self.figures.entry((case, mode)).or_default().insert(round, columns);
    }

    /// A column of one round.
    pub(crate) fn of(&self, case: C, mode: M, round: usize, column: usize) -> Option<f64> {
        self.figures.get(&(case, mode))?.get(&round)?.get(column).copied()
    }

    /// Median of a column over the rounds.
    pub(crate) fn median(&self, case: C, mode: M, column: usize) -> Option<f64> {
        let rounds = self.figures.get(&(case, mode))?;
        median(rounds.values().filter_map(|columns| columns.get(column).copied()).collect())
    }

    /// Median of the ratios of two modes, each of one round: what changes from round to round changes
    /// both.
    pub(crate) fn ratio(&self, case: C, over: M, under: M, column: usize) -> Option<f64> {
        let (over, under) = (self.figures.get(&(case, over))?, self.figures.get(&(case, under))?);
        let ratios = over.iter().filter_map(|(round, above)| {
            let (above, below) = (above.get(column)?, under.get(round)?.get(column)?);
            (*below > 0.0).then(|| above / below)
        });
        median(ratios.collect())
    }

    /// A row with the ratios of pairs of modes, each with its name, if there is one.
    pub(crate) fn ratios(
        &self,
        name: String,
        case: C,
        pairs: &[(&str, M, M)],
        column: usize,
    ) -> Option<Row> {
        let ratio = |(name, over, under): &(&str, M, M)| {
            Some(((*name).to_owned(), self.ratio(case, *over, *under, column)?))
        };
        let figures: Vec<_> = pairs.iter().filter_map(ratio).collect();
        (!figures.is_empty()).then_some(Row { name, figures })
    }

    /// A row with the medians of a case and mode, if there is one.
    pub(crate) fn row(&self, name: String, case: C, mode: M, columns: &[&str]) -> Option<Row> {
        let figure = |(at, column): (usize, &&str)| {
            Some(((*column).to_owned(), self.median(case, mode, at)?))
        };
        let figures: Vec<_> = columns.iter().enumerate().filter_map(figure).collect();
        (!figures.is_empty()).then_some(Row { name, figures })
    }
}

/// A count as a figure.
pub(crate) fn count(number: u64) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

/// The median; the mean of the middle two of an even number; none of nothing.
pub(crate) fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let (below, above) =
        (figures.get(figures.len().checked_sub(1)? / 2)?, figures.get(figures.len() / 2)?);
    Some(f64::midpoint(*below, *above))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_even_and_odd_numbers() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn ratio_is_of_figures_of_the_same_round() {
        let mut rounds = Figures::new();
        // The machine is ten times slower in the second round; the third has no figure of one mode.
        for (round, local, bypass) in [(0, 100.0, 50.0), (1, 10.0, 5.0), (3, 8.0, 0.0)] {
            rounds.add("1k", 'l', round, vec![local]);
            rounds.add("1k", 'b', round, vec![bypass]);
        }
        rounds.add("1k", 'l', 2, vec![1000.0]);

        assert_eq!(rounds.ratio("1k", 'l', 'b', 0), Some(2.0));
        assert_eq!(rounds.ratio("1k", 'l', 'c', 0), None);
        assert_eq!(rounds.median("1k", 'l', 0), Some(55.0));
        assert!(rounds.row("x".into(), "1k", 'c', &["a"]).is_none());
        let pairs = [("a", 'l', 'c'), ("b", 'l', 'b')];
        let row = rounds.ratios("x".into(), "1k", &pairs, 0).unwrap();
        assert_eq!(row.figures, [("b".to_owned(), 2.0)]);
        assert!(rounds.ratios("x".into(), "1k", &pairs[..1], 0).is_none());
    }
}
