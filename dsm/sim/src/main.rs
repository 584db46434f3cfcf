//! `sim`: one line per simulated cluster, and the command that repeats one that fails.

use anyhow::{Context, Result};
use clap::Parser;
use tessera_dsm_sim::simulator::{Setup, Workload, run};

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
    /// Operations per vCPU.
    #[arg(long, default_value_t = 500)]
    steps: u32,
    /// uniform, hot, producer, tables or conflicts; chosen by the seed if not given.
    #[arg(long)]
    workload: Option<Workload>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    for seed in args.seed..args.seed.saturating_add(args.runs) {
        let slices = args.slices.unwrap_or_else(|| Setup::slices_of(seed));
        let Args { steps, workload, .. } = args;
        let setup = Setup { seed, slices, steps, workload, planted: None };
        let report = run(setup).with_context(|| format!("simulate seed {seed}"))?;
        println!("seed={seed} slices={slices} steps={steps} {report}");
    }
    Ok(())
}
