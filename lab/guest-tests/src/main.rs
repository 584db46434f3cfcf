//! The guest test program.
//!
//! One static binary. As pid 1 of a VM (`/init` in its initramfs) it mounts what it needs, reads
//! what to do from the kernel command line, runs the tests, and ends the machine. As an ordinary
//! program (`guest-tests run`) it runs the same tests on the machine it is on, where they must pass
//! as well: a test that fails natively says nothing about a VM.
//!
//! ```text
//! main -> init (pid 1) \ (or disks: writers until the machine is killed; or programs: loads that are timed;
//!                         or sharing: operations of the kernel that are counted; or vcpus: CPUs that come and go)
//!      -> run           -> list -> litmus, counters, clock, tlb, process, memory, hotplug, stress
//!                                    each on a bench: worker processes (pool) + topology
//! ```
//!
//! Built for the initramfs with
//!
//! ```text
//! RUSTFLAGS='-C target-feature=+crt-static -C relocation-model=static' cargo build \
//!     -p tessera-guest-tests --profile guest --target x86_64-unknown-linux-gnu
//! ```
//! (the target is named so that the flags do not reach build scripts; without relocations the
//! program dirties fewer pages at each exec).
//!
//! Why worker processes and what a page costs: see [`arena`] and [`pool`].

mod affinity;
mod arena;
mod bench;
mod button;
mod clock;
mod config;
mod counters;
mod disks;
mod fio;
mod functions;
mod generation;
mod hotplug;
mod init;
mod list;
mod litmus;
mod memory;
mod network;
mod npb;
mod pipes;
mod pool;
mod process;
mod programs;
mod report;
mod selfcheck;
mod sharing;
mod stress;
mod sys;
mod tlb;
mod vcpus;
mod versions;
mod vsock;

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::affinity::Topology;
use crate::bench::{Bench, SKIP};
use crate::config::Config;
use crate::pool::Pool;
use crate::report::Score;
use crate::versions::Versions;

const USAGE: &str = "usage: guest-tests run [--tests all|none|LIST] [--rounds N] [--limit S] \
                     [--stress forks:S,modules:S] [--programs N] [--task N] [--sharing N] [--pause MS]\n       guest-tests list\n       guest-tests selfcheck\n       guest-tests npb KERNEL COPIES THREADS ROUNDS PAGES\n       guest-tests functions HOST:PORT/OBJECT PACKAGE CALLS AT_ONCE MILLIONS";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let verb = args.first().map(String::as_str);
    // The kernel hands its init every word it does not know, so pid 1 looks for "run" only.
    if sys::pid() == 1 && verb != Some("run") {
        init::run();
    }
    match verb {
        Some("run") => native(&args[1..]),
        Some("list") => {
            list::all().iter().for_each(|test| report::line(test.name));
            ExitCode::SUCCESS
        }
        Some("selfcheck") => match selfcheck::run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("guest-tests: {error:#}");
                ExitCode::FAILURE
            }
        },
        // For the tests themselves.
        Some(programs::NOTHING) => ExitCode::SUCCESS,
        Some("child") => ExitCode::from(args.get(1).map_or(1, |cpu| process::child(cpu))),
        // Programs of benches.
        Some(npb::VERB) => program(npb::run(&args[1..])),
        Some(functions::VERB) => program(functions::run(&args[1..])),
        Some(fio::VERB) => {
            eprintln!("guest-tests: fio: {}", fio::become_fio(args.get(1).map_or("", |cpus| cpus)));
            ExitCode::FAILURE
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn program(done: Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("guest-tests: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn native(args: &[String]) -> ExitCode {
    let result = Config::from_args(args).and_then(|config| run_all(&config, false));
    match result {
        Ok(Score { failed: 0, .. }) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("guest-tests: {error:#}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Runs the wanted tests and stress runs and prints their lines.
///
/// # Errors
/// Wrong names of tests, or a machine on which the workers cannot be set up.
fn run_all(config: &Config, owns_machine: bool) -> Result<Score> {
    let started = sys::monotonic_ns();
    let tests = list::all();
    let names: Vec<_> = tests.iter().map(|test| test.name).collect();
    if let Some(unknown) = config.tests.unknown(&names) {
        bail!("no test is named {unknown:?}");
    }
    let topology = Topology::read()?;
    report::machine(&topology);
    if let Some(address) = &config.network {
        network::echo(address, &topology)?;
    }
    if let Some(run) = config.disks {
        disks::run(run, config.talk, &topology)?;
        return Ok(Score::default());
    }
    if let Some(times) = config.vcpus {
        return Ok(vcpus::run(times));
    }
    if let Some(rounds) = config.programs {
        return Ok(programs::run(rounds, config.task, started));
    }
    if let Some(rounds) = config.sharing {
        return sharing::run(rounds, config, &topology);
    }
    let first = topology.cpus.first().context("no cpu")?.id;
    sys::pin_to(first).with_context(|| format!("cannot pin to cpu {first}"))?;
    let pool = Pool::new(&topology.cpus)?;
    let mut bench = Bench { pool, topology, rounds: config.rounds, owns_machine };
    let versions = config.versions.then(Versions::start).transpose()?;
    let mut score = Score::default();
    for test in tests.iter().filter(|test| config.tests.wants(test.name)) {
        bench.pool.set_limit(Duration::from_secs(config.limit_seconds()));
        let result = if test.needs_two && bench.topology.cpus.len() < 2 {
            Ok(format!("{SKIP}needs 2 cpus"))
        } else {
            test.run(&mut bench)
        };
        score.add(test.name, &result);
    }
    for &stress in &config.stress {
        bench.pool.set_limit(stress::limit(stress));
        let result = stress::run(&mut bench, stress);
        score.add(stress::name(stress.kind), &result);
    }
    if let Some(versions) = versions {
        score.add("disk-versions", &versions.end());
    }
    score.finish();
    Ok(score)
}
