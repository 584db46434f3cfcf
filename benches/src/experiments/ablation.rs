//! What each optional mechanism of the memory engine is worth: the rows that it can reach, with and without it in turns.
//!
//! ```text
//!   each mechanism, each of its rows:   with, without ─> without, with ─> ... (new slices each time)
//! ```
//! A gain is the ratio of neighbours in time; above 1 the mechanism helps. Where the middle half of the ratios lies on
//! both sides of 1, nothing was found.

use super::scan::beside::Beside;
use super::scan::{EVERY, PAGE_WORDS, STRIDED, both, read};
use super::sharing::{self, Sharing, ping_pong, turns_of_pages};
use super::{Setting, writes};
use crate::carrier::Carrier;
use crate::cluster::Cluster;
use crate::paging::GuestPages;
use crate::plan::Plan;
use crate::samples::{Samples, median};
use anyhow::{Context, Result, ensure};
use comfy_table::{CellAlignment, Table, presets};
use dsm::{Mechanism, Mechanisms, Memory};
use outcome::{Conditions, Outcome, Row};

/// What is measured at most.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Pairs of each mechanism and row.
    pub pairs: u16,
    /// Only these mechanisms; all if empty.
    pub mechanisms: Vec<Mechanism>,
    /// Only rows whose names begin so, of each mechanism; those that it can reach if empty.
    pub rows: Vec<String>,
}

/// Where a figure comes from.
type Measure = fn(&Plan<'_>, u64) -> Result<f64>;

/// A figure of two slices.
struct Figure {
    name: &'static str,
    /// More of it is better.
    is_gain: bool,
    carrier: Carrier,
    /// What it is measured over: cycles, or pages.
    size: u64,
    measure: Measure,
    /// The mechanisms that it can show, by name.
    shows: &'static [&'static str],
}

/// Cycles of a run of writers, and pages that are read in order: 64 MiB.
const CYCLES: u64 = 500_000_000;
const PAGES: u64 = 1 << 14;
const WINDOWS: &[&str] = &["busy-windows", "contended-windows", "brief-windows", "polling"];
const STREAM: &[&str] = &["runs", "chunk-fetch", "exclusive-grants"];

/// Pages that are written in a turn besides the one that says whose turn it is.
const BURST: u64 = 10;

const FIGURES: [Figure; 13] = [
    Figure {
        name: "sharing: one word, progress / serial",
        is_gain: true,
        carrier: Carrier::Shm,
        size: CYCLES,
        measure: one_word,
        shows: WINDOWS,
    },
    Figure {
        name: "sharing: ping-pong, us",
        is_gain: false,
        carrier: Carrier::Shm,
        size: 0,
        measure: turns,
        shows: &["brief-windows", "busy-windows", "polling", "write-prediction", "correlation"],
    },
    Figure {
        name: "sharing: ping-pong over tcp, us",
        is_gain: false,
        carrier: Carrier::Tcp,
        size: 0,
        measure: turns,
        shows: &["brief-windows", "busy-windows", "polling", "write-prediction", "correlation"],
    },
    Figure {
        name: "sharing: turns of eleven pages, us",
        is_gain: false,
        carrier: Carrier::Shm,
        size: 0,
        measure: bursts,
        shows: &["correlation"],
    },
    Figure {
        name: "sharing: turns of eleven pages over tcp, us",
        is_gain: false,
        carrier: Carrier::Tcp,
        size: 0,
        measure: bursts,
        shows: &["correlation"],
    },
    Figure {
        name: "writes: four vCPUs, one page, writes / serial",
        is_gain: true,
        carrier: Carrier::Shm,
        size: CYCLES,
        measure: one_page,
        shows: WINDOWS,
    },
    Figure {
        name: "scan: in order over shm, MB/s",
        is_gain: true,
        carrier: Carrier::Shm,
        size: PAGES,
        measure: prepared,
        shows: &["runs", "chunk-fetch", "exclusive-grants", "remote-write"],
    },
    Figure {
        name: "scan: in order over tcp, MB/s",
        is_gain: true,
        carrier: Carrier::Tcp,
        size: PAGES,
        measure: prepared,
        shows: &["runs", "chunk-fetch", "exclusive-grants", "direct-receive"],
    },
    Figure {
        name: "scan: in order over shm, memory as it comes, MB/s",
        is_gain: true,
        carrier: Carrier::Shm,
        size: PAGES,
        measure: in_order,
        shows: STREAM,
    },
    Figure {
        name: "scan: in order over tcp, memory as it comes, MB/s",
        is_gain: true,
        carrier: Carrier::Tcp,
        size: PAGES,
        measure: in_order,
        shows: &["runs", "chunk-fetch", "exclusive-grants", "staged-pages"],
    },
    Figure {
        name: "scan: every fourth page over tcp, MB/s",
        is_gain: true,
        carrier: Carrier::Tcp,
        size: STRIDED,
        measure: every_fourth,
        shows: &["runs", "strides"],
    },
    Figure {
        name: "scan: scattered over tcp, MB/s",
        is_gain: true,
        carrier: Carrier::Tcp,
        size: STRIDED,
        measure: scattered,
        shows: &["runs", "strides", "correlation", "write-prediction", "polling"],
    },
    Figure {
        name: "scan: a miss beside a stream over tcp, p90 us",
        is_gain: false,
        carrier: Carrier::Tcp,
        size: PAGES,
        measure: beside,
        shows: &["urgent-first", "polling"],
    },
];

fn one_word(plan: &Plan<'_>, cycles: u64) -> Result<f64> {
    let mut found = sharing::Found::default();
    found.add(&mut Cluster::new(plan)?, Sharing::True, cycles)?;
    Ok(median(found.ratios))
}

fn turns(plan: &Plan<'_>, _: u64) -> Result<f64> {
    let row = ping_pong(&mut Cluster::new(plan)?, plan.carrier.name().to_owned())?;
    row.figures.first().map(|(_, time)| *time).context("a round trip")
}

fn bursts(plan: &Plan<'_>, _: u64) -> Result<f64> {
    let row = turns_of_pages(&mut Cluster::new(plan)?, plan.carrier.name().to_owned(), BURST)?;
    row.figures.first().map(|(_, time)| *time).context("a round trip")
}

fn one_page(plan: &Plan<'_>, cycles: u64) -> Result<f64> {
    let plan = Plan { places: &[&writes::PAIRS[0], &writes::PAIRS[1]], ..plan.clone() };
    let (mut found, [.., (_, all_on_one)]) = (writes::Found::default(), writes::PATTERNS);
    found.add(&mut Cluster::new(&plan)?, all_on_one, cycles)?;
    Ok(median(found.ratios))
}

fn prepared(plan: &Plan<'_>, pages: u64) -> Result<f64> {
    let (memory, guest_pages) = (Memory::MemfdPrealloc, GuestPages::Large);
    read(&Plan { memory, guest_pages, ..plan.clone() }, pages, 1)
}

fn in_order(plan: &Plan<'_>, pages: u64) -> Result<f64> {
    read(plan, pages, 1)
}

fn every_fourth(plan: &Plan<'_>, pages: u64) -> Result<f64> {
    read(plan, pages, EVERY * PAGE_WORDS)
}

fn scattered(plan: &Plan<'_>, pages: u64) -> Result<f64> {
    read(plan, pages, 0)
}

fn beside(plan: &Plan<'_>, stream: u64) -> Result<f64> {
    let mut found = Beside::default();
    found.measure_beside(plan, stream)?;
    Ok(found.beside.percentile(90) / 1000.0)
}

/// What was found of a mechanism in a row.
struct Found {
    mechanism: &'static str,
    row: &'static str,
    with: f64,
    without: f64,
    /// Of neighbours in time: p25, p50 and p75.
    gain: [f64; 3],
}

impl Found {
    fn new(mechanism: Mechanism, figure: &Figure, with: &[f64], without: &[f64]) -> Self {
        let (over, under) = if figure.is_gain { (with, without) } else { (without, with) };
        let gains = Samples::new(crate::samples::ratios(over, under));
        Self {
            mechanism: mechanism.name(),
            row: figure.name,
            with: median(with.to_vec()),
            without: median(without.to_vec()),
            gain: [25, 50, 75].map(|percent| gains.percentile(percent)),
        }
    }

    fn verdict(&self) -> &'static str {
        match self.gain {
            [low, ..] if low > 1.0 => "helps",
            [.., high] if high < 1.0 => "costs",
            _ => "nothing found",
        }
    }
}

/// Measures, and prints a table in Markdown.
///
/// # Errors
/// Nothing to measure, this machine has no KVM or userfaultfd, or a guest failed.
pub fn run(setting: Setting<'_>, choice: &Choice) -> Result<Outcome> {
    let mut conditions = Conditions::now();
    conditions.notes.push(format!(
        "two slices with a vCPU and a core each; {} pairs with and without the mechanism in turns, new slices each time; \
         gains are medians of the ratios of neighbours, above 1 the mechanism helps",
        choice.pairs
    ));
    let all = Mechanism::ALL.to_vec();
    let mechanisms = if choice.mechanisms.is_empty() { &all } else { &choice.mechanisms };
    let mut found = Vec::new();
    for mechanism in mechanisms {
        for figure in FIGURES.iter().filter(|figure| is_chosen(figure, *mechanism, &choice.rows)) {
            eprintln!("{}: {}", mechanism.name(), figure.name);
            found.push(compare(setting, *mechanism, figure, choice.pairs)?);
        }
    }
    ensure!(!found.is_empty(), "no row shows any of these mechanisms");
    println!("{}", table(&found));
    let rows = found.iter().map(|found| Row {
        name: format!("{}: {}", found.mechanism, found.row),
        figures: ["with", "without", "gain p25", "gain", "gain p75"]
            .map(str::to_owned)
            .into_iter()
            .zip([found.with, found.without].into_iter().chain(found.gain))
            .collect(),
    });
    let rows = rows.collect();
    Ok(Outcome { name: "ablation".into(), conditions, rows, bars: vec![], shown: "gain".into() })
}

fn is_chosen(figure: &Figure, mechanism: Mechanism, rows: &[String]) -> bool {
    if rows.is_empty() {
        return figure.shows.contains(&mechanism.name());
    }
    rows.iter().any(|row| figure.name.starts_with(row.as_str()))
}

fn compare(
    setting: Setting<'_>,
    mechanism: Mechanism,
    figure: &Figure,
    pairs: u16,
) -> Result<Found> {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    let size = if setting.quick { figure.size / 4 } else { figure.size };
    for pair in 0..pairs {
        for is_with in both(u64::from(pair)) {
            let all = Mechanisms::ALL;
            let (mechanisms, figures) =
                if is_with { (all, &mut with) } else { (all.without(mechanism), &mut without) };
            let plan = Plan { mechanisms, ..setting.two_slices(figure.carrier, &[512, 512]) };
            figures.push((figure.measure)(&plan, size)?);
        }
    }
    Ok(Found::new(mechanism, figure, &with, &without))
}

fn table(found: &[Found]) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["mechanism", "row", "with", "without", "gain (p25 to p75)", "verdict"]);
    for column in [2, 3, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for of in found {
        let [low, gain, high] = of.gain;
        table.add_row([
            format!("`{}`", of.mechanism),
            of.row.to_owned(),
            format!("{:.2}", of.with),
            format!("{:.2}", of.without),
            format!("{gain:.2} ({low:.2} to {high:.2})"),
            of.verdict().to_owned(),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_show_mechanisms_that_there_are() {
        for figure in &FIGURES {
            for name in figure.shows {
                assert!(name.parse::<Mechanism>().is_ok(), "{name}");
            }
        }
    }

    #[test]
    fn gain_is_told_by_what_is_better() {
        let mechanism = Mechanism::ALL[0];
        let (fast, slow) = ([2.0, 4.0, 8.0], [1.0, 2.0, 4.0]);
        for figure in [&FIGURES[0], &FIGURES[1]] {
            let (more, less) = if figure.is_gain { (fast, slow) } else { (slow, fast) };
            let helps = Found::new(mechanism, figure, &more, &less);
            assert_eq!((helps.gain, helps.verdict()), ([2.0; 3], "helps"));
            assert_eq!(Found::new(mechanism, figure, &less, &more).verdict(), "costs");
            let mixed = Found::new(mechanism, figure, &fast, &[4.0, 4.0, 4.0]);
            assert_eq!(mixed.verdict(), "nothing found");
            assert!(table(&[helps]).contains("2.00 (2.00 to 2.00)"));
        }
    }
}
