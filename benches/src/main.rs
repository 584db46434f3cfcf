//! `tessera-bench`: runs one experiment and writes what it found. `./x bench NAME` builds and starts
//! it.

use anyhow::Result;
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use tessera_benches::experiments::{self, Setting};

#[derive(Debug, Parser)]
#[command(about = "Runs an experiment on this machine's KVM")]
struct Arguments {
    /// The experiment: faults, sharing, writes, scan, solo or npb
    name: String,
    /// Fewer rounds
    #[arg(long)]
    quick: bool,
    /// The microguest's image
    #[arg(long, value_name = "FILE")]
    image: PathBuf,
    /// Folder for the table, JSON and picture
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let setting = Setting { image: &arguments.image, quick: arguments.quick };
    let outcome = experiments::run(&arguments.name, setting)?;
    let path = outcome.write(&arguments.out)?;
    print!("{}", outcome.table());
    println!("written: {} and beside it", path.display());
    Ok(if outcome.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
