//! `compare`: messages and page copies, by pattern of sharing and algorithm.

use anyhow::{Result, ensure};
use clap::Parser;
use dsm_protocol::{Mechanism, Mechanisms};
use tessera_dsm_sim::compare::{Algorithm, Central, Chains, Ours, Pattern};

/// Compares this protocol with those of FragVisor and GiantVM.
#[derive(Debug, Parser)]
struct Args {
    /// Slices, 2 to 64.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(2..=64))]
    slices: u16,
    /// Pages of guest memory.
    #[arg(long, default_value_t = 10_000_000)]
    pages: u64,
    /// Accesses of each pattern.
    #[arg(long, default_value_t = 20_000_000)]
    accesses: u64,
    /// Seed of the random patterns.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Leave an optional mechanism of this protocol out; may be repeated
    #[arg(long, value_name = "NAME")]
    without: Vec<Mechanism>,
}

fn main() -> Result<()> {
    let Args { slices, pages, accesses, seed, without } = Args::parse();
    let mechanisms = without.into_iter().fold(Mechanisms::ALL, Mechanisms::without);
    ensure!(pages >= u64::from(slices), "at least one page for each slice");
    println!("{slices} slices, {pages} pages, {accesses} accesses a pattern");
    println!("faults; messages / page copies per fault of the one central home\n");
    println!("| pattern | ours | one central home | probable owners |\n|---|---|---|---|");
    for pattern in Pattern::ALL {
        let run = |mut algorithm: Box<dyn Algorithm>| {
            pattern.touches(seed, slices, pages, accesses).for_each(|t| algorithm.touch(t));
            algorithm.cost()
        };
        let ours = run(Box::new(Ours::new(slices, pages, mechanisms)));
        let central = run(Box::new(Central::new(pages)));
        let chains = run(Box::new(Chains::new(slices, pages)));
        let [ours, central, chains] = [ours, central, chains].map(|cost| cost.row(central.faults));
        println!("| {} | {ours} | {central} | {chains} |", pattern.name());
    }
    Ok(())
}
