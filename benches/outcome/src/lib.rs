//! What an experiment found: a table for people, JSON for programs, a picture.
#![forbid(unsafe_code)]

pub mod table;

use anyhow::{Context, Result};
use plotters::prelude::*;
use serde::Serialize;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread;

/// Under what a run was made.
#[derive(Clone, Debug, Serialize)]
pub struct Conditions {
    /// Kernel release.
    pub kernel: String,
    /// Name of the processor.
    pub processor: String,
    /// Cores.
    pub cores: usize,
    /// Load averages at the start.
    pub load: String,
    /// What else matters, as text.
    pub notes: Vec<String>,
}

impl Conditions {
    /// Of this machine, now.
    #[must_use]
    pub fn now() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let info = read("/proc/cpuinfo");
        let model = info.lines().find(|line| line.starts_with("model name"));
        let model =
            model.and_then(|line| line.split_once(": ")).map_or("unknown", |(_, name)| name);
        Self {
            kernel: read("/proc/sys/kernel/osrelease"),
            processor: model.to_owned(),
            cores: thread::available_parallelism().map_or(1, NonZero::get),
            load: read("/proc/loadavg"),
            notes: Vec::new(),
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// Column and value; the unit is in the column's name.
    pub figures: Vec<(String, f64)>,
}

/// Something that must hold.
#[derive(Clone, Debug, Serialize)]
pub struct Bar {
    /// In words.
    pub what: String,
    /// The ratio or count that was found.
    pub found: f64,
    /// The bound.
    pub bound: f64,
    /// Whether `found` must not exceed the bound; else it must reach it.
    pub at_most: bool,
}

impl Bar {
    /// True when it holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        if self.at_most { self.found <= self.bound } else { self.found >= self.bound }
    }
}

/// The result of an experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Its name.
    pub name: String,
    /// Under what.
    pub conditions: Conditions,
    /// The table.
    pub rows: Vec<Row>,
    /// What must hold.
    pub bars: Vec<Bar>,
    /// Column that the picture shows.
    pub shown: String,
}

impl Outcome {
    /// Nothing found yet, on this machine, now.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            conditions: Conditions::now(),
            rows: Vec::new(),
            bars: Vec::new(),
            shown: String::new(),
        }
    }

    /// The table as text.
    #[must_use]
    pub fn table(&self) -> String {
        let conditions = &self.conditions;
        let mut text = format!(
            "{}: Linux {}, {}, {} cores, load {}\n",
            self.name, conditions.kernel, conditions.processor, conditions.cores, conditions.load
        );
        for note in &conditions.notes {
            text.push_str(&format!("  {note}\n"));
        }
        for line in tables(&self.rows).lines() {
            text.push_str(format!("  {line}").trim_end());
            text.push('\n');
        }
        for bar in &self.bars {
            let sign = if bar.at_most { "<=" } else { ">=" };
            let verdict = if bar.holds() { "met" } else { "MISSED" };
            text.push_str(&format!(
                "  {verdict}: {}: {:.3} {sign} {:.3}\n",
                bar.what, bar.found, bar.bound
            ));
        }
        text
    }

    /// True when all bars hold.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.bars.iter().all(Bar::holds)
    }

    /// Writes `NAME.json`, `NAME.txt` and `NAME.svg` into a folder; where.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write(&self, folder: &Path) -> Result<PathBuf> {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        let path = |extension: &str| folder.join(format!("{}.{extension}", self.name));
        let write = |extension: &str, text: &str| {
            fs::write(path(extension), text)
                .with_context(|| format!("write {}", path(extension).display()))
        };
        write("json", &serde_json::to_string_pretty(self)?)?;
        write("txt", &self.table())?;
        write("svg", &self.picture()?)?;
        Ok(path("json"))
    }

    /// A bar for each row that has the column shown.
    fn picture(&self) -> Result<String> {
        let value = |row: &Row| {
            row.figures.iter().find(|(column, _)| *column == self.shown).map(|(_, value)| *value)
        };
        let bars: Vec<(&str, f64)> =
            self.rows.iter().filter_map(|row| Some((row.name.as_str(), value(row)?))).collect();
        let most = bars.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max) * 1.1;
        let mut svg = String::new();
        let height = u32::try_from(60 + bars.len() * 24)?;
        {
            let area = SVGBackend::with_string(&mut svg, (900, height)).into_drawing_area();
            area.fill(&WHITE)?;
            let title = format!("{}: {}", self.name, self.shown);
            let style = ("sans-serif", 14).into_font();
            area.draw(&Text::new(title, (10, 10), style.clone()))?;
            for ((name, value), at) in bars.iter().zip(0i32..) {
                let top = 40 + at * 24;
                let length = f64::from(500) * value / most;
                #[expect(clippy::cast_possible_truncation, reason = "at most 500")]
                let right = 330 + length as i32;
                area.draw(&Text::new((*name).to_owned(), (10, top), style.clone()))?;
                area.draw(&Rectangle::new(
                    [(330, top), (right, top + 16)],
                    BLUE.mix(0.6).filled(),
                ))?;
                area.draw(&Text::new(format!("{value:.1}"), (right + 6, top), style.clone()))?;
            }
            area.present()?;
        }
        Ok(svg)
    }
}

/// A table for all rows that have columns in common, in the order in which they come.
fn tables(rows: &[Row]) -> String {
    let mut groups: Vec<(Vec<&str>, Vec<&Row>)> = Vec::new();
    for row in rows {
        let columns = row.figures.iter().map(|(column, _)| column.as_str());
        let common = |(known, _): &&mut (Vec<&str>, Vec<&Row>)| {
            columns.clone().any(|column| known.contains(&column))
        };
        match groups.iter_mut().find(common) {
            Some((known, members)) => {
                let new: Vec<_> = columns.filter(|column| !known.contains(column)).collect();
                known.extend(new);
                members.push(row);
            }
            None => groups.push((columns.collect(), vec![row])),
        }
    }
    groups.iter().map(|(columns, rows)| one(columns, rows)).collect::<Vec<_>>().join("\n")
}

fn one(columns: &[&str], rows: &[&Row]) -> String {
    let header = [&[""][..], columns].concat();
    let figure = |row: &Row, column: &str| {
        let found = row.figures.iter().find(|(name, _)| name == column);
        found.map_or_else(String::new, |(_, value)| format!("{value:.2}"))
    };
    let line = |row: &&Row| {
        let figures = columns.iter().map(|column| figure(row, column));
        [row.name.clone()].into_iter().chain(figures).collect()
    };
    table::text(&header, &rows.iter().map(line).collect::<Vec<_>>(), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(found: f64) -> Outcome {
        Outcome {
            name: "sample".into(),
            conditions: Conditions::now(),
            rows: vec![Row { name: "one".into(), figures: vec![("p50 us".into(), 12.5)] }],
            bars: vec![Bar { what: "ratio".into(), found, bound: 1.25, at_most: true }],
            shown: "p50 us".into(),
        }
    }

    #[test]
    fn table_says_what_was_met() {
        assert!(outcome(1.2).table().contains("met: ratio: 1.200 <= 1.250"));
        assert!(outcome(1.3).table().contains("MISSED: ratio: 1.300 <= 1.250"));
        assert!(outcome(1.2).holds() && !outcome(1.3).holds());
    }

    #[test]
    fn rows_with_columns_in_common_share_a_table() {
        let row = |name: &str, figures: &[(&str, f64)]| Row {
            name: name.into(),
            figures: figures.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        };
        let rows = [
            row("local", &[("MB/s", 100.0), ("p50", 1.5)]),
            row("share", &[("ratio", 0.5)]),
            row("bypass", &[("MB/s", 50.0), ("p99", 9.0)]),
        ];

        assert_eq!(
            tables(&rows),
            "          MB/s   p50   p99\nlocal   100.00  1.50\nbypass   50.00        9.00\n\n       \
             ratio\nshare   0.50\n"
        );
    }

    #[test]
    fn picture_has_a_bar_for_each_row() {
        let svg = outcome(1.0).picture().unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("12.5"), "{svg}");
    }
}
