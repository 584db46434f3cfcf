//! `tessera sim`: the scheduler of clusters over VMs that are generated or imported.

use ::outcome::{Outcome, table};
use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use cluster_sim::compare::{compare, frontier};
use cluster_sim::import::azure2020::Machine;
use cluster_sim::import::{ORIGIN, Trace, azure2017, azure2020, jsonl};
use cluster_sim::policies::Name;
use cluster_sim::replay::{Scenario, replay};
use cluster_sim::workload::{HOUR, Preset};
use cluster_sim::{Figures, Maintenance, Pool};
use scheduler::Settings;
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Write, stderr, stdout};
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run one policy over generated VMs, or over a trace.
    Run(RunArguments),
    /// Run policies over the same VMs, and print a table.
    Compare(CompareArguments),
    /// Read a foreign trace, say what is in it, and write it as a trace of ours: a JSON object on each line.
    #[command(subcommand)]
    Import(ImportVerb),
}

#[derive(Args, Debug)]
struct RunArguments {
    /// Its name: bff, fragbff-{min,max}-{frag,nodes}, fragbff-none, fragbff-min-nodes-room, ours, ours-no-room, ours-eager, protean, dot-product, l2, fgd, whole-vm or split-whole-vm
    #[arg(long, default_value = "ours")]
    policy: Name,
    /// Seed of what is drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Trace of ours to run instead of VMs that are generated, on one pool to its end
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    scenario: ScenarioArguments,
}

#[derive(Args, Debug)]
struct CompareArguments {
    /// Policies; all if none is named
    #[arg(long, value_delimiter = ',')]
    policies: Vec<Name>,
    /// Seeds; the table has the means
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,5")]
    seeds: Vec<u64>,
    /// Folder for the table, JSON and pictures
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    scenario: ScenarioArguments,
}

#[derive(Args, Debug)]
struct ScenarioArguments {
    /// Hosts of a pool
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    hosts: u32,
    /// Pools, each with VMs of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pools: u32,
    /// Cores of a host
    #[arg(long, default_value_t = 48, value_parser = clap::value_parser!(u32).range(1..=4096))]
    cores: u32,
    /// GiB of a host
    #[arg(long, default_value_t = 384, value_parser = clap::value_parser!(u32).range(1..=262_144))]
    gib: u32,
    /// Hosts over which a VM may be split
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    fabric: u32,
    /// VMs that come: azure (as in 2019), or big (a tenth has 32 cores and more)
    #[arg(long, default_value = "azure")]
    vms: Preset,
    /// Per cent of the cores that VMs would have if nobody waited
    #[arg(long, default_value_t = 90.0)]
    load: f64,
    /// Days before anything is counted
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(..=3650))]
    warm_up: u64,
    /// Days that are counted
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3650))]
    days: u64,
    /// Drain a host each so many hours, for four hours at most
    #[arg(long, value_name = "HOURS", value_parser = clap::value_parser!(u64).range(1..))]
    drain_every: Option<u64>,
}

#[derive(Debug, Subcommand)]
enum ImportVerb {
    /// Azure's public dataset of 2017: vmtable.csv, unpacked.
    Azure2017(ImportArguments),
    /// Azure's trace for packing of 2020: an SQLite file.
    Azure2020(PackingArguments),
    /// A trace of ours: whether it is right.
    Jsonl(ImportArguments),
}

#[derive(Args, Debug)]
struct ImportArguments {
    /// The trace
    file: PathBuf,
    /// Where it is written in our form
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Args, Debug)]
struct PackingArguments {
    #[command(flatten)]
    import: ImportArguments,
    /// Kind of machine (machineId) that types of VMs are parts of
    #[arg(long)]
    machine: i64,
    /// Cores of that machine
    #[arg(long, default_value_t = 48, value_parser = clap::value_parser!(u32).range(1..=4096))]
    cores: u32,
    /// GiB of that machine
    #[arg(long, default_value_t = 384, value_parser = clap::value_parser!(u32).range(1..=262_144))]
    gib: u32,
}

/// Does what is asked, and prints what there is to say.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.verb {
        Verb::Run(arguments) => run_one(arguments),
        Verb::Compare(arguments) => run_all(arguments),
        Verb::Import(verb) => import(verb),
    }
}

impl ScenarioArguments {
    fn scenario(&self) -> Result<Scenario> {
        let load = self.load / 100.0;
        ensure!((0.01..=2.0).contains(&load), "--load is from 1 to 200 per cent");
        let Self { hosts, cores, gib, fabric, .. } = *self;
        Ok(Scenario {
            pool: Pool { hosts, cores, gib, fabric, ..Pool::default() },
            pools: self.pools,
            preset: self.vms,
            load,
            warm_up: self.warm_up * 24,
            hours: self.days * 24,
            maintenance: self
                .drain_every
                .map(|hours| Maintenance { every: hours.saturating_mul(HOUR), most: 4 * HOUR }),
            ..Scenario::default()
        })
    }
}

fn run_one(arguments: &RunArguments) -> Result<()> {
    let scenario = arguments.scenario.scenario()?;
    let name = arguments.policy;
    let tally = match &arguments.trace {
        None => scenario.run(|| name.policy(), arguments.seed)?,
        Some(path) => {
            let trace = jsonl::read(open(path)?).with_context(|| shown(path))?;
            let window = (ORIGIN + scenario.warm_up * HOUR, trace.end);
            ensure!(window.0 < window.1, "the trace ends before anything is counted (--warm-up)");
            replay(scenario.pool, Settings::default(), name.policy(), &trace.requests, window)?
        }
    };
    let figures = tally.figures();
    let text = if arguments.json {
        serde_json::to_string_pretty(&figures)?
    } else {
        one_table(&name.to_string(), &figures)
    };
    writeln!(stdout(), "{}", text.trim_end()).context("print the figures")?;
    ensure!(tally.broken() == 0, "rules are broken: {:?}", tally.rules());
    Ok(())
}

/// Each figure on a line of its own.
fn one_table(name: &str, figures: &Figures) -> String {
    let rows = figures.row(name).figures.into_iter().chain(figures.delays(name).figures);
    let rows: Vec<_> = rows.map(|(what, value)| vec![what, format!("{value:.3}")]).collect();
    table::text(&["", name], &rows, 1)
}

fn run_all(arguments: &CompareArguments) -> Result<()> {
    let scenario = arguments.scenario.scenario()?;
    let names =
        if arguments.policies.is_empty() { &Name::ALL[..] } else { &arguments.policies[..] };
    let found = compare(&scenario, names, &arguments.seeds, |text| {
        // Who does not listen misses nothing.
        let _ = writeln!(stderr(), "{text}");
    })?;
    let it = &arguments.scenario;
    let note = format!(
        "{} pools of {} hosts of {} cores and {} GiB, {:?} VMs at {} %, {} days after {}, seeds {:?}",
        it.pools, it.hosts, it.cores, it.gib, it.vms, it.load, it.days, it.warm_up, arguments.seeds
    );
    let outcome: Outcome = found.outcome("scheduler", vec![note]);
    writeln!(stdout(), "{}", outcome.table().trim_end()).context("print the table")?;
    if let Some(folder) = &arguments.out {
        outcome.write(folder)?;
        let path = folder.join("scheduler-frontier.svg");
        fs::write(&path, frontier(&found)?).with_context(|| format!("write {}", path.display()))?;
    }
    let is_kept = outcome.bars.first().is_none_or(::outcome::Bar::holds);
    ensure!(is_kept, "rules are broken");
    Ok(())
}

fn import(verb: &ImportVerb) -> Result<()> {
    let (file, out) = match verb {
        ImportVerb::Azure2017(it) | ImportVerb::Jsonl(it) => (&it.file, &it.out),
        ImportVerb::Azure2020(it) => (&it.import.file, &it.import.out),
    };
    let trace = match verb {
        ImportVerb::Azure2017(_) => azure2017::read(open(file)?),
        ImportVerb::Jsonl(_) => jsonl::read(open(file)?),
        ImportVerb::Azure2020(it) => {
            azure2020::read(file, Machine { id: it.machine, cores: it.cores, gib: it.gib })
        }
    };
    let trace = trace.with_context(|| shown(file))?;
    if let Some(path) = out {
        let written = File::create(path).and_then(|file| {
            let mut file = BufWriter::new(file);
            jsonl::write(&trace.requests, &mut file)?;
            file.flush()
        });
        written.with_context(|| format!("write {}", path.display()))?;
    }
    writeln!(stdout(), "{}", summary(&trace)).context("print what is in the trace")
}

fn open(path: &Path) -> Result<BufReader<File>> {
    Ok(BufReader::new(File::open(path).with_context(|| shown(path))?))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn summary(trace: &Trace) -> String {
    let cores: u64 = trace.requests.iter().map(|it| u64::from(it.spec.needs.cores)).sum();
    format!(
        "{} VMs of {cores} cores until hour {}; {} outlive the trace, {} are skipped",
        trace.requests.len(),
        trace.end.saturating_sub(ORIGIN) / HOUR,
        trace.outlive,
        trace.skipped
    )
}
