//! `./x soak cluster`: rounds of `cli/tests/cluster/kills.rs` and `points.rs`, which are a few in `./x test`.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::workspace;

/// Where the orchestrators have the state of the cluster.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Store {
    /// A file, of one orchestrator.
    Redb,
    /// etcd, of two.
    Etcd,
}

#[derive(Args, Debug)]
pub(crate) struct ClusterOptions {
    /// Rounds with each store
    #[arg(long, default_value_t = 100)]
    rounds: u64,
    /// Of all rounds; drawn unless given, and printed
    #[arg(long)]
    seed: Option<u64>,
    /// Have orchestrator and agents die at each step of their work, instead of at random moments
    #[arg(long, conflicts_with_all = ["rounds", "seed", "store"])]
    points: bool,
    /// Only with this store
    #[arg(long, value_enum)]
    store: Option<Store>,
}

pub(crate) fn run(options: &ClusterOptions) -> Result<ExitCode> {
    let test = match options.store {
        _ if options.points => "points::",
        None => "kills::",
        Some(Store::Redb) => "kills::nothing_is_lost_or_runs_twice_whoever_is_killed",
        Some(Store::Etcd) => "kills::nothing_is_lost_or_runs_twice_whoever_of_two_leads",
    };
    let mut cargo = Command::new(workspace::cargo());
    cargo.args(["test", "--locked", "--package", "tessera", "--test", "cluster", test, "--"]);
    cargo.args(["--nocapture", "--test-threads=1"]).current_dir(workspace::root()?);
    cargo.envs(options.points.then_some(("TESSERA_KILL_POINTS", "all")));
    cargo.env("TESSERA_KILL_ROUNDS", options.rounds.to_string());
    cargo.envs(options.seed.map(|seed| ("TESSERA_KILL_SEED", seed.to_string())));
    // Nobody runs a soak to have it skipped.
    cargo.env(needs::REQUIRE, "kvm,uffd,etcd");
    let status = cargo.status().context("run cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
