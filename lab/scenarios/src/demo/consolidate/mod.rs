//! `./x demo --consolidate`: a Debian system over two hosts is drained to one and spread again under load, until the host that
//! it was started on is drained for good. The other one has its disk and its network.
//!
//! ```text
//!   boot ─> clocks, compute, fio, requests ─> plan: drain, spread, ... ─> slice 0 leaves: status 0, its memory is free
//!        ─> no request failed, fio verifies, results the same, clocks never back, no kernel warning ─> power off: slice 1
//!        ends with status 0 ─> table, picture
//! ```

mod picture;
mod plan;
mod sampler;
mod series;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::distro::Distro;
use lab::{Command, Host};
use outcome::table;
use serde_json::{Value, json};

use crate::distro::guest::Guest;
use crate::distro::visit::{self, Shown, Slices};
use crate::soak::migrate::check_kernel;
use crate::soak::{clocks, compute, verify};
use crate::vm::VmOptions;
use crate::vm::layout::Layout;
use crate::vm::relocate::Said;
use crate::vm::scenario::Scenario;
use plan::{DRAINED, Step};
use sampler::Sampler;
use series::{Fact, Phase, Seen, Summary, answered, summary};

/// On emulated hosts Debian boots several times as fast as with a vCPU on each.
const LAYOUT: &str = "2+0";
/// How long each placement is looked at.
const LOOK: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(100);
/// From the answer that the slice has left to the end of its process.
const LEAVE_LIMIT: Duration = Duration::from_secs(60);
/// Of the memory that the slice had taken of its host, so many hundredths must be back.
const BACK: u64 = 90;
/// For the memory to be back: a kernel frees what a process had after its end.
const BACK_LIMIT: Duration = Duration::from_secs(20);
const COLUMNS: [&str; 9] =
    ["phase", "s", "took ms", "requests", "/s", "p50 ms", "p99 ms", "longest ms", "faults/s"];

/// What is wanted of it.
#[derive(Clone, Debug)]
pub struct Consolidate {
    /// Where the picture goes.
    pub svg: Option<PathBuf>,
}

/// KiB that the drained slice's host has available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Available {
    /// Before the slice was there.
    first: u64,
    /// Before it left.
    before: u64,
    /// After it had left.
    after: u64,
}

impl Available {
    fn judge(self) -> Result<()> {
        let Self { first, before, after } = self;
        let taken = first.saturating_sub(before);
        ensure!(taken > 0, "the slice took no memory of its host: {self:?}");
        let back = after.saturating_sub(before);
        ensure!(
            back * 100 >= taken * BACK,
            "the slice has left, and its memory is not back: {self:?}"
        );
        Ok(())
    }
}

/// What came of the run.
#[derive(Debug, Default)]
struct Told {
    phases: Vec<Phase>,
    seen: Vec<Seen>,
    available: Available,
    good: Vec<String>,
}

/// What the VM needs for it.
pub(super) fn prepare(vm: &mut VmOptions) -> Result<()> {
    if vm.hosts.is_none() {
        vm.layout.get_or_insert(LAYOUT.parse()?);
    }
    let layout: Layout = vm.layout()?;
    ensure!(layout.slices() == 2, "--layout {layout}: --consolidate is about two slices");
    ensure!(layout.all() > 1, "--layout {layout}: one vCPU cannot be spread");
    vm.offer_all(&layout);
    vm.reversed = true;
    Ok(())
}

/// Boots, drains and spreads, and judges; what was shown, and the report.
pub(super) fn run(
    scenario: &Scenario<'_>,
    distro: &Distro,
    wanted: &Consolidate,
) -> Result<(Shown, Value)> {
    let mut told = Told::default();
    told.available.first = available(&drained_host(scenario)?)?;
    let shown = visit::visit(scenario, distro, &mut |guest, slices| {
        look(scenario, guest, slices, &mut told)
    })?;
    let rows = rows(&told);
    println!("\n{}", table::text(&COLUMNS, &rows, 1));
    let Available { first, before, after } = told.available;
    println!(
        "memory available on the host of slice{DRAINED}, in MiB: {} before the VM, {} before the slice left, {} after",
        first / 1024,
        before / 1024,
        after / 1024
    );
    told.good.iter().for_each(|line| println!("{line}"));
    if let Some(path) = &wanted.svg {
        draw(scenario, &told, path)?;
    }
    let mut report = shown.json(scenario);
    report["phases"] = rows.iter().map(|row| json!(row)).collect();
    report["columns"] = json!(COLUMNS);
    report["available_kib"] = json!([first, before, after]);
    Ok((shown, report))
}

fn draw(scenario: &Scenario<'_>, told: &Told, path: &Path) -> Result<()> {
    let title = format!(
        "Debian over two hosts ({}), layout {}: drained to one and spread again",
        scenario.lab.substrate(),
        scenario.layout
    );
    let offered = usize::try_from(scenario.layout.all())?;
    let svg = picture::svg(&title, &told.seen, &told.phases, offered)?;
    fs::write(path, svg).with_context(|| format!("write {}", path.display()))?;
    scenario.progress.say(&format!("picture: {}", path.display()));
    Ok(())
}

fn look(
    scenario: &Scenario<'_>,
    guest: &Guest<'_>,
    slices: Slices<'_>,
    told: &mut Told,
) -> Result<()> {
    clocks::start(guest)?;
    compute::start(guest)?;
    verify::start(guest)?;
    let sampler = Sampler::start(scenario, guest)?;
    let acted = act(scenario, slices, &sampler, told);
    let (seen, well) = sampler.end();
    told.seen.extend(seen);
    told.seen.sort_by(|one, next| one.at.total_cmp(&next.at));
    // A VM that has failed may be why requests have.
    acted?;
    well?;
    let requests = answered(&told.seen);
    ensure!(requests > 0, "no request was answered");
    told.good = vec![
        format!("{requests} requests, none failed"),
        format!("{} passes of fio, all verified", verify::end(guest)?),
        format!("{} results, all the same", compute::end(guest)?),
        format!("{} readings of clocks, none went back", clocks::end(guest)?),
    ];
    check_kernel(guest)?;
    guest.check_objects()?;
    guest.check_cpus()
}

/// Does what the plan says, and has the slice leave.
fn act(
    scenario: &Scenario<'_>,
    slices: Slices<'_>,
    sampler: &Sampler,
    told: &mut Told,
) -> Result<()> {
    let vcpus: Vec<_> = scenario.layout.vcpus().collect();
    for step in plan::steps(&vcpus) {
        match step {
            Step::Look(name) => rest(scenario, slices, sampler, (name, told))?,
            Step::Ask { name, words } => ask(scenario, sampler, (&name, &words), told)?,
        }
    }
    let host = drained_host(scenario)?;
    told.available.before = available(&host)?;
    let words = ["drain".to_owned(), DRAINED.to_string()];
    ask(scenario, sampler, ("leave", &words), told)?;
    slices.left(DRAINED, LEAVE_LIMIT).with_context(|| format!("slice{DRAINED} has left"))?;
    let until = Instant::now() + BACK_LIMIT;
    loop {
        told.available.after = available(&host)?;
        let judged = told.available.judge();
        if judged.is_ok() || Instant::now() > until {
            judged?;
            break;
        }
    }
    rest(scenario, slices, sampler, ("alone".to_owned(), told))
}

/// Lets time go by.
fn rest(
    scenario: &Scenario<'_>,
    slices: Slices<'_>,
    sampler: &Sampler,
    (name, told): (String, &mut Told),
) -> Result<()> {
    let (from, until) = (sampler.now(), Instant::now() + LOOK);
    while Instant::now() < until {
        ensure!(!scenario.interrupted.is_set(), "interrupted");
        slices.alive()?;
        sampler.check()?;
        thread::sleep(POLL);
    }
    told.phases.push(Phase { name, from, to: sampler.now(), took_ms: None });
    Ok(())
}

/// Has the VM do something, which must be done.
fn ask(
    scenario: &Scenario<'_>,
    sampler: &Sampler,
    (name, words): (&str, &[String]),
    told: &mut Told,
) -> Result<()> {
    let from = sampler.now();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let took = match scenario.ask_vm(&words)? {
        Said::Took(milliseconds) => milliseconds,
        other => bail!("{name}: {other:?}"),
    };
    scenario.progress.say(&format!("{name}: {took:.1} ms"));
    let name = name.to_owned();
    told.phases.push(Phase { name, from, to: sampler.now(), took_ms: Some(took) });
    // The next regular look may be seconds later.
    let fact = Fact::Places(scenario.places()?);
    told.seen.push(Seen { at: sampler.now(), fact });
    sampler.check()
}

fn drained_host<'a>(scenario: &Scenario<'a>) -> Result<Host<'a>> {
    scenario.host(DRAINED)
}

/// KiB that a host has available.
fn available(host: &Host<'_>) -> Result<u64> {
    let said =
        host.output(&Command::new(["grep", "^MemAvailable:", "/proc/meminfo"]), LEAVE_LIMIT)?;
    kib(&said).with_context(|| format!("read '{}'", said.trim()))
}

fn kib(line: &str) -> Option<u64> {
    line.split_whitespace().nth(1)?.parse().ok()
}

/// A row for each phase.
fn rows(told: &Told) -> Vec<Vec<String>> {
    let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"));
    let row = |phase: &Phase| {
        let seconds = phase.to - phase.from;
        let Summary { requests, rate, p50, p99, longest, faults } = summary(&told.seen, phase);
        vec![
            phase.name.clone(),
            format!("{seconds:.1}"),
            figure(phase.took_ms),
            requests.to_string(),
            figure(rate),
            figure(p50),
            figure(p99),
            figure(longest),
            faults.map_or_else(|| "-".to_owned(), |faults| format!("{faults:.0}")),
        ]
    };
    told.phases.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_the_slice_had_taken_must_be_back() {
        let of = |first, before, after| Available { first, before, after }.judge();
        assert!(of(900, 500, 890).is_ok());
        assert!(of(900, 500, 860).is_ok());
        assert!(of(900, 500, 850).unwrap_err().to_string().contains("not back"));
        assert!(of(900, 900, 900).unwrap_err().to_string().contains("took no memory"));
        assert_eq!(kib("MemAvailable:     812345 kB\n"), Some(812_345));
        assert_eq!(kib(""), None);
    }

    #[test]
    fn each_phase_is_a_row() {
        let phase =
            |name: &str, from, to, took_ms| Phase { name: name.to_owned(), from, to, took_ms };
        let phases = vec![phase("start", 0.0, 2.0, None), phase("drain 1", 2.0, 3.5, Some(123.4))];
        let told = Told { phases, seen: series::tests::run(), ..Told::default() };
        let rows = rows(&told);
        assert_eq!(rows[0], ["start", "2.0", "-", "100", "50.0", "10.0", "20.0", "69.0", "-"]);
        // Its looks at counters begin before, and end behind.
        assert_eq!(rows[1], ["drain 1", "1.5", "123.4", "1", "1.0", "5.0", "5.0", "5.0", "60"]);
        assert!(rows.iter().all(|row| row.len() == COLUMNS.len()));
    }
}
