//! What was seen of a VM over time, and what it amounts to: for each second, and for each phase. Pure.

use anyhow::{Context, Result};
use lab::http_seconds::Second;
use serde::Deserialize;
use serde_json::Value;

use crate::vm::relocate::Places;

/// Something that was seen.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fact {
    /// One second of requests.
    Http(Second),
    /// Faults that a slice has had until now.
    Faults { slice: usize, count: u64 },
    /// Where everything is.
    Places(Vec<Places>),
}

/// Something, and when it was seen, in seconds from the start.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    pub(super) at: f64,
    pub(super) fact: Fact,
}

/// What a line of a host says: counters of a slice, or places.
pub(super) fn read(line: &str) -> Result<Fact> {
    #[derive(Deserialize)]
    struct Shown {
        slices: Vec<Places>,
    }
    let value: Value = serde_json::from_str(line).with_context(|| format!("read '{line}'"))?;
    if value.get("epoch").is_some() {
        let shown: Shown = serde_json::from_value(value).context("read where everything is")?;
        return Ok(Fact::Places(shown.slices));
    }
    let number = |path: &str| {
        let found = value.pointer(path).and_then(Value::as_u64);
        found.with_context(|| format!("counters without {path}"))
    };
    let kinds = ["read", "write", "upgrade"].map(|kind| number(&format!("/memory/faults/{kind}")));
    let count = kinds.into_iter().sum::<Result<u64>>()?;
    Ok(Fact::Faults { slice: usize::try_from(number("/slice")?)?, count })
}

/// One part of the run: something that was asked for, or time between.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Phase {
    pub(super) name: String,
    pub(super) from: f64,
    pub(super) to: f64,
    /// How long the slices took for what was asked for.
    pub(super) took_ms: Option<f64>,
}

impl Phase {
    /// Whether something that went on from one moment to another counts here: all of what overlaps with something that was
    /// asked for, which may be shorter than a look, and else what is inside.
    fn has(&self, from: f64, to: f64) -> bool {
        if self.took_ms.is_some() {
            from < self.to && to > self.from
        } else {
            self.from <= from && to <= self.to
        }
    }
}

/// What a phase amounts to. None without requests, or looks at counters.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Summary {
    pub(super) requests: u64,
    /// Requests a second.
    pub(super) rate: Option<f64>,
    /// In milliseconds.
    pub(super) p50: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) longest: Option<f64>,
    /// A second, of all slices.
    pub(super) faults: Option<f64>,
}

/// Sums up what was seen in a phase.
pub(super) fn summary(seen: &[Seen], phase: &Phase) -> Summary {
    let seconds: Vec<&Second> = seconds(seen)
        .filter(|(at, second)| phase.has(at - float(second.milliseconds) / 1000.0, *at))
        .map(|(_, second)| second)
        .collect();
    let requests = requests(&seconds);
    let length = float(seconds.iter().map(|second| second.milliseconds).sum()) / 1000.0;
    let of_slice = |slice| {
        let rates = rates(seen, slice).into_iter().filter(|rate| phase.has(rate.from, rate.to));
        let sum = rates.fold((0.0, 0.0), |(faults, time), rate| {
            (faults + rate.faults, time + rate.to - rate.from)
        });
        (sum.1 > 0.0).then(|| sum.0 / sum.1)
    };
    let faults: Vec<f64> = slices(seen).filter_map(of_slice).collect();
    let longest = seconds.iter().map(|second| second.longest).max().filter(|us| *us > 0);
    let longest = longest.map(milliseconds);
    let at_most = |time: f64| longest.map_or(time, |longest| time.min(longest));
    Summary {
        requests,
        rate: (length > 0.0).then(|| float(requests) / length),
        p50: quantile(&seconds, 50).map(at_most),
        p99: quantile(&seconds, 99).map(at_most),
        longest,
        faults: faults.into_iter().reduce(|sum, rate| sum + rate),
    }
}

/// All requests that were answered.
pub(super) fn answered(seen: &[Seen]) -> u64 {
    requests(&seconds(seen).map(|(_, second)| second).collect::<Vec<_>>())
}

fn requests(seconds: &[&Second]) -> u64 {
    seconds.iter().flat_map(|second| &second.latencies).map(|of| of.1).sum()
}

/// Each second of requests, and when it was over.
fn seconds(seen: &[Seen]) -> impl Iterator<Item = (f64, &Second)> {
    seen.iter().filter_map(|seen| match &seen.fact {
        Fact::Http(second) => Some((seen.at, second)),
        _ => None,
    })
}

/// A count as a number for divisions.
pub(super) fn float(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Numbers of slices that were seen, ascending.
pub(super) fn slices(seen: &[Seen]) -> impl Iterator<Item = usize> + use<> {
    let last = seen.iter().filter_map(|seen| match &seen.fact {
        Fact::Faults { slice, .. } => Some(*slice),
        Fact::Places(places) => places.iter().map(|of| of.slice).max(),
        Fact::Http(_) => None,
    });
    0..last.max().map_or(0, |last| last + 1)
}

/// Faults of a slice between two looks at its counters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) faults: f64,
}

/// Faults of a slice, from look to look.
pub(super) fn rates(seen: &[Seen], slice: usize) -> Vec<Rate> {
    let counts = seen.iter().filter_map(|seen| match seen.fact {
        Fact::Faults { slice: of, count } if of == slice => Some((seen.at, count)),
        _ => None,
    });
    let counts: Vec<_> = counts.collect();
    let rate = |pair: &[(f64, u64)]| {
        let [(from, before), (to, after)] = *pair else { return None };
        // Lines that come together were late, and say nothing about the time between.
        let faults = float(after.saturating_sub(before));
        (to - from > 0.1).then_some(Rate { from, to, faults })
    };
    counts.windows(2).filter_map(rate).collect()
}

/// vCPUs of a slice over time; none while it is no member.
pub(super) fn vcpus(seen: &[Seen], slice: usize) -> Vec<(f64, Option<usize>)> {
    let of =
        |places: &[Places]| places.iter().find(|of| of.slice == slice).map(|of| of.vcpus.len());
    let places = seen.iter().filter_map(|seen| match &seen.fact {
        Fact::Places(places) => Some((seen.at, of(places))),
        _ => None,
    });
    places.collect()
}

/// A quantile of the latencies of each second that had requests, in milliseconds.
pub(super) fn latencies(seen: &[Seen], hundredths: u64) -> Vec<(f64, f64)> {
    seconds(seen).filter_map(|(at, second)| Some((at, quantile(&[second], hundredths)?))).collect()
}

/// Of all requests of these seconds, in milliseconds.
fn quantile(seconds: &[&Second], hundredths: u64) -> Option<f64> {
    let mut all: Vec<_> = seconds.iter().flat_map(|second| &second.latencies).copied().collect();
    all.sort_unstable();
    let rank = (all.iter().map(|of| of.1).sum::<u64>() * hundredths).div_ceil(100).max(1);
    let mut before = 0;
    let found = all.iter().find(|(_, count)| {
        before += count;
        before >= rank
    });
    found.map(|(latency, _)| milliseconds(*latency))
}

fn milliseconds(microseconds: u64) -> f64 {
    float(microseconds) / 1000.0
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn http(at: f64, latencies: &[(u64, u64)]) -> Seen {
        let longest = latencies.last().map_or(0, |of| of.0);
        let latencies = latencies.to_vec();
        Seen {
            at,
            fact: Fact::Http(Second {
                milliseconds: 1000,
                latencies,
                longest,
                ..Second::default()
            }),
        }
    }

    fn count(at: f64, slice: usize, count: u64) -> Seen {
        Seen { at, fact: Fact::Faults { slice, count } }
    }

    fn places(at: f64, of: &[&[usize]]) -> Seen {
        let of = of.iter().enumerate();
        let of = of.map(|(slice, vcpus)| Places { slice, vcpus: vcpus.to_vec(), memory_mib: 1 });
        Seen { at, fact: Fact::Places(of.collect()) }
    }

    /// Two slices, of which one leaves.
    pub(crate) fn run() -> Vec<Seen> {
        vec![
            places(0.5, &[&[0], &[1]]),
            count(0.5, 0, 100),
            count(0.5, 1, 1000),
            http(1.0, &[(10_000, 98), (20_000, 1), (69_000, 1)]),
            http(2.0, &[]),
            count(2.5, 0, 140),
            count(2.5, 1, 1100),
            places(2.5, &[&[0, 1], &[]]),
            http(3.0, &[(5000, 1)]),
            places(3.5, &[&[0, 1]]),
            count(4.5, 0, 140),
        ]
    }

    #[test]
    fn lines_are_counters_or_places() {
        let counters =
            r#"{"slice":1,"process":7,"memory":{"faults":{"read":3,"write":4,"upgrade":5}}}"#;
        assert_eq!(read(counters).unwrap(), Fact::Faults { slice: 1, count: 12 });
        let shown = r#"{"epoch":1,"slices":[{"slice":0,"vcpus":[0],"memory_mib":1}]}"#;
        assert_eq!(read(shown).unwrap(), places(0.0, &[&[0]]).fact);
        for other in ["", "{}", r#"{"slice":1}"#, r#"{"epoch":1}"#] {
            assert!(read(other).is_err(), "{other}");
        }
    }

    #[test]
    fn rates_are_between_two_looks_and_a_slice_that_leaves_has_none() {
        let seen = run();
        assert_eq!(slices(&seen).collect::<Vec<_>>(), [0, 1]);
        let of = |slice| {
            let rates = rates(&seen, slice).into_iter();
            rates.map(|rate| (rate.from, rate.to, rate.faults)).collect::<Vec<_>>()
        };
        assert_eq!(of(0), [(0.5, 2.5, 40.0), (2.5, 4.5, 0.0)]);
        assert_eq!(of(1), [(0.5, 2.5, 100.0)]);
        let late = [count(1.0, 0, 5), count(1.01, 0, 50)];
        assert!(rates(&late, 0).is_empty());
        assert_eq!(vcpus(&seen, 1), [(0.5, Some(1)), (2.5, Some(0)), (3.5, None)]);
    }

    #[test]
    fn latencies_are_those_of_requests() {
        let seen = run();
        assert_eq!(latencies(&seen, 50), [(1.0, 10.0), (3.0, 5.0)]);
        assert_eq!(latencies(&seen, 99), [(1.0, 20.0), (3.0, 5.0)]);
    }

    #[test]
    fn time_between_has_what_is_inside_and_what_was_asked_for_all_that_overlaps() {
        let seen = run();
        assert_eq!(answered(&seen), 101);
        let of =
            |from, to, took_ms| summary(&seen, &Phase { name: String::new(), from, to, took_ms });
        let whole = of(0.0, 10.0, None);
        assert_eq!((whole.requests, whole.p50, whole.longest), (101, Some(10.0), Some(69.0)));
        // 40 in 4 s of the first slice, and 100 in 2 s of the other.
        assert_eq!(whole.faults, Some(60.0));
        assert_eq!(of(2.2, 2.9, None), Summary::default());
        let short = of(2.2, 2.9, Some(700.0));
        assert_eq!((short.requests, short.rate, short.faults), (1, Some(1.0), Some(60.0)));
    }

    #[test]
    fn no_quantile_is_above_the_longest() {
        let mut seen = http(1.0, &[(70_000, 1)]);
        let Fact::Http(second) = &mut seen.fact else { unreachable!() };
        // The first is exact to two digits.
        second.longest = 69_400;
        let phase = Phase { name: String::new(), from: 0.0, to: 2.0, took_ms: None };
        let found = summary(&[seen], &phase);
        assert_eq!((found.p50, found.p99, found.longest), (Some(69.4), Some(69.4), Some(69.4)));
    }
}
