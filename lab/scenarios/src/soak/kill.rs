//! `./x soak kill`: a companion dies, or its host is cut off the network, at a random moment of the VM's
//! life, with `--moves` while vCPUs move, slices are drained and the coordination goes to and fro.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use lab::{ExitStatus, HostNumber, RemoteProcess};

use crate::progress::printable;
use crate::soak::leftovers::left_processes;
use crate::soak::moments::random;
use crate::soak::moves::{During, Mover, Moves};
use crate::soak::rig::{Hosts, Rig, RigOptions, exit};
use crate::vm::scenario::Scenario;
use crate::vm::{Interrupts, VmOptions};

/// How soon the bootstrap slice must end.
const END_LIMIT: Duration = Duration::from_secs(5);
/// The same once only silence tells of the loss: the lease, and the time to count it.
const SILENCE_LIMIT: Duration = Duration::from_secs(12);
/// A cable out for so long is no loss.
const BLINK: Duration = Duration::from_secs(1);
/// For so long the VM must go on after that.
const SURVIVED: Duration = Duration::from_secs(15);

/// What happens to a companion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Harm {
    /// It is killed.
    Kill,
    /// Its host is cut off the network for good.
    Cut,
    /// Its host is cut off for one second, which the VM must survive.
    Blink,
}
/// How long it is waited for, to tell late from never.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// What `./x soak kill` takes.
#[derive(Args, Debug)]
pub struct KillOptions {
    #[command(flatten)]
    vm: VmOptions,
    /// How many companions to kill
    #[arg(long, default_value_t = 20)]
    tries: u32,
    /// What happens to a companion
    #[arg(long, value_enum, default_value_t = Harm::Kill)]
    how: Harm,
    /// Latest moment of a kill, in seconds after the start, or after the first move
    #[arg(long, default_value_t = 90)]
    within: u64,
    /// Move vCPUs between slices meanwhile, one after the other, drain slices, and spread vCPUs
    #[arg(long)]
    moves: bool,
    /// Where interrupts are handled; tessera's own choice unless given
    #[arg(long, value_enum)]
    interrupts: Option<Interrupts>,
    /// Exit status of tessera that means a lost slice
    #[arg(long, default_value_t = 5)]
    exit_code: i32,
}

/// How one try went.
#[derive(Clone, Debug)]
struct Try {
    killed_after: Duration,
    ended_after: Option<Duration>,
    exit: Option<ExitStatus>,
    last_words: String,
    left_over: String,
    /// What came of moves until then.
    moves: Option<Moves>,
    /// Moves failed although the VM went on.
    failed_moves: Option<String>,
}

/// Kills as often as wanted.
///
/// # Errors
/// Something that is needed is missing, or somebody interrupts; a bad end is no error.
pub fn run(options: &KillOptions) -> Result<ExitCode> {
    let shown = RigOptions { interrupts: options.interrupts, loud: false };
    let mut vm = options.vm.clone();
    let rig = Rig::new(&vm, shown, |layout| {
        ensure!(layout.slices() >= 2, "one slice has no companion to kill");
        Ok(())
    })?;
    if options.moves {
        vm.offer_all(&rig.layout);
    }
    let mut hosts = Hosts::new(|| rig.hosts(&vm, Vec::new()));
    let mut good = 0;
    for number in 1..=options.tries {
        let tried = hosts.attempt(|lab| {
            let moment = random(options.within * 1000);
            let scenario = rig.scenario(&vm, lab);
            let harm = |begun: &AtomicBool| {
                one(&scenario, options.how, (begun, moment), rig.layout.slices())
            };
            let result = if options.moves {
                amid_moves(&scenario, harm)?
            } else {
                harm(&AtomicBool::new(true))?
            };
            let problem = result.problem(options.how, options.exit_code);
            rig.say(&format!("try {number} of {}: {}", options.tries, result.tell(&problem)));
            Ok(problem.map_or(Ok(()), |problem| Err(anyhow!(problem))))
        })?;
        good += u32::from(tried.is_ok());
    }
    drop(hosts);
    println!("{good} of {} kills ended the VM as they should", options.tries);
    Ok(exit(good == options.tries))
}

/// Moves vCPUs, drains slices, the one that coordinates too, and spreads vCPUs all the time, from before the guest runs until
/// all is over. `harm` hears of the first move.
fn amid_moves(
    scenario: &Scenario<'_>,
    harm: impl FnOnce(&AtomicBool) -> Result<Try>,
) -> Result<Try> {
    let during = During::default();
    let mover = Mover::new(scenario, random(u64::MAX)).without_rest();
    let mut mover = mover.with_relocations();
    let (result, moved) = thread::scope(|scope| {
        let moving = scope.spawn(|| mover.beside(&during));
        let result = harm(&during.begun);
        during.over.store(true, Ordering::SeqCst);
        (result, moving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let failed_moves = moved.err().map(|error| format!("{error:#}"));
    Ok(Try { moves: Some(mover.moves), failed_moves, ..result? })
}

/// One try. The moment is so long after `begun`.
fn one(
    scenario: &Scenario<'_>,
    how: Harm,
    (begun, moment_ms): (&AtomicBool, u64),
    slices: usize,
) -> Result<Try> {
    let companions = scenario.start_companions()?;
    let victim = usize::try_from(random(u64::try_from(slices - 1)?))?;
    let mut bootstrap = scenario.start_bootstrap()?;
    let (mut last_words, mut began) = (String::new(), None);
    let moment = Duration::from_millis(moment_ms);
    while began.is_none_or(|began: Instant| began.elapsed() < moment) && !bootstrap.is_over() {
        if begun.load(Ordering::SeqCst) {
            began.get_or_insert_with(Instant::now);
        }
        if scenario.interrupted.is_set() {
            bail!("interrupted");
        }
        listen(&mut bootstrap, &mut last_words);
    }
    let over = bootstrap.is_over();
    // Slice n runs on host n + 1; the companions are slices 1 and up.
    let host = scenario.lab.host(HostNumber::new(victim + 2)?)?;
    match how {
        Harm::Kill => companions.get(victim).context("the victim exists")?.kill()?,
        Harm::Cut => host.cut()?,
        Harm::Blink => {
            host.cut()?;
            thread::sleep(BLINK);
            host.heal()?;
        }
    }
    let killed = Instant::now();
    let patience = if how == Harm::Blink { SURVIVED } else { PATIENCE };
    while !bootstrap.is_over() && killed.elapsed() < patience {
        listen(&mut bootstrap, &mut last_words);
    }
    let ended_after = (bootstrap.is_over() && !over).then(|| killed.elapsed());
    let exit = bootstrap.wait(Duration::ZERO).ok();
    drop(bootstrap);
    let mut left = Vec::new();
    if how == Harm::Cut {
        // The companion's own lease ends it.
        thread::sleep(SILENCE_LIMIT);
        host.heal()?;
    }
    for companion in companions {
        companion.finish(&mut left);
    }
    left.extend(left_processes(scenario)?);
    Ok(Try {
        killed_after: moment,
        ended_after,
        exit,
        last_words,
        left_over: left.join("; "),
        moves: None,
        failed_moves: None,
    })
}

/// Takes what the bootstrap slice says, keeping the last line that is not the guest's.
fn listen(bootstrap: &mut RemoteProcess, last_words: &mut String) {
    if let Some(line) = bootstrap.next_line(POLL)
        && line.stream == lab::Stream::Error
        && !line.text.trim().is_empty()
    {
        *last_words = printable(&line.text);
    }
}

impl Try {
    /// What is wrong with it, if anything is.
    fn problem(&self, how: Harm, exit_code: i32) -> Option<String> {
        if self.moves.as_ref().is_some_and(|moves| moves.times.is_empty()) {
            return Some("no vCPU was moved before".to_owned());
        }
        if how == Harm::Blink {
            let died = self.exit.map(|exit| format!("the VM did not survive it: {exit}"));
            return died.or_else(|| self.failed_moves.clone());
        }
        let Some(after) = self.ended_after else {
            return Some(match self.exit {
                Some(exit) => format!("the VM was over before the kill, with {exit}"),
                None => format!("the bootstrap slice did not end within {PATIENCE:?}"),
            });
        };
        let lost = Some(ExitStatus::Code(exit_code));
        let limit = if how == Harm::Cut { SILENCE_LIMIT } else { END_LIMIT };
        if after > limit {
            Some(format!("it took {after:.1?}, not {limit:?}"))
        } else if self.exit != lost {
            Some(format!("its exit status is not {exit_code}"))
        } else if !self.left_over.is_empty() {
            Some(self.left_over.clone())
        } else {
            None
        }
    }

    fn tell(&self, problem: &Option<String>) -> String {
        let verdict = problem.as_ref().map_or_else(|| "good".to_owned(), |p| format!("BAD: {p}"));
        let ended = self.ended_after.map_or_else(|| "-".to_owned(), |d| format!("{d:.1?}"));
        let exit = self.exit.map_or_else(|| "none".to_owned(), |exit| exit.to_string());
        let moves = self.moves.as_ref().map_or_else(String::new, |moves| format!("; {moves}"));
        format!(
            "{verdict} (killed after {:.1?}, ended {ended} later with {exit}: {}{moves})",
            self.killed_after, self.last_words
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(after: Duration, exit: i32) -> Try {
        Try {
            killed_after: Duration::from_secs(30),
            ended_after: Some(after),
            exit: Some(ExitStatus::Code(exit)),
            last_words: "tessera: slice1 is lost".to_owned(),
            left_over: String::new(),
            moves: None,
            failed_moves: None,
        }
    }

    #[test]
    fn end_must_come_soon_with_the_right_status_and_leave_nothing() {
        let problem = |end: &Try, how| end.problem(how, 5);
        let good = ended(END_LIMIT, 5);

        assert_eq!(problem(&good, Harm::Kill), None);
        assert!(problem(&ended(END_LIMIT * 2, 5), Harm::Kill).unwrap().contains("it took"));
        // Only silence tells of a cut.
        assert_eq!(problem(&ended(END_LIMIT * 2, 5), Harm::Cut), None);
        assert!(problem(&ended(SILENCE_LIMIT * 2, 5), Harm::Cut).is_some());
        assert!(problem(&ended(END_LIMIT, 1), Harm::Kill).unwrap().contains("not 5"));
        let left = Try { left_over: "1 processes left".to_owned(), ..good };
        assert_eq!(problem(&left, Harm::Kill).as_deref(), Some("1 processes left"));
    }

    #[test]
    fn end_before_the_kill_and_none_at_all_are_told_apart() {
        let early = Try { ended_after: None, ..ended(END_LIMIT, 5) };
        assert!(early.problem(Harm::Kill, 5).unwrap().contains("before the kill"));
        let never = Try { exit: None, ..early };
        assert!(never.problem(Harm::Kill, 5).unwrap().contains("did not end"));
    }

    #[test]
    fn short_cut_must_be_survived() {
        let dead = ended(END_LIMIT, 5);
        assert!(dead.problem(Harm::Blink, 5).unwrap().contains("did not survive"));
        let alive = Try { ended_after: None, exit: None, ..dead };
        assert_eq!(alive.problem(Harm::Blink, 5), None);
        let moves = Moves { times: vec![1.0], ..Moves::default() };
        let failed_moves = Some("nobody answers".to_owned());
        let stuck = Try { moves: Some(moves), failed_moves, ..alive };
        assert_eq!(stuck.problem(Harm::Blink, 5).as_deref(), Some("nobody answers"));
    }

    #[test]
    fn kill_amid_moves_needs_moves() {
        let still = Try { moves: Some(Moves::default()), ..ended(END_LIMIT, 5) };
        assert!(still.problem(Harm::Kill, 5).unwrap().contains("no vCPU was moved"));
        let moves = Moves { times: vec![1.0], ..Moves::default() };
        // Whoever asks for a move is told so when the VM ends.
        let failed_moves = Some("the VM is over".to_owned());
        let good = Try { moves: Some(moves), failed_moves, ..still };
        assert_eq!(good.problem(Harm::Kill, 5), None);
    }
}
