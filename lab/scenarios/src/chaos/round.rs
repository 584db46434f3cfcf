//! One round of `soak chaos`: the VM, the harm, and what comes of it, with `--moves` while its parts move.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::HostNumber;

use crate::chaos::evidence;
use crate::chaos::judge::{
    END_LIMIT, Ended, judge_end, judge_full_disk, judge_returned, judge_run_away, judge_stopped,
    judge_woken,
};
use crate::chaos::net::{self, NetLoad};
use crate::chaos::plan::{Harm, Round};
use crate::soak::disks::{Disks, Told, WRITERS, Writing};
use crate::soak::judge::judge_disks;
use crate::soak::leftovers::left_processes;
use crate::soak::moves::{During, Mover};
use crate::vm::VmOptions;
use crate::vm::companion::Companion;
use crate::vm::scenario::Scenario;

/// The lease of the VM, which is tessera's default.
pub(super) const LEASE: Duration = Duration::from_secs(3);
/// Long enough to tell slow from stuck, also on emulated hosts.
const PATIENCE: Duration = Duration::from_secs(120);
/// Of moves of whole slices, of which each has 15 minutes.
const MOVE_PATIENCE: Duration = Duration::from_secs(1200);
/// Bytes that a writer prints with each batch to fill a console.
const TALK: usize = 2000;

/// A round that is about to be run.
pub(crate) struct Chaos<'a> {
    pub(crate) scenario: &'a Scenario<'a>,
    pub(crate) round: Round,
    /// Number of the guest's life, for its records.
    pub(crate) run: u32,
    pub(crate) disks: Disks,
    pub(crate) owner: HostNumber,
    /// Seed of what moves meanwhile, if anything does.
    pub(crate) moves: Option<u64>,
}

impl Chaos<'_> {
    /// Runs it; what was seen, or what is wrong.
    pub(crate) fn run(mut self) -> Result<String> {
        self.make_disks()?;
        let mut options = VmOptions::clone(self.scenario.options);
        let net = net::cmdline();
        options.cmdline = format!("tessera.disks={} {net} {}", self.run, options.cmdline);
        let mut prefix = Vec::new();
        if self.round.harm == Harm::StalledConsole {
            options.cmdline.push_str(&format!(" tessera.talk={TALK}"));
            // What reads the console can be stopped; the shell becomes tessera.
            let words = ["bash", "-c", "exec \"$@\" > >(exec cat)", "bash"];
            prefix = words.map(str::to_owned).to_vec();
        }
        if let Some(ppm) = self.round.harm.ppm() {
            let words = ["--test-tsc-ppm".to_owned(), ppm.to_string()];
            let of = match self.round.victim {
                0 => &mut options.bootstrap,
                _ => &mut options.companion,
            };
            of.extend(words);
        }
        let owner = self.round.owner;
        let devices = [self.disks.devices(self.scenario.lab, owner)?, net::device(owner)];
        options.bootstrap = [devices.concat(), options.bootstrap].concat();
        if owner != 0 {
            let lent = self.disks.lent().into_iter().chain([net::lent()]);
            options.companion.extend(lent.flat_map(|what| ["--lend".to_owned(), what]));
        }
        let scenario = Scenario { options: &options, ..*self.scenario };
        let host = self.scenario.lab.host(self.owner)?;
        let net = NetLoad::start(self.scenario.lab, &host, self.run)?;
        let mut result = self.live(&scenario, &prefix, &net);
        if let Err(error) = result {
            result = Err(self.with_evidence(&scenario, error));
        }
        let undone = self.undo();
        let returned = net.finish();
        let told = result?;
        undone?;
        let echoed = returned?;
        judge_returned(self.round.harm, echoed.returned)?;
        let left = left_processes(&scenario)?;
        ensure!(left.is_empty(), "{}", left.join("; "));
        let said =
            judge_disks(&scenario, u64::from(self.run), (self.owner, &self.disks), &told.0, true)?;
        self.unmake_disks()?;
        Ok(format!("{}; told: {}; echoed: {echoed}; {said}", told.1, told.0))
    }

    /// An error, with where to read what the slices were doing: the VM may still be there.
    fn with_evidence(&self, scenario: &Scenario<'_>, error: anyhow::Error) -> anyhow::Error {
        match evidence::threads(scenario) {
            Ok(files) => {
                let files: Vec<_> = files.iter().map(|path| path.display().to_string()).collect();
                error.context(format!("what each thread waits for is in {}", files.join(" and ")))
            }
            Err(other) => error.context(format!("nothing is known of the threads: {other:#}")),
        }
    }

    /// The VM from its start to its end. Gives what the writers told.
    fn live(
        &self,
        scenario: &Scenario<'_>,
        prefix: &[String],
        net: &NetLoad,
    ) -> Result<(Told, String)> {
        let mut companions = scenario.start_companions()?;
        let companion = companions.pop().context("there is one companion")?;
        if self.round.harm == Harm::ClockRunAway {
            return self.run_away(scenario, &companion);
        }
        let Some(seed) = self.moves else {
            return self.strike(scenario, prefix, &companion, net, &During::default());
        };
        let during = During::default();
        let mut mover = self.mover(scenario, seed);
        let (result, moved) = thread::scope(|scope| {
            let moving = scope.spawn(|| mover.beside(&during));
            let result = self.strike(scenario, prefix, &companion, net, &during);
            during.over.store(true, Ordering::SeqCst);
            (result, moving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let amid = format!("amid {}", mover.moves);
        let (told, said) = match (result, moved) {
            (Ok(good), Ok(())) => good,
            (Ok((_, said)), Err(moved)) => {
                return Err(moved.context(format!("a move failed; {said}")));
            }
            // Which of the two is the cause of the other is not known.
            (Err(error), Err(moved)) => {
                return Err(
                    error.context(format!("{amid}, of which the last one failed: {moved:#}"))
                );
            }
            (Err(error), Ok(())) => return Err(error.context(amid)),
        };
        if mover.moves.times.is_empty() {
            let why = mover.first_error.as_deref().unwrap_or("nothing was tried");
            bail!("{said}; no vCPU was moved: {why}; {amid}");
        }
        Ok((told, format!("{said}; {}", mover.moves)))
    }

    /// Where slice 0 has the devices it coordinates all the time, and slice 1 may be drained. Else vCPUs move, and nothing more.
    fn mover<'b>(&self, scenario: &Scenario<'b>, seed: u64) -> Mover<'b> {
        let mover = Mover::new(scenario, seed).without_rest();
        if self.round.owner == 0 { mover.with_relocations().with_bound(0) } else { mover }
    }

    /// The VM up to the harm, and what comes of it.
    fn strike(
        &self,
        scenario: &Scenario<'_>,
        prefix: &[String],
        companion: &Companion,
        net: &NetLoad,
        during: &During,
    ) -> Result<(Told, String)> {
        let told = self.round.harm != Harm::FullDisk;
        during.healthy.store(true, Ordering::SeqCst);
        let mut vm = Writing::start_through(scenario, prefix, told, self.round.after)?;
        ensure!(!vm.bootstrap.is_over(), "over before the harm: {}", vm.words.join("; "));
        let result = if self.round.harm.is_survived() {
            self.survive(&mut vm, companion, net, during)
        } else {
            self.perish(&mut vm, companion, during)
        };
        // The VM ends here, whatever came of it.
        during.healthy.store(false, Ordering::SeqCst);
        result
    }

    fn survive(
        &self,
        vm: &mut Writing<'_>,
        companion: &Companion,
        net: &NetLoad,
        during: &During,
    ) -> Result<(Told, String)> {
        let before = vm.told()?;
        self.harm(vm, companion)?;
        if self.round.harm == Harm::StalledConsole {
            // Before anybody reads on: the guest must not have waited for that.
            self.get_on(vm, &vm.told()?, net).context("while nobody reads the console")?;
        }
        self.undo()?;
        let said = if self.round.harm == Harm::FullDisk {
            self.hear_of_full_disk(vm)?
        } else {
            self.get_on(vm, &before, net)?;
            "writers and network got on".to_owned()
        };
        if self.moves.is_some() {
            await_move(during)?;
        }
        // What moves now may be given up.
        during.healthy.store(false, Ordering::SeqCst);
        during.over.store(true, Ordering::SeqCst);
        vm.bootstrap.terminate()?;
        let asked = Instant::now();
        ensure!(vm.wait_over(PATIENCE)?, "SIGTERM does not end it: {}", vm.words.join("; "));
        let exit = vm.bootstrap.wait(Duration::ZERO)?;
        judge_stopped("the slice that was asked", exit, &vm.words.join("; "))?;
        let ended = self.companion_end(companion, asked)?;
        judge_stopped("the companion", ended.exit, &ended.said)?;
        let mut problems = Vec::new();
        vm.scenario.read_report(&mut problems)?;
        ensure!(problems.is_empty(), "{}", problems.join("; "));
        Ok((
            vm.told()?,
            format!("{said}, off {:.1} s after SIGTERM", asked.elapsed().as_secs_f64()),
        ))
    }

    fn perish(
        &self,
        vm: &mut Writing<'_>,
        companion: &Companion,
        during: &During,
    ) -> Result<(Told, String)> {
        during.healthy.store(false, Ordering::SeqCst);
        let struck = Instant::now();
        self.harm(vm, companion)?;
        let (victim, survivor) = (self.round.victim, 1 - self.round.victim);
        let both = matches!(self.round.harm, Harm::Cut | Harm::Mute);
        let mut said = Vec::new();
        let mut tell = |slice: usize, ended: &Ended| {
            said.push(format!("slice {slice} ended after {:.1?}: {}", ended.after, ended.said));
        };
        let ended = self.end_of(survivor, vm, companion, struck)?;
        judge_end(&ended, victim, LEASE + END_LIMIT)
            .with_context(|| format!("slice {survivor}"))?;
        tell(survivor, &ended);
        if both {
            // Who is mute hears its peer until that has ended, and then nothing for a lease.
            let lease = if self.round.harm == Harm::Mute { 2 * LEASE } else { LEASE };
            let ended = self.end_of(victim, vm, companion, struck)?;
            judge_end(&ended, survivor, lease + END_LIMIT)
                .with_context(|| format!("slice {victim}"))?;
            tell(victim, &ended);
        }
        if self.round.harm == Harm::Freeze {
            let ended = self.wake(vm, companion)?;
            tell(victim, &ended);
        }
        if survivor == 0 {
            let mut problems = Vec::new();
            self.scenario.read_report(&mut problems)?;
            ensure!(problems.is_empty(), "{}", problems.join("; "));
        }
        Ok((vm.told()?, said.join("; ")))
    }

    /// The clock of slice 1 against the bootstrap's cannot be kept: the VM must say so and end, from the start on.
    fn run_away(&self, scenario: &Scenario<'_>, companion: &Companion) -> Result<(Told, String)> {
        let began = Instant::now();
        let mut vm = Writing::begin(scenario, &[])?;
        ensure!(vm.wait_over(PATIENCE)?, "it goes on: {}", vm.words.join("; "));
        let exit = vm.bootstrap.wait(Duration::ZERO)?;
        let said = vm.words.last().cloned().unwrap_or_default();
        judge_run_away(exit, &said)?;
        let ended = self.companion_end(companion, began)?;
        judge_stopped("the companion", ended.exit, &ended.said)?;
        let mut problems = Vec::new();
        scenario.read_report(&mut problems)?;
        ensure!(problems.is_empty(), "{}", problems.join("; "));
        Ok((vm.told()?, said))
    }

    /// A slice that was frozen until all leases were over goes on: it must end, and no disk may change.
    fn wake(&self, vm: &mut Writing<'_>, companion: &Companion) -> Result<Ended> {
        let before = self.digest()?;
        let woken = Instant::now();
        self.signal(vm, companion, "CONT")?;
        let ended = self.end_of(self.round.victim, vm, companion, woken)?;
        judge_woken(&ended, 1 - self.round.victim, END_LIMIT)
            .context("the slice that was woken")?;
        ensure!(self.digest()? == before, "the slice that was woken has written to a disk");
        Ok(ended)
    }

    /// Waits for the end of a slice.
    fn end_of(
        &self,
        slice: usize,
        vm: &mut Writing<'_>,
        companion: &Companion,
        since: Instant,
    ) -> Result<Ended> {
        if slice != 0 {
            return self.companion_end(companion, since);
        }
        let over = vm.wait_over(PATIENCE)?;
        let after = since.elapsed();
        ensure!(over, "slice 0 does not end: {}", vm.words.join("; "));
        let exit = vm.bootstrap.wait(Duration::ZERO)?;
        Ok(Ended { after, exit, said: vm.words.last().cloned().unwrap_or_default() })
    }

    fn companion_end(&self, companion: &Companion, since: Instant) -> Result<Ended> {
        let exit = companion.wait(PATIENCE);
        let (after, said) = (since.elapsed(), companion.last_words());
        Ok(Ended { after, exit: exit.context(said.clone())?, said })
    }

    /// Waits until both writers have told of more than before, and both vCPUs have echoed more than now.
    fn get_on(&self, vm: &mut Writing<'_>, before: &Told, net: &NetLoad) -> Result<()> {
        let (until, echoed) = (Instant::now() + PATIENCE, net.returned()?);
        loop {
            let now = vm.told()?;
            let more = |(now, before)| now > before;
            let returned = net.returned()?;
            let written = now.records.iter().zip(&before.records).all(more);
            if written && returned.iter().zip(&echoed).all(|(now, before)| now > before) {
                return Ok(());
            }
            ensure!(!vm.bootstrap.is_over(), "the VM ended: {}", vm.words.join("; "));
            ensure!(vm.errors.is_empty(), "{}", vm.errors.join("; "));
            ensure!(
                Instant::now() < until,
                "no more is written, or echoed: {before}, now {now}; {echoed:?}, now {returned:?}; {}; {}",
                vm.words.join("; "),
                vm.network.join("; ")
            );
            vm.listen()?;
        }
    }

    /// Each writer to a full disk is told, and so is the operator.
    fn hear_of_full_disk(&self, vm: &mut Writing<'_>) -> Result<String> {
        let until = Instant::now() + PATIENCE;
        while vm.errors.len() < WRITERS {
            ensure!(!vm.bootstrap.is_over(), "the VM ended: {}", vm.words.join("; "));
            ensure!(Instant::now() < until, "the writers see no error: {:?}", vm.errors);
            vm.listen()?;
        }
        judge_full_disk(&vm.errors, &vm.words)?;
        Ok("both writers had an I/O error, and the log says why".to_owned())
    }
}

/// Waits for something that has begun to move after the harm, and has moved.
fn await_move(during: &During) -> Result<()> {
    let (before, until) = (during.acts.load(Ordering::SeqCst), Instant::now() + MOVE_PATIENCE);
    while during.done.load(Ordering::SeqCst) <= before {
        ensure!(!during.stopped.load(Ordering::SeqCst), "nothing moves any more after the harm");
        ensure!(Instant::now() < until, "nothing has moved since the harm");
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
