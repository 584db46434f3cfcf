//! What a run has found: sums of pools, and figures made of them.

use crate::judge::Rule;
use outcome::Row;
use scheduler::Spec;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// VMs by their cores, as delays are told of: small ones may pass large ones.
pub const SIZE_CLASSES: [&str; 3] = ["1 to 4", "5 to 15", "16 and more"];

pub(crate) fn size_class(spec: &Spec) -> usize {
    match spec.needs.cores {
        0..=4 => 0,
        5..=15 => 1,
        _ => 2,
    }
}

/// VMs that came, and how long those waited that did.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Delays {
    pub(crate) vms: u64,
    pub(crate) seconds: Vec<u32>,
}

impl Delays {
    /// In minutes, so that this share has waited for no longer.
    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_unstable();
        let rank = (share * float(self.vms)).ceil();
        let undelayed = float(self.vms) - float(count(sorted.len()));
        let at = rank - undelayed;
        if at < 1.0 {
            return 0.0;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 at least")]
        let at = at as usize - 1;
        sorted.get(at).or_else(|| sorted.last()).map_or(0.0, |seconds| f64::from(*seconds) / 60.0)
    }

    /// In minutes, over those that did not wait too.
    fn mean(&self) -> f64 {
        let seconds: u64 = self.seconds.iter().map(|it| u64::from(*it)).sum();
        ratio(float(seconds) / 60.0, float(self.vms))
    }

    fn delayed_percent(&self) -> f64 {
        100.0 * ratio(float(count(self.seconds.len())), float(self.vms))
    }

    fn add(&mut self, other: &Self) {
        self.vms += other.vms;
        self.seconds.extend(&other.seconds);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CoreSeconds {
    pub(crate) all: f64,
    pub(crate) used: f64,
    pub(crate) aggregate: f64,
    pub(crate) lost: f64,
}

/// Sums over looks at the hosts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Looks {
    pub(crate) count: f64,
    pub(crate) phi: f64,
    pub(crate) fr_16: f64,
    pub(crate) busy_hosts: f64,
    pub(crate) least_hosts: f64,
    pub(crate) memory: f64,
}

/// What a run has found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    pub(crate) window_ms: u64,
    pub(crate) delays: [Delays; 3],
    pub(crate) core_seconds: CoreSeconds,
    pub(crate) aggregate_seconds: f64,
    pub(crate) waiting_seconds: f64,
    pub(crate) splits: u64,
    pub(crate) slices: u64,
    pub(crate) slices_most: u64,
    pub(crate) moves: u64,
    pub(crate) moved_vcpus: u64,
    pub(crate) moved_units: u64,
    pub(crate) larger: u64,
    pub(crate) turned_away: u64,
    pub(crate) looks: Looks,
    pub(crate) broken: BTreeMap<Rule, u64>,
    pub(crate) steps: u64,
}

impl Tally {
    /// Another pool of the same cluster, over the same time.
    pub fn add(&mut self, other: &Self) {
        self.window_ms = self.window_ms.max(other.window_ms);
        for (own, other) in self.delays.iter_mut().zip(&other.delays) {
            own.add(other);
        }
        let (own, its) = (&mut self.core_seconds, &other.core_seconds);
        own.all += its.all;
        own.used += its.used;
        own.aggregate += its.aggregate;
        own.lost += its.lost;
        self.aggregate_seconds += other.aggregate_seconds;
        self.waiting_seconds += other.waiting_seconds;
        self.splits += other.splits;
        self.slices += other.slices;
        self.slices_most = self.slices_most.max(other.slices_most);
        self.moves += other.moves;
        self.moved_vcpus += other.moved_vcpus;
        self.moved_units += other.moved_units;
        self.larger += other.larger;
        self.turned_away += other.turned_away;
        let (own, its) = (&mut self.looks, &other.looks);
        own.count += its.count;
        own.phi += its.phi;
        own.fr_16 += its.fr_16;
        own.busy_hosts += its.busy_hosts;
        own.least_hosts += its.least_hosts;
        own.memory += its.memory;
        for (rule, times) in &other.broken {
            *self.broken.entry(*rule).or_default() += times;
        }
        self.steps += other.steps;
    }

    /// How often rules were broken.
    #[must_use]
    pub fn broken(&self) -> u64 {
        self.broken.values().sum()
    }

    /// Which were.
    #[must_use]
    pub fn rules(&self) -> &BTreeMap<Rule, u64> {
        &self.broken
    }

    /// VMs that were larger than a host and not offered.
    #[must_use]
    pub fn larger(&self) -> u64 {
        self.larger
    }

    /// Core-seconds of Aggregate VMs.
    #[must_use]
    pub fn aggregate_core_seconds(&self) -> f64 {
        self.core_seconds.aggregate
    }

    /// For people.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let hours = float(self.window_ms) / 3_600_000.0;
        let vms: u64 = self.delays.iter().map(|it| it.vms).sum();
        let delayed: usize = self.delays.iter().map(|it| it.seconds.len()).sum();
        let mut all = Delays::default();
        self.delays.iter().for_each(|it| all.add(it));
        let looks = |sum: f64| ratio(sum, self.looks.count);
        Figures {
            vms: float(vms),
            utilisation_percent: 100.0 * ratio(self.core_seconds.used, self.core_seconds.all),
            memory_percent: 100.0 * looks(self.looks.memory),
            delayed_percent: 100.0 * ratio(float(count(delayed)), float(vms)),
            delay_mean_all_min: all.mean(),
            delayed_percent_by_size: self.delays.each_ref().map(Delays::delayed_percent),
            delay_mean_min: self.delays.each_ref().map(Delays::mean),
            delay_p50_min: self.delays.each_ref().map(|it| it.quantile(0.5)),
            delay_p99_min: self.delays.each_ref().map(|it| it.quantile(0.99)),
            split_percent: 100.0 * ratio(float(self.splits), float(vms)),
            slices_mean: ratio(float(self.slices), float(self.splits)),
            slices_most: float(self.slices_most),
            aggregate_percent: 100.0 * ratio(self.core_seconds.aggregate, self.core_seconds.used),
            lost_percent: 100.0 * ratio(self.core_seconds.lost, self.core_seconds.used),
            aggregates: ratio(self.aggregate_seconds, hours * 3600.0),
            moves_per_hour: ratio(float(self.moves), hours),
            vcpus_per_hour: ratio(float(self.moved_vcpus), hours),
            gib_per_hour: ratio(float(self.moved_units) / 512.0, hours),
            phi_percent: 100.0 * looks(self.looks.phi),
            fr_16_percent: 100.0 * looks(self.looks.fr_16),
            hosts_over_bound_percent: 100.0
                * (ratio(self.looks.busy_hosts, self.looks.least_hosts) - 1.0).max(0.0),
            waiting: ratio(self.waiting_seconds, hours * 3600.0),
            larger: float(self.larger),
            turned_away: float(self.turned_away),
            broken: float(self.broken()),
        }
    }
}

/// What a run has found, for people.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// VMs that came.
    pub vms: f64,
    /// Of the cores.
    pub utilisation_percent: f64,
    /// Of the memory.
    pub memory_percent: f64,
    /// VMs that had to wait.
    pub delayed_percent: f64,
    /// Over all VMs, also those that did not wait.
    pub delay_mean_all_min: f64,
    /// By size.
    pub delayed_percent_by_size: [f64; 3],
    /// By size, over all.
    pub delay_mean_min: [f64; 3],
    /// By size.
    pub delay_p50_min: [f64; 3],
    /// By size.
    pub delay_p99_min: [f64; 3],
    /// VMs that were split.
    pub split_percent: f64,
    /// Of those when they started.
    pub slices_mean: f64,
    /// Of those when they started.
    pub slices_most: f64,
    /// Of the core-hours of all VMs those of Aggregate VMs.
    pub aggregate_percent: f64,
    /// Of the core-hours of all VMs those that Aggregate VMs are expected to wait for pages, by their class.
    pub lost_percent: f64,
    /// Aggregate VMs at a time.
    pub aggregates: f64,
    /// Moves of slices and of VMs.
    pub moves_per_hour: f64,
    /// Their vCPUs.
    pub vcpus_per_hour: f64,
    /// Their memory.
    pub gib_per_hour: f64,
    /// Of the free cores those that the next VM cannot use.
    pub phi_percent: f64,
    /// Of the free cores those beside pieces of 16.
    pub fr_16_percent: f64,
    /// Hosts in use beyond those that would do if VMs were a fluid.
    pub hosts_over_bound_percent: f64,
    /// VMs that wait at a time.
    pub waiting: f64,
    /// VMs larger than a host, which were not offered.
    pub larger: f64,
    /// VMs that found the queue full.
    pub turned_away: f64,
    /// Rules broken.
    pub broken: f64,
}

impl Figures {
    /// A line of the table.
    #[must_use]
    pub fn row(&self, name: &str) -> Row {
        let big = 2;
        let figures = [
            ("used %", self.utilisation_percent),
            ("late %", self.delayed_percent),
            ("late big %", self.delayed_percent_by_size[big]),
            ("mean min", self.delay_mean_all_min),
            ("mean big min", self.delay_mean_min[big]),
            ("p99 big min", self.delay_p99_min[big]),
            ("split %", self.split_percent),
            ("slices", self.slices_mean),
            ("most", self.slices_most),
            ("in AVMs %", self.aggregate_percent),
            ("lost %", self.lost_percent),
            ("moves/h", self.moves_per_hour),
            ("vCPUs/h", self.vcpus_per_hour),
            ("GiB/h", self.gib_per_hour),
            ("Phi %", self.phi_percent),
            ("FR16 %", self.fr_16_percent),
            ("LP gap %", self.hosts_over_bound_percent),
            ("broken", self.broken),
        ];
        let figures = figures.map(|(column, value)| (column.to_owned(), value)).to_vec();
        Row { name: name.to_owned(), figures }
    }

    /// Delays by size.
    #[must_use]
    pub fn delays(&self, name: &str) -> Row {
        let mut figures = Vec::new();
        for (at, size) in SIZE_CLASSES.iter().enumerate() {
            for (what, value) in [
                ("late %", self.delayed_percent_by_size[at]),
                ("mean", self.delay_mean_min[at]),
                ("p50", self.delay_p50_min[at]),
                ("p99 min", self.delay_p99_min[at]),
            ] {
                figures.push((format!("{size}: {what}"), value));
            }
        }
        Row { name: name.to_owned(), figures }
    }

    /// The mean of several runs.
    #[must_use]
    pub fn mean(all: &[Self]) -> Self {
        let Ok(values) = all.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>() else {
            return Self::default();
        };
        let mean = mean_of(&values);
        serde_json::from_value(mean).unwrap_or_default()
    }
}

/// Of numbers in the same places of values of the same form.
fn mean_of(values: &[serde_json::Value]) -> serde_json::Value {
    use serde_json::Value;
    match values.first() {
        Some(Value::Object(first)) => {
            let of = |key: &String| {
                let each: Vec<Value> =
                    values.iter().filter_map(|value| value.get(key).cloned()).collect();
                (key.clone(), mean_of(&each))
            };
            Value::Object(first.keys().map(of).collect())
        }
        Some(Value::Array(first)) => {
            let of = |at: usize| {
                let each: Vec<Value> =
                    values.iter().filter_map(|value| value.get(at).cloned()).collect();
                mean_of(&each)
            };
            Value::Array((0..first.len()).map(of).collect())
        }
        _ => {
            let numbers: Vec<f64> = values.iter().filter_map(Value::as_f64).collect();
            let sum = numbers.iter().fold(0.0, |sum, number| sum + number);
            Value::from(ratio(sum, float(count(numbers.len()))))
        }
    }
}

fn count(of: usize) -> u64 {
    u64::try_from(of).unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn float(it: u64) -> f64 {
    it as f64
}

fn ratio(part: f64, of: f64) -> f64 {
    if of == 0.0 { 0.0 } else { part / of }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_over_those_too_that_did_not_wait() {
        let it = Delays { vms: 10, seconds: vec![600, 60, 120] };

        assert!((it.quantile(0.5) - 0.0).abs() < 1e-9);
        assert!((it.quantile(0.8) - 1.0).abs() < 1e-9);
        assert!((it.quantile(0.9) - 2.0).abs() < 1e-9);
        assert!((it.quantile(0.99) - 10.0).abs() < 1e-9);
        assert!((it.mean() - 1.3).abs() < 1e-9);
        assert!((it.delayed_percent() - 30.0).abs() < 1e-9);
        assert!(Delays::default().mean().is_sign_positive(), "nothing is not less than nothing");
    }

    #[test]
    fn mean_of_runs_is_the_mean_of_each_figure() {
        let one = Figures { vms: 2.0, delay_mean_min: [1.0, 2.0, 3.0], ..Figures::default() };
        let other = Figures { vms: 4.0, delay_mean_min: [3.0, 4.0, 5.0], ..Figures::default() };

        let mean = Figures::mean(&[one, other]);

        assert!((mean.vms - 3.0).abs() < 1e-9 && (mean.delay_mean_min[2] - 4.0).abs() < 1e-9);
    }
}
