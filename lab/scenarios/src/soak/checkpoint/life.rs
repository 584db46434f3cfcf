//! One life of a VM: it boots or goes on from a checkpoint, is written down at some moment, and ends.
//!
//! ```text
//!   companions, bootstrap ─> runs ─> tessera vm checkpoint ─┬─ the VM ends with it: status 0
//!                              │                            ├─ runs on ─> all are killed
//!                              │                            └─ a slice is killed meanwhile, or kills itself ─> the others end
//!                              └─ the guest powers off before or after
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use lab::{RemoteProcess, Signals};

use super::plan::{Act, Step};
use crate::vm::companion::Companion;
use crate::vm::judge::Outcome;
use crate::vm::output::Output;
use crate::vm::relocate::NOBODY;
use crate::vm::saves::{self, Written};
use crate::vm::scenario::{Scenario, finish};

use std::sync::Arc;

const POLL: Duration = Duration::from_millis(200);
/// From the death of a slice to the end of the others; also from a checkpoint with which the VM ends.
const END_LIMIT: Duration = Duration::from_secs(60);
/// Between two checkpoints of which one is an increment of the other.
const BETWEEN: Duration = Duration::from_millis(500);
/// How a VM says that its guest does not run yet.
const NOT_BEGUN: &str = "has not begun";

/// How a life ended.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) outcome: Outcome,
    /// Those that were written before.
    pub(super) before: Vec<Written>,
    /// What was said of the checkpoint; none if the guest powered off before.
    pub(super) said: Option<Result<Written, String>>,
    pub(super) problems: Vec<String>,
}

/// What the thread that acts has of the VM.
struct Actor<'a> {
    scenario: &'a Scenario<'a>,
    name: &'a str,
    companions: &'a [Companion],
    bootstrap: Signals,
    over: &'a AtomicBool,
}

/// Runs a VM to its end; `step` is what is done with it, under this name.
pub(super) fn live(
    scenario: &Scenario<'_>,
    output: &Arc<Output>,
    (name, step): (&str, Option<Step>),
) -> Result<Life> {
    let companions = scenario.start_companions_heard_by(output)?;
    let bootstrap: RemoteProcess = scenario.start_bootstrap()?;
    let over = AtomicBool::new(false);
    let actor = Actor {
        scenario,
        name,
        companions: &companions,
        bootstrap: bootstrap.handle(),
        over: &over,
    };
    let (outcome, acted) = thread::scope(|scope| {
        let acting = scope.spawn(move || match step {
            Some(step) => actor.act(step),
            None => Ok(Acted::default()),
        });
        let outcome = scenario.follow(bootstrap, (&companions, output), &mut |_| {});
        over.store(true, Ordering::SeqCst);
        (outcome, acting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let (outcome, Acted { before, said, mut problems }) = (outcome?, acted?);
    let well = outcome.exit.as_ref().is_ok_and(|exit| exit.success());
    finish(companions, well, &mut problems);
    if !well {
        output.killed();
    }
    Ok(Life { outcome, before, said, problems })
}

/// What has been done with a VM.
#[derive(Default)]
struct Acted {
    before: Vec<Written>,
    said: Option<Result<Written, String>>,
    problems: Vec<String>,
}

/// The name of a checkpoint before another one.
pub(super) fn name_before(name: &str, number: usize) -> String {
    format!("{name}.{number}")
}

impl Actor<'_> {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst) || self.scenario.interrupted.is_set()
    }

    /// Sleeps, but not longer than the VM runs; whether it still does.
    fn sleep(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while !self.is_over() && Instant::now() < until {
            thread::sleep(POLL.min(until - Instant::now()));
        }
        !self.is_over()
    }

    fn act(&self, step: Step) -> Result<Acted> {
        while self.scenario.places().is_err() {
            if !self.sleep(POLL) {
                return Ok(Acted::default());
            }
        }
        let mut acted = Acted::default();
        if !self.sleep(step.wait) || !self.write_before(step, &mut acted)? {
            return Ok(acted);
        }
        let Acted { before, mut problems, .. } = acted;
        let said = match step.act {
            Act::Kill { slice, after } => {
                let said = thread::scope(|scope| {
                    scope.spawn(move || {
                        thread::sleep(after);
                        self.kill(slice);
                    });
                    self.scenario.checkpoint(self.name, &options(step, step.before > 0))
                })?;
                if self.sleep(END_LIMIT) {
                    problems.push(format!("the VM does not end without slice{slice}"));
                    self.kill_all();
                }
                return Ok(Acted { before, said: Some(said), problems });
            }
            Act::KillAt { .. } => {
                Some(self.scenario.checkpoint(self.name, &options(step, step.before > 0))?)
            }
            Act::End | Act::RunOn(_) => self.write(self.name, &options(step, step.before > 0))?,
        };
        match (&said, step.act) {
            (None, _) => {}
            (Some(Err(_)), Act::KillAt { point, .. }) => {
                if self.sleep(END_LIMIT) {
                    problems.push(format!("the VM does not end with a slice killed at {point}"));
                    self.kill_all();
                }
            }
            // A slice without contents writes no chunk.
            (Some(Ok(_)), Act::KillAt { .. }) => self.kill_all(),
            (Some(Err(why)), _) => {
                // A guest that has just powered off has none.
                if self.sleep(END_LIMIT / 4) {
                    problems.push(format!("no checkpoint: {why}"));
                    self.kill_all();
                }
            }
            (Some(Ok(_)), Act::RunOn(time)) => {
                if self.sleep(time) {
                    self.kill_all();
                }
            }
            (Some(Ok(_)), _) => {
                if self.sleep(END_LIMIT) {
                    problems.push("the VM does not end with its checkpoint".to_owned());
                    self.kill_all();
                }
            }
        }
        Ok(Acted { before, said, problems })
    }

    /// Writes the checkpoints before the one that counts. False if the VM ends meanwhile.
    fn write_before(&self, step: Step, acted: &mut Acted) -> Result<bool> {
        for number in 0..usize::try_from(step.before)? {
            let step = Step { act: Act::RunOn(Duration::ZERO), ..step };
            let name = name_before(self.name, number);
            match self.write(&name, &options(step, number > 0))? {
                Some(Ok(written)) => acted.before.push(written),
                Some(Err(why)) => {
                    if self.sleep(END_LIMIT / 4) {
                        acted.problems.push(format!("no checkpoint before: {why}"));
                        self.kill_all();
                    }
                    return Ok(false);
                }
                None => return Ok(false),
            }
            if !self.sleep(BETWEEN) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Has a checkpoint written, once the guest runs.
    fn write(&self, name: &str, options: &[&str]) -> Result<Option<Result<Written, String>>> {
        while !self.is_over() {
            match self.scenario.checkpoint(name, options)? {
                Err(why) if why.contains(NOT_BEGUN) || why.contains(NOBODY) => {
                    self.sleep(POLL);
                }
                said => return Ok(Some(said)),
            }
        }
        Ok(None)
    }

    /// What is dead already needs no signal.
    fn kill(&self, slice: usize) {
        match slice.checked_sub(1) {
            None => drop(self.bootstrap.kill()),
            Some(companion) => drop(self.companions.get(companion).map(Companion::kill)),
        }
    }

    fn kill_all(&self) {
        (0..=self.companions.len()).for_each(|slice| self.kill(slice));
    }
}

fn options(step: Step, incremental: bool) -> Vec<&'static str> {
    let mut options = Vec::new();
    if incremental {
        options.push("--incremental");
    }
    if step.stop {
        options.push("--stop");
    }
    if step.compressed {
        options.push("--compress");
    }
    if step.act == Act::End {
        options.push("--end");
    }
    options
}

/// Whether a checkpoint can be gone on from; one without a manifest must be refused.
pub(super) fn is_whole(scenario: &Scenario<'_>, name: &str) -> Result<bool> {
    if saves::is_whole(scenario.lab, name)? {
        return Ok(true);
    }
    if saves::is_begun(scenario.lab, name)? {
        let said = scenario.refuses(name)?;
        scenario.progress.say(&format!("half-written, and refused: {said}"));
    }
    Ok(false)
}
