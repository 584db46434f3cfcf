//! `sim`: one line per simulated cluster, and the command that repeats one that fails.

use anyhow::{Context, Result};
use clap::Parser;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use tessera_dsm_sim::mapping;
use tessera_dsm_sim::simulator::{Setup, Workload, run, run_saved};

/// Simulates clusters of the coherence protocol.
#[derive(Debug, Parser)]
struct Args {
    /// First seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// Slices, 2 to 8; chosen by the seed if not given.
    #[arg(long, value_parser = clap::value_parser!(u16).range(2..=8))]
    slices: Option<u16>,
    /// Operations per vCPU; 500, or 60 with --mapping, if not given.
    #[arg(long)]
    steps: Option<u32>,
    /// Whole engines over a fake kernel, rather than the protocol alone.
    #[arg(long, conflicts_with_all = ["slices", "workload"])]
    mapping: bool,
    /// Bring all nodes (or engines) to rest now and then, save them, and go on with new ones made from what was saved.
    #[arg(long)]
    save_restore: bool,
    /// Homes of pages move all the time.
    #[arg(long)]
    move_homes: bool,
    /// Slices leave, one after another, until one is left. Homes move then too.
    #[arg(long)]
    leave: bool,
    /// Only some slices are there at the start, and others join; with --leave, those that have left too.
    #[arg(long)]
    join: bool,
    /// Snapshots are read while the guests run.
    #[arg(long, requires = "mapping")]
    snapshots: bool,
    /// Memory has contents at first, which come while the guests run.
    #[arg(long, requires = "mapping")]
    loads: bool,
    /// uniform, hot, producer, tables or conflicts; chosen by the seed if not given.
    #[arg(long)]
    workload: Option<Workload>,
}

impl Args {
    /// Simulates one seed; what there is to tell of it.
    fn simulate(&self, seed: u64) -> Result<String> {
        let failed = || format!("simulate seed {seed}");
        if self.mapping {
            let steps = self.steps.unwrap_or(mapping::Setup::STEPS);
            let setup = mapping::Setup {
                steps,
                save_restore: self.save_restore,
                moves: self.move_homes,
                leaves: self.leave,
                joins: self.join,
                snapshots: self.snapshots,
                loads: self.loads,
                ..mapping::Setup::of(seed)
            };
            let report = mapping::run(setup).with_context(failed)?;
            return Ok(format!("seed={seed} steps={steps} {report}"));
        }
        let slices = self.slices.unwrap_or_else(|| Setup::slices_of(seed));
        let (steps, workload) = (self.steps.unwrap_or(500), self.workload);
        let (moves, leaves, joins) = (self.move_homes, self.leave, self.join);
        let setup = Setup { seed, slices, steps, workload, moves, leaves, joins, planted: None };
        let run = if self.save_restore { run_saved } else { run };
        let report = run(setup).with_context(failed)?;
        Ok(format!("seed={seed} slices={slices} steps={steps} {report}"))
    }

    /// Simulates seeds until there are no more, or one has failed.
    fn simulate_next(&self, next: &AtomicU64) -> Result<()> {
        let end = self.seed.saturating_add(self.runs);
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return Ok(());
            }
            let line = self.simulate(seed).inspect_err(|_| next.store(end, Ordering::Relaxed))?;
            println!("{line}");
        }
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    let next = AtomicU64::new(args.seed);
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|threads| {
        let run = || args.simulate_next(&next);
        let running: Vec<_> = (0..cores).map(|_| threads.spawn(run)).collect();
        let joined = running.into_iter().map(|thread| thread.join().expect("it does not panic"));
        // All of them, or the scope would wait without a word.
        joined.fold(Ok(()), Result::and)
    })
}
