//! What all benches do alike: hosts that others may look into, every mode in turn, medians of rounds, and one end.
//!
//! ```text
//!   Rig::new ─> hosts up ─> Rig::on ┬─ round 0: A B C ─┐
//!                                   ├─ round 1: B C A ─┤─> Figures ─> rows, ratios, bars ─> tell: table, JSON, picture
//!                                   └─ round 2: C A B ─┘
//! ```
//! Hosts share one machine with everything else, so a figure of one round says little. What is compared is measured in
//! the same round, and its ratio is taken for each round.

mod calibration;
mod counted;
mod counters;
mod figures;
mod marks;
mod options;
mod turns;
mod web_server;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, ensure};
use lab::Lab;
use outcome::Outcome;

use crate::interrupt::Interrupted;
use crate::progress::Progress;
use crate::vm::VmOptions;
use crate::vm::attend::Attendant;
use crate::vm::joined::Joined;
use crate::vm::layout::Layout;
use crate::vm::prepare::Prepared;
use crate::vm::scenario::Scenario;
use crate::workspace;

pub(crate) use calibration::{Calibration, TASK_SECONDS, load_seconds, waits};
pub(crate) use counted::Counters;
pub(crate) use counters::counters;
pub(crate) use figures::{Figures, count, median};
pub(crate) use marks::{Marks, take_mark};
pub(crate) use options::{LAYOUT, vm_options};
pub(crate) use turns::order;
pub(crate) use web_server::web_server;

/// What a bench has from its start to its end.
#[derive(Clone, Debug)]
pub(crate) struct Rig {
    pub(crate) progress: Arc<Progress>,
    pub(crate) interrupted: Interrupted,
}

impl Rig {
    /// Takes over ctrl-c.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { progress: Arc::new(Progress::new()), interrupted: Interrupted::listen()? })
    }

    pub(crate) fn say(&self, line: &str) {
        self.progress.say(line);
    }

    /// Fails when somebody wants the end.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(!self.interrupted.is_set(), "interrupted");
        Ok(())
    }

    /// Does something with hosts, into which others may look meanwhile. They are gone afterwards.
    pub(crate) fn on<T>(&self, lab: Lab, work: impl FnOnce(&Lab) -> T) -> T {
        let lab = Arc::new(lab);
        let attendant = Attendant::of(&lab, &self.interrupted);
        let found = work(&lab);
        attendant.end();
        found
    }

    /// A VM that nobody joins, whose hosts are quiet.
    pub(crate) fn scenario<'a>(
        &'a self,
        options: &'a VmOptions,
        layout: &'a Layout,
        prepared: &'a Prepared,
        lab: &'a Lab,
    ) -> Scenario<'a> {
        Scenario {
            options,
            layout,
            prepared,
            lab,
            interrupts: None,
            progress: &self.progress,
            interrupted: &self.interrupted,
            loud: false,
            joined: Joined::nobody(),
        }
    }

    /// All modes in each of so many rounds, each round in another order, until one fails.
    pub(crate) fn turns<M: Copy>(
        &self,
        rounds: usize,
        modes: &[M],
        turn: &mut dyn FnMut(usize, M) -> Result<()>,
    ) -> Result<()> {
        for round in 0..rounds {
            for mode in order(modes, round) {
                self.check()?;
                turn(round, mode)?;
            }
        }
        Ok(())
    }
}

/// Prints what was found, also before a failure, and writes it if there was none. `problems` make the end a bad one.
pub(crate) fn tell(outcome: &Outcome, problems: &[String], end: Result<()>) -> Result<ExitCode> {
    print!("\n{}", outcome.table());
    end?;
    for problem in problems {
        println!("problem: {problem}");
    }
    let path = outcome.write(&workspace::target(&workspace::root()?).join("bench"))?;
    println!("written: {} and beside it", path.display());
    let good = problems.is_empty() && outcome.holds();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
