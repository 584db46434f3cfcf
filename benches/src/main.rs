//! `tessera-bench`: runs one experiment and writes what it found. `./x bench NAME` builds and starts
//! it.

use anyhow::{Result, ensure};
use clap::Parser;
use dsm::Mechanism;
use std::path::PathBuf;
use std::process::ExitCode;
use tessera_benches::experiments::ablation::{self, Choice};
use tessera_benches::experiments::{self, Setting, checkpoint, solo};

#[derive(Debug, Parser)]
#[command(about = "Runs an experiment on this machine's KVM")]
struct Arguments {
    /// The experiment: faults, sharing, writes, scan, solo, npb, migrate, checkpoint or ablation
    name: String,
    /// Fewer rounds
    #[arg(long)]
    quick: bool,
    /// For solo: with a VM whose other slice was drained
    #[arg(long)]
    after_drain: bool,
    /// The microguest's image
    #[arg(long, value_name = "FILE")]
    image: PathBuf,
    /// Folder for the table, JSON and picture
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// For ablation: pairs of each mechanism and row
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    pairs: u16,
    /// For ablation: only this mechanism; may be repeated
    #[arg(long, value_name = "NAME")]
    mechanism: Vec<Mechanism>,
    /// For ablation: the rows whose names begin so, whatever the mechanism; may be repeated
    #[arg(long, value_name = "PREFIX")]
    row: Vec<String>,
    /// For itself: goes on from this checkpoint, and says how many nanoseconds that took
    #[arg(long, value_name = "PATH", hide = true)]
    restored: Option<PathBuf>,
    /// For itself: with memory that comes while the guest runs
    #[arg(long, hide = true, requires = "restored")]
    lazy: bool,
}

/// The experiment that is no fixed one, and the one that has two forms.
const ABLATION: &str = "ablation";
const SOLO: &str = "solo";

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(path) = arguments.restored {
        println!("{}", checkpoint::restore_one(&path, arguments.lazy)?.as_nanos());
        return Ok(ExitCode::SUCCESS);
    }
    let setting = Setting { image: &arguments.image, quick: arguments.quick };
    let outcome = if arguments.name == ABLATION {
        let (mechanisms, rows) = (arguments.mechanism, arguments.row);
        ablation::run(setting, &Choice { pairs: arguments.pairs, mechanisms, rows })?
    } else if arguments.after_drain {
        ensure!(arguments.name == SOLO, "--after-drain is for {SOLO}");
        solo::after_drain::run(setting)?
    } else {
        experiments::run(&arguments.name, setting)?
    };
    let path = outcome.write(&arguments.out)?;
    print!("{}", outcome.table());
    println!("written: {} and beside it", path.display());
    Ok(if outcome.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
