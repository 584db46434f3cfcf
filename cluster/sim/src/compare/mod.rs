//! Policies beside each other: a scenario, several seeds, a table, JSON and two pictures.

mod picture;

use crate::policies::Name;
use crate::replay::Scenario;
use crate::tally::Figures;
use outcome::{Bar, Outcome};
use scheduler::SpecError;
use scheduler::policy::{Consolidation, Spread};

pub use picture::{PictureError, frontier};

/// FragVisor's two points of the frontier: what is moved for fewer hosts, and for less fragmentation.
const POINTS: [Name; 2] = [
    Name::FragBff(Spread::MinNodes, Consolidation::MinFragmentation),
    Name::FragBff(Spread::MinNodes, Consolidation::MinNodes),
];

/// What policies have found, each over the same seeds.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// By policy: the figures of each seed.
    pub policies: Vec<(Name, Vec<Figures>)>,
    /// VMs as a fluid, by seed.
    pub bound: Vec<Figures>,
}

/// Runs all of these policies over all of these seeds, and says what is done.
///
/// # Errors
/// There cannot be such hosts.
pub fn compare(
    scenario: &Scenario,
    names: &[Name],
    seeds: &[u64],
    mut progress: impl FnMut(&str),
) -> Result<Comparison, SpecError> {
    let mut found = Comparison::default();
    for &seed in seeds {
        progress(&format!("seed {seed}: the bound"));
        found.bound.push(scenario.bound(seed).figures());
    }
    for &name in names {
        let mut figures = Vec::new();
        for &seed in seeds {
            progress(&format!("seed {seed}: {name}"));
            figures.push(scenario.run(|| name.policy(), seed)?.figures());
        }
        found.policies.push((name, figures));
    }
    Ok(found)
}

impl Comparison {
    fn of(&self, name: Name) -> Option<&[Figures]> {
        self.policies.iter().find(|it| it.0 == name).map(|it| it.1.as_slice())
    }

    /// A table of means over seeds, another of delays by size, and what must hold.
    #[must_use]
    pub fn outcome(&self, name: &str, notes: Vec<String>) -> Outcome {
        let mut outcome = Outcome::new(name);
        outcome.conditions.notes = notes;
        for (point, seeds) in self.seeds_below() {
            let all = self.bound.len();
            let note = format!("below {point} in core-hours and in moves: {seeds} of {all} seeds");
            outcome.conditions.notes.push(note);
        }
        let bound = Figures::mean(&self.bound);
        let means = self.policies.iter().map(|(name, all)| (name.to_string(), Figures::mean(all)));
        let means: Vec<_> =
            [("fluid (bound)".to_owned(), bound)].into_iter().chain(means).collect();
        outcome.rows.extend(means.iter().map(|(name, mean)| mean.row(name)));
        outcome.rows.extend(means.iter().map(|(name, mean)| mean.delays(name)));
        "in AVMs %".clone_into(&mut outcome.shown);
        outcome.bars = self.bars();
        outcome
    }

    /// No rule is broken; and ours is below both points of FragBFF, on average over the seeds. Single seeds differ by more than
    /// policies do: when a VM starts a minute later, all is otherwise a day later.
    #[must_use]
    pub fn bars(&self) -> Vec<Bar> {
        let all = self.policies.iter().flat_map(|it| &it.1);
        let bar = |what: String, found: f64, bound: f64| Bar { what, found, bound, at_most: true };
        let mut bars = vec![bar("rules broken".to_owned(), all.map(|it| it.broken).sum(), 0.0)];
        let Some(ours) = self.of(Name::Ours).map(Figures::mean) else { return bars };
        for point in POINTS {
            let Some(theirs) = self.of(point).map(Figures::mean) else { continue };
            for (what, ours, theirs) in [
                ("core-hours in Aggregate VMs", ours.aggregate_percent, theirs.aggregate_percent),
                ("moves per hour", ours.moves_per_hour, theirs.moves_per_hour),
                ("mean delay", ours.delay_mean_all_min, theirs.delay_mean_all_min),
            ] {
                bars.push(bar(format!("{what}, ours to {point}"), ratio(ours, theirs), 1.0));
            }
        }
        bars
    }

    /// In how many seeds ours has less of both than each point of FragBFF.
    #[must_use]
    pub fn seeds_below(&self) -> Vec<(Name, usize)> {
        let Some(ours) = self.of(Name::Ours) else { return Vec::new() };
        let below = |(ours, theirs): &(&Figures, &Figures)| {
            ours.aggregate_percent < theirs.aggregate_percent
                && ours.moves_per_hour < theirs.moves_per_hour
        };
        let count = |point: Name| {
            let theirs = self.of(point)?;
            Some((point, ours.iter().zip(theirs).filter(below).count()))
        };
        POINTS.into_iter().filter_map(count).collect()
    }
}

/// Nothing is as much as nothing.
fn ratio(one: f64, other: f64) -> f64 {
    if one == other { 1.0 } else { one / other }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;

    fn small() -> Comparison {
        let pool = Pool { hosts: 6, ..Pool::default() };
        let scenario = Scenario { pool, load: 0.9, warm_up: 10, hours: 48, ..Scenario::default() };
        let names = [Name::Bff, POINTS[0], POINTS[1], Name::Ours];
        compare(&scenario, &names, &[1, 2], |_| ()).unwrap()
    }

    #[test]
    fn table_has_each_policy_and_bars_compare_ours_with_both_points() {
        let found = small();
        let outcome = found.outcome("policies", vec!["a note".to_owned()]);
        let text = outcome.table();

        for part in ["fluid (bound)", "fragbff-min-frag", "16 and more: p99 min", "a note"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(outcome.bars.len(), 7);
        assert!(outcome.bars[0].holds(), "{text}");
    }

    #[test]
    fn ours_that_moves_more_misses_its_bar() {
        let mut found = small();
        for (name, figures) in &mut found.policies {
            for it in figures.iter_mut() {
                let is_ours = *name == Name::Ours;
                (it.moves_per_hour, it.aggregate_percent) =
                    if is_ours { (1.0, 1.0) } else { (2.0, 2.0) };
            }
        }
        let moves = |found: &Comparison| {
            let bars = found.bars();
            bars.iter().filter(|bar| bar.what.starts_with("moves")).all(Bar::holds)
        };
        assert!(moves(&found));
        assert_eq!(found.seeds_below(), POINTS.map(|point| (point, 2)));
        found.policies[3].1[1].moves_per_hour = 2.5;
        assert!(moves(&found), "1.75 on average");
        assert_eq!(found.seeds_below(), POINTS.map(|point| (point, 1)));
        found.policies[3].1[1].moves_per_hour = 3.5;
        assert!(!moves(&found));
    }

    #[test]
    fn frontier_names_each_policy() {
        let svg = frontier(&small()).unwrap();

        assert!(svg.starts_with("<svg") && svg.contains("fragbff-min-nodes"), "{svg}");
    }
}
