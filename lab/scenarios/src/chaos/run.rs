//! `./x soak chaos`: a VM of two slices whose guest writes to disks, and something bad at a random moment, again
//! and again. A round is good when the VM goes on as if nothing had been, or all slices end in time with the right
//! cause; and when every sector of the disks is old or new, and every datagram that came back is one that was sent.
//!
//! ```text
//!   seed, number ─> Round::draw ─> VM up, both vCPUs write and echo datagrams ─> harm ─┬─ survived: writers get on ─> SIGTERM ─> off
//!                                                                   └─ else: each slice left ends, cause told
//!                          `--moves`: vCPUs move all the time, from the boot on
//!                                                        disks judged on their host, sector by sector <─┘
//! ```

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use lab::HostNumber;

use crate::chaos::plan::Round;
use crate::chaos::round::Chaos;
use crate::soak::disks::{Disks, Images, WRITERS};
use crate::soak::moments::random;
use crate::soak::rig::{Hosts, Rig, RigOptions, exit};
use crate::vm::VmOptions;

/// What `./x soak chaos` takes.
#[derive(Args, Debug)]
pub struct ChaosOptions {
    #[command(flatten)]
    vm: VmOptions,
    /// Start no round after so many minutes
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// Seed that the harms, their moments and the slices are drawn from; a random one unless given
    #[arg(long)]
    seed: Option<u64>,
    /// Only this round of the seed
    #[arg(long, requires = "seed")]
    round: Option<u64>,
    /// Move vCPUs between the slices all the time, and drain slice 1 where the devices are at slice 0
    #[arg(long)]
    moves: bool,
    #[command(flatten)]
    rig: RigOptions,
}

/// Rounds until the time is over.
///
/// # Errors
/// Something that is needed is missing, or somebody interrupts; a bad round is no error.
pub fn run(options: &ChaosOptions) -> Result<ExitCode> {
    let rig = Rig::new(&options.vm, options.rig, |layout| {
        ensure!(
            layout.slices() == WRITERS && layout.vcpus().all(|vcpus| vcpus == 1),
            "--layout {layout}: chaos is about two slices with a vCPU each"
        );
        Ok(())
    })?;
    let mut vm = options.vm.clone();
    if options.moves {
        vm.offer_all(&rig.layout);
    }
    let images = Images::make(&vm.name, None)?;
    let owners = [HostNumber::new(1)?, HostNumber::new(2)?];
    let mut hosts = Hosts::new(|| {
        rig.hosts(&vm, owners.iter().flat_map(|owner| images.disks(*owner)).collect())
    });
    let seed = options.seed.unwrap_or_else(|| random(u64::MAX));
    rig.say(&format!("seed {seed}"));
    let until = Instant::now() + Duration::from_secs(60 * options.minutes);
    let (mut good, mut bad) = (0, Vec::new());
    for number in options.round.unwrap_or(0).. {
        if Instant::now() >= until || options.round.is_some_and(|only| only != number) {
            break;
        }
        let round = Round::draw(seed, number);
        let mut took = Duration::ZERO;
        let result = hosts.attempt(|lab| {
            let owner = owners[round.owner];
            let disks = Disks::of(&lab.host(owner)?)?;
            let run = u32::try_from(number + 1).context("too many rounds")?;
            let scenario = rig.scenario(&vm, lab);
            let began = Instant::now();
            let moves = options.moves.then_some(seed ^ number);
            let result = Chaos { scenario: &scenario, round, run, disks, owner, moves }.run();
            took = began.elapsed();
            Ok(result)
        })?;
        rig.check()?;
        let verdict = match &result {
            Ok(said) => format!("good: {said}"),
            Err(error) => format!("BAD: {error:#}"),
        };
        rig.say(&format!(
            "round {number} of seed {seed}: {:?} of slice {}, devices at {}, {:.1} s after the writers began, {:.0} s in all: {verdict}",
            round.harm,
            round.victim,
            round.owner,
            round.after.as_secs_f64(),
            took.as_secs_f64()
        ));
        if result.is_ok() {
            good += 1;
        } else {
            bad.push(number);
        }
    }
    drop(hosts);
    println!("seed {seed}: {good} of {} rounds were good; bad: {bad:?}", good + bad.len());
    Ok(exit(bad.is_empty() && good > 0))
}
