//! One state of the model, and what happens in it.

use super::scenario::{Scenario, all_stopped};
use migrate::supervise::{Cause, Effect, Layout, Lives, Plan, Reason, Share, Supervisor, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// What is known of a checkpoint on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct File {
    pub(super) base: Option<u64>,
    /// It is not what was written.
    pub(super) is_damaged: bool,
    /// And that has been found.
    pub(super) is_known: bool,
    /// The machine knows that it is there.
    pub(super) is_told: bool,
    /// How often the VM failed with it before it ran.
    pub(super) failures: u8,
    /// How often the VM ran from it although it was damaged.
    pub(super) bad_lives: u8,
}

/// A process that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pub(super) from: Option<u64>,
    /// It began before all memory was read.
    pub(super) lazy: bool,
    /// It uses no disk, and runs no guest, before.
    pub(super) fenced_at: u64,
    /// Which life it is, if it is told.
    pub(super) lives: Option<Lives>,
    /// The VM was started before.
    pub(super) again: bool,
    pub(super) runs: bool,
    pub(super) halted: bool,
    pub(super) killed: bool,
    pub(super) asked_to_stop: bool,
    /// The checkpoint that it has written last.
    pub(super) last: Option<u64>,
    /// The one that was asked for before this one was not written.
    pub(super) failed: bool,
}

/// One state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub(super) machine: Supervisor,
    pub(super) now: u64,
    pub(super) process: Option<Process>,
    /// Slices of processes that have ended may run until then.
    pub(super) others_until: u64,
    pub(super) files: BTreeMap<u64, File>,
    /// The checkpoint that is being written, and what it is an increment of; whether it is on the disk.
    pub(super) writing: Option<(u64, Option<u64>, bool)>,
    /// Hosts have been asked.
    pub(super) asked: bool,
    pub(super) answering: BTreeSet<u16>,
    /// Starts again since the last checkpoint.
    pub(super) restarts: usize,
    pub(super) begun: bool,
    /// The last process was to go on, and ended before the guest ran.
    pub(super) unlived: bool,
    /// The VM has had a checkpoint that can be gone on from.
    pub(super) had_one: bool,
    /// Somebody, or the guest, has ended it.
    pub(super) unwanted: bool,
    pub(super) over: Option<Reason>,
    pub(super) losses: u8,
    pub(super) writes: u8,
    pub(super) failures: u8,
    pub(super) lates: u8,
    pub(super) damages: u8,
    pub(super) silences: u8,
    pub(super) halts: u8,
    pub(super) takeovers: u8,
    /// The life of the VM that the record beside its disk names.
    pub(super) record: u64,
    /// Of its lives that the machine began, one ran.
    pub(super) has_run: bool,
    /// A user has restored it elsewhere since.
    pub(super) is_elsewhere: bool,
    /// It was gone on with all the same, or taken for one that goes on elsewhere although it does not.
    pub(super) taken_back: bool,
    pub(super) mistaken: bool,
    pub(super) restored: bool,
    pub(super) elsewhere: bool,
    /// It used disks while slices of before could run.
    pub(super) overlapped: bool,
    pub(super) wrong_choice: bool,
    pub(super) wrong_place: bool,
    pub(super) revived: bool,
    /// What was deleted is needed, or is not the machine's.
    pub(super) wrong_deletion: bool,
    /// An increment was asked for of what the process has not written last, or after one that failed.
    pub(super) wrong_base: bool,
    /// A checkpoint is late, and nobody says so, or something else is said.
    pub(super) unsaid: bool,
    plan: Plan,
}

impl World {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let there = |number| (number, File { is_told: true, ..File::default() });
        let given = scenario.given.then_some(0).into_iter();
        let files = given.chain(1..=scenario.former.unwrap_or(0)).map(there).collect();
        let mut world = Self {
            machine: scenario.supervisor(),
            now: 0,
            process: None,
            others_until: scenario.former.map_or(0, |_| all_stopped(0)),
            files,
            writing: None,
            asked: false,
            answering: BTreeSet::new(),
            restarts: 0,
            begun: scenario.former.is_some(),
            unlived: false,
            had_one: scenario.given || scenario.former.is_some_and(|count| count > 0),
            unwanted: false,
            over: None,
            losses: scenario.losses,
            writes: scenario.writes,
            failures: scenario.failures,
            lates: scenario.lates,
            damages: scenario.damages,
            silences: scenario.silences,
            halts: u8::from(scenario.halts),
            takeovers: scenario.takeovers,
            record: 0,
            has_run: scenario.former.is_some(),
            is_elsewhere: false,
            taken_back: false,
            mistaken: false,
            restored: false,
            elsewhere: false,
            overlapped: false,
            wrong_choice: false,
            wrong_place: false,
            revived: false,
            wrong_deletion: false,
            wrong_base: false,
            unsaid: false,
            plan: scenario.plan(),
        };
        let verdict = match scenario.former {
            Some(_) => world.machine.begin_again(0, Some(0)),
            None => world.machine.begin(0),
        };
        world.execute(verdict);
        world
    }

    /// Those that the machine knows of, and that nobody knows to be damaged.
    pub(super) fn usable(&self) -> impl DoubleEndedIterator<Item = (&u64, &File)> {
        self.files.iter().filter(|(_, file)| file.is_told && !file.is_known)
    }

    /// Checkpoints that this one needs, itself among them.
    pub(super) fn chain(&self, number: u64) -> usize {
        let mut count = 0;
        let mut next = Some(number);
        while let Some(file) = next.and_then(|number| self.files.get(&number)) {
            count += 1;
            next = file.base;
        }
        count
    }

    /// Those of which the machine should know.
    fn best(&self) -> Option<u64> {
        let there = |(_, file): &(&u64, &File)| !file.is_known;
        let all = || self.files.iter().filter(there).rev();
        all()
            .find(|(_, file)| file.failures < 2)
            .or_else(|| all().next())
            .map(|(number, _)| *number)
    }

    /// Does what the machine says.
    pub(super) fn execute(&mut self, verdict: Verdict) {
        for effect in verdict {
            match effect {
                Effect::Ask => self.asked = true,
                Effect::Start { from, lazy, fenced_at, lives, layout } => {
                    self.start((from, lazy, fenced_at, lives), &layout);
                }
                Effect::Checkpoint { number, base } => {
                    let process = self.process.as_ref();
                    let last = process.filter(|it| !it.failed).and_then(|it| it.last);
                    self.wrong_base |= base.is_some() && base != last;
                    self.writing = Some((number, base, false));
                }
                Effect::Delete(number) => {
                    let needed =
                        self.files.values().any(|file| file.base == Some(number) && !file.is_known);
                    // Of those that are whole as far as one knows, as many as are wanted are left. What is damaged later is nobody's fault.
                    let whole = self.usable().any(|(other, _)| *other == number);
                    let is_other = |(other, _): &(&u64, &File)| ![0, number].contains(*other);
                    let others = self.usable().filter(is_other).count();
                    let too_few = whole && others < Scenario::KEEP;
                    self.wrong_deletion |= needed || number == 0 || too_few;
                    self.files.remove(&number);
                }
                Effect::Late { number, .. } => {
                    self.unsaid |= self.writing.is_none_or(|(writing, ..)| writing != number);
                }
                Effect::Stop => {
                    if let Some(process) = &mut self.process {
                        process.asked_to_stop = true;
                    }
                }
                Effect::Kill => {
                    if let Some(process) = &mut self.process {
                        process.killed = true;
                    }
                }
                Effect::Over(reason) => self.over = Some(reason),
            }
        }
    }

    fn start(
        &mut self,
        (from, lazy, fenced_at, lives): (Option<u64>, bool, u64, Option<Lives>),
        layout: &Layout,
    ) {
        // One that goes on reads its memory first; one that begins uses its disks at once.
        let uses_disks = from.is_none() && self.now < self.others_until;
        self.overlapped |= self.process.is_some() || uses_disks;
        self.wrong_choice |= from != self.best() || (from.is_none() && self.had_one);
        self.wrong_place |= !self.is_place(layout);
        self.revived |= self.unwanted;
        let again = std::mem::replace(&mut self.begun, true);
        self.restarts += usize::from(again);
        self.elsewhere |= layout.0.iter().any(|place| place.host != place.slice);
        let (runs, halted, killed, asked_to_stop) = (false, false, false, false);
        let (last, failed) = (None, false);
        self.process = Some(Process {
            from,
            lazy,
            fenced_at,
            lives,
            again,
            runs,
            halted,
            killed,
            asked_to_stop,
            last,
            failed,
        });
    }

    /// Whether all of the VM is somewhere, once, on hosts that answer.
    fn is_place(&self, Layout(places): &Layout) -> bool {
        let hosts: BTreeSet<_> = places.iter().map(|place| place.host).collect();
        let all = |of: fn(&Share) -> u64| {
            let planned: u64 = self.plan.slices.iter().map(of).sum();
            planned == places.iter().map(|place| of(&place.share)).sum::<u64>()
        };
        hosts.len() == places.len()
            && places.first().is_some_and(|place| place.host == 0)
            && hosts.iter().all(|host| *host == 0 || self.answering.contains(host))
            && all(|share| share.vcpus.into())
            && all(|share| share.spare_vcpus.into())
            && all(|share| share.memory)
    }

    /// What the process was to read cannot be read.
    pub(super) fn is_from_damaged(&self) -> bool {
        let from = self.process.and_then(|process| process.from);
        from.and_then(|number| self.files.get(&number)).is_some_and(|file| file.is_damaged)
    }

    pub(super) fn pass(&mut self) -> Option<()> {
        self.now = self.now.max(self.machine.due()?);
        let is_late = self.writing.is_some() && !self.is_to_be_killed();
        let verdict = self.machine.passed(self.now);
        if is_late {
            self.lates -= 1;
            self.unsaid |= !matches!(verdict.as_slice(), [Effect::Late { .. }]);
        }
        self.execute(verdict);
        Some(())
    }

    /// Its process stands still, and what is due is its end.
    pub(super) fn is_to_be_killed(&self) -> bool {
        self.process.is_some_and(|process| process.halted && !process.killed)
    }

    pub(super) fn answer(&mut self, answering: BTreeSet<u16>) {
        self.asked = false;
        self.silences -= u8::from(!answering.contains(&1));
        self.answering = answering;
        let verdict = self.machine.answers(self.now, &self.answering);
        self.execute(verdict);
    }

    pub(super) fn run(&mut self) -> Option<()> {
        let life = self.claim()?;
        self.has_run = true;
        let process = self.process.as_mut()?;
        process.runs = true;
        self.now = self.now.max(process.fenced_at);
        self.overlapped |= self.now < self.others_until;
        self.restored |= process.from.is_some();
        if let Some(file) = process.from.and_then(|number| self.files.get_mut(&number)) {
            file.failures = 0;
            file.bad_lives += u8::from(file.is_damaged);
        }
        self.machine.runs(self.now, life);
        Some(())
    }

    /// Whether the record names a life that the machine has not begun, as far as the process can tell.
    pub(super) fn is_overtaken(&self) -> bool {
        let lives = self.process.and_then(|process| process.lives);
        lives.is_some_and(|lives| self.record > lives.last)
    }

    /// The process puts its life into the record, which says that nobody is to stop it.
    fn claim(&mut self) -> Option<u64> {
        let Process { from, lives, .. } = self.process?;
        // Of the first life of another VM nothing is in there yet.
        let after = self.record.checked_add(1)?;
        let life = from.map_or(0, |_| lives.map_or(after, |lives| lives.next));
        self.record = life;
        // A user may take it back by a checkpoint that was given.
        self.taken_back |= self.is_elsewhere && self.has_run;
        self.is_elsewhere = false;
        Some(life)
    }

    /// A user restores the VM elsewhere, perhaps while it runs here. Numbers of such lives are much higher than those of a supervisor.
    pub(super) fn restore_elsewhere(&mut self) {
        self.takeovers -= 1;
        self.record = self.record.max(1000) + 1;
        self.is_elsewhere = true;
    }

    pub(super) fn end(&mut self, cause: Cause, on_panic: bool) -> Option<()> {
        if cause == Cause::Refused {
            // It may have been refused after that.
            self.claim()?;
        }
        let process = self.process.take()?;
        self.mistaken |= cause == Cause::Overtaken && !process.runs && !self.is_elsewhere;
        self.unlived = process.again && !process.runs;
        if matches!(cause, Cause::Refused | Cause::Damaged) && process.again {
            self.restarts = self.restarts.saturating_sub(1);
        }
        let file = process.from.and_then(|number| self.files.get_mut(&number));
        match cause {
            Cause::Lost if !process.runs => {
                file.into_iter().for_each(|file| file.failures += 1);
            }
            Cause::Damaged => file.into_iter().for_each(|file| file.is_known = true),
            _ => {}
        }
        // Before that time it has used no disk.
        let has_used = self.now >= process.fenced_at;
        if has_used && matches!(cause, Cause::Lost | Cause::Panicked | Cause::Overtaken) {
            self.others_until = all_stopped(self.now);
        }
        self.unwanted |= matches!(cause, Cause::Wanted | Cause::Overtaken)
            || (cause == Cause::Panicked && !on_panic);
        let verdict = self.machine.ended(self.now, cause);
        self.execute(verdict);
        Some(())
    }

    /// It is on the disk; nobody has been told yet.
    pub(super) fn write(&mut self) -> Option<()> {
        let (number, base, _) = self.writing?;
        self.writes -= 1;
        self.writing = Some((number, base, true));
        let process = self.process.as_mut()?;
        (process.last, process.failed) = (Some(number), false);
        self.files.insert(number, File { base, ..File::default() });
        self.had_one = true;
        self.restarts = 0;
        Some(())
    }

    /// Whoever asked for a checkpoint is told.
    pub(super) fn tell(&mut self) -> Option<()> {
        let (number, _, is_written) = self.writing.take()?;
        let verdict = match self.files.get_mut(&number).filter(|_| is_written) {
            Some(file) => {
                file.is_told = true;
                let base = file.base;
                self.machine.committed(self.now, number, base)
            }
            None => {
                self.failures -= u8::from(self.process.is_some());
                self.process.iter_mut().for_each(|process| process.failed = true);
                self.machine.not_committed(self.now, number)
            }
        };
        self.execute(verdict);
        Some(())
    }

    pub(super) fn stop(&mut self) {
        self.unwanted = true;
        let verdict = self.machine.stop();
        self.execute(verdict);
    }

    pub(super) fn halt(&mut self, is_halted: bool) -> Option<()> {
        self.halts -= u8::from(is_halted);
        self.process.as_mut()?.halted = is_halted;
        self.machine.halted(self.now, is_halted);
        Some(())
    }
}
